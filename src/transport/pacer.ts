// How much may be under way at once. A socket's own buffers take megabytes, which on a slow link is seconds of delay for whatever is urgent; so the
// receiver acknowledges bytes, and no more are sent than keep the link busy. The window follows the delivery rate (as BBR does):
// window = rate × (least round trip + a standing delay that depends on the lane). Also the end-to-end back-pressure: a receiver that does not
// take its frames stops acknowledging. Pure state; the time comes in as a parameter, in milliseconds.

import { ProtocolError } from '../errors.ts';
import type { Priority } from './link.ts';

/** Acknowledge at the latest after so many bytes. */
export const acknowledgeAfterBytes = 16_384;
/** No window is larger. */
export const maxWindowBytes: number = 8 * 2 ** 20;
/** Control frames may go beyond the windows by this much: they must overtake, and are small. */
export const controlReserveBytes: number = 2 ** 20;

/** Delay that a lane's own bytes may add for those behind them; bulk must leave room for a micro-batch at any moment. */
const standingDelayMs = { control: 100, pipeline: 100, bulk: 20 } as const;
const leastWindowBytes = { control: 65_536, pipeline: 65_536, bulk: 32_768 } as const;
/** A piece takes about this long, so that it delays an urgent frame no longer. */
const pieceMs = 10;
const minPieceBytes = 16_384;
const maxPieceBytes = 262_144;
/** Before the first measurement. */
const initialBytesPerMs = 3_000;
const initialRoundTripMs = 5;
/** A path may get longer: the least round trip is forgotten slowly, up to a limit, because our own queue adds to what is measured. */
const roundTripCreepPerMs = 0.001;
const maxRoundTripMs = 250;

interface Sent {
  /** Position after these bytes in all bytes sent. */
  readonly end: number;
  readonly atMs: number;
  readonly acknowledgedThen: number;
  /** More was waiting, held back by the window: the link was the bottleneck. */
  readonly blocked: boolean;
}

/** Decides when the next piece may go, and how long it may be. */
export class Pacer {
  #sent = 0;
  #acknowledged = 0;
  #records: Sent[] = [];
  #firstRecord = 0;
  #bytesPerMs = initialBytesPerMs;
  #measured = false;
  #roundTripMs = initialRoundTripMs;
  #roundTripAtMs = 0;

  /** Bytes sent and not acknowledged. */
  get underWayBytes(): number {
    return this.#sent - this.#acknowledged;
  }

  /** The longest piece that may be cut now. */
  get pieceBytes(): number {
    return Math.round(clamp(this.#bytesPerMs * pieceMs, minPieceBytes, maxPieceBytes));
  }

  /** Bytes that frames of this lane may have under way. */
  windowBytes(lane: Priority): number {
    const window = this.#bytesPerMs * (this.#roundTripMs + standingDelayMs[lane]);
    return clamp(window, leastWindowBytes[lane], maxWindowBytes) + (lane === 'control' ? controlReserveBytes : 0);
  }

  /** Whether another piece of this lane may go. */
  allows(lane: Priority): boolean {
    return this.underWayBytes < this.windowBytes(lane);
  }

  /** Notes that bytes were sent. `blocked`: since the queue was last empty, the window has held it up. */
  sent(byteCount: number, nowMs: number, blocked: boolean): void {
    this.#sent += byteCount;
    this.#records.push({ end: this.#sent, atMs: nowMs, acknowledgedThen: this.#acknowledged, blocked });
  }

  /** Takes the peer's count of all bytes received. Throws ProtocolError when it cannot be. */
  acknowledge(total: number, nowMs: number): void {
    if (total < this.#acknowledged || total > this.#sent) throw new ProtocolError(`the peer acknowledged ${total} of ${this.#sent} bytes`);
    this.#acknowledged = total;
    let record: Sent | undefined;
    for (let next = this.#records[this.#firstRecord]; next !== undefined && next.end <= total; next = this.#records[this.#firstRecord]) {
      record = next;
      this.#firstRecord++;
    }
    if (this.#firstRecord > 64 && this.#firstRecord * 2 > this.#records.length) {
      this.#records = this.#records.slice(this.#firstRecord);
      this.#firstRecord = 0;
    }
    if (record !== undefined) this.#measure(record, nowMs);
  }

  #measure(record: Sent, nowMs: number): void {
    const elapsedMs = Math.max(nowMs - record.atMs, 0.01);
    const bytesPerMs = (this.#acknowledged - record.acknowledgedThen) / elapsedMs;
    if (!this.#measured) {
      this.#measured = true;
      this.#roundTripMs = elapsedMs;
    }
    const crept = this.#roundTripMs + (nowMs - this.#roundTripAtMs) * roundTripCreepPerMs;
    this.#roundTripMs = Math.min(elapsedMs, crept, maxRoundTripMs);
    this.#roundTripAtMs = nowMs;
    // A low rate is the link's only where bytes had to wait: for the window, or on the way. Otherwise the sender had nothing more to send.
    const waited = record.blocked || elapsedMs > this.#roundTripMs + standingDelayMs.pipeline;
    if (!waited && bytesPerMs < this.#bytesPerMs) return;
    this.#bytesPerMs += (bytesPerMs - this.#bytesPerMs) / (bytesPerMs > this.#bytesPerMs ? 2 : 4);
  }
}

function clamp(value: number, low: number, high: number): number {
  return Math.min(Math.max(value, low), high);
}
