// A coordinator's server: where it listens and what others dial to reach it, its announcement on the networks, who is
// let in, and the relay between workers that do not reach each other.

import { randomBytes } from 'node:crypto';
import { isIP } from 'node:net';
import type { Refused } from '../../transport/handshake.ts';
import { type Accepted, type Guests, type LinkServer, listen } from '../../transport/node/websocket-server.ts';
import type { Coordinator } from '../coordinator/coordinator.ts';
import { factsSchema } from '../protocol/device-facts.ts';
import type { Observer } from '../protocol/events.ts';
import type { ClusterOptions } from '../run/session.ts';
import {
  type AdvertisedAddress,
  dialledAt,
  isThisMachine,
  isWildcard,
  ownAddresses,
  parseAdvertised,
} from './addresses.ts';
import { type Announcement, announce } from './discovery.ts';
import { Relay } from './relay.ts';
import { coordinatorName, type Door } from './security/admission.ts';
import { Pages } from './security/pages.ts';

/** Networks on which a coordinator announces itself, at most. */
const maxAnnouncements = 8;

/** A coordinator's server, and what others dial: by address of this machine that is listened on. */
export interface WorkerServer {
  readonly server: LinkServer;
  readonly urls: ReadonlyMap<string, string>;
}

/** Listens for workers. Throws InputError when the address cannot be listened on. */
export async function serveWorkers({
  coordinator,
  door,
  peerToken,
  observe,
  guests,
  cluster: { host, port, clock, advertise },
}: {
  readonly coordinator: Coordinator;
  readonly door: Door;
  /** The secret by which the run's workers know each other. */
  readonly peerToken: string;
  readonly observe: Observer;
  /** Browsers; absent: they are refused. */
  readonly guests?: Guests;
  readonly cluster: Pick<ClusterOptions, 'host' | 'port' | 'clock' | 'advertise'>;
}): Promise<WorkerServer> {
  const advertised = advertise === undefined ? undefined : parseAdvertised(advertise);
  const relay = new Relay({
    clock,
    token: peerToken,
    ask: (device, from, ticket) => coordinator.ask(device, from, ticket),
    onJoined: (from, to) => observe({ kind: 'relayed', between: [from, to] }),
  });
  const pages = new Pages(door);
  const server = await listen({
    host,
    port,
    ...(advertised === undefined ? {} : { allowedHosts: [advertised.host] }),
    name: coordinatorName,
    clock,
    ...(door.tls && { tls: door.tls }),
    ...(guests && { guests }),
    async authenticate(hello, address, certificate, isPage = false) {
      const refusal = !isPage && hello.purpose === 'relay' ? relay.refusal(hello) : undefined;
      const admit = (): Promise<Accepted | Refused> =>
        isPage ? pages.admit(hello) : door.admit(hello, certificate, address);
      const verdict = refusal ?? (await admit());
      if (verdict.kind === 'refused' || hello.purpose !== 'worker') return verdict;
      // Where this device is seen to be, it cannot know by itself.
      if (factsSchema.safeParse(hello.facts).success) return { ...verdict, facts: { ...verdict.facts, address } };
      const what = 'did not describe itself as this version expects: use the same version on both';
      const reason = `the worker ${address} ${what}`;
      return { kind: 'refused', reason, retry: false };
    },
    onLink(link, hello) {
      if (hello.purpose === 'enrol') return; // the device has its certificate, and calls again with it
      coordinator.join(link.peer, link, factsSchema.parse(hello.facts));
    },
    onStream: (stream, name, hello) => relay.take(stream, name, hello),
  });
  return { server, urls: urlsOf(server, advertised) };
}

/** By address of this machine that is listened on, what others on its network dial: what is advertised, if anything. */
function urlsOf(server: LinkServer, advertised: AdvertisedAddress | undefined): ReadonlyMap<string, string> {
  const own = isWildcard(server.host) ? ownAddresses() : [];
  const hosts = own.length > 0 ? own : [dialledAt(server.host)];
  const urlOf = (host: string): string =>
    advertised === undefined ? server.urlAt(host) : server.urlAt(advertised.host, advertised.port);
  return new Map(hosts.map((host) => [host, urlOf(host)]));
}

/** Announces a server on its networks. Where multicast does not work, the printed address does. */
export async function announceServer(
  port: number,
  urls: ReadonlyMap<string, string>,
  observe: Observer,
): Promise<Announcement> {
  const onError = (message: string): void =>
    observe({ kind: 'warning', message: `Workers do not find this run by themselves (${message}): give them --join.` });
  const id = randomBytes(8).toString('hex');
  const reachable = [...urls].filter(([host]) => isIP(host) === 4 && !isThisMachine(host)).slice(0, maxAnnouncements);
  const made = await Promise.all(reachable.map(([host, url]) => announce({ host, port, url, id, onError })));
  return {
    async stop() {
      await Promise.all(made.map((announcement) => announcement.stop()));
    },
  };
}
