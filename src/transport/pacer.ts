// When the next piece may go. A socket's own buffers take megabytes, which on a slow link is seconds of delay for
// whatever is urgent; so the receiver acknowledges bytes, and no more are sent than keep the link busy. The link's rate
// is measured with the receiver's clock and the sender's (as LEDBAT does, RFC 6817), only over times in which the
// link was certainly busy; with it, what still queues on the way now is computed rather than waited for. So neither
// pauses nor traffic in the other direction, which delays acknowledgements, look like a slow link. Also the end-to-end
// back-pressure: a receiver that does not take its frames stops acknowledging. Pure state; times come in as parameters,
// in milliseconds.

import { ProtocolError } from '../errors.ts';
import type { LinkRate, Priority } from './link.ts';
import { type Acknowledgement, maxTrailingBytes } from './piece.ts';

/**
 * When a receiver acknowledges: not for less than `leastBytes`, at once for `mostBytes`, and otherwise not more often
 * than every `intervalMs`.
 */
export const acknowledging: { readonly leastBytes: number; readonly mostBytes: number; readonly intervalMs: number } = {
  leastBytes: 8_192,
  mostBytes: 2 ** 20,
  intervalMs: 6,
};
/** No window is larger. */
export const maxWindowBytes: number = 8 * 2 ** 20;
/** Control frames may go beyond the windows by this much: they must overtake, and are small. */
export const controlReserveBytes: number = 2 ** 20;

/**
 * Time for which a lane may queue on the way: enough to bridge the pauses of a busy sender, and no more.
 * Acknowledgements wait behind what the other direction queues, TCP's own too, which after a pause needs several of
 * them before it fills the link again: with 60 ms the two members of an AllReduce at 100 Mbps left a seventh of it
 * unused. Far less for bulk, since a micro-batch may come any moment and waits for what is queued and for one piece (at
 * 100 Mbps about 45 KB).
 */
const queueMs = { pipeline: 10, bulk: 2.5 } as const;
const leastQueueBytes = { pipeline: 24_576, bulk: 8_192 } as const;
/** A piece takes about this long: an urgent frame waits no longer for it, and a queue is made of several. */
const pieceMs = { pipeline: 2.5, bulk: 1 } as const;
const minPieceBytes = { pipeline: 8_192, bulk: 4_096 } as const;
const maxPieceBytes: number = maxTrailingBytes;
/** The rate is an average over so much busy time, because messages are often received in bursts. */
const averageMs = 200;
/** Before the first measurement: 24 Mbps, which counts as much as this time. */
const initialBytesPerMs = 3_000;
const initialMs = 10;
/**
 * Computing without acknowledgements goes on for so much longer than they take on an idle link, in case the link has
 * stopped: they may wait behind what the other direction queues, which is no more either.
 */
const maxExtraMs = 150;
/** For bulk, which could wait behind it, only for so much longer than they took of late. */
const bulkExtraMs = 10;
/** The path may become longer: what is least is forgotten at this rate. */
const leastAgeCreepPerMs = 0.001;
/** Timers and message loops are no more exact. */
const toleranceMs = 0.1;
/** Clocks run apart by up to 0.1 ms a second, so the least transit on record is not kept for ever. */
const transitCreepPerMs = 0.000_2;

/** A piece under way. */
interface Sent {
  /** Position after its bytes in all bytes sent. */
  readonly end: number;
  readonly atMs: number;
}

/** Decides when the next piece may go, and how long it may be. */
export class Pacer {
  #sentBytes = 0;
  #newest: Acknowledgement = { byteCount: 0, atMs: Number.NEGATIVE_INFINITY };
  #records: Sent[] = [];
  #firstRecord = 0;
  /** When the first of the bytes under way was sent, after a time without any. */
  #busySinceMs = 0;
  /** Bytes that came over the busy link, and the time that they took; both fade. */
  #busyBytes = initialBytesPerMs * initialMs;
  #busyMs = initialMs;
  /** All of that time so far. */
  #measuredMs = 0;
  /** Age at which acknowledgements come, the highest of late; on an idle link a round trip. */
  #ageMs = 0;
  #leastAgeMs = Number.POSITIVE_INFINITY;
  /** Least difference of the two clocks between sending and receiving, and when it was last looked at. */
  #leastTransitMs = Number.POSITIVE_INFINITY;
  #measuredAtMs = 0;

  /** Bytes sent and not acknowledged. */
  get underWayBytes(): number {
    return this.#sentBytes - this.#newest.byteCount;
  }

  /** What the link carries while it is busy, an average over the last of such times; a guess before the first. */
  get rate(): LinkRate {
    return { mbps: (this.#bytesPerMs * 8) / 1000, measuredMs: this.#measuredMs };
  }

  /** The longest piece that may be cut now for this lane. */
  pieceBytes(lane: Priority): number {
    const kind = lane === 'bulk' ? 'bulk' : 'pipeline';
    return Math.round(clamp(this.#bytesPerMs * pieceMs[kind], minPieceBytes[kind], maxPieceBytes));
  }

  /**
   * Milliseconds until another piece of this lane may go: 0, or a time after which to ask again; Infinity: not before
   * an acknowledgement.
   */
  waitMs(lane: Priority, nowMs: number): number {
    const kind = lane === 'bulk' ? 'bulk' : 'pipeline';
    const reserve = lane === 'control' ? controlReserveBytes : 0;
    if (this.underWayBytes >= maxWindowBytes + reserve) return Number.POSITIVE_INFINITY;
    const allowed = Math.max(this.#bytesPerMs * queueMs[kind], leastQueueBytes[kind]) + reserve;
    // On the sender's clock, the acknowledged bytes had left the queue at this time, but for the constant transit. A
    // queue that was empty is no shorter for it.
    const emptiedMs = Math.max(this.#newest.atMs - this.#leastTransitMs, this.#busySinceMs);
    const ageMs = this.#newest.byteCount === 0 ? 0 : nowMs - emptiedMs;
    const mostMs = this.#leastAgeMs + maxExtraMs;
    const limitMs = lane === 'bulk' ? Math.min(this.#ageMs + bulkExtraMs, mostMs) : mostMs;
    const queued = this.underWayBytes - this.#bytesPerMs * Math.min(ageMs, limitMs);
    if (queued < allowed) return 0;
    const waitMs = (queued - allowed) / this.#bytesPerMs;
    return ageMs + waitMs < limitMs ? waitMs + 0.01 : Number.POSITIVE_INFINITY;
  }

  /** Notes that bytes were sent. */
  sent(byteCount: number, nowMs: number): void {
    if (this.underWayBytes === 0) this.#busySinceMs = nowMs;
    this.#sentBytes += byteCount;
    this.#records.push({ end: this.#sentBytes, atMs: nowMs });
  }

  /** Takes an acknowledgement. Throws ProtocolError when it cannot be. */
  acknowledge(acknowledgement: Acknowledgement, nowMs: number): void {
    const { byteCount, atMs } = acknowledgement;
    if (byteCount < this.#newest.byteCount || byteCount > this.#sentBytes) {
      throw new ProtocolError(`the peer acknowledged ${byteCount} of ${this.#sentBytes} bytes`);
    }
    if (!(atMs >= this.#newest.atMs && Math.abs(atMs) <= Number.MAX_SAFE_INTEGER))
      throw new ProtocolError('the clock in an acknowledgement runs backwards, or beyond all time');
    const before = this.#newest;
    this.#newest = acknowledgement;
    let record: Sent | undefined;
    for (
      let next = this.#records[this.#firstRecord];
      next && next.end <= byteCount;
      next = this.#records[this.#firstRecord]
    ) {
      record = next;
      this.#firstRecord++;
    }
    if (this.#firstRecord > 64 && this.#firstRecord * 2 > this.#records.length) {
      this.#records = this.#records.slice(this.#firstRecord);
      this.#firstRecord = 0;
    }
    // Of the bytes acknowledged at once, the last ones were not kept waiting for the acknowledgement.
    if (record !== undefined) this.#measure(record, before, acknowledgement, nowMs);
  }

  #measure(record: Sent, before: Acknowledgement, acknowledgement: Acknowledgement, nowMs: number): void {
    const transitMs = acknowledgement.atMs - record.atMs;
    const sinceMs = nowMs - this.#measuredAtMs;
    this.#measuredAtMs = nowMs;
    // Queueing cannot take longer than the whole loop; where it seems to, a machine slept and its clock stood still.
    const leastMs = transitMs - (nowMs - record.atMs);
    this.#leastTransitMs = Math.max(Math.min(transitMs, this.#leastTransitMs + sinceMs * transitCreepPerMs), leastMs);
    const ageMs = nowMs - (acknowledgement.atMs - this.#leastTransitMs);
    this.#ageMs = Math.max(ageMs, this.#ageMs + (ageMs - this.#ageMs) / 16);
    this.#leastAgeMs = Math.min(ageMs, this.#leastAgeMs + sinceMs * leastAgeCreepPerMs);

    if (before.byteCount === 0) return;
    const busyMs = acknowledgement.atMs - before.atMs;
    const byteCount = acknowledgement.byteCount - before.byteCount;
    // On an idle link this piece would have come before the last acknowledgement: since then the link has been busy
    // without a pause.
    const isBusy = record.atMs + this.#leastTransitMs <= before.atMs + toleranceMs;
    if (!isBusy && byteCount <= this.#bytesPerMs * busyMs) return;
    const fade = Math.exp(-busyMs / averageMs);
    this.#busyMs = this.#busyMs * fade + busyMs;
    this.#measuredMs += busyMs;
    this.#busyBytes = this.#busyBytes * fade + byteCount;
  }

  get #bytesPerMs(): number {
    return this.#busyBytes / this.#busyMs;
  }
}

function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}
