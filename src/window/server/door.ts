// Who may look through the window: decisions about HTTP requests, without sockets. A browser shows a token once, which
// it has from the fragment of a link, and gets a session in a cookie that scripts cannot read; everything else needs
// the session. A request must be meant for the address at which it arrived, under that very name, and come from a page
// of this server: names of DNS that lead here are refused, as are pages of other servers.

import { createHash, randomBytes } from 'node:crypto';
import type { Clock } from '../../clock.ts';
import { createFailureLimiter, plainAddress } from '../../transport/admission.ts';

/** What a request shows. */
export interface Shown {
  readonly host: string | undefined;
  readonly origin: string | undefined;
  readonly cookie: string | undefined;
  /** `Sec-Fetch-Site`, which browsers send and pages cannot set. */
  readonly site: string | undefined;
  /** Of the connection. */
  readonly remoteAddress: string | undefined;
  readonly localAddress: string | undefined;
  readonly localPort: number | undefined;
}

/** A refusal: an HTTP status, and a sentence that holds nothing secret. */
export interface Refusal {
  readonly status: 400 | 401 | 403 | 429;
  readonly reason: string;
}

export interface WindowDoorOptions {
  readonly clock: Clock;
  readonly isEncrypted: boolean;
  /** What leads here from elsewhere, such as through a router; on this server's port unless it says another. */
  readonly advertised?: { readonly host: string; readonly port?: number };
}

/** Links that were given out and not used, and sessions, at most: the oldest go. */
const [mostTokens, mostSessions] = [64, 256] as const;
const secretBytes = 24;

export class WindowDoor {
  readonly #options: WindowDoorOptions;
  /** Hashes: comparing them tells nothing of the secrets. */
  readonly #tokens = new Set<string>();
  readonly #sessions = new Set<string>();
  readonly #limiter: ReturnType<typeof createFailureLimiter>;

  constructor(options: WindowDoorOptions) {
    this.#options = options;
    this.#limiter = createFailureLimiter({ clock: options.clock, burstCount: 10, regainMs: 6_000 });
  }

  /** A new token, which lets one browser in. */
  mint(): string {
    return addSecret(this.#tokens, mostTokens);
  }

  /** The refusal of a request for another server than this one, or from somebody who has failed too often. */
  refusal(shown: Shown): Refusal | undefined {
    const { host = '', localPort, localAddress, remoteAddress } = shown;
    if (!this.#limiter.allows(plainAddress(remoteAddress ?? '')))
      return { status: 429, reason: 'too many wrong links: try again in a minute' };
    const { advertised, isEncrypted } = this.#options;
    const places = [
      { host: plainAddress(localAddress ?? '') },
      { host: 'localhost' },
      ...(advertised ? [advertised] : []),
    ];
    const names = places.map((place) => authority(place, localPort ?? 0, isEncrypted).toLowerCase());
    return names.includes(host.toLowerCase())
      ? undefined
      : { status: 403, reason: 'this server does not go by that name: use the address that was printed' };
  }

  /** The refusal of a request that a page of another server may have made. */
  foreignRefusal({ host = '', origin, site = 'same-origin' }: Shown): Refusal | undefined {
    const own = `${this.#options.isEncrypted ? 'https' : 'http'}://${host}`.toLowerCase();
    return origin?.toLowerCase() === own && site === 'same-origin'
      ? undefined
      : { status: 403, reason: 'pages of other servers have no business here' };
  }

  /** Takes a token for a session: the cookie to set, or a refusal. */
  exchange(token: string, { remoteAddress, localPort }: Shown): { readonly cookie: string } | Refusal {
    if (!this.#tokens.delete(hashOf(token))) {
      this.#limiter.failed(plainAddress(remoteAddress ?? ''));
      return { status: 401, reason: 'this link has been used, or never was one: ask for another' };
    }
    const session = addSecret(this.#sessions, mostSessions);
    const secure = this.#options.isEncrypted ? '; Secure' : '';
    return { cookie: `${this.#cookieName(localPort)}=${session}; Path=/; HttpOnly; SameSite=Strict${secure}` };
  }

  /** Whether a request shows a session. */
  hasSession({ cookie = '', localPort }: Shown): boolean {
    const name = this.#cookieName(localPort);
    for (const part of cookie.split(';').slice(0, 64)) {
      const [key, value] = part.trim().split('=', 2);
      if (key === name && value !== undefined && this.#sessions.has(hashOf(value))) return true;
    }
    return false;
  }

  /** Browsers keep cookies by host, not by port: several runs on one machine tell theirs apart by name. */
  #cookieName(port: number | undefined): string {
    return `${this.#options.isEncrypted ? '__Host-' : ''}asteroid-${port ?? 0}`;
  }
}

/** What browsers write in Host: without a port that goes without saying. */
function authority(
  place: { readonly host: string; readonly port?: number },
  ownPort: number,
  isEncrypted: boolean,
): string {
  const { host, port = ownPort } = place;
  const name = host.includes(':') ? `[${host}]` : host;
  return port === (isEncrypted ? 443 : 80) ? name : `${name}:${port}`;
}

/** A new secret, of which the set gets the hash. */
function addSecret(hashes: Set<string>, most: number): string {
  const secret = randomBytes(secretBytes).toString('base64url');
  hashes.add(hashOf(secret));
  const [oldest] = hashes;
  if (hashes.size > most && oldest !== undefined) hashes.delete(oldest);
  return secret;
}

function hashOf(secret: string): string {
  return createHash('sha256').update(secret.slice(0, 200)).digest('base64');
}
