// PipeEdge's category dynamic program (Hu et al. 2022, eq. 1–3 and Algorithm 1): h(j, S, u) is the least time of the slowest part when the
// first j layers run on the devices S and u comes next; S counts devices by category. O(Π(nᵢ + 1) · L² · N²). Made for inference; for training
// a part's time is forward plus backward, and the bytes cross each direction of a link once, as in eq. 1. Memory (line 9) is eq. 3 with
// one micro-batch in flight: the paper has no pipeline to fill. May leave devices out.
//
// Devices of a category have the same times, memory and links to everybody. Where that leaves more than `stateLimit` sets S, devices next
// to each other in speed form a category, which counts as its slowest member, with the least memory and the slowest links.

import { stageMemoryBytes } from '../cluster/memory.ts';
import { shareTimes } from './evaluate.ts';
import { straightPartition } from './partition.ts';
import { type PlannerDevice, type Problem, type StageLayout, stageDemand } from './problem.ts';
import type { Steps } from './steps.ts';

const stateLimit = 512;

/** Devices that count as equal; the first stands for all. */
interface Category {
  readonly members: readonly PlannerDevice[];
  readonly memoryBytes: number;
  /** Forward and backward of the first layers, up to each layer, on the slowest member: prefix sums. */
  readonly sumsMs: Float64Array;
}

export function* pipeedge(problem: Problem): Steps<readonly StageLayout[]> {
  const categories = categoriesOf(problem).map((members) => categoryOf(problem, members));
  const found = partition(problem, categories);
  yield 1;
  const next = categories.map(() => 0);
  return found.map(({ first, end, category }) => {
    const at = next[category] ?? 0;
    next[category] = at + 1;
    return { layers: [first, end], devices: [categories[category]?.members[at]?.place ?? 0], samples: [problem.microBatchSize] };
  });
}

interface Part {
  readonly first: number;
  readonly end: number;
  readonly category: number;
}

/** Algorithm 1. Empty when nothing fits. */
function partition(problem: Problem, categories: readonly Category[]): Part[] {
  const { profile, microBatchSize } = problem;
  const L = profile.layers.length;
  const C = categories.length;
  const strides: number[] = [];
  let states = 1;
  for (const { members } of categories) {
    strides.push(states);
    states *= members.length + 1;
  }
  const countIn = (state: number, category: number): number =>
    Math.floor(state / (strides[category] as number)) % ((categories[category] as Category).members.length + 1);
  const linkMs = crossTimes(problem, categories);
  const index = (layer: number, state: number, category: number): number => (layer * states + state) * C + category;
  const least = new Float64Array((L + 1) * states * C).fill(Number.POSITIVE_INFINITY);
  const precursors = new Int32Array((L + 1) * states * C);
  for (let u = 0; u < C; u++) least[index(0, 0, u)] = 0;
  const perLayer = categories.map(({ memoryBytes }) => lastFitting(problem, memoryBytes));
  // What cannot beat a pipeline of all devices in the order of their categories is not followed.
  let answer = lineMs(problem, categories, linkMs, perLayer);
  let last = { layer: -1, state: 0, category: 0 };
  for (let i = 0; i < L; i++) {
    for (let state = 0; state < states; state++) {
      for (let u = 0; u < C; u++) {
        const before = least[index(i, state, u)] as number;
        if (before >= answer) continue;
        const used = state + (strides[u] as number);
        const { sumsMs } = categories[u] as Category;
        const end = (perLayer[u] as Int32Array)[i] as number;
        for (let j = i + 1; j <= end; j++) {
          const computeMs = Math.max(before, (sumsMs[j] as number) - (sumsMs[i] as number));
          if (computeMs >= answer) break;
          if (j === L) {
            answer = computeMs;
            last = { layer: i, state, category: u };
            break;
          }
          const bytes = microBatchSize * (profile.layers[j - 1]?.outputBytes ?? 0);
          for (let v = 0; v < C; v++) {
            if (countIn(used, v) >= (categories[v] as Category).members.length) continue;
            const ms = Math.max(computeMs, bytes * (linkMs[u * C + v] as number));
            const at = index(j, used, v);
            if (ms < (least[at] as number)) [least[at], precursors[at]] = [ms, i * C + u];
          }
        }
      }
    }
  }
  if (last.layer === -1) return [];
  const parts: Part[] = [{ first: last.layer, end: L, category: last.category }];
  for (let { layer, state, category } = last; layer > 0; ) {
    const precursor = precursors[index(layer, state, category)] as number;
    const [first, u] = [Math.floor(precursor / C), precursor % C];
    parts.unshift({ first, end: layer, category: u });
    state -= strides[u] as number;
    [layer, category] = [first, u];
  }
  return parts;
}

/** The slowest part of a pipeline of all devices, category by category, a little rounded up; infinite when it does not fit. */
function lineMs(problem: Problem, categories: readonly Category[], linkMs: Float64Array, perLayer: readonly Int32Array[]): number {
  const { profile, microBatchSize } = problem;
  const line = categories.flatMap(({ members }, category) => members.map(() => category)).slice(0, profile.layers.length);
  const stageMs = (index: number, first: number, end: number): number => {
    const category = line[index] as number;
    if (end > ((perLayer[category] as Int32Array)[first] as number)) return Number.POSITIVE_INFINITY;
    const { sumsMs } = categories[category] as Category;
    return (sumsMs[end] as number) - (sumsMs[first] as number);
  };
  const crossMs = (index: number, cut: number): number =>
    microBatchSize *
    (profile.layers[cut - 1]?.outputBytes ?? 0) *
    (linkMs[(line[index - 1] as number) * categories.length + (line[index] as number)] as number);
  const ends = straightPartition(profile.layers.length, line.length, { stageMs, crossMs });
  const parts = ends.map((end, index) => {
    const first = ends[index - 1] ?? 0;
    return Math.max(stageMs(index, first, end), index === 0 ? 0 : crossMs(index, first));
  });
  return Math.max(...parts) * (1 + 1e-9);
}

/** For each first layer, how far a stage can go within this memory. */
function lastFitting(problem: Problem, memoryBytes: number): Int32Array {
  const L = problem.profile.layers.length;
  const ends = new Int32Array(L);
  for (let [first, end] = [0, 0]; first < L; first++) {
    end = Math.max(end, first);
    while (end < L && stageMemoryBytes(stageDemand(problem, first, end + 1, 1), problem.microBatchSize) <= memoryBytes) end++;
    ends[first] = end;
  }
  return ends;
}

/** Milliseconds a byte between categories, by the slowest link. */
function crossTimes({ table }: Problem, categories: readonly Category[]): Float64Array {
  const C = categories.length;
  const found = new Float64Array(C * C);
  for (const [u, from] of categories.entries()) {
    for (const [v, to] of categories.entries()) {
      for (const { place: a } of from.members)
        for (const { place: b } of to.members) if (a !== b) found[u * C + v] = Math.max(found[u * C + v] ?? 0, table.occupancyMs(a, b, 1));
    }
  }
  return found;
}

function categoryOf(problem: Problem, members: readonly PlannerDevice[]): Category {
  const times = shareTimes(problem);
  const { microBatchSize: B } = problem;
  const sumsMs = new Float64Array(problem.profile.layers.length + 1);
  for (let layer = 0; layer < sumsMs.length - 1; layer++) {
    const slowest = Math.max(
      ...members.map(({ place }) => times.forwardMs(place, layer, layer + 1, B) + times.backwardMs(place, layer, layer + 1, B)),
    );
    sumsMs[layer + 1] = (sumsMs[layer] as number) + slowest;
  }
  return { members, memoryBytes: Math.min(...members.map(({ memoryBytes }) => memoryBytes)), sumsMs };
}

/** Equal devices together; where that leaves too many sets, runs of devices that are near in speed. */
function categoriesOf(problem: Problem): PlannerDevice[][] {
  const { available, table, devices } = problem;
  const same = (a: PlannerDevice, b: PlannerDevice): boolean =>
    a.classIndex === b.classIndex &&
    a.memoryBytes === b.memoryBytes &&
    devices.every(
      ({ place }) =>
        place === a.place || place === b.place || table.occupancyMs(a.place, place, 1) === table.occupancyMs(b.place, place, 1),
    );
  const equal: PlannerDevice[][] = [];
  for (const device of available) {
    const group = equal.find(([first]) => first !== undefined && same(first, device));
    if (group === undefined) equal.push([device]);
    else group.push(device);
  }
  if (stateCount(equal) <= stateLimit) return equal;
  const times = shareTimes(problem);
  const L = problem.profile.layers.length;
  const speed = new Map(available.map(({ place }) => [place, times.forwardMs(place, 0, L, problem.microBatchSize)]));
  const sorted = [...available].sort((a, b) => (speed.get(a.place) ?? 0) - (speed.get(b.place) ?? 0) || b.memoryBytes - a.memoryBytes);
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
