// A compiled Program on a virtual clock, by the rules of the simulated world (planner.md, "The simulated world", cited
// here as rule 1 to rule 6): an agenda of what ends, arrives, leaves and is reduced. Pure and deterministic; O(E log E)
// for E instructions, with a heap as small as what is under way at once.

import { assert, defined } from '../assert.ts';
import type { ProgramEvent } from '../schedule/program.ts';
import { instructionText } from '../schedule/text.ts';
import { Agenda } from './agenda.ts';
import { type Compiled, endsMicroBatch, type Flow, opcodes, type Runner } from './compiled.ts';
import { EventLog } from './event-log.ts';
import type { Ground } from './ground.ts';

// An agenda entry is 4 · number + kind: a runner's instruction ends, a piece arrives, a channel sends its next piece, a
// group has reduced its bucket. What departs comes after all else of its time, so that a link sees every piece that is
// ready.
const kinds = { end: 0, arrive: 1, depart: 2, reduced: 3 } as const;

/** What was done: milliseconds by runner, bytes and milliseconds by channel. */
export interface Work {
  readonly busyMs: Float64Array;
  readonly transferCpuMs: Float64Array;
  readonly reduceCpuMs: Float64Array;
  readonly linkBytes: Float64Array;
  readonly linkBusyMs: Float64Array;
}

/** One execution of a compiled Program. */
export class World {
  readonly #compiled: Compiled;
  readonly #agenda = new Agenda();
  /** Undefined if no events are kept. */
  readonly #log: EventLog | undefined;
  // By runner.
  readonly #position: Int32Array;
  /** The piece it waits for, or −1. */
  readonly #awaited: Int32Array;
  /** By runner and round: buckets that it has handed to its group and that are not reduced yet. */
  readonly #reducing: Int32Array;
  /** The round whose update waits for them; −1: none does. */
  readonly #held: Int32Array;
  /** When it last computed. */
  readonly #computedMs: Float64Array;
  /** What the bytes that it has handed on since then cost. */
  readonly #owedMs: Float64Array;
  readonly #busyMs: Float64Array;
  readonly #transferCpuMs: Float64Array;
  readonly #reduceCpuMs: Float64Array;
  readonly #endMs: Float64Array;
  // By piece.
  readonly #arrived: Uint8Array;
  readonly #readyMs: Float64Array;
  // By channel. A queue is in rule 4's order from its head on.
  readonly #queues: number[][];
  readonly #head: Int32Array;
  readonly #freeMs: Float64Array;
  /** Whether a departure is already on the agenda. */
  readonly #scheduled: Uint8Array;
  readonly #linkBytes: Float64Array;
  readonly #linkBusyMs: Float64Array;
  // By group.
  /** The members that have come to it. */
  readonly #joined: number[][];
  /** By row: when the bucket before is reduced. */
  readonly #rowFreeMs: Float64Array;

  constructor(compiled: Compiled, ground: Ground, keepsEvents: boolean) {
    const { runners, flows, channels, groups, microBatchCount, roundCount, firstInstruction } = compiled;
    this.#compiled = compiled;
    this.#log = keepsEvents ? new EventLog(compiled, ground) : undefined;
    this.#position = firstInstruction.slice(0, runners.length);
    this.#awaited = new Int32Array(runners.length).fill(-1);
    this.#reducing = new Int32Array(runners.length * roundCount);
    this.#held = new Int32Array(runners.length).fill(-1);
    this.#computedMs = new Float64Array(runners.length);
    this.#owedMs = new Float64Array(runners.length);
    this.#busyMs = new Float64Array(runners.length);
    this.#transferCpuMs = new Float64Array(runners.length);
    this.#reduceCpuMs = new Float64Array(runners.length);
    this.#endMs = new Float64Array(runners.length);
    this.#arrived = new Uint8Array(flows.length * microBatchCount);
    this.#readyMs = new Float64Array(flows.length * microBatchCount);
    this.#queues = channels.map(() => []);
    this.#head = new Int32Array(channels.length);
    this.#freeMs = new Float64Array(channels.length);
    this.#scheduled = new Uint8Array(channels.length);
    this.#linkBytes = new Float64Array(channels.length);
    this.#linkBusyMs = new Float64Array(channels.length);
    this.#joined = groups.map(() => []);
    this.#rowFreeMs = new Float64Array(groups.length);
  }

  run(): void {
    const { runners, microBatchCount, firstInstruction } = this.#compiled;
    for (const runner of runners) {
      for (const flow of runner.feeds) {
        const ahead = Math.min(runner.inFlight, microBatchCount);
        for (let microBatch = 0; microBatch < ahead; microBatch++)
          this.#release(flow * microBatchCount + microBatch, flow, 0);
      }
    }
    for (let runner = 0; runner < runners.length; runner++) this.#advance(runner, 0);
    for (let what = this.#agenda.next(); what >= 0; what = this.#agenda.next()) {
      const kind = what % 4;
      const number = (what - kind) / 4;
      if (kind === kinds.end) this.#end(number, this.#agenda.timeMs);
      else if (kind === kinds.arrive) this.#arrive(number, this.#agenda.timeMs);
      else if (kind === kinds.depart) this.#depart(number, this.#agenda.timeMs);
      else this.#reduced(number, this.#agenda.timeMs);
    }
    for (const [index, { program }] of runners.entries()) {
      const step = program.instructions[(this.#position[index] as number) - (firstInstruction[index] as number)];
      assert(
        step === undefined,
        `"${program.device}" waits for ever at ${step && instructionText(step, program.samples)}`,
      );
    }
  }

  /** When the last device has finished. */
  get endMs(): number {
    return this.#endMs.reduce((latest, end) => Math.max(latest, end), 0);
  }

  /** What devices and links did until then. */
  get work(): Work {
    return {
      busyMs: this.#busyMs,
      transferCpuMs: this.#transferCpuMs,
      reduceCpuMs: this.#reduceCpuMs,
      linkBytes: this.#linkBytes,
      linkBusyMs: this.#linkBusyMs,
    };
  }

  /** By start; empty if none are kept. */
  get events(): readonly ProgramEvent[] {
    return this.#log?.sorted() ?? [];
  }

  /** Runs a device's instructions from where it stands until one takes time or has to wait. */
  #advance(index: number, nowMs: number): void {
    const { opcode, argument, firstInstruction, microBatchCount } = this.#compiled;
    const end = firstInstruction[index + 1] as number;
    this.#endMs[index] = nowMs;
    for (let position = this.#position[index] as number; position < end; position++) {
      const code = opcode[position] as number;
      const about = argument[position] as number;
      if (code === opcodes.send) {
        this.#release(about, Math.floor(about / microBatchCount), nowMs);
        continue;
      }
      // What results cost on their way to the data's holder is not modelled.
      if (code === opcodes.result) continue;
      if (code === opcodes.receive && this.#arrived[about] === 1) continue;
      this.#position[index] = position;
      if (code === opcodes.receive) this.#awaited[index] = about;
      else if (code === opcodes['all-reduce']) {
        if (this.#join(index, about, nowMs)) continue;
      } else if (code === opcodes.update && this.#reducing[this.#ofRound(index, about)] !== 0)
        this.#held[index] = about;
      else if (code === opcodes.update) this.#update(index, position, nowMs);
      else this.#compute(index, position, nowMs);
      return;
    }
    this.#position[index] = end;
  }

  #compute(index: number, position: number, nowMs: number): void {
    const durationMs = this.#compiled.durationMs[position] as number;
    const receivingMs = this.#compiled.receivingMs[position] as number;
    const sendingMs = this.#compiled.sendingMs[position] as number;
    const startMs = Math.max(
      nowMs,
      (this.#computedMs[index] as number) + (this.#owedMs[index] as number) + receivingMs,
    );
    const endMs = startMs + durationMs;
    this.#computedMs[index] = endMs;
    this.#owedMs[index] = sendingMs;
    this.#busyMs[index] = (this.#busyMs[index] as number) + durationMs + receivingMs + sendingMs;
    this.#transferCpuMs[index] = (this.#transferCpuMs[index] as number) + receivingMs + sendingMs;
    this.#log?.computing(index, position, startMs, endMs);
    this.#agenda.add(4 * index + kinds.end, endMs, false);
  }

  /**
   * All gradients are there; what overlapped AllReduces cost may not all have been paid while they ran.
   */
  #update(index: number, position: number, nowMs: number): void {
    this.#held[index] = -1;
    this.#owedMs[index] =
      (this.#owedMs[index] as number) + (this.#compiled.runners[index] as Runner).overlappedReduceCpuMs;
    this.#compute(index, position, nowMs);
  }

  /**
   * Rule 5: the AllReduce starts when the last member has come to it. True: it overlaps with what the member does next.
   */
  #join(index: number, number: number, nowMs: number): boolean {
    const joined = this.#joined[number] as number[];
    const { size, durationMs, row, round, members, costsMs } = defined(this.#compiled.groups[number], 'a group');
    const isOverlapped = row >= 0;
    const own = this.#ofRound(index, round);
    if (isOverlapped) this.#reducing[own] = (this.#reducing[own] as number) + 1;
    if (joined.push(index) < size) return isOverlapped;
    this.#joined[number] = [];
    for (const [place, member] of members.entries())
      this.#reduceCpuMs[member] = (this.#reduceCpuMs[member] as number) + (costsMs[place] as number);
    const startMs = isOverlapped ? Math.max(nowMs, this.#rowFreeMs[row] as number) : nowMs;
    const endMs = startMs + durationMs;
    for (const member of joined) this.#log?.reduction(member, number, startMs, endMs);
    if (isOverlapped) {
      this.#rowFreeMs[row] = endMs;
      this.#agenda.add(4 * number + kinds.reduced, endMs, false);
    } else for (const member of joined) this.#agenda.add(4 * member + kinds.end, endMs, false);
    return isOverlapped;
  }

  /** A group has reduced a bucket: an update that waited for it alone can begin. */
  #reduced(number: number, nowMs: number): void {
    const { members, round } = defined(this.#compiled.groups[number], 'a group');
    for (const member of members) {
      const own = this.#ofRound(member, round);
      const left = (this.#reducing[own] as number) - 1;
      this.#reducing[own] = left;
      if (left === 0 && this.#held[member] === round) this.#advance(member, nowMs);
    }
  }

  /** The place of a runner's round. */
  #ofRound(index: number, round: number): number {
    return index * this.#compiled.roundCount + round;
  }

  /** The instruction under way is done. */
  #end(index: number, nowMs: number): void {
    const { opcode, argument, microBatchCount, runners } = this.#compiled;
    const position = this.#position[index] as number;
    const code = opcode[position] as number;
    this.#position[index] = position + 1;
    // Rule 3: the end of the backward of m − K lets the feed send micro-batch m.
    if (endsMicroBatch[code] === 1) {
      const { feeds, inFlight } = runners[index] as Runner;
      const microBatch = (argument[position] as number) + inFlight;
      if (microBatch < microBatchCount)
        for (const flow of feeds) this.#release(flow * microBatchCount + microBatch, flow, nowMs);
    }
    this.#advance(index, nowMs);
  }

  /** A piece is ready to leave. One that need not travel is there at once. */
  #release(piece: number, flow: number, nowMs: number): void {
    const { channel } = this.#compiled.flows[flow] as Flow;
    if (channel === -1) {
      this.#arrived[piece] = 1;
      return;
    }
    this.#readyMs[piece] = nowMs;
    const queue = this.#queues[channel] as number[];
    const head = this.#head[channel] as number;
    // Pieces become ready in the order of time, so that only ties can be out of place.
    let place = queue.length;
    while (place > head && this.#leavesBefore(piece, queue[place - 1] as number)) place--;
    if (place === queue.length) queue.push(piece);
    else queue.splice(place, 0, piece);
    if (this.#scheduled[channel] === 1) return;
    this.#scheduled[channel] = 1;
    this.#agenda.add(4 * channel + kinds.depart, Math.max(nowMs, this.#freeMs[channel] as number), true);
  }

  /** Rule 4: by readiness; ties by micro-batch, then input, forward, backward, label. */
  #leavesBefore(a: number, b: number): boolean {
    const [aMs, bMs] = [this.#readyMs[a] as number, this.#readyMs[b] as number];
    if (aMs !== bMs) return aMs < bMs;
    const { microBatchCount, flows } = this.#compiled;
    const [aBatch, bBatch] = [a % microBatchCount, b % microBatchCount];
    if (aBatch !== bBatch) return aBatch < bBatch;
    return (flows[(a - aBatch) / microBatchCount] as Flow).rank < (flows[(b - bBatch) / microBatchCount] as Flow).rank;
  }

  #depart(channel: number, nowMs: number): void {
    const queue = this.#queues[channel] as number[];
    const head = (this.#head[channel] as number) + 1;
    const piece = queue[head - 1] as number;
    const flow = this.#compiled.flows[Math.floor(piece / this.#compiled.microBatchCount)] as Flow;
    const freeMs = nowMs + flow.durationMs;
    this.#head[channel] = head;
    this.#freeMs[channel] = freeMs;
    this.#linkBytes[channel] = (this.#linkBytes[channel] as number) + flow.bytes;
    this.#linkBusyMs[channel] = (this.#linkBusyMs[channel] as number) + flow.durationMs;
    this.#log?.transfer(channel, piece, nowMs, freeMs);
    this.#agenda.add(4 * piece + kinds.arrive, freeMs + flow.latencyMs, false);
    const more = head < queue.length;
    this.#scheduled[channel] = more ? 1 : 0;
    if (more) this.#agenda.add(4 * channel + kinds.depart, freeMs, true);
  }

  #arrive(piece: number, nowMs: number): void {
    this.#arrived[piece] = 1;
    const { receiver } = this.#compiled.flows[Math.floor(piece / this.#compiled.microBatchCount)] as Flow;
    if (this.#awaited[receiver] !== piece) return;
    this.#awaited[receiver] = -1;
    this.#advance(receiver, nowMs);
  }
}
