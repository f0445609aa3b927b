// One direction of a connection over a path of the virtual network: ordered, delayed, and held back while the path is
// cut.

import type { Random } from '../random.ts';
import type { VirtualProcess } from './virtual-process.ts';
import type { VirtualTime } from './virtual-time.ts';

/** One direction between two hosts. May change at any time. */
export interface PathConditions {
  latencyMs: number;
  /** The most that a message is delayed beyond the latency. */
  jitterMs: number;
  /** The most that the last lane is delayed beyond that: something urgent comes first. Default 0. */
  patienceMs?: number;
  bandwidthMbps: number;
}

/** A path, and the time since which nothing passes. */
export interface Path extends PathConditions {
  cutSinceMs: number | undefined;
  /** The pipes with messages that wait for the path. */
  readonly holding: Set<Pipe>;
}

/** A pipe's dependencies. */
export interface PipeWorld {
  readonly time: VirtualTime;
  readonly random: Random;
}

/** The lane of messages that are not urgent. */
const bulkLane = 2;
/** The longest pause before TCP tries again after a cut. */
const retransmitMs = 200;

interface Message {
  readonly deliver: () => void;
  readonly byteCount: number;
}

/**
 * One direction of a connection. Messages of a lane arrive in the order in which they were sent; another lane may
 * overtake them.
 */
export class Pipe {
  readonly path: Path;
  readonly #network: PipeWorld;
  readonly #receiver: VirtualProcess;
  /** By lane: when the last message arrives; the last lane is that of `carryLast`. */
  readonly #lanes = [0, 0, 0, 0];
  /** Messages that reached the place where the path is cut. */
  #held: Message[] = [];
  #freeAtMs = 0;
  #byteCount = 0;
  #isClosed = false;
  /** Called whenever something has arrived. */
  onArrival: () => void = () => {};

  constructor(network: PipeWorld, path: Path, receiver: VirtualProcess) {
    this.#network = network;
    this.path = path;
    this.#receiver = receiver;
  }

  /** Bytes on their way. */
  get byteCount(): number {
    return this.#byteCount;
  }

  /** Sends a message in a lane; lane 0 does not wait for the bytes of the others. */
  carry(lane: number, byteCount: number, deliver: () => void): void {
    const { nowMs } = this.#network.time;
    const startMs = lane === 0 ? nowMs : Math.max(nowMs, this.#freeAtMs);
    const sentMs = startMs + byteCount / (this.path.bandwidthMbps * 125);
    this.#freeAtMs = Math.max(this.#freeAtMs, sentMs);
    const waitMs = lane === bulkLane ? (this.path.patienceMs ?? 0) * this.#network.random.uniform() : 0;
    this.#send({ deliver, byteCount }, Math.max(sentMs + waitMs + this.#delayMs(), this.#lanes[lane] as number), lane);
  }

  /** Sends the end of the connection, which arrives after everything else. */
  carryLast(deliver: () => void): void {
    const atMs = Math.max(this.#network.time.nowMs + this.#delayMs(), ...this.#lanes);
    this.#send({ deliver, byteCount: 0 }, atMs, this.#lanes.length - 1);
  }

  /** Loses everything on its way. */
  close(): void {
    this.#isClosed = true;
    this.#held = [];
    this.#byteCount = 0;
  }

  /** The path is whole again. */
  resume(): void {
    const { time, random } = this.#network;
    time.at(time.nowMs + this.#delayMs() + random.uniform() * retransmitMs, () => {
      if (this.path.cutSinceMs !== undefined) this.path.holding.add(this);
      else for (const message of this.#held.splice(0)) this.#arrive(message);
    });
  }

  #delayMs(): number {
    return this.path.latencyMs + this.path.jitterMs * this.#network.random.uniform();
  }

  #send(message: Message, arrivalMs: number, lane: number): void {
    this.#lanes[lane] = arrivalMs;
    this.#byteCount += message.byteCount;
    this.#network.time.at(arrivalMs, () => {
      if (this.#isClosed) return;
      if (this.path.cutSinceMs === undefined && this.#held.length === 0) return this.#arrive(message);
      this.#held.push(message);
      if (this.path.cutSinceMs !== undefined) this.path.holding.add(this);
    });
  }

  #arrive({ deliver, byteCount }: Message): void {
    this.#receiver.run(() => {
      if (this.#isClosed) return;
      this.#byteCount -= byteCount;
      deliver();
      this.onArrival();
    });
  }
}
