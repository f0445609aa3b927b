// A coordinator's server and devices that come to it, without a run: who meets whom over the relay, and how.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { systemClock } from '../clock.ts';
import type { Coordinator } from '../runtime/coordinator/coordinator.ts';
import { serveWorkers } from '../runtime/host/coordinator-server.ts';
import { createPeerNetwork } from '../runtime/host/network.ts';
import { openDoor } from '../runtime/host/security/admission.ts';
import { type Admission, enrol } from '../runtime/host/security/enrolment.ts';
import type { PeerNetwork } from '../runtime/worker/peers.ts';
import type { Link } from '../transport/link.ts';
import type { Guests } from '../transport/node/websocket-server.ts';

/** A device. */
export interface Member {
  readonly network: PeerNetwork;
  /** Those that others have made to it. */
  readonly links: Link[];
  /** Of workers in clusters with encryption. */
  readonly admission?: Admission | undefined;
}

/** The secret by which the cluster's devices know each other. */
export const peerToken = 'the-token-of-this-run';
/** Nothing listens there. */
const nowhere = { host: '127.0.0.1', port: 9 } as const;

/** Keys and certificates of the clusters of this process. */
let folder: Promise<string> | undefined;

async function ownFolder(): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'asteroid-relayed-'));
  after(() => rm(path, { recursive: true, force: true }));
  return path;
}

export interface RelayedCluster {
  readonly server: Awaited<ReturnType<typeof serveWorkers>>['server'];
  readonly door: Awaited<ReturnType<typeof openDoor>>;
  /** By name, also those that a test has added itself. */
  readonly members: Map<string, Member>;
  /** The pairs that the relay has joined. */
  readonly relayed: unknown[];
  /** Links of devices that have joined the run, as the coordinator has them. */
  readonly joined: Link[];
  /** A worker of Node comes; the others reach it, or they do not. */
  enter(name: string, isReached: boolean): Promise<Member>;
}

/** What is to be done when a test is over, also when it has failed: what stays open keeps the process alive. */
export interface Cleanup {
  after(close: () => Promise<void>): void;
}

/** Starts a server whose links are encrypted or plain, until the test is over. */
export async function relayedCluster(
  cleanup: Cleanup,
  { isEncrypted, guests }: { readonly isEncrypted: boolean; readonly guests?: Guests },
): Promise<RelayedCluster> {
  folder ??= ownFolder();
  const members = new Map<string, Member>();
  const [relayed, joined]: [unknown[], Link[]] = [[], []];
  const coordinator: Pick<Coordinator, 'ask' | 'join'> = {
    join: (_name, link) => void joined.push(link),
    ask(device, from, ticket) {
      const [called, caller] = [members.get(device), members.get(from)];
      if (called === undefined || caller === undefined) return false;
      called.network.called?.({ name: from, url: caller.network.url }, ticket);
      return true;
    },
  };
  const place = { host: '127.0.0.1', port: 0, clock: systemClock, insecure: false, folder: await folder };
  const reached = isEncrypted ? { ...place, advertise: '192.0.2.1' } : place;
  const door = await openDoor(reached);
  const { server } = await serveWorkers({
    ...{ coordinator: coordinator as Coordinator, door, peerToken, cluster: reached },
    observe: (event) => event.kind === 'relayed' && relayed.push(event.between),
    ...(guests && { guests }),
  });
  const opened: PeerNetwork[] = [];
  const enter = async (name: string, isReached: boolean): Promise<Member> => {
    const admission = isEncrypted
      ? await enrol({ url: server.url, name, joinCode: async () => door.joinCode })
      : undefined;
    const links: Link[] = [];
    const network = await createPeerNetwork({
      ...{ name, host: '127.0.0.1', token: peerToken, onLink: (link: Link) => links.push(link) },
      ...(isReached ? {} : { advertised: nowhere }),
      relay: { url: server.url, ...(admission && { tls: admission.tls }) },
      ...(admission && { identity: admission.identity }),
    });
    const member = { network, links, admission };
    members.set(name, member);
    opened.push(network);
    return member;
  };
  cleanup.after(async () => {
    await Promise.all(opened.map((network) => network.close()));
    await server.close('over');
  });
  return { server, door, members, relayed, joined, enter };
}
