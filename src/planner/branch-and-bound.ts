// Exact search for small problems: every pipeline of one micro-batch size and schedule, stage by stage from the first,
// device by device and share by share, pruned only by proven lower bounds. Any order of devices, any subset, any whole
// shares. The bounds follow the rules of the simulated world without queueing: a device begins when the first
// micro-batch has reached it, is busy for M·(F + B), and after its last backward the gradients still travel back to
// stage 0 and the groups still reduce. If the backward is split, the gradients travel after the last input gradient, up
// to `delay` + 1 weight gradients before the device is done; if AllReduce is overlapped, only its last bucket is
// certain to follow. In a stream only what a tick occupies counts: devices, links, AllReduces.

import type { StageDemand } from '../cluster/memory.ts';
import { onGrid } from '../cluster/times.ts';
import { type Bounds, createBounds } from './bounds.ts';
import { Evaluator, simulatedMs } from './evaluate.ts';
import { bucketsOfStage } from './layout.ts';
import { largestShare } from './memory.ts';
import {
  gradientsCross,
  mayHaveStages,
  mayReplicate,
  type Problem,
  pinsAllow,
  type StageLayout,
  stageDemand,
  withStages,
} from './problem.ts';
import { recomputeMs } from './recomputation.ts';
import { groupReduceMs, type ShareTimes, shareTimes } from './share-times.ts';
import { inFlightFromEnd } from './stages.ts';
import type { Steps } from './steps.ts';

/** Remaining work, shared by several searches. A unit is one device evaluated with one share. */
export interface Budget {
  left: number;
}

/** The best pipeline below the given bar, if any. `isComplete`: no better one exists. */
export interface Exact {
  readonly layouts: readonly StageLayout[] | undefined;
  readonly roundMs: number;
  readonly isComplete: boolean;
}

/** Work between two steps: a few milliseconds. */
const unitsPerStep = 2048;

/** Searches for pipelines with a round below `barMs`. */
export function* branchAndBound(problem: Problem, barMs: number, budget: Budget): Steps<Exact> {
  const tree = new Tree(problem, barMs, budget);
  const stageLimit = Math.min(problem.profile.layers.length, problem.available.length);
  for (let stageCount = 1; stageCount <= stageLimit && budget.left > 0; stageCount++) {
    yield (stageCount - 1) / stageLimit;
    if (mayHaveStages(problem, stageCount)) yield* tree.search(stageCount);
  }
  return { layouts: tree.best, roundMs: tree.barMs, isComplete: budget.left > 0 };
}

/** A device with its share: the values that do not depend on the rest of the pipeline. */
interface Member {
  readonly place: number;
  /** Samples [from, end) of each micro-batch. */
  readonly from: number;
  readonly end: number;
  readonly forwardMs: number;
  readonly backwardMs: number;
  /** The part of it after which a micro-batch's gradients can be sent back. */
  readonly inputMs: number;
  /** The earliest start of its first forward. */
  readonly startMs: number;
  /** A lower bound on what follows its last input gradient; grows when its group is complete. */
  tailMs: number;
}

/** A stage that is being assigned devices. */
interface Level {
  readonly stage: number;
  readonly first: number;
  readonly end: number;
  /** The complete group of the stage before. */
  readonly before: readonly Member[];
  readonly members: Member[];
}

class Tree {
  best: readonly StageLayout[] | undefined;
  barMs: number;
  /** For the number of stages that is searched. */
  #problem: Problem;
  readonly #budget: Budget;
  readonly #times: ShareTimes;
  readonly #bounds: Bounds;
  readonly #evaluator: Evaluator;
  readonly #holder: number;
  /** By place: interchangeable devices with smaller places; only the first unused one of them is tried. */
  readonly #twins: readonly (readonly number[])[];
  readonly #used: Uint8Array;
  readonly #stages: StageLayout[] = [];
  #stageCount = 1;
  #inFlight: readonly number[] = [];

  constructor(problem: Problem, barMs: number, budget: Budget) {
    this.#problem = problem;
    this.barMs = barMs;
    this.#budget = budget;
    this.#times = shareTimes(problem);
    this.#bounds = createBounds(problem);
    this.#evaluator = new Evaluator(problem);
    const { cluster, table, devices } = problem;
    this.#holder = cluster.dataDevice === undefined ? -1 : table.deviceIndex(cluster.dataDevice);
    this.#twins = devices.map(({ place }) => earlierTwins(problem, place, this.#holder));
    this.#used = new Uint8Array(devices.length);
  }

  *search(stageCount: number): Steps<void> {
    this.#stageCount = stageCount;
    this.#problem = withStages(this.#problem, stageCount);
    this.#inFlight = inFlightFromEnd(this.#problem, stageCount);
    yield* this.#openStage(0, 0, []);
  }

  *#openStage(stage: number, first: number, before: readonly Member[]): Steps<void> {
    const layerCount = this.#problem.profile.layers.length;
    const after = this.#stageCount - stage - 1;
    for (let end = after === 0 ? layerCount : first + 1; end <= layerCount - after; end++) {
      if (this.#budget.left <= 0) return;
      yield* this.#fill({ stage, first, end, before, members: [] }, this.#problem.microBatchSize);
    }
  }

  /** Adds each unused device with each share to the stage's group. */
  *#fill(level: Level, left: number): Steps<void> {
    const { microBatchSize } = this.#problem;
    const { members, stage, first, end } = level;
    const reserved = this.#stageCount - stage - 1;
    const unused = this.#problem.available.filter(({ place }) => this.#used[place] === 0);
    if (unused.length <= reserved) return;
    const demand = stageDemand(this.#problem, first, end, this.#inFlight[reserved + 1] ?? 1);
    const isLast = unused.length === reserved + 1 || !mayReplicate(this.#problem, first, end);
    for (const device of unused) {
      const { place } = device;
      // In a single stage the order of devices makes no difference.
      if (this.#stageCount === 1 && place < (members.at(-1)?.place ?? -1)) continue;
      if ((this.#twins[place] ?? []).some((twin) => this.#used[twin] === 0)) continue;
      const limit = Math.min(left, largestShare(demand, device.memoryBytes, microBatchSize));
      this.#used[place] = 1;
      for (let share = isLast ? left : 1; share <= limit; share++) {
        if (--this.#budget.left <= 0) break;
        if (this.#budget.left % unitsPerStep === 0) yield 0;
        const from = microBatchSize - left;
        const member = this.#member(level, demand, place, [from, from + share]);
        if (member === undefined) continue;
        members.push(member);
        if (share === left) yield* this.#close(level);
        else yield* this.#fill(level, left - share);
        members.pop();
      }
      this.#used[place] = 0;
    }
  }

  /** A device with its samples; undefined if it exceeds the bar on its own. */
  #member(
    { stage, first, end, before }: Level,
    demand: StageDemand,
    place: number,
    [from, stop]: readonly [number, number],
  ): Member | undefined {
    const { table, profile, microBatchCount: M } = this.#problem;
    const forwardMs = this.#times.forwardMs(place, first, end, stop - from);
    const recomputationMs = onGrid(recomputeMs(this.#problem, place, [first, end], demand, stop - from));
    const backwardMs = this.#times.backwardMs(place, first, end, stop - from) + recomputationMs;
    const busyMs = M * (forwardMs + backwardMs);
    if (busyMs >= this.barMs) return undefined;
    const isSplit = this.#problem.schedule.splitsBackward && gradientsCross(this.#problem, first);
    const inputMs = isSplit
      ? this.#times.backwardInputMs(place, first, end, stop - from) + recomputationMs
      : backwardMs;
    if (this.#problem.schedule.isStream)
      return this.#linksBind(stage, place, [from, stop], first, before)
        ? undefined
        : { place, from, end: stop, forwardMs, backwardMs, inputMs, startMs: 0, tailMs: 0 };
    let startMs = this.#feedMs(stage, place, stop - from);
    let tailMs = 0;
    const bytes = profile.layers[first - 1]?.outputBytes ?? 0;
    for (const sender of before) {
      const samples = Math.min(sender.end, stop) - Math.max(sender.from, from);
      if (samples <= 0) continue;
      const latencyMs = table.latencyMs(sender.place, place);
      const outMs = table.occupancyMs(sender.place, place, samples * bytes);
      const backMs = table.occupancyMs(place, sender.place, samples * bytes);
      const leavesMs = sender.startMs + sender.forwardMs;
      startMs = Math.max(startMs, leavesMs + outMs + latencyMs);
      if (!gradientsCross(this.#problem, first)) {
        if (leavesMs + M * outMs + latencyMs + forwardMs + backwardMs >= this.barMs) return undefined;
        continue;
      }
      const followsMs = sender.inputMs + sender.tailMs;
      // The link: M activations one after another before the last forward, M gradients after the first backward.
      if (leavesMs + M * outMs + latencyMs + forwardMs + inputMs + backMs + latencyMs + followsMs >= this.barMs)
        return undefined;
      if (leavesMs + outMs + latencyMs + forwardMs + inputMs + M * backMs + latencyMs + followsMs >= this.barMs)
        return undefined;
      tailMs = Math.max(tailMs, backMs + latencyMs + followsMs);
    }
    const weightsBefore = isSplit ? Math.max(0, M - 1 - this.#mostDelay(stage)) : M;
    const lastInputMs = M * (forwardMs + inputMs) + weightsBefore * (backwardMs - inputMs);
    if (startMs + Math.max(busyMs, lastInputMs + tailMs) >= this.barMs) return undefined;
    return { place, from, end: stop, forwardMs, backwardMs, inputMs, startMs, tailMs };
  }

  /** Whether, in a stream, what a device is given or gives back in a tick occupies a link for as long as the bar. */
  #linksBind(
    stage: number,
    place: number,
    [from, stop]: readonly [number, number],
    first: number,
    before: readonly Member[],
  ): boolean {
    const { table, profile, microBatchCount: M } = this.#problem;
    const bytes = profile.layers[first - 1]?.outputBytes ?? 0;
    const fedBytes = (stage === 0 ? profile.inputBytes : 0) + (stage === this.#stageCount - 1 ? profile.labelBytes : 0);
    const holder = this.#holder;
    if (
      holder !== -1 &&
      holder !== place &&
      M * table.occupancyMs(holder, place, (stop - from) * fedBytes) >= this.barMs
    )
      return true;
    return before.some((sender) => {
      const samples = Math.min(sender.end, stop) - Math.max(sender.from, from);
      if (samples <= 0) return false;
      const outMs = table.occupancyMs(sender.place, place, samples * bytes);
      const backMs = gradientsCross(this.#problem, first) ? table.occupancyMs(place, sender.place, samples * bytes) : 0;
      return M * Math.max(outMs, backMs) * (1 - 1e-9) >= this.barMs;
    });
  }

  /** The largest number of micro-batches by which a stage's weight gradients can be delayed. */
  #mostDelay(stage: number): number {
    const { schedule, microBatchCount } = this.#problem;
    return (
      schedule.inFlight(stage, this.#stageCount, microBatchCount) -
      schedule.forwardsAhead(stage, this.#stageCount, microBatchCount)
    );
  }

  /** The earliest arrival of the first micro-batch's inputs (or labels, for a last stage). */
  #feedMs(stage: number, place: number, samples: number): number {
    const { table, profile } = this.#problem;
    const isLast = stage === this.#stageCount - 1;
    if (this.#holder === -1 || this.#holder === place || (stage > 0 && !isLast)) return 0;
    const bytes = (stage === 0 ? profile.inputBytes : 0) + (isLast ? profile.labelBytes : 0);
    return table.occupancyMs(this.#holder, place, samples * bytes) + table.latencyMs(this.#holder, place);
  }

  /** Completes the stage's group: its AllReduce is now known, and a bound on the rest. */
  *#close(level: Level): Steps<void> {
    const { stage, first, end, members } = level;
    const problem = this.#problem;
    const places = members.map(({ place }) => place);
    if (!pinsAllow(problem, first, end, places)) return;
    const samples = members.map((member) => member.end - member.from);
    const reduceMs = this.#lastReduceMs({ layers: [first, end], devices: places, samples });
    const { isStream } = problem.schedule;
    const group = members.map((member) => {
      if (isStream) return member;
      const weightMs = member.backwardMs - member.inputMs;
      const updateMs = onGrid(this.#times.updateMs(member.place, first, end));
      return { ...member, tailMs: Math.max(member.tailMs, weightMs + reduceMs + updateMs) };
    });
    const M = problem.microBatchCount;
    const slowest = Math.max(
      ...group.map(({ startMs, forwardMs, backwardMs }) => startMs + M * (forwardMs + backwardMs)),
    );
    if ((isStream ? Math.max(slowest, reduceMs) : slowest + reduceMs) >= this.barMs) return;
    this.#stages.push({ layers: [first, end], devices: places, samples });
    if (stage === this.#stageCount - 1) this.#evaluate();
    else if (this.#restMs(group, end) < this.barMs) yield* this.#openStage(stage + 1, end, group);
    this.#stages.pop();
  }

  /** A group's AllReduce after its last backward: all of it, or its last bucket if it is overlapped. */
  #lastReduceMs(layout: StageLayout): number {
    const isCut = layout.devices.length > 1 && this.#problem.schedule.overlapsAllReduce;
    const last = isCut ? bucketsOfStage(this.#problem, this.#times, layout).at(-1) : undefined;
    return groupReduceMs(this.#problem, layout.devices, ...(last ?? layout.layers));
  }

  /**
   * A bound from what is not assigned yet: the unused devices run the other layers, after this stage's first forward
   * and, unless weight gradients can be delayed, before its last backward.
   */
  #restMs(group: readonly Member[], end: number): number {
    let speed = 0;
    for (const { place, classIndex } of this.#problem.available)
      if (this.#used[place] === 0) speed += this.#bounds.speeds[classIndex] ?? 0;
    const busyMs =
      this.#problem.microBatchCount * this.#bounds.busiestMs(end, this.#problem.profile.layers.length, speed);
    if (this.#problem.schedule.isStream) return busyMs;
    const startMs = Math.min(...group.map((member) => member.startMs + member.forwardMs));
    if (this.#problem.schedule.splitsBackward) return startMs + busyMs;
    const tailMs = gradientsCross(this.#problem, end)
      ? Math.min(...group.map((member) => member.backwardMs + member.tailMs))
      : 0;
    return startMs + busyMs + tailMs;
  }

  #evaluate(): void {
    const boundMs = this.#evaluator.roundMs(this.#stages, this.barMs);
    if (boundMs >= this.barMs) return;
    const roundMs = this.#evaluator.isExact ? boundMs : simulatedMs(this.#problem, this.#stages);
    if (roundMs >= this.barMs) return;
    this.barMs = roundMs;
    this.best = [...this.#stages];
  }
}

/**
 * Devices with a smaller place, the same times and memory, and the same links to all others; the data's holder has
 * none.
 */
function earlierTwins({ devices, available, table }: Problem, place: number, holder: number): number[] {
  const same = (a: number, b: number): boolean =>
    a !== holder &&
    b !== holder &&
    devices[a]?.classIndex === devices[b]?.classIndex &&
    devices[a]?.memoryBytes === devices[b]?.memoryBytes &&
    devices.every(
      ({ place: other }) =>
        other === a ||
        other === b ||
        (table.bandwidthMbps(a, other) === table.bandwidthMbps(b, other) &&
          table.latencyMs(a, other) === table.latencyMs(b, other)),
    );
  return available.filter((other) => other.place < place && same(other.place, place)).map((other) => other.place);
}
