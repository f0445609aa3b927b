// Devices as PipeEdge's program (pipeedge.ts) counts them: in categories whose members count as equal, and the sets of
// devices that have this many of each category.

import { interpolation, prefixSums } from '../cluster/times.ts';
import type { ClassTimes, PlannerDevice, Problem } from './problem.ts';

/** Default of the most sets; planner `best` asks for many micro-batch sizes. */
const defaultStateLimit = 512;

/** Devices that count as equal: the slowest times and the least memory among them. */
export interface Category {
  readonly members: readonly PlannerDevice[];
  readonly memoryBytes: number;
  /** Forward and backward of the first layers, up to each layer, on the slowest member: prefix sums. */
  readonly sumsMs: Float64Array;
}

/** By two categories: milliseconds a byte over the slowest link between them. */
function crossTimes({ table }: Problem, categories: readonly (readonly PlannerDevice[])[]): Float64Array {
  const C = categories.length;
  const found = new Float64Array(C * C);
  if (table.isUniform) return found.fill(table.occupancyMs(0, 1, 1));
  for (const [u, from] of categories.entries()) {
    for (const [v, to] of categories.entries()) {
      for (const { place: a } of from)
        for (const { place: b } of to)
          if (a !== b) found[u * C + v] = Math.max(found[u * C + v] ?? 0, table.occupancyMs(a, b, 1));
    }
  }
  return found;
}

/** The category of these devices at the problem's micro-batch size. */
export function categoryOf({ classes, profile, microBatchSize }: Problem, members: readonly PlannerDevice[]): Category {
  const { lower, upper, lowerWeight, upperWeight } = interpolation(profile.batchSizes, microBatchSize);
  const slowestMs = new Float64Array(profile.layers.length);
  for (const classIndex of new Set(members.map((member) => member.classIndex))) {
    const { layers } = classes[classIndex] as ClassTimes;
    const [from, to] = [layers[lower] as Float64Array, layers[upper] as Float64Array];
    for (let layer = 0; layer < slowestMs.length; layer++) {
      const ms = lowerWeight * (from[layer] as number) + upperWeight * (to[layer] as number);
      if (ms > (slowestMs[layer] as number)) slowestMs[layer] = ms;
    }
  }
  return {
    members,
    memoryBytes: Math.min(...members.map(({ memoryBytes }) => memoryBytes)),
    sumsMs: prefixSums(slowestMs),
  };
}

/**
 * Categories of identical devices; if these form more than `stateLimit` sets, of devices that are next to each other in
 * speed.
 */
export function categoriesOf(problem: Problem, stateLimit: number = defaultStateLimit): PlannerDevice[][] {
  const { available, table, devices } = problem;
  const same = (a: PlannerDevice, b: PlannerDevice): boolean =>
    a.classIndex === b.classIndex &&
    a.memoryBytes === b.memoryBytes &&
    (table.isUniform ||
      devices.every(
        ({ place }) =>
          place === a.place ||
          place === b.place ||
          table.occupancyMs(a.place, place, 1) === table.occupancyMs(b.place, place, 1),
      ));
  const equal: PlannerDevice[][] = [];
  for (const device of available) {
    const group = equal.find(([first]) => first !== undefined && same(first, device));
    if (group === undefined) equal.push([device]);
    else group.push(device);
  }
  if (stateCount(equal) <= stateLimit) return equal;
  const speed = new Map(available.map((device) => [device.place, categoryOf(problem, [device]).sumsMs.at(-1)]));
  const sorted = [...available].sort(
    (a, b) => (speed.get(a.place) ?? 0) - (speed.get(b.place) ?? 0) || b.memoryBytes - a.memoryBytes,
  );
  for (let count = Math.min(10, sorted.length); count > 1; count--) {
    const runs = Array.from({ length: count }, (_, index) =>
      sorted.slice(Math.floor((index * sorted.length) / count), Math.floor(((index + 1) * sorted.length) / count)),
    );
    if (stateCount(runs) <= stateLimit) return runs;
  }
  return [sorted];
}

function stateCount(categories: readonly (readonly PlannerDevice[])[]): number {
  return categories.reduce((product, members) => product * (members.length + 1), 1);
}

/** The sets S of devices, numbered by how many they have of each category; the same for every micro-batch size. */
export class DeviceSets {
  readonly categories: readonly (readonly PlannerDevice[])[];
  /** By category: how much one more of its devices adds to the number of a set S. */
  readonly strides: readonly number[];
  readonly count: number;
  /** By set and category: whether S has all of the category's devices. */
  readonly isSpent: Uint8Array;
  /** By two categories, milliseconds a byte. */
  readonly linkMs: Float64Array;

  constructor(problem: Problem, categories: readonly (readonly PlannerDevice[])[]) {
    const C = categories.length;
    const strides: number[] = [];
    let count = 1;
    for (const members of categories) {
      strides.push(count);
      count *= members.length + 1;
    }
    this.categories = categories;
    this.strides = strides;
    this.count = count;
    this.linkMs = crossTimes(problem, categories);
    this.isSpent = new Uint8Array(count * C);
    for (const [u, { length }] of categories.entries()) {
      const stride = strides[u] as number;
      for (let set = 0; set < count; set++)
        this.isSpent[set * C + u] = Math.floor(set / stride) % (length + 1) === length ? 1 : 0;
    }
  }
}
