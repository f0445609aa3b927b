// Runs a Program on a virtual clock with a profile's times, by the rules of the simulated world (planner.md, "The
// simulated world", cited here as rule 1 to rule 6). Pure and deterministic; O(E log E) for E instructions, with a heap
// as small as what is under way at once. What it settles where the rules are silent:
// - labels are pieces of the last stage's forward, which computes the loss;
// - a device is busy while it computes (forward, backward, update), not while it waits in an AllReduce, which is no
//   link's traffic either;
// - the buckets of a group's AllReduce (schedules that overlap) are reduced one after the other, each for rule 5's time
//   of its own bytes, from when its last member has its gradients and the bucket before it is done; the members'
//   updates wait for all of them;
// - traffic costs nothing but its link, unless the profile says what it costs the processors at both ends
//   (cluster/overhead.ts). A device pays from the end of a pass on for what that handed on, and then for what the next
//   one is given, which begins when that is paid and its pieces have arrived: who waits pays while it waits. What
//   AllReduces that overlap with passes cost delays the update likewise.

import { assert, defined } from '../assert.ts';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { bytesInMiB, demandOf, type OptimizerState, stageMemoryBytes } from '../cluster/memory.ts';
import type { Program } from '../schedule/program.ts';
import { instructionText } from '../schedule/text.ts';
import { Agenda } from './agenda.ts';
import { compile } from './compile.ts';
import { type Compiled, endsMicroBatch, type Flow, opcodes, type Runner } from './compiled.ts';
import { EventLog } from './event-log.ts';
import { type Ground, prepareGround } from './ground.ts';
import type { SimulatedDevice, SimulatedLink, Simulation } from './simulation.ts';

export interface SimulateOptions {
  /** Copies of each weight that the optimizer keeps, for the peak memory. Default 0 (plain SGD). */
  readonly optimizerState?: OptimizerState;
  /** Whether to keep the events. Default true. */
  readonly events?: boolean;
}

/** Simulates one round of a program of a plan. */
export type Simulator = (program: Program, plan: PlanLayout, options?: SimulateOptions) => Simulation;

/**
 * Simulates one round. `program` is one of `plan` (checkProgram has passed), and `plan`, `profile` and `cluster` agree
 * (checkTogether has passed). Throws an Error when the program waits for ever.
 */
export function simulate(
  program: Program,
  plan: PlanLayout,
  profile: Profile,
  cluster: Cluster,
  options: SimulateOptions = {},
): Simulation {
  return createSimulator(profile, cluster)(program, plan, options);
}

/** simulate() for many plans of one profile and cluster: what depends on these alone is prepared once. */
export function createSimulator(profile: Profile, cluster: Cluster): Simulator {
  const ground = prepareGround(profile, cluster);
  return (program, plan, options = {}) => {
    const world = new World(compile(program, plan, ground), ground, options.events ?? true);
    world.run();
    return world.report(plan.batchSize, options.optimizerState ?? 0);
  };
}

// An agenda entry is 4 · number + kind: a runner's instruction ends, a piece arrives, a channel sends its next piece, a
// group has reduced its bucket. What departs comes after all else of its time, so that a link sees every piece that is
// ready.
const kinds = { end: 0, arrive: 1, depart: 2, reduced: 3 } as const;

class World {
  readonly #compiled: Compiled;
  readonly #ground: Ground;
  readonly #agenda = new Agenda();
  /** Undefined if no events are kept. */
  readonly #log: EventLog | undefined;
  // By runner.
  readonly #position: Int32Array;
  /** The piece it waits for, or −1. */
  readonly #awaited: Int32Array;
  /** Buckets that it has handed to its group and that are not reduced yet. */
  readonly #reducing: Int32Array;
  /** Whether its update waits for them. */
  readonly #isHeld: Uint8Array;
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
    const { runners, flows, channels, groups, microBatchCount, firstInstruction } = compiled;
    this.#compiled = compiled;
    this.#ground = ground;
    this.#log = keepsEvents ? new EventLog(compiled, ground) : undefined;
    this.#position = firstInstruction.slice(0, runners.length);
    this.#awaited = new Int32Array(runners.length).fill(-1);
    this.#reducing = new Int32Array(runners.length);
    this.#isHeld = new Uint8Array(runners.length);
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

  report(batchSize: number, optimizerState: OptimizerState): Simulation {
    const { runners, channels } = this.#compiled;
    const specs = this.#ground.cluster.devices;
    const roundMs = this.#endMs.reduce((latest, end) => Math.max(latest, end), 0);
    const devices: Record<string, SimulatedDevice> = {};
    for (const { name, powerW } of specs)
      devices[name] = { busyMs: 0, idleFraction: 1, peakMemoryMiB: 0, ...(powerW === undefined ? {} : { energyJ: 0 }) };
    for (const [index, runner] of runners.entries()) {
      const busyMs = this.#busyMs[index] as number;
      const transferCpuMs = this.#transferCpuMs[index] as number;
      const reduceCpuMs = this.#reduceCpuMs[index] as number;
      const { powerW } = defined(specs[runner.place], 'a device');
      devices[runner.program.device] = {
        busyMs,
        ...(transferCpuMs === 0 ? {} : { handlingMs: transferCpuMs }),
        ...(reduceCpuMs === 0 ? {} : { reducingMs: reduceCpuMs }),
        idleFraction: roundMs === 0 ? 0 : 1 - busyMs / roundMs,
        peakMemoryMiB: this.#peakMemoryMiB(runner, optimizerState),
        ...(powerW === undefined ? {} : { energyJ: (powerW * busyMs) / 1000 }),
      };
    }
    const name = (place: number): string => defined(specs[place], 'a device').name;
    const links = channels.map(({ from, to }, index): [string, SimulatedLink] => [
      `${name(from)}->${name(to)}`,
      { bytes: this.#linkBytes[index] as number, busyMs: this.#linkBusyMs[index] as number },
    ]);
    return {
      events: this.#log?.sorted() ?? [],
      roundMs,
      samplesPerS: (batchSize / roundMs) * 1000,
      devices,
      links: Object.fromEntries(links),
    };
  }

  #peakMemoryMiB({ program, trainedFrom, inFlight }: Runner, optimizerState: OptimizerState): number {
    const { sums, kept } = this.#ground;
    const [first, end] = program.layers;
    const mostBytes = sums.savedBytes(trainedFrom, end);
    const leastBytes = kept.leastBytes(trainedFrom, end);
    const demand = demandOf(sums, [first, end], {
      savedBytes: Math.min(mostBytes, Math.max(leastBytes, program.savedBytes ?? mostBytes)),
      inFlight,
      optimizerState,
    });
    return stageMemoryBytes(demand, program.samples[1] - program.samples[0]) / bytesInMiB;
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
      } else if (code === opcodes.update && this.#reducing[index] !== 0) this.#isHeld[index] = 1;
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
    this.#isHeld[index] = 0;
    this.#owedMs[index] =
      (this.#owedMs[index] as number) + (this.#compiled.runners[index] as Runner).overlappedReduceCpuMs;
    this.#compute(index, position, nowMs);
  }

  /**
   * Rule 5: the AllReduce starts when the last member has come to it. True: it overlaps with what the member does next.
   */
  #join(index: number, number: number, nowMs: number): boolean {
    const joined = this.#joined[number] as number[];
    const { size, durationMs, row, members, costsMs } = defined(this.#compiled.groups[number], 'a group');
    const isOverlapped = row >= 0;
    if (isOverlapped) this.#reducing[index] = (this.#reducing[index] as number) + 1;
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
    for (const member of defined(this.#compiled.groups[number], 'a group').members) {
      const left = (this.#reducing[member] as number) - 1;
      this.#reducing[member] = left;
      if (left === 0 && this.#isHeld[member] === 1) this.#advance(member, nowMs);
    }
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
