// The best pipeline along one order of the devices: stages are runs of neighbours in the order, some of which may be
// left out. A dynamic program over (layers done, last stage's devices): PipeEdge's eq. 3 with groups in the place of
// single devices, and sums in the place of the largest for the latency.
//
//     value(j, g) = min over stages (i, f) before:  worst or sum of
//                   value(i, f),  what f sends to g at cut i,  what g computes of layers i … j
//
// Within a group devices have shares by their speed over the whole model, or all alike; improve.ts shifts samples
// afterwards.

import { calledMs, type Overhead, transferCpuMs } from '../../cluster/overhead.ts';
import type { ClassTimes, StageLayout } from '../problem.ts';
import type { Objective } from './evaluate.ts';
import { type InferenceProblem, lastEnds, memoryBytes } from './problem.ts';

/** Neighbours in the order: [first, end) of it. */
interface Group {
  readonly first: number;
  readonly end: number;
  readonly devices: readonly number[];
  readonly samples: readonly number[];
  /** By device: milliseconds of the first n layers at its share, without what a pass takes besides. */
  readonly sumsMs: readonly Float64Array[];
  /** By device: what a pass takes besides its layers. */
  readonly passMs: readonly number[];
  /** By device: what a byte a sample that crosses a link costs its processor at its share. */
  readonly byteMs: readonly number[];
  /** By device: where a stage must end that begins with a layer. */
  readonly lastEnds: readonly Int32Array[];
}

export interface SearchLimits {
  /** Most devices in one stage. */
  readonly groupLimit: number;
  /** Most devices left out between two stages. */
  readonly skipLimit: number;
}

/**
 * The best pipeline along the order that is better than `barMs`; undefined if there is none. For the throughput,
 * `barMs` and the result are the period of a micro-batch.
 */
export function searchOrder(
  problem: InferenceProblem,
  order: readonly number[],
  objective: Objective,
  limits: SearchLimits,
  barMs: number,
): readonly StageLayout[] | undefined {
  return new OrderSearch(problem, order, objective, limits).best(barMs);
}

class OrderSearch {
  readonly #problem: InferenceProblem;
  readonly #layerCount: number;
  readonly #groups: readonly Group[];
  readonly #limits: SearchLimits;
  readonly #isSum: boolean;
  /** By group and layers done. */
  readonly #values: Float64Array;
  readonly #before: Int32Array;
  /** By pair of groups: milliseconds a byte of a sample at the cut, and the latency of the slowest link. */
  readonly #links = new Map<number, readonly [msPerByte: number, latencyMs: number]>();

  constructor(problem: InferenceProblem, order: readonly number[], objective: Objective, limits: SearchLimits) {
    this.#problem = problem;
    this.#layerCount = problem.base.profile.layers.length;
    this.#limits = limits;
    this.#isSum = objective === 'latency';
    this.#groups = groupsOf(problem, order, limits.groupLimit, objective);
    this.#values = new Float64Array(this.#groups.length * (this.#layerCount + 1));
    this.#before = new Int32Array(this.#values.length);
  }

  best(barMs: number): readonly StageLayout[] | undefined {
    const [groups, values, L] = [this.#groups, this.#values.fill(Number.POSITIVE_INFINITY), this.#layerCount];
    for (const index of groups.keys()) this.#extend(index, 0, 0, -1, barMs);
    const orderEnd = Math.max(0, ...groups.map(({ end }) => end));
    const following = Array.from({ length: orderEnd + 1 }, (_, end) =>
      [...groups.keys()].filter((to) => {
        const first = groups[to]?.first ?? 0;
        return first >= end && first <= end + this.#limits.skipLimit;
      }),
    );
    for (let layer = 1; layer < L; layer++) {
      for (const [from, { end }] of groups.entries()) {
        const value = values[from * (L + 1) + layer] as number;
        if (value >= barMs) continue;
        for (const to of following[end] ?? []) {
          const reached = this.#joined(value, this.#linkMs(from, to, layer));
          if (reached < barMs) this.#extend(to, layer, reached, from, barMs);
        }
      }
    }
    let [best, least] = [-1, barMs];
    for (const index of groups.keys()) {
      const value = values[index * (L + 1) + L] as number;
      if (value < least) [best, least] = [index, value];
    }
    return best === -1 ? undefined : this.#follow(best);
  }

  #joined(a: number, b: number): number {
    return this.#isSum ? a + b : Math.max(a, b);
  }

  /** Lets a group run layers from `first` on, after a pipeline of this value whose last group is `from`. */
  #extend(to: number, first: number, value: number, from: number, barMs: number): void {
    const L = this.#layerCount;
    const group = this.#groups[to] as Group;
    const last = Math.min(...group.lastEnds.map((ends) => ends[first] ?? 0));
    for (let end = first + 1; end <= last; end++) {
      // Layers add up; what crosses the cut behind them does not.
      if (this.#joined(value, groupMs(group, first, end, 0)) >= barMs) return;
      const reached = this.#joined(value, groupMs(group, first, end, this.#movedBytes(first, end)));
      if (reached >= barMs) continue;
      const at = to * (L + 1) + end;
      if (reached >= (this.#values[at] as number)) continue;
      this.#values[at] = reached;
      this.#before[at] = (from + 1) * (L + 1) + first;
    }
  }

  /** Bytes a sample that a stage's devices receive and send; a request alone does not wait for what they cost. */
  #movedBytes(first: number, end: number): number {
    if (this.#isSum) return 0;
    const { layers } = this.#problem.base.profile;
    const sent = end < this.#layerCount ? (layers[end - 1]?.outputBytes ?? 0) : 0;
    return (layers[first - 1]?.outputBytes ?? 0) + sent;
  }

  #linkMs(from: number, to: number, cut: number): number {
    const key = from * this.#groups.length + to;
    let found = this.#links.get(key);
    if (found === undefined) {
      found = this.#slowestPiece(this.#groups[from] as Group, this.#groups[to] as Group);
      this.#links.set(key, found);
    }
    const bytes = this.#problem.base.profile.layers[cut - 1]?.outputBytes ?? 0;
    const { codecMs, microBatchSize } = this.#problem;
    return found[0] * bytes + (this.#isSum ? found[1] + (codecMs[cut] ?? 0) * microBatchSize : 0);
  }

  #slowestPiece(a: Group, b: Group): readonly [number, number] {
    const { table } = this.#problem.base;
    let [msPerByte, latencyMs] = [0, 0];
    let aFirst = 0;
    for (const [i, from] of a.devices.entries()) {
      const aEnd = aFirst + (a.samples[i] ?? 0);
      let bFirst = 0;
      for (const [j, to] of b.devices.entries()) {
        const bEnd = bFirst + (b.samples[j] ?? 0);
        const overlap = Math.min(aEnd, bEnd) - Math.max(aFirst, bFirst);
        if (overlap > 0) {
          msPerByte = Math.max(msPerByte, table.occupancyMs(from, to, overlap));
          latencyMs = Math.max(latencyMs, table.latencyMs(from, to));
        }
        bFirst = bEnd;
      }
      aFirst = aEnd;
    }
    return [msPerByte, latencyMs];
  }

  #follow(last: number): readonly StageLayout[] {
    const L = this.#layerCount;
    const found: StageLayout[] = [];
    for (let [group, end] = [last, L]; group !== -1; ) {
      const before = this.#before[group * (L + 1) + end] as number;
      const first = before % (L + 1);
      const { devices, samples } = this.#groups[group] as Group;
      found.unshift({ layers: [first, end], devices, samples });
      [group, end] = [Math.floor(before / (L + 1)) - 1, first];
    }
    return found;
  }
}

function groupMs({ sumsMs, passMs, byteMs }: Group, first: number, end: number, movedBytes: number): number {
  let most = 0;
  for (let index = 0; index < sumsMs.length; index++) {
    const sums = sumsMs[index] as Float64Array;
    const besidesMs = (passMs[index] as number) + (byteMs[index] as number) * movedBytes;
    const ms = (sums[end] as number) - (sums[first] as number) + besidesMs;
    if (ms > most) most = ms;
  }
  return most;
}

function groupsOf(
  problem: InferenceProblem,
  order: readonly number[],
  groupLimit: number,
  objective: Objective,
): readonly Group[] {
  const { times, base, microBatchSize } = problem;
  const L = base.profile.layers.length;
  const known = new Map<string, Float64Array>();
  const sums = (place: number, samples: number): Float64Array => {
    const key = `${base.devices[place]?.classIndex} ${samples}`;
    const found = known.get(key) ?? Float64Array.from({ length: L + 1 }, (_, end) => layersMs(end, place, samples));
    known.set(key, found);
    return found;
  };
  const passMs = (place: number): number =>
    objective === 'latency' ? 0 : times.processorMs(place, { bytes: 0, frames: 2, passes: 1 });
  // forwardMs of the layers alone has the engine's call in it, which belongs to a pass.
  const layersMs = (end: number, place: number, samples: number): number =>
    end === 0 ? 0 : times.forwardMs(place, 0, end, samples) - calledMs(overhead(place), false, 0);
  const overhead = (place: number): Overhead =>
    (base.classes[base.devices[place]?.classIndex ?? 0] as ClassTimes).overhead;
  const groups: Group[] = [];
  for (let first = 0; first < order.length; first++) {
    for (let end = first + 1; end <= Math.min(order.length, first + Math.min(groupLimit, microBatchSize)); end++) {
      const devices = order.slice(first, end);
      for (const samples of sharesOf(problem, devices))
        groups.push({
          ...{ first, end, devices, samples },
          sumsMs: devices.map((place, index) => sums(place, samples[index] ?? 0)),
          passMs: devices.map((place) => passMs(place) + calledMs(overhead(place), false, 0)),
          lastEnds: devices.map((place, index) => lastEnds(problem, memoryBytes(problem, place), samples[index] ?? 0)),
          byteMs: devices.map((place, index) => transferCpuMs(overhead(place), samples[index] ?? 0)),
        });
    }
  }
  return groups;
}

/** By speed over the whole model, and all alike: devices may differ otherwise in some of the layers. */
function sharesOf(problem: InferenceProblem, devices: readonly number[]): readonly (readonly number[])[] {
  const bySpeed = evenShares(problem, devices);
  const [count, total] = [devices.length, problem.microBatchSize];
  const alike = devices.map(
    (_, index) => Math.floor(((index + 1) * total) / count) - Math.floor((index * total) / count),
  );
  const isSame = bySpeed?.every((share, index) => share === alike[index]) === true;
  return [...(bySpeed === undefined ? [] : [bySpeed]), ...(isSame ? [] : [alike])];
}

/**
 * Each sample goes to the device that is done with it first, over the whole model; undefined if some device would get
 * none.
 */
export function evenShares(
  { times, base, microBatchSize }: InferenceProblem,
  devices: readonly number[],
): number[] | undefined {
  const L = base.profile.layers.length;
  const samples = devices.map(() => 0);
  const nextMs = devices.map((place) => times.forwardMs(place, 0, L, 1));
  for (let sample = 0; sample < microBatchSize; sample++) {
    const least = nextMs.indexOf(Math.min(...nextMs));
    const share = (samples[least] ?? 0) + 1;
    samples[least] = share;
    nextMs[least] = times.forwardMs(devices[least] ?? 0, 0, L, share + 1);
  }
  return samples.includes(0) ? undefined : samples;
}
