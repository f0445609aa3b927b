// HetPipe (Park et al. 2020): devices form virtual workers, each a straight pipeline over the whole model (pipeline
// inside, data parallel between them), which exchange all weights with a parameter server once a round. That is not a
// pipeline of stages with groups, so its answer is no Program: the schedule is 'hetpipe', `stages` is the first virtual
// worker, `virtualWorkers` are all. Choices made here:
//
// - Virtual workers by its policies NP (neighbours in speed) and ED (equal distribution: dealt out in turn), for every
// count of them.
//
// - Micro-batches are dealt out so that all workers end together, as its asynchronous workers would take them.
//
// - A round is the slowest worker's, simulated like any pipeline; then its devices push their gradients to the server
// and pull the weights: 2w·8/bandwidth + 2 latencies each, links in parallel as everywhere in the simulated world. The
// server is the data's holder, or else the device with the fastest links.

import type { PlanLayout, VirtualWorker } from '../cluster/cluster.ts';
import { program } from '../schedule/generate.ts';
import { schedules } from '../schedule/schedules.ts';
import { simulate } from '../simulator/simulate.ts';
import { layoutPlan } from './layout.ts';
import { straightPartition } from './partition.ts';
import type { Problem, StageLayout } from './problem.ts';
import { type Answer, overloadOf } from './question.ts';
import { shareTimes } from './share-times.ts';
import type { Steps } from './steps.ts';

/** A division of the devices into virtual workers. */
type Division = readonly (readonly number[])[];

/** The best division for one micro-batch size; undefined when none fits. */
export function* hetpipe(problem: Problem): Steps<Answer | undefined> {
  let best: Answer | undefined;
  const every = divisions(problem);
  for (const [index, division] of every.entries()) {
    yield index / every.length;
    const answer = answerFor(problem, division);
    if (answer !== undefined && (best === undefined || answer.roundMs < best.roundMs)) best = answer;
  }
  return best;
}

function divisions(problem: Problem): Division[] {
  const times = shareTimes(problem);
  const L = problem.profile.layers.length;
  const speed = ({ place }: { place: number }): number => times.forwardMs(place, 0, L, problem.microBatchSize);
  const sorted = [...problem.available].sort((a, b) => speed(a) - speed(b)).map(({ place }) => place);
  const found: Division[] = [];
  for (let count = 1; count <= Math.min(sorted.length, problem.microBatchCount); count++) {
    if (Math.ceil(sorted.length / count) > L) continue;
    const neighbours = Array.from({ length: count }, (_, index) =>
      sorted.slice(Math.floor((index * sorted.length) / count), Math.floor(((index + 1) * sorted.length) / count)),
    );
    const dealt = Array.from({ length: count }, (_, index) => sorted.filter((_, place) => place % count === index));
    found.push(neighbours, dealt);
  }
  return found;
}

function answerFor(problem: Problem, division: Division): Answer | undefined {
  const { profile, microBatchSize, microBatchCount } = problem;
  const pipelines = division.map((devices) => pipelineOf(problem, devices));
  const counts = dealOut(
    microBatchCount,
    pipelines.map(({ slowestMs }) => slowestMs),
  );
  const server = serverOf(problem);
  const workers: VirtualWorker[] = [];
  const peakMemoryMiB: Record<string, number> = {};
  let roundMs = 0;
  for (const [index, { layouts }] of pipelines.entries()) {
    const count = counts[index] ?? 0;
    if (count === 0) return undefined;
    const own: Problem = { ...problem, schedule: schedules['1f1b'], microBatchCount: count };
    const layout = layoutPlan(own, 'hetpipe', layouts);
    if (overloadOf(own, layout.stages) !== undefined) return undefined;
    const world = simulate(program(layout), layout, profile, problem.cluster, {
      optimizerState: problem.optimizerState,
      events: false,
    });
    roundMs = Math.max(roundMs, world.roundMs + (division.length > 1 ? exchangeMs(problem, layouts, server) : 0));
    workers.push({ stages: layout.stages, microBatchCount: count });
    for (const name of layout.stages.flatMap((stage) => stage.devices))
      peakMemoryMiB[name] = world.devices[name]?.peakMemoryMiB ?? 0;
  }
  const batchSize = microBatchSize * microBatchCount;
  const stages = workers[0]?.stages ?? [];
  const layout: PlanLayout = {
    ...{ planner: 'hetpipe', schedule: 'hetpipe', batchSize, microBatchSize, microBatchCount, stages },
    virtualWorkers: workers,
  };
  return { layout, problem, roundMs, predicted: { roundMs, samplesPerS: (batchSize / roundMs) * 1000, peakMemoryMiB } };
}

/**
 * A virtual worker: its devices, fastest first, cut so that the slowest part, computing or sending, is as fast as
 * possible.
 */
function pipelineOf(
  problem: Problem,
  devices: readonly number[],
): { readonly layouts: readonly StageLayout[]; readonly slowestMs: number } {
  const { table, profile, microBatchSize: B } = problem;
  const times = shareTimes(problem);
  const layerCount = profile.layers.length;
  const stageMs = (index: number, first: number, end: number): number =>
    times.forwardMs(devices[index] ?? 0, first, end, B) + times.backwardMs(devices[index] ?? 0, first, end, B);
  const crossMs = (index: number, cut: number): number =>
    table.occupancyMs(devices[index - 1] ?? 0, devices[index] ?? 0, B * (profile.layers[cut - 1]?.outputBytes ?? 0));
  const ends = straightPartition(layerCount, devices.length, { stageMs, crossMs });
  const layouts = devices.map(
    (place, index): StageLayout => ({
      layers: [ends[index - 1] ?? 0, ends[index] ?? 0],
      devices: [place],
      samples: [B],
    }),
  );
  const parts = layouts.map(({ layers: [first, end] }, index) =>
    Math.max(stageMs(index, first, end), index === 0 ? 0 : crossMs(index, first)),
  );
  return { layouts, slowestMs: Math.max(...parts) };
}

/** Deals out micro-batches to workers with the given times: each to the worker that would finish it first. */
function dealOut(total: number, eachMs: readonly number[]): number[] {
  const counts = eachMs.map(() => 0);
  for (let left = total; left > 0; left--) {
    let next = 0;
    for (const [index, ms] of eachMs.entries())
      if (((counts[index] ?? 0) + 1) * ms < ((counts[next] ?? 0) + 1) * (eachMs[next] ?? 0)) next = index;
    counts[next] = (counts[next] ?? 0) + 1;
  }
  return counts;
}

function exchangeMs({ table, sums }: Problem, layouts: readonly StageLayout[], server: number): number {
  const each = layouts.map(({ layers, devices: [place = server] }) =>
    place === server
      ? 0
      : 2 * (table.occupancyMs(place, server, sums.weightBytes(...layers)) + table.latencyMs(place, server)),
  );
  return Math.max(...each);
}

function serverOf({ cluster, table, available }: Problem): number {
  if (cluster.dataDevice !== undefined) return table.deviceIndex(cluster.dataDevice);
  const reach = (place: number): number =>
    Math.min(
      ...available.map((other) => (other.place === place ? Number.MAX_VALUE : table.bandwidthMbps(place, other.place))),
    );
  return [...available].sort((a, b) => reach(b.place) - reach(a.place) || a.place - b.place)[0]?.place ?? 0;
}
