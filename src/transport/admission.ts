// Who may try to connect: names under which this server may be called (against DNS rebinding), no browsers, few
// failures per address, few connections that have not yet shown a credential. Decisions only; the sockets are
// node/websocket-server.ts's.

import type { Clock } from '../clock.ts';

const maxAddresses = 1024;

/** An IPv4 address that came in over IPv6, as IPv4. */
export function plainAddress(address: string): string {
  return address.startsWith('::ffff:') ? address.slice(7) : address;
}

/** True for the addresses of this machine itself. */
export function isLoopback(address: string): boolean {
  const plain = plainAddress(address);
  return plain === '::1' || /^127(\.\d{1,3}){3}$/.test(plain);
}

/** The host name in a Host header, in lower case, without port and brackets; undefined when there is none. */
export function hostName(header: string | undefined): string | undefined {
  return /^(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d{1,5})?$/i
    .exec(header ?? '')
    ?.slice(1)
    .find((match) => match !== undefined)
    ?.toLowerCase();
}

/** What an HTTP request to upgrade shows. */
export interface UpgradeRequest {
  readonly host: string | undefined;
  readonly origin: string | undefined;
}

/** An HTTP status and the sentence with it. */
export interface Rejection {
  readonly status: 403 | 426 | 429;
  readonly reason: string;
}

/**
 * Judges a request to upgrade. `allowedHosts` are host names in lower case. Any address will do, for behind a router or
 * in a container a server does not know its own: who rebinds a name of DNS to this server can only make others ask for
 * that name.
 */
export function judgeUpgrade(request: UpgradeRequest, allowedHosts: ReadonlySet<string>): Rejection | undefined {
  if (request.origin !== undefined) return { status: 403, reason: 'browsers cannot connect to this server' };
  const host = hostName(request.host);
  if (host === undefined || !(allowedHosts.has(host) || isAddress(host)))
    return { status: 403, reason: 'this server does not go by that host name: use its address' };
  return undefined;
}

/** True for an IPv4 or IPv6 address, as `hostName` gives them: no name of DNS ends with a number or has a colon. */
function isAddress(host: string): boolean {
  return host.includes(':') || /^\d{1,3}(\.\d{1,3}){3}$/.test(host);
}

/** Counts failures by address: each address has a small budget that grows back. */
export interface FailureLimiter {
  /** Whether this address may try. */
  allows(address: string): boolean;
  /** Notes a wrong credential. */
  failed(address: string): void;
}

/** An address may fail `burstCount` times, and once more every `regainMs`. At most 1024 addresses are remembered. */
export function createFailureLimiter(options: {
  readonly clock: Clock;
  readonly burstCount: number;
  readonly regainMs: number;
}): FailureLimiter {
  const { clock, burstCount, regainMs } = options;
  const failures = new Map<string, { count: number; atMs: number }>();
  const countOf = (address: string): number => {
    const entry = failures.get(address);
    return entry === undefined ? 0 : Math.max(0, entry.count - (clock.now() - entry.atMs) / regainMs);
  };
  return {
    allows: (address) => countOf(address) <= burstCount - 1,
    failed(address) {
      const count = countOf(address) + 1;
      failures.delete(address);
      failures.set(address, { count, atMs: clock.now() });
      const [oldest] = failures.keys();
      if (failures.size > maxAddresses && oldest !== undefined) failures.delete(oldest);
    },
  };
}
