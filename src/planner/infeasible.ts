// Explains why nothing fits: which device lacks how much memory, and the smallest change that makes the model fit. Only
// memory can make a search fail, so this finds, for each device, how much more of it would be enough with the other
// devices unchanged (eq. 3 throughout).

import { bytesInMiB } from '../cluster/memory.ts';
import { InputError } from '../errors.ts';
import { leastMemoryBytes } from './memory.ts';
import { createProblem, type Problem, pinsAllow, stageDemand, withMicroBatchSize, withStages } from './problem.ts';
import type { Overload, Question } from './question.ts';
import type { Space } from './space.ts';
import type { Spaces } from './spaces.ts';
import { type Group, inFlightFromEnd, neighbourGroups, StageTable } from './stages.ts';

/** What one device lacks, and the change that helps. */
interface Shortage {
  readonly place: number;
  readonly lacksMiB: number;
  readonly fix: string;
}

/** Above this many candidates a shortage is searched only among plans of one stage. */
const candidateLimit = 2e7;

/** Throws the error for a question whose every search found nothing. */
export function refuse({ base, planner, microBatchSizes }: Question, spaces: Spaces): never {
  if (
    base.pins.size > 0 &&
    !fits(
      withMemory(base, () => unlimitedMiB),
      spaces,
    )
  )
    throw new InputError(
      `Planner "${planner}" has no plan that keeps to the pins; use planner best, or leave some of them out.`,
    );
  const smallest = microBatchSizes[0] ?? 1;
  const batchSize = base.microBatchSize * base.microBatchCount;
  const smaller = Array.from({ length: smallest - 1 }, (_, index) => smallest - 1 - index).filter(
    (size) => batchSize % size === 0,
  );
  throw explainInfeasible(base, planner, spaces, smaller);
}

const unlimitedMiB = 2 ** 40;

/**
 * The error for a problem whose every search found nothing. `smaller` holds the micro-batch sizes below the problem's
 * that the batch allows, largest first; empty if they were all tried.
 */
function explainInfeasible(problem: Problem, planner: string, spaces: Spaces, smaller: readonly number[]): InputError {
  const { place, lacksMiB, fix } = oneDevice(problem, spaces) ?? everyDevice(problem, spaces);
  const spec = problem.cluster.devices[place];
  const fitting = smaller.find((size) => fits(withMicroBatchSize(problem, size), spaces));
  const where = `planner ${planner}, micro-batches of ${problem.microBatchSize}`;
  const hasMiB = Math.floor((spec?.memoryMiB ?? 0) * 10) / 10;
  const what =
    `Model "${problem.profile.model}" fits nowhere (${where}): device "${spec?.name}" has ${hasMiB} MiB and ` +
    `lacks ${lacksMiB} MiB`;
  return new InputError(`${what}; ${fitting === undefined ? fix : `use micro-batches of ${fitting}, or ${fix}`}.`);
}

/** Throws the error for a planner that ignores memory and whose plan does not fit. */
export function explainOverload(
  { base, planner }: Question,
  { name, neededMiB, hasMiB, microBatchSize }: Overload & { readonly microBatchSize: number },
): never {
  const what =
    `Planner "${planner}" does not look at memory, and its plan for model "${base.profile.model}" does not fit ` +
    `(micro-batches of ${microBatchSize})`;
  const has = Math.floor(hasMiB * 10) / 10;
  throw new InputError(
    `${what}: device "${name}" has ${has} MiB and lacks ${Math.ceil(neededMiB - hasMiB)} MiB; use planner ` +
      `best, or raise its memoryMiB to ${Math.ceil(neededMiB)}.`,
  );
}

function fits(problem: Problem, spaces: Spaces): boolean {
  return spaces(problem).some((space) => shortageOf(problem, space, -1) === 0);
}

/**
 * The smallest addition to the memory of one device that helps. More memory can change a planner's order of devices, so
 * each answer is verified.
 */
function oneDevice(problem: Problem, spaces: Spaces): Shortage | undefined {
  const shortages: { readonly place: number; readonly bytes: number }[] = [];
  for (const space of spaces(problem)) {
    for (const place of space.order) shortages.push({ place, bytes: shortageOf(problem, space, place) });
  }
  shortages.sort((a, b) => a.bytes - b.bytes);
  for (const { place, bytes } of shortages) {
    if (!Number.isFinite(bytes)) continue;
    const neededMiB = Math.ceil((problem.cluster.devices[place]?.memoryMiB ?? 0) + bytes / bytesInMiB);
    if (
      fits(
        withMemory(problem, (memoryMiB, index) => (index === place ? neededMiB : memoryMiB)),
        spaces,
      )
    ) {
      return { place, lacksMiB: Math.ceil(bytes / bytesInMiB), fix: `raise its memoryMiB to ${neededMiB}` };
    }
  }
  return undefined;
}

/**
 * The smallest memory, in whole MiB, that helps if each device has it; for problems in which several devices are too
 * small.
 */
function everyDevice(problem: Problem, spaces: Spaces): Shortage {
  const memories = problem.cluster.devices.map((device) => device.memoryMiB);
  const raised = (level: number): Problem => withMemory(problem, (memoryMiB) => Math.max(memoryMiB, level));
  const layerCount = problem.profile.layers.length;
  const stageLimit = Math.min(layerCount, problem.available.length);
  const most = inFlightFromEnd(problem, layerCount).at(-1) ?? 1;
  const whole = stageDemand(withStages(problem, stageLimit), 0, layerCount, most);
  let low = Math.floor(Math.min(...memories));
  let high = Math.ceil(leastMemoryBytes(whole, problem.microBatchSize) / bytesInMiB);
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (fits(raised(middle), spaces)) high = middle;
    else low = middle;
  }
  const place = memories.indexOf(Math.min(...memories));
  return { place, lacksMiB: Math.ceil(high - (memories[place] ?? 0)), fix: `give every device at least ${high} MiB` };
}

function withMemory(problem: Problem, change: (memoryMiB: number, place: number) => number): Problem {
  const devices = problem.cluster.devices.map((device, place) => ({
    ...device,
    memoryMiB: change(device.memoryMiB, place),
  }));
  return createProblem({
    ...problem,
    batchSize: problem.microBatchSize * problem.microBatchCount,
    cluster: { ...problem.cluster, devices },
  });
}

/**
 * The least memory, in bytes, that must be added to the device at `target` (−1: to none) for some pipeline of the space
 * to fit: 0 if one fits already, infinite if no amount is enough. Dynamic programming over (l, n, p) as in
 * dynamic-program.ts, with bytes for milliseconds.
 */
export function shortageOf(asked: Problem, space: Space, target: number): number {
  const [L, N] = [asked.profile.layers.length, space.order.length];
  const wide = Math.min(space.stageLimit, L, N);
  const P = L * L * N * N * wide > candidateLimit ? 1 : wide;
  const problem = withStages(asked, P);
  const inFlight = inFlightFromEnd(problem, P);
  const groupOf = neighbourGroups(problem, space.order);
  const table = new StageTable(problem);
  const least = new Float64Array((L + 1) * (N + 1) * (P + 1)).fill(Number.POSITIVE_INFINITY);
  const index = (l: number, n: number, p: number): number => (l * (N + 1) + n) * (P + 1) + p;
  least[index(0, 0, 0)] = 0;
  for (let l = 1; l <= L; l++) {
    for (let rest = P === 1 && l < L ? l : 0; rest < l; rest++) {
      table.setLayers(L - l, L - rest);
      for (let n = l === L ? N : 1; n <= N; n++) {
        for (let m = Math.max(0, n - space.groupLimit); m < n; m++) {
          for (let p = 1; p <= P; p++) {
            const behind = least[index(rest, m, p - 1)] ?? 0;
            const at = index(l, n, p);
            if (behind >= (least[at] ?? 0)) continue;
            if (!pinsAllow(problem, L - l, L - rest, groupOf(N - n, N - m).places)) continue;
            least[at] = Math.min(
              least[at] ?? 0,
              behind +
                stageShortage(problem, table, groupOf(N - n, N - m), [L - l, L - rest], inFlight[p] ?? 1, target),
            );
          }
        }
      }
    }
  }
  return Math.min(...Array.from({ length: P }, (_, stages) => least[index(L, N, stages + 1)] ?? 0));
}

/** shortageOf for one stage on one group. */
function stageShortage(
  problem: Problem,
  table: StageTable,
  group: Group,
  layers: readonly [number, number],
  inFlight: number,
  target: number,
): number {
  const { microBatchSize } = problem;
  const demand = stageDemand(problem, ...layers, inFlight);
  const together = table.mayReplicate();
  let held = 0;
  let heldByOthers = 0;
  for (const device of group.devices) {
    const share = table.largestShare(demand, device);
    held = together ? held + share : Math.max(held, share);
    if (device.place !== target && together) heldByOthers += share;
  }
  if (held >= microBatchSize) return 0;
  const device = group.devices.find(({ place }) => place === target);
  return device === undefined
    ? Number.POSITIVE_INFINITY
    : leastMemoryBytes(demand, microBatchSize - heldByOthers) - device.memoryBytes;
}
