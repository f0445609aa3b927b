// Says why nothing fits: which device lacks how much memory, and the smallest change that makes it fit. Only memory can make a search
// fail; so this asks, for each device, how much more of it would be enough, with the other devices as they are (eq. 3 throughout).

import { bytesInMiB, stageMemoryBytes } from '../cluster/memory.ts';
import { InputError } from '../errors.ts';
import type { Space } from './asteroid.ts';
import { createProblem, type Problem, stageDemand, withMicroBatchSize } from './problem.ts';
import type { Spaces } from './spaces.ts';
import { type Group, inFlightFromEnd, neighbourGroups, StageTable } from './stages.ts';

/** How much more memory one device needs for a plan to exist. */
interface Shortage {
  readonly place: number;
  readonly bytes: number;
}

/** Above this many candidates a shortage is only looked for among plans of one stage. */
const candidateLimit = 2e7;

/**
 * The error for a problem whose every space came back empty. `smaller` holds the micro-batch sizes below the problem's that the caller's
 * batch allows; empty when they were all tried.
 */
export function explainInfeasible(problem: Problem, planner: string, spaces: Spaces, smaller: readonly number[]): InputError {
  const shortage = findShortage(problem, spaces);
  const device = problem.devices[shortage.place];
  const spec = problem.cluster.devices[shortage.place];
  const lacksMiB = Math.ceil(shortage.bytes / bytesInMiB);
  const neededMiB = Math.ceil((spec?.memoryMiB ?? 0) + shortage.bytes / bytesInMiB);
  const fitting = smaller.find((size) => spaces(withMicroBatchSize(problem, size)).some((space) => shortageOf(withMicroBatchSize(problem, size), space, -1) === 0));
  const where = `planner ${planner}, micro-batches of ${problem.microBatchSize}`;
  const what = `Model "${problem.profile.model}" fits nowhere (${where}): device "${device?.name}" has ${spec?.memoryMiB} MiB and lacks ${lacksMiB} MiB`;
  const mend = `raise its memoryMiB to ${neededMiB}`;
  return new InputError(`${what}; ${fitting === undefined ? mend : `use micro-batches of ${fitting}, or ${mend}`}.`);
}

/** The least that would do, tried in order of size: more memory can change a planner's order of devices, so each is proven. */
function findShortage(problem: Problem, spaces: Spaces): Shortage {
  const shortages: Shortage[] = [];
  for (const space of spaces(problem)) {
    for (const place of space.order) shortages.push({ place, bytes: shortageOf(problem, space, place) });
  }
  shortages.sort((a, b) => a.bytes - b.bytes);
  const proven = shortages.find(({ place, bytes }) => {
    if (!Number.isFinite(bytes)) return false;
    const larger = withMemory(problem, place, bytes);
    return spaces(larger).some((space) => shortageOf(larger, space, -1) === 0);
  });
  return proven ?? wholeModelShortage(problem, spaces);
}

function withMemory(problem: Problem, place: number, moreBytes: number): Problem {
  const devices = problem.cluster.devices.map((device, index) =>
    index === place ? { ...device, memoryMiB: Math.ceil(device.memoryMiB + moreBytes / bytesInMiB) } : device,
  );
  return createProblem({ ...problem, batchSize: problem.microBatchSize * problem.microBatchCount, cluster: { ...problem.cluster, devices } });
}

/** What the planner's largest device lacks to hold its widest stage alone, the last resort: the whole model in one stage. */
function wholeModelShortage(problem: Problem, spaces: Spaces): Shortage {
  const demand = stageDemand(problem, 0, problem.profile.layers.length, inFlightFromEnd(problem, 1)[1] ?? 1);
  const needed = stageMemoryBytes(demand, problem.microBatchSize);
  const places = spaces(problem).flatMap((space) => space.order);
  const place = places.reduce((most, each) => ((problem.devices[each]?.memoryBytes ?? 0) > (problem.devices[most]?.memoryBytes ?? 0) ? each : most));
  return { place, bytes: needed - (problem.devices[place]?.memoryBytes ?? 0) };
}

/**
 * The least memory, in bytes, that must be added to the device at `target` (−1: to nobody) for some pipeline of the space to fit: 0 when one
 * fits as it is, infinite when no amount is enough. Dynamic programming over (l, n, p) as in asteroid.ts, with bytes for milliseconds.
 */
export function shortageOf(problem: Problem, space: Space, target: number): number {
  const [L, N] = [problem.profile.layers.length, space.order.length];
  const wide = Math.min(space.stageLimit, L, N);
  const P = L * L * N * N * wide > candidateLimit ? 1 : wide;
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
            least[at] = Math.min(least[at] ?? 0, behind + stageShortage(problem, table, groupOf(N - n, N - m), [L - l, L - rest], inFlight[p] ?? 1, target));
          }
        }
      }
    }
  }
  return Math.min(...Array.from({ length: P }, (_, stages) => least[index(L, N, stages + 1)] ?? 0));
}

/** The same for one stage on one group. */
function stageShortage(problem: Problem, table: StageTable, group: Group, layers: readonly [number, number], inFlight: number, target: number): number {
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
  return device === undefined ? Number.POSITIVE_INFINITY : stageMemoryBytes(demand, microBatchSize - heldByOthers) - device.memoryBytes;
}
