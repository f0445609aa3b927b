// The coordinator's relay: a way between two workers of which neither reaches the other. The one that calls opens a
// stream to the coordinator and waits; the other is asked, over its link to the coordinator, to call back, and if that
// fails too, opens a stream of its own; then bytes pass from one to the other. Over TLS they are those of a TLS session
// between the two workers, with their certificates: the relay can neither read nor change them.
//
//   a ── I want b ──▶ relay ── call a (ticket) ──▶ b ── tries a's address ─▶ a      (then a lets go of its stream)
//   a ═══════════════ relay ═══════════════════════ b                               (else)

import { randomBytes } from 'node:crypto';
import type { Duplex } from 'node:stream';
import { z } from 'zod';
import type { Clock } from '../../clock.ts';
import type { Hello, Refused } from '../../transport/handshake.ts';
import { sameSecret } from '../../transport/node/join-code.ts';
import { joinStreams } from '../../transport/node/websocket-stream.ts';

/** How long a caller waits for the other: for its attempt to call back, and its own stream. */
const waitMs = 15_000;
/** Wishes of one device that wait at once, at most. */
const maxWishes = 64;

const name = z.string().min(1).max(300);

type Wanted = { readonly to: string } | { readonly ticket: string };

/** What a caller wants: a peer, or the one that waits with this ticket. */
export const wishSchema: z.ZodType<Wanted> = z.union([
  z.strictObject({ to: name }),
  z.strictObject({ ticket: z.string().min(16).max(64) }),
]);

export interface RelayOptions {
  readonly clock: Clock;
  /** The secret by which a run's workers know each other. */
  readonly token: string;
  /** Asks a device to call another; false where either is not there. */
  ask(device: string, from: string, ticket: string): boolean;
  /** Bytes begin to pass between these two. */
  onJoined(from: string, to: string): void;
}

/** A caller that waits. */
interface Wish {
  readonly from: string;
  readonly to: string;
  readonly stream: Duplex;
  /** Ends the wait. */
  readonly cancel: () => void;
}

export class Relay {
  readonly #options: RelayOptions;
  /** By ticket. */
  readonly #wishes = new Map<string, Wish>();
  /** By pair of devices: one end of the one way between them. */
  readonly #ways = new Map<string, Duplex>();

  constructor(options: RelayOptions) {
    this.#options = options;
  }

  /** Why a caller is refused, whoever it is. */
  refusal({ credential, facts }: Hello): Refused | undefined {
    if (sameSecret(credential, this.#options.token) && wishSchema.safeParse(facts).success) return undefined;
    return { kind: 'refused', reason: "only this run's workers are relayed", retry: false };
  }

  /** Takes the stream of a device, whose hello was not refused. */
  take(stream: Duplex, device: string, { facts }: Hello): void {
    const wish = wishSchema.parse(facts);
    if ('to' in wish) this.#wait(stream, device, wish.to);
    else this.#join(wish.ticket, device, stream);
  }

  #wait(stream: Duplex, from: string, to: string): void {
    const own = [...this.#wishes.values()].filter((wish) => wish.from === from);
    const ticket = randomBytes(16).toString('hex');
    if (own.length >= maxWishes || !this.#options.ask(to, from, ticket)) return void stream.destroy();
    const cancel = this.#options.clock.after(waitMs, () => stream.destroy());
    this.#wishes.set(ticket, { from, to, stream, cancel });
    stream.once('close', () => {
      cancel();
      this.#wishes.delete(ticket);
    });
    // A second wish for the same device replaces the first.
    own.find((wish) => wish.to === to)?.stream.destroy();
  }

  /** The device has come that the owner of the ticket waits for. */
  #join(ticket: string, device: string, stream: Duplex): void {
    const wish = this.#wishes.get(ticket);
    if (wish === undefined || wish.to !== device) return void stream.destroy();
    this.#wishes.delete(ticket);
    wish.cancel();
    const pair = JSON.stringify([wish.from, device].sort());
    this.#ways.get(pair)?.destroy();
    this.#ways.set(pair, stream);
    stream.once('close', () => {
      if (this.#ways.get(pair) === stream) this.#ways.delete(pair);
    });
    this.#options.onJoined(wish.from, device);
    joinStreams(wish.stream, stream);
  }
}
