// Finds a coordinator on the local network by multicast DNS (DNS-SD service _asteroid._tcp). The address found is only
// a hint: keys decide who answers there (security/). Multicast is often blocked, so an address always works too.

import type { Socket } from 'node:dgram';
import type { EventEmitter } from 'node:events';
import { InputError, RunError } from '../../errors.ts';
import { ownAddresses } from './addresses.ts';

/** An announcement on the network. */
export interface Announcement {
  stop(): Promise<void>;
}

/** A coordinator, or the announcement by which `asteroid doctor` tests multicast: nobody should call there. */
type ServiceType = 'asteroid' | 'asteroid-check';
const maxInterfaces = 8;
const goodbyeMs = 500;

type Bonjour = InstanceType<typeof import('bonjour-service')['Bonjour']>;

/**
 * Sends and receives on the interface with this address. Its errors are the network's (no multicast there), and go to
 * `onError`.
 */
export async function speaker(address: string, onError: (error: Error) => void, socket?: Socket): Promise<Bonjour> {
  const { Bonjour } = (await import('bonjour-service')).default;
  // Bound to an interface's own address a socket would hear no multicast.
  const bonjour = new Bonjour({ interface: address, bind: '0.0.0.0', ...(socket && { socket }) } as never, onError);
  // The package does not listen there itself: without this, a port that another program has to itself would end the
  // process.
  (bonjour as unknown as { readonly server: { readonly mdns: EventEmitter } }).server.mdns.on('error', onError);
  return bonjour;
}

/** Calls `onUrl` for each announced service of this type, with what tells it apart from others. */
export function listenFor(bonjour: Bonjour, type: ServiceType, onUrl: (url: string, id: string) => void): void {
  bonjour.find({ type }, ({ txt }: { readonly txt?: Readonly<Record<string, unknown>> }) => {
    const [url, id] = [txt?.['url'], txt?.['id']];
    if (typeof url !== 'string' || url.length > 300 || !/^wss?:\/\/[\w.:[\]-]+$/.test(url)) return;
    onUrl(url, typeof id === 'string' && id.length <= 64 ? id : url);
  });
}

/** Announces, on the interface with the address `host`, that a coordinator waits at `url`. */
export async function announce(options: {
  readonly host: string;
  readonly port: number;
  readonly url: string;
  /** The same for all announcements of one coordinator, which may have several addresses. Default: `url`. */
  readonly id?: string;
  /** Default: a coordinator. */
  readonly type?: ServiceType;
  onError(message: string): void;
}): Promise<Announcement> {
  const { host, port, url, id = url, type = 'asteroid', onError } = options;
  let failed = false;
  const bonjour = await speaker(host, (error) => {
    if (!failed) onError(error.message);
    failed = true;
  });
  bonjour.publish({
    name: `${type} ${host}:${port}`,
    type,
    port,
    txt: { url, id, v: '1' },
    probe: false,
    disableIPv6: true,
  });
  return {
    async stop() {
      await new Promise<void>((resolve) => {
        setTimeout(resolve, goodbyeMs).unref();
        bonjour.unpublishAll(() => resolve());
      });
      bonjour.destroy();
    },
  };
}

/**
 * Addresses of coordinators that answer on any interface of this machine within `timeoutMs`, and no later than
 * `settleMs` after the first answer; of one that has several, the one that was heard first.
 */
export async function discover(options: {
  readonly timeoutMs: number;
  readonly settleMs?: number;
  readonly signal?: AbortSignal;
  /** Addresses of the interfaces to use. Default: all of this machine's. */
  readonly interfaces?: readonly string[];
  /** Default: coordinators. */
  readonly type?: ServiceType;
}): Promise<readonly string[]> {
  const { timeoutMs, settleMs = 300, signal, interfaces = ownAddresses(), type = 'asteroid' } = options;
  const found = new Map<string, string>();
  // silence is an answer too
  const speakers = await Promise.all(interfaces.slice(0, maxInterfaces).map((address) => speaker(address, () => {})));
  try {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, timeoutMs);
      signal?.addEventListener('abort', () => resolve(), { once: true });
      for (const bonjour of speakers) {
        listenFor(bonjour, type, (url, id) => {
          if (!found.has(id)) found.set(id, url);
          clearTimeout(timer);
          setTimeout(resolve, settleMs);
        });
      }
    });
  } finally {
    for (const bonjour of speakers) bonjour.destroy();
  }
  return [...found.values()].sort();
}

/** The one coordinator on the local network. Throws RunError if none answers, InputError if several do. */
export async function findCoordinator(
  timeoutMs: number,
  signal: AbortSignal,
  interfaces?: readonly string[],
): Promise<string> {
  const urls = await discover({ timeoutMs, signal, ...(interfaces && { interfaces }) });
  const [url] = urls;
  if (url === undefined) {
    throw new RunError(
      'No coordinator answers on this network (multicast may be blocked): ' +
        'give --join with the address that asteroid train printed.',
    );
  }
  if (urls.length > 1) throw new InputError(`Several coordinators answer, ${urls.join(', ')}: choose one with --join.`);
  return url;
}
