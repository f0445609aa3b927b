// The oracle of the planners' tests: every possible plan, each simulated. It shares only the meaning of a plan with the
// searches. A stage's devices appear in every order, with every whole share of at least one sample; any device may be
// left out.

import { bytesInMiB } from '../cluster/memory.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { layoutPlan } from './layout.ts';
import { leastMemoryBytes } from './memory.ts';
import {
  leastInFlight,
  mayHaveStages,
  mayReplicate,
  type Problem,
  pinsAllow,
  type StageLayout,
  stageDemand,
  withStages,
} from './problem.ts';

/** Every pipeline of the problem's micro-batch size and schedule that fits the devices' memory. */
export function* everyPipeline(problem: Problem): Generator<readonly StageLayout[], void, void> {
  const layerCount = problem.profile.layers.length;
  for (const order of arrangements(problem.available.map(({ place }) => place))) {
    for (let stageCount = 1; stageCount <= Math.min(order.length, layerCount); stageCount++) {
      if (!mayHaveStages(problem, stageCount)) break;
      for (const groupSizes of compositions(order.length, stageCount)) {
        for (const layerCounts of compositions(layerCount, stageCount)) {
          yield* withShares(problem, stagesOf(order, groupSizes, layerCounts), []);
        }
      }
    }
  }
}

/** The fastest of them and its simulated round; undefined when none fits. */
export function fastestOfEvery(
  problem: Problem,
): { readonly layouts: readonly StageLayout[]; readonly roundMs: number } | undefined {
  let best: { layouts: readonly StageLayout[]; roundMs: number } | undefined;
  for (const layouts of everyPipeline(problem)) {
    const plan = layoutPlan(problem, 'exhaustive', layouts);
    const { roundMs } = simulate(program(plan), plan, problem.profile, problem.cluster, { events: false });
    if (best === undefined || roundMs < best.roundMs) best = { layouts, roundMs };
  }
  return best;
}

/** The number of pipelines that everyPipeline yields if all fit. */
export function pipelineCount(problem: Problem): number {
  const [layerCount, deviceCount, samples] = [
    problem.profile.layers.length,
    problem.available.length,
    problem.microBatchSize,
  ];
  // ways[stages][used]: the number of group sizes and shares with `used` devices in `stages` stages.
  let ways = [1, ...new Array<number>(deviceCount).fill(0)];
  let count = 0;
  for (let stages = 1; stages <= Math.min(deviceCount, layerCount); stages++) {
    const before = ways;
    ways = before.map((_, used) =>
      before.slice(0, used).reduce((sum, earlier, others) => sum + earlier * choose(samples - 1, used - others - 1), 0),
    );
    let arrangementCount = 1;
    for (let used = 1; used <= deviceCount; used++) {
      arrangementCount *= deviceCount - used + 1;
      count += arrangementCount * choose(layerCount - 1, stages - 1) * (ways[used] ?? 0);
    }
  }
  return count;
}

type Cut = Pick<StageLayout, 'layers' | 'devices'>;

function stagesOf(order: readonly number[], groupSizes: readonly number[], layerCounts: readonly number[]): Cut[] {
  let [device, layer] = [0, 0];
  return groupSizes.map((size, stage) => {
    const first = layer;
    layer += layerCounts[stage] ?? 0;
    device += size;
    return { layers: [first, layer] as const, devices: order.slice(device - size, device) };
  });
}

function* withShares(
  problem: Problem,
  cuts: readonly Cut[],
  done: readonly StageLayout[],
): Generator<readonly StageLayout[], void, void> {
  const cut = cuts[done.length];
  if (cut === undefined) {
    if (done.every((stage, index) => fits(problem, stage, index, done.length))) yield done;
    return;
  }
  if (cut.devices.length > 1 && !mayReplicate(problem, ...cut.layers)) return;
  if (!pinsAllow(problem, ...cut.layers, cut.devices)) return;
  for (const samples of compositions(problem.microBatchSize, cut.devices.length))
    yield* withShares(problem, cuts, [...done, { ...cut, samples }]);
}

function fits(problem: Problem, { layers, devices, samples }: StageLayout, stage: number, stageCount: number): boolean {
  const inFlight = leastInFlight(problem, stage, stageCount);
  const demand = stageDemand(withStages(problem, stageCount), ...layers, inFlight);
  return devices.every(
    (place, index) =>
      leastMemoryBytes(demand, samples[index] ?? 0) <= (problem.cluster.devices[place]?.memoryMiB ?? 0) * bytesInMiB,
  );
}

/** Every ordered choice of one or more of the places. */
function* arrangements(
  places: readonly number[],
  chosen: readonly number[] = [],
): Generator<readonly number[], void, void> {
  if (chosen.length > 0) yield chosen;
  for (const place of places) if (!chosen.includes(place)) yield* arrangements(places, [...chosen, place]);
}

/** Every list of `parts` positive whole numbers with this sum. */
function* compositions(sum: number, parts: number): Generator<readonly number[], void, void> {
  if (parts === 1) {
    if (sum >= 1) yield [sum];
    return;
  }
  for (let first = 1; first <= sum - parts + 1; first++)
    for (const rest of compositions(sum - first, parts - 1)) yield [first, ...rest];
}

function choose(n: number, k: number): number {
  let count = 1;
  for (let index = 0; index < k; index++) count = (count * (n - index)) / (index + 1);
  return Math.max(0, count);
}
