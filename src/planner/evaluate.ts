// The round of a pipeline by the rules of the simulated world (planner.md), without a Program: equals the simulator's
// result, some fifty times faster. That is possible because every device has one order of work and every link one kind
// of message, so that times are sums and maxima in a fixed order. If the data's holder sends two kinds of messages over
// one link (inputs or labels as well as gradients or activations), each kind is given a link of its own here: the
// result is then a lower bound, `isExact` is false, and the simulator must decide. Of a stream, it is the period of a
// tick (tick-period.ts).

import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import {
  createFeeds,
  type Feed,
  type FlatContext,
  type FlatDevice,
  type FlatStage,
  flatStages,
  type Piece,
} from './flat-stages.ts';
import { layoutPlan } from './layout.ts';
import type { Problem, StageLayout } from './problem.ts';
import { shareTimes } from './share-times.ts';
import { tickPeriodMs } from './tick-period.ts';

/** Tolerance for rounding. */
const slack = 1e-12;

/** Evaluates pipelines of one problem. */
export class Evaluator {
  /** Whether the last result equals the simulator's; otherwise it is a lower bound of it. */
  isExact = true;
  readonly #context: FlatContext;
  #arrivals = new Float64Array(0);
  #gradients = new Float64Array(0);

  constructor(problem: Problem) {
    const { dataDevice } = problem.cluster;
    const holder = dataDevice === undefined ? -1 : problem.table.deviceIndex(dataDevice);
    this.#context = { problem, times: shareTimes(problem), holder };
  }

  /** Whether roundMs() equals the simulator's for these stages. */
  isExactFor(layouts: readonly StageLayout[]): boolean {
    const { holder } = this.#context;
    const last = layouts.length - 1;
    return (
      holder === -1 ||
      last === 0 ||
      !layouts.some(({ devices }, stage) => (stage === 1 || stage === last - 1) && devices.includes(holder))
    );
  }

  /**
   * Milliseconds of a round, or of a tick; stops early and returns Infinity if it takes `stopMs` or longer. No device
   * may have zero samples.
   */
  roundMs(layouts: readonly StageLayout[], stopMs: number = Number.POSITIVE_INFINITY): number {
    const { microBatchCount } = this.#context.problem;
    const { stages, devices } = flatStages(this.#context, layouts);
    this.isExact = this.isExactFor(layouts);
    if (this.#context.problem.schedule.isStream)
      return tickPeriodMs({ context: this.#context, layouts, stages, devices }, stopMs);
    if (leastMs(stages, devices, microBatchCount) * (1 - slack) >= stopMs) return Number.POSITIVE_INFINITY;
    const size = devices.length * microBatchCount;
    if (this.#arrivals.length < size) {
      this.#arrivals = new Float64Array(size);
      this.#gradients = new Float64Array(size);
    }
    const arrivals = this.#arrivals.fill(0, 0, size);
    const gradients = this.#gradients.fill(0, 0, size);
    const feeds = createFeeds(this.#context, layouts);
    return new RoundClock({ stages, devices, feeds, microBatchCount, arrivals, gradients, stopMs }).run();
  }
}

/**
 * A lower bound on the round from each device's work, the time before its first forward, and the time after its last
 * gradients have left. `M` micro-batches.
 */
function leastMs(stages: readonly FlatStage[], devices: readonly FlatDevice[], M: number): number {
  let [least, beforeMs, remainingMs] = [0, 0, 0];
  for (const [index, stage] of stages.entries()) {
    const { first, end, pace, isForwardOnly, pieces } = stage;
    let [forwardMs, backwardMs] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
    for (let place = first; place < end; place++) {
      const device = devices[place] as FlatDevice;
      least = Math.max(least, leastOfDevice(device, stage, { beforeMs, remainingMs }, M));
      forwardMs = Math.min(forwardMs, device.forwardMs);
      if (isForwardOnly) continue;
      backwardMs = Math.min(
        backwardMs,
        device.backwardMs,
        pace.delay === undefined ? lastPassMs(device) : device.backwardMs,
      );
    }
    beforeMs += forwardMs + leastOf(pieces, ({ forwardOccupancyMs, latencyMs }) => forwardOccupancyMs + latencyMs);
    if (stages[index + 1]?.isGradientWanted === true)
      remainingMs +=
        backwardMs + leastOf(pieces, ({ backwardOccupancyMs, latencyMs }) => backwardOccupancyMs + latencyMs);
  }
  return least;
}

/** A lower bound on what a device computes in a round, plus the time before and after. */
function leastOfDevice(
  device: FlatDevice,
  { pace, isForwardOnly }: FlatStage,
  { beforeMs, remainingMs }: { readonly beforeMs: number; readonly remainingMs: number },
  M: number,
): number {
  const { forward, backward, forwardMs, backwardMs, weightMs, wakeMs } = device;
  const lastMs = lastPassMs(device);
  // Of its processor's traffic, the cost of the first forward's input may be paid before that arrives, and the cost of
  // the last gradient after it has left.
  const forwardCpuMs = (M - 1) * forward.receivingMs + M * forward.sendingMs;
  const cpuMs = forwardCpuMs + M * backward.receivingMs + (M - 1) * backward.sendingMs;
  if (isForwardOnly) return beforeMs + M * forwardMs + forwardCpuMs;
  if (pace.delay === undefined) return beforeMs + M * forwardMs + (M - 1) * backwardMs + lastMs + cpuMs + remainingMs;
  // While weight gradients are computed, the other devices wait for nothing.
  const gradientsMs = beforeMs + M * (forwardMs + backwardMs) + cpuMs;
  return Math.max(gradientsMs + remainingMs, gradientsMs + (M - 1) * (weightMs + wakeMs) + lastMs);
}

interface RoundInput {
  readonly stages: readonly FlatStage[];
  readonly devices: readonly FlatDevice[];
  readonly feeds: readonly (Feed | undefined)[];
  readonly microBatchCount: number;
  /** By device and micro-batch: when the last piece of an activation or a gradient arrives; initially zeros. */
  readonly arrivals: Float64Array;
  readonly gradients: Float64Array;
  readonly stopMs: number;
}

/** The state of one evaluation: the progress of the stages, and when devices and links are free. */
class RoundClock {
  readonly #input: RoundInput;
  readonly #free: Float64Array;
  /** Processor time for bytes that have left a device since it was last free. */
  readonly #owed: Float64Array;
  /** When the device's last pass handed over its result. */
  readonly #leaves: Float64Array;
  readonly #forwardLinks: readonly Float64Array[];
  readonly #backwardLinks: readonly Float64Array[];
  readonly #forwards: Int32Array;
  readonly #backwards: Int32Array;

  constructor(input: RoundInput) {
    const { stages, devices } = input;
    this.#input = input;
    this.#free = new Float64Array(devices.length);
    this.#owed = new Float64Array(devices.length);
    this.#leaves = new Float64Array(devices.length);
    this.#forwardLinks = stages.map(({ pieces }) => new Float64Array(pieces.length));
    this.#backwardLinks = stages.map(({ pieces }) => new Float64Array(pieces.length));
    this.#forwards = new Int32Array(stages.length);
    this.#backwards = new Int32Array(stages.length);
  }

  run(): number {
    const { stages, microBatchCount, stopMs } = this.#input;
    const first = stages.findIndex(({ isForwardOnly }) => !isForwardOnly);
    while ((this.#backwards[first] as number) < microBatchCount) {
      for (let p = 0; p < stages.length; p++) if (!this.#advance(p)) return Number.POSITIVE_INFINITY;
      for (let p = stages.length - 2; p >= 0; p--) if (!this.#advance(p)) return Number.POSITIVE_INFINITY;
    }
    const round = this.#endMs();
    return round < stopMs ? round : Number.POSITIVE_INFINITY;
  }

  /** Runs all passes of a stage that can run now. False if `stopMs` is exceeded. */
  #advance(p: number): boolean {
    const { stages, microBatchCount: M } = this.#input;
    const stage = stages[p] as FlatStage;
    const last = stages.length - 1;
    for (;;) {
      const f = this.#forwards[p] as number;
      const b = this.#backwards[p] as number;
      const isForward = f < M && f - b < stage.pace.ahead;
      if (!isForward && (b >= M || stage.isForwardOnly)) return true;
      const isMissing = isForward
        ? p > 0 && (this.#forwards[p - 1] as number) <= f
        : p < last && (this.#backwards[p + 1] as number) <= b;
      if (isMissing) return true;
      const m = isForward ? f : b;
      for (let index = stage.first; index < stage.end; index++)
        if (!this.#compute(stage, index, isForward, m)) return false;
      if (isForward) {
        this.#forwards[p] = f + 1;
        this.#send(stage.pieces, this.#forwardLinks[p] as Float64Array, true, m);
      } else {
        this.#backwards[p] = b + 1;
        const before = p > 0 && stage.isGradientWanted ? (stages[p - 1] as FlatStage) : undefined;
        if (before !== undefined) this.#send(before.pieces, this.#backwardLinks[p - 1] as Float64Array, false, m);
      }
    }
  }

  /** Runs a device's pass of micro-batch m. False if `stopMs` is exceeded. */
  #compute({ pace: { ahead, delay } }: FlatStage, index: number, isForward: boolean, m: number): boolean {
    const { devices, feeds, microBatchCount: M, arrivals, gradients, stopMs } = this.#input;
    const device = devices[index] as FlatDevice;
    const freeMs = this.#free[index] as number;
    let start = freeMs;
    const feed = isForward ? feeds[index] : undefined;
    if (feed !== undefined) {
      const isKept = m >= ahead + (delay ?? 0);
      feed.freeMs = Math.max(start * Number(isKept), feed.freeMs) + feed.occupancyMs + feed.labelOccupancyMs;
      start = Math.max(start, feed.freeMs + feed.latencyMs);
    }
    const { receivingMs, sendingMs } = isForward ? device.forward : device.backward;
    const arrival = (isForward ? arrivals : gradients)[index * M + m] as number;
    start = Math.max(start, arrival, freeMs + (this.#owed[index] as number) + receivingMs);
    const isLastWhole = delay === undefined && m === M - 1;
    const end = start + (isForward ? device.forwardMs : isLastWhole ? lastPassMs(device) : device.backwardMs);
    // Results leave before a following weight gradient.
    this.#leaves[index] = end;
    const isFollowed = !isForward && delay !== undefined && (m >= delay || m === M - 1);
    const nextMs = isFollowed ? end + sendingMs + followingWeightsMs(device, m, delay, M) : end;
    this.#free[index] = nextMs;
    this.#owed[index] = isFollowed ? device.wakeMs : sendingMs;
    return nextMs < stopMs;
  }

  /** Sends micro-batch m's pieces over their links, forward or back. */
  #send(pieces: readonly Piece[], links: Float64Array, isForward: boolean, m: number): void {
    const { microBatchCount: M, arrivals, gradients } = this.#input;
    const into = isForward ? arrivals : gradients;
    for (let index = 0; index < pieces.length; index++) {
      const { from, to, forwardOccupancyMs, backwardOccupancyMs, latencyMs } = pieces[index] as Piece;
      const leavesMs = this.#leaves[isForward ? from : to] as number;
      const occupancyMs = isForward ? forwardOccupancyMs : backwardOccupancyMs;
      const done = Math.max(leavesMs, links[index] as number) + occupancyMs;
      links[index] = done;
      const at = (isForward ? to : from) * M + m;
      if (done + latencyMs > (into[at] as number)) into[at] = done + latencyMs;
    }
  }

  /** The end of the last device, including AllReduce and update. */
  #endMs(): number {
    const { stages, devices } = this.#input;
    let round = 0;
    for (const { first, end, reduceMs } of stages) {
      let reducedMs = 0;
      for (const [bucket, ms] of reduceMs.entries()) {
        let readyMs = reducedMs;
        for (let index = first; index < end; index++)
          readyMs = Math.max(readyMs, (this.#free[index] ?? 0) - remainingMs(devices[index] as FlatDevice, bucket));
        reducedMs = readyMs + ms;
      }
      for (let index = first; index < end; index++) {
        const { reduceCpuMs, updateMs } = devices[index] as FlatDevice;
        const paidMs = (this.#free[index] as number) + (this.#owed[index] as number) + reduceCpuMs;
        round = Math.max(round, Math.max(reducedMs, paidMs) + updateMs);
      }
    }
    return round;
  }
}

function leastOf(pieces: readonly Piece[], msOf: (piece: Piece) => number): number {
  let least = Number.POSITIVE_INFINITY;
  for (const piece of pieces) least = Math.min(least, msOf(piece));
  return pieces.length === 0 ? 0 : least;
}

/** The duration of the last micro-batch's pass that makes weight gradients final, in all of its pieces. */
function lastPassMs({ lastMs }: FlatDevice): number {
  let sum = 0;
  for (const ms of lastMs) sum += ms;
  return sum;
}

/**
 * The duration of the weight gradients that a device computes right after micro-batch m's input gradient, if any: those
 * of `delay` micro-batches ago, and after the last one all that remain. Excludes the main thread's cost for the last of
 * them.
 */
function followingWeightsMs(device: FlatDevice, m: number, delay: number, M: number): number {
  if (m < M - 1) return device.weightMs;
  return Math.min(M - 1, delay) * (device.weightMs + device.wakeMs) + lastPassMs(device);
}

/** The remaining computation of a device when the gradients of a bucket are final. */
function remainingMs({ lastMs }: FlatDevice, bucket: number): number {
  let sum = 0;
  for (let index = bucket + 1; index < lastMs.length; index++) sum += lastMs[index] ?? 0;
  return sum;
}

/** The round in the full simulator. */
export function simulatedMs(problem: Problem, layouts: readonly StageLayout[]): number {
  const plan = layoutPlan(problem, 'any', layouts);
  return simulate(program(plan), plan, problem.profile, problem.cluster, { events: false }).roundMs;
}
