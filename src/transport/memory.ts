// Two linked ends in one process, for tests and simulations: everything is encoded, copied and decoded as on a network,
// so that errors of ownership and of the protocol show. With a clock, a bandwidth and a latency it behaves like a
// shaped full-duplex link.

import type { Clock } from '../clock.ts';
import type { Link, LinkEnd } from './link.ts';
import { type LinkLimits, type Wire, WireLink } from './wire-link.ts';

/**
 * Options of createMemoryLinks. Bandwidth and latency are read for each message: changing them in the object
 * changes the network.
 */
export interface MemoryLinkOptions {
  /** Default: real time, with deliveries in the next turn of the event loop. */
  readonly clock?: Clock;
  /** Per direction; default: unlimited. */
  readonly bandwidthMbps?: number;
  /** One way; default 0. */
  readonly latencyMs?: number;
  readonly limits?: LinkLimits;
  /** A bad network: what arrives in the place of a message (a copy that may be changed) from the end named `from`. */
  readonly tamper?: (message: Uint8Array, from: string) => readonly Uint8Array[];
}

const immediate: Clock = {
  now: () => performance.now(),
  after(delayMs, callback) {
    if (delayMs <= 0) {
      const handle = setImmediate(callback);
      return () => clearImmediate(handle);
    }
    const handle = setTimeout(callback, delayMs);
    return () => clearTimeout(handle);
  },
};

/** Actions in the order in which they were added, each not before its time. */
class Line {
  readonly #clock: Clock;
  #pending: { readonly atMs: number; readonly action: () => void }[] = [];
  #cancel: () => void = () => {};

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(atMs: number, action: () => void): void {
    this.#pending.push({ atMs, action });
    if (this.#pending.length === 1) this.#wait();
  }

  /** Drops what has not happened yet. */
  clear(): void {
    this.#cancel();
    this.#pending = [];
  }

  #wait(): void {
    const [next] = this.#pending;
    if (next !== undefined)
      this.#cancel = this.#clock.after(Math.max(0, next.atMs - this.#clock.now()), () => this.#run());
  }

  /** Runs all that are due; what they add waits for the next turn. */
  #run(): void {
    const nowMs = this.#clock.now() + 1e-6;
    let count = this.#pending.findIndex(({ atMs }) => atMs > nowMs);
    if (count < 0) count = this.#pending.length;
    // The clock may be early by a rounding; the first action is what was waited for.
    const due = this.#pending.slice(0, Math.max(count, 1));
    for (const { action } of due) action();
    this.#pending = this.#pending.slice(due.length);
    this.#wait();
  }
}

/** One direction of the link. */
function createWire(
  from: string,
  options: MemoryLinkOptions,
  ends: { readonly own: () => WireLink; readonly other: () => WireLink },
): Wire & { clear(): void } {
  const clock = options.clock ?? immediate;
  const bytesPerMs = (): number =>
    options.bandwidthMbps === undefined ? Number.POSITIVE_INFINITY : options.bandwidthMbps * 125;
  const latencyMs = (): number => options.latencyMs ?? 0;
  const leaving = new Line(clock);
  const arriving = new Line(clock);
  let freeAtMs = 0;
  let closed = false;
  return {
    send(messages, done) {
      if (closed) return;
      for (const message of messages) {
        freeAtMs = Math.max(freeAtMs, clock.now()) + message.length / bytesPerMs();
        const copy = Uint8Array.from(message);
        const arrivals = options.tamper === undefined ? [copy] : options.tamper(copy, from);
        for (const arrival of arrivals) arriving.add(freeAtMs + latencyMs(), () => ends.other().message(arrival));
      }
      leaving.add(freeAtMs, done);
    },
    clear() {
      leaving.clear();
      arriving.clear();
    },
    close(end: LinkEnd) {
      if (closed) return;
      closed = true;
      arriving.add(Math.max(freeAtMs, clock.now()) + latencyMs(), () => {
        ends.other().wireEnded(end);
        ends.own().wireEnded(end);
      });
    },
  };
}

/** Links `nameA` and `nameB`: the first link is A's end (its peer is B), the second B's. */
export function createMemoryLinks(nameA: string, nameB: string, options: MemoryLinkOptions = {}): [Link, Link] {
  const common = { clock: options.clock ?? immediate, ...(options.limits && { limits: options.limits }) };
  const wireA = createWire(nameA, options, { own: () => a, other: () => b });
  const wireB = createWire(nameB, options, { own: () => b, other: () => a });
  const a = new WireLink(wireA, { peer: nameB, ...common });
  const b = new WireLink(wireB, { peer: nameA, ...common });
  void Promise.all([a.ended, b.ended]).then(() => {
    wireA.clear();
    wireB.clear();
  });
  return [a, b];
}
