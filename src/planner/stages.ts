// Times and shares of one candidate stage for a fixed micro-batch size, designed for hundreds of thousands of queries:
// `setLayers` chooses the layers once, then groups of devices are queried. Groups with the same classes of devices
// share results.

import { type LinkTable, slowestInGroup } from '../cluster/links.ts';
import { type StageDemand, stageMemoryBytes } from '../cluster/memory.ts';
import { processorMs } from '../cluster/overhead.ts';
import { interpolation, rangeOf } from '../cluster/times.ts';
import { type Allocation, allocate, allocateByKind } from './allocation.ts';
import { allReduceMs, passedBytes, passedFrames, ringMs, type Shares } from './cost.ts';
import { largestShare } from './memory.ts';
import { leastInFlight, mayReplicate, type PlannerDevice, type Problem, stageDemand, sumsFor } from './problem.ts';
import { recomputeMs } from './recomputation.ts';

/**
 * A stage on a group of devices, with its shares by Algorithm 1 and its times by eq. 8. Devices without samples stay in
 * the list.
 */
export interface StageTimes {
  readonly shares: Shares;
  /** E_f. */
  readonly forwardMs: number;
  /** E_b. */
  readonly backwardMs: number;
}

/** Devices order[start … end) as a candidate group. */
export interface Group {
  readonly devices: readonly PlannerDevice[];
  /** Places in the cluster. */
  readonly places: readonly number[];
  /** Equal for groups of the same classes in the same order. */
  readonly signature: number;
  /** The slowest bandwidth within the group. */
  slowestMbps(): number;
  kinds(): readonly DeviceKind[];
}

/** Devices of a group with the same times and memory. */
interface DeviceKind {
  readonly like: PlannerDevice;
  /** Indices in the group. */
  readonly members: readonly number[];
}

/** A group's kinds of devices. */
export function kindsOf(devices: readonly PlannerDevice[]): DeviceKind[] {
  const kinds: { like: PlannerDevice; members: number[] }[] = [];
  const known = new Map<string, number[]>();
  for (const [index, device] of devices.entries()) {
    const key = `${device.classIndex} ${device.memoryBytes}`;
    const members = known.get(key);
    if (members !== undefined) members.push(index);
    else {
      const own = [index];
      known.set(key, own);
      kinds.push({ like: device, members: own });
    }
  }
  return kinds;
}

/** The groups of neighbours in an order: `group(start, end)`. */
export function neighbourGroups(problem: Problem, order: readonly number[]): (start: number, end: number) => Group {
  const groups = new Map<number, Group>();
  const signatures = new Map<string, number>();
  return (start, end) => {
    const key = start * (order.length + 1) + end;
    const known = groups.get(key);
    if (known !== undefined) return known;
    const places = order.slice(start, end);
    const devices = places.map((place) => problem.devices[place] as PlannerDevice);
    const classes = devices.map((device) => device.classIndex).join(' ');
    const signature = signatures.get(classes) ?? signatures.size;
    signatures.set(classes, signature);
    let mbps = 0;
    const slowestMbps = (): number => {
      if (mbps === 0) mbps = slowestInGroup(problem.table, places).bandwidthMbps;
      return mbps;
    };
    let kinds: DeviceKind[] | undefined;
    const group = { devices, places, signature, slowestMbps, kinds: () => (kinds ??= kindsOf(devices)) };
    groups.set(key, group);
    return group;
  };
}

/** A group's result when memory is unlimited, and the memory that its devices need for that. */
interface Unlimited {
  readonly allocation: Allocation;
  readonly forwardMs: number;
  readonly backwardMs: number;
}

/** Up to this number of devices, a group shares by Algorithm 1 as in the paper. */
const literalGroupSize = 64;

/** Stage times and shares for one micro-batch size. */
export class StageTable {
  readonly #problem: Problem;
  readonly #lower: Int32Array;
  readonly #upper: Int32Array;
  readonly #lowerWeight: Float64Array;
  readonly #upperWeight: Float64Array;
  /** By class and measured batch size: milliseconds of the chosen layers. */
  readonly #forward: Float64Array;
  readonly #total: Float64Array;
  readonly #classIsReady: Uint8Array;
  /** By class; 0: not computed yet. */
  readonly #rates: Float64Array;
  readonly #unlimited = new Map<number, Unlimited>();
  readonly #largeAnswers = new Map<
    Group,
    { readonly limits: readonly number[]; readonly stage: StageTimes | undefined }
  >();
  #first = 0;
  #end = 0;

  constructor(problem: Problem) {
    const { microBatchSize: limit, profile } = problem;
    this.#problem = problem;
    this.#lower = new Int32Array(limit + 1);
    this.#upper = new Int32Array(limit + 1);
    this.#lowerWeight = new Float64Array(limit + 1);
    this.#upperWeight = new Float64Array(limit + 1);
    for (let samples = 0; samples <= limit; samples++) {
      const at = interpolation(profile.batchSizes, samples);
      this.#lower[samples] = at.lower;
      this.#upper[samples] = at.upper;
      this.#lowerWeight[samples] = at.lowerWeight;
      this.#upperWeight[samples] = at.upperWeight;
    }
    this.#forward = new Float64Array(problem.classes.length * profile.batchSizes.length);
    this.#total = new Float64Array(problem.classes.length * profile.batchSizes.length);
    this.#classIsReady = new Uint8Array(problem.classes.length);
    this.#rates = new Float64Array(problem.classes.length);
  }

  /** Chooses the layers that all other methods refer to. */
  setLayers(first: number, end: number): void {
    this.#first = first;
    this.#end = end;
    this.#classIsReady.fill(0);
    this.#rates.fill(0);
    this.#unlimited.clear();
    this.#largeAnswers.clear();
  }

  /** Whether the chosen layers may be replicated. */
  mayReplicate(): boolean {
    return mayReplicate(this.#problem, this.#first, this.#end);
  }

  /** E_f + E_b of the chosen layers on a class of devices at a share. */
  totalMs(classIndex: number, samples: number): number {
    this.#prepare(classIndex);
    return this.#at(this.#total, classIndex, samples);
  }

  /** Prefix sums of the devices' highest rates (samples a millisecond, forward and backward) for the chosen layers. */
  prefixRates(devices: readonly PlannerDevice[], into: Float64Array): void {
    for (const [index, { classIndex }] of devices.entries())
      into[index + 1] = (into[index] ?? 0) + this.#rate(classIndex);
  }

  #rate(classIndex: number): number {
    const known = this.#rates[classIndex] as number;
    if (known > 0) return known;
    this.#prepare(classIndex);
    const rate = 1 / this.leastPerSampleMs(classIndex);
    this.#rates[classIndex] = rate;
    return rate;
  }

  /** A lower bound on the forward plus backward time of any allocation of the micro-batch to the group. */
  leastMs(group: Group): number {
    const { microBatchSize } = this.#problem;
    const alone = !this.mayReplicate();
    let rate = 0;
    let best = Number.POSITIVE_INFINITY;
    for (const { like, members } of group.kinds()) {
      if (alone) best = Math.min(best, this.totalMs(like.classIndex, microBatchSize));
      else rate += members.length * this.#rate(like.classIndex);
    }
    return alone ? best : microBatchSize / rate;
  }

  /**
   * The stage on a group with K_p = inFlightCount; undefined if it does not fit. A stage that may not be replicated
   * goes to the fastest device of the group that can hold it.
   */
  stage(group: Group, inFlightCount: number): StageTimes | undefined {
    const { devices } = group;
    const demand = stageDemand(this.#problem, this.#first, this.#end, inFlightCount);
    if (devices.length === 1 || !this.mayReplicate()) return this.#alone(group, demand);
    if (devices.length > literalGroupSize) return this.#large(group, demand);
    const limits = new Array<number>(devices.length);
    for (let index = 0; index < limits.length; index++)
      limits[index] = this.largestShare(demand, devices[index] as PlannerDevice);
    const { allocation, forwardMs, backwardMs } = this.#withoutLimits(group);
    if (this.#keepsAll(allocation.highest, limits, demand, devices)) {
      return { shares: { devices: group.places, samples: allocation.samples }, forwardMs, backwardMs };
    }
    const limited = allocate({
      samples: this.#problem.microBatchSize,
      limits,
      timeMs: this.#groupTimes(group, demand),
    });
    return limited === undefined ? undefined : this.#timed(group, limited.samples, demand);
  }

  /** Whether shares up to the given limits fit without recomputation. */
  #keepsAll(
    highest: readonly number[],
    limits: readonly number[],
    demand: StageDemand,
    devices: readonly PlannerDevice[],
  ): boolean {
    if (!this.#problem.recomputes) return within(highest, limits);
    return devices.every(({ memoryBytes }, index) => stageMemoryBytes(demand, highest[index] ?? 0) <= memoryBytes);
  }

  /** Milliseconds that a device spends on recomputation for a share of the chosen layers. */
  #recomputeMs({ place }: PlannerDevice, demand: StageDemand, samples: number): number {
    return recomputeMs(this.#problem, place, [this.#first, this.#end], demand, samples);
  }

  /** A large group's optimum of eq. 7, which is faster to compute than Algorithm 1's if most devices are identical. */
  #large(group: Group, demand: StageDemand): StageTimes | undefined {
    const kinds = group.kinds().map(({ like, members }) => {
      this.#prepare(like.classIndex);
      const timeMs = (share: number): number =>
        this.#at(this.#total, like.classIndex, share) + this.#recomputeMs(like, demand, share);
      return { members, limit: this.largestShare(demand, like), timeMs };
    });
    // The same group is queried with other K_p, which often makes no difference.
    const known = this.#largeAnswers.get(group);
    if (!this.#problem.recomputes && known?.limits.every((limit, index) => limit === kinds[index]?.limit) === true)
      return known.stage;
    const samples = allocateByKind(this.#problem.microBatchSize, group.devices.length, kinds);
    const stage = samples === undefined ? undefined : this.#timed(group, samples, demand);
    this.#largeAnswers.set(group, { limits: kinds.map(({ limit }) => limit), stage });
    return stage;
  }

  /** The stage on the fastest device that can hold all of it. */
  #alone(group: Group, demand: StageDemand): StageTimes | undefined {
    const { devices } = group;
    const { microBatchSize } = this.#problem;
    let chosen: PlannerDevice | undefined;
    let chosenMs = Number.POSITIVE_INFINITY;
    for (const device of devices) {
      if (this.largestShare(demand, device) < microBatchSize) continue;
      const ms = this.totalMs(device.classIndex, microBatchSize) + this.#recomputeMs(device, demand, microBatchSize);
      if (ms < chosenMs) [chosen, chosenMs] = [device, ms];
    }
    if (chosen === undefined) return undefined;
    this.#prepare(chosen.classIndex);
    const forwardMs = this.#at(this.#forward, chosen.classIndex, microBatchSize);
    const backwardMs =
      Math.max(0, this.#at(this.#total, chosen.classIndex, microBatchSize) - forwardMs) +
      this.#recomputeMs(chosen, demand, microBatchSize);
    return { shares: { devices: [chosen.place], samples: [microBatchSize] }, forwardMs, backwardMs };
  }

  /** The largest share of a stage that a device can hold. */
  largestShare(demand: StageDemand, device: PlannerDevice): number {
    return largestShare(demand, device.memoryBytes, this.#problem.microBatchSize);
  }

  #withoutLimits(group: Group): Unlimited {
    const known = this.#unlimited.get(group.signature);
    if (known !== undefined) return known;
    const { microBatchSize } = this.#problem;
    const limits = group.devices.map(() => microBatchSize);
    const allocation = allocate({ samples: microBatchSize, limits, timeMs: this.#groupTimes(group) }) as Allocation;
    const { forwardMs, backwardMs } = this.#timed(group, allocation.samples);
    const found = { allocation, forwardMs, backwardMs };
    this.#unlimited.set(group.signature, found);
    return found;
  }

  /** Forward plus backward times by device; includes recomputation if a demand is given. */
  #groupTimes({ devices }: Group, demand?: StageDemand): (device: number, samples: number) => number {
    for (const device of devices) this.#prepare(device.classIndex);
    return (index, samples) => {
      const device = devices[index] as PlannerDevice;
      const ms = this.#at(this.#total, device.classIndex, samples);
      return demand === undefined || !this.#problem.recomputes ? ms : ms + this.#recomputeMs(device, demand, samples);
    };
  }

  /** Eq. 8 for given shares. */
  #timed(group: Group, samples: readonly number[], demand?: StageDemand): StageTimes {
    let forwardMs = 0;
    let backwardMs = 0;
    for (const [index, device] of group.devices.entries()) {
      const { classIndex } = device;
      const share = samples[index] ?? 0;
      if (share === 0) continue;
      this.#prepare(classIndex);
      const forward = this.#at(this.#forward, classIndex, share);
      const recomputationMs = demand === undefined ? 0 : this.#recomputeMs(device, demand, share);
      forwardMs = Math.max(forwardMs, forward);
      backwardMs = Math.max(backwardMs, this.#at(this.#total, classIndex, share) - forward + recomputationMs);
    }
    return { shares: { devices: group.places, samples }, forwardMs, backwardMs };
  }

  #at(rows: Float64Array, classIndex: number, samples: number): number {
    const base = classIndex * this.#problem.profile.batchSizes.length;
    const lower = rows[base + (this.#lower[samples] ?? 0)] ?? 0;
    const upper = rows[base + (this.#upper[samples] ?? 0)] ?? 0;
    return Math.max(0, (this.#lowerWeight[samples] ?? 0) * lower + (this.#upperWeight[samples] ?? 0) * upper);
  }

  /**
   * The least time that a sample costs at any share: piecewise linear times reach it at a measured size or at the whole
   * micro-batch.
   */
  leastPerSampleMs(classIndex: number): number {
    const { microBatchSize, profile } = this.#problem;
    let least = this.totalMs(classIndex, microBatchSize) / microBatchSize;
    const base = classIndex * profile.batchSizes.length;
    for (const [index, size] of profile.batchSizes.entries()) {
      if (size < microBatchSize) least = Math.min(least, (this.#total[base + index] ?? 0) / size);
    }
    return least;
  }

  #prepare(classIndex: number): void {
    if (this.#classIsReady[classIndex] === 1) return;
    this.#classIsReady[classIndex] = 1;
    const times = this.#problem.classes[classIndex];
    if (times === undefined) return;
    const count = this.#problem.profile.batchSizes.length;
    const sums = sumsFor(this.#problem, times, this.#first, this.#end);
    const { overhead } = times;
    const bytesPerSample = passedBytes(this.#problem.profile, [this.#first, this.#end]);
    const frames = passedFrames(this.#problem.profile, [this.#first, this.#end]);
    for (let index = 0; index < count; index++) {
      const [forward, backward] = [sums.forward[index], sums.backward[index]];
      if (forward === undefined || backward === undefined) continue;
      const bytes = bytesPerSample * (this.#problem.profile.batchSizes[index] ?? 0);
      const besidesMs = (frameCount: number): number =>
        overhead.callMs + processorMs(overhead, { bytes, frames: frameCount, passes: 1 });
      const forwardMs = rangeOf(forward, this.#first, this.#end) + besidesMs(frames.forward);
      const backwardMs = rangeOf(backward, this.#first, this.#end) + besidesMs(frames.backward);
      this.#forward[classIndex * count + index] = forwardMs;
      this.#total[classIndex * count + index] = forwardMs + backwardMs;
    }
  }
}

/** T_a of eq. 5 of a stage on a group, over the devices that have samples. */
export function reduceTimeMs(table: LinkTable, { shares }: StageTimes, group: Group, weightBytes: number): number {
  if (shares.samples.length === group.places.length && shares.samples.every((share) => share > 0))
    return ringMs(group.places.length, group.slowestMbps(), weightBytes);
  const members = shares.devices.filter((_, index) => (shares.samples[index] ?? 0) > 0);
  return allReduceMs(table, members, weightBytes);
}

function within(shares: readonly number[], limits: readonly number[]): boolean {
  for (let index = 0; index < shares.length; index++) if ((shares[index] ?? 0) > (limits[index] ?? 0)) return false;
  return true;
}

/** The least K_p by the stage's distance from the end: entry p is for the first of the last p stages. */
export function inFlightFromEnd(problem: Problem, stageLimit: number): number[] {
  return Array.from({ length: stageLimit + 1 }, (_, stages) => (stages === 0 ? 0 : leastInFlight(problem, 0, stages)));
}
