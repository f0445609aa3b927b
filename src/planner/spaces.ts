// The spaces of the planners that run one search (asteroid.ts) over different spaces.

import { InputError } from '../errors.ts';
import { mayHaveStages, type PlannerDevice, type Problem, withStages } from './problem.ts';
import type { Space } from './space.ts';

/** The spaces that a planner searches. Throws InputError if it cannot plan such a problem. */
export type Spaces = (problem: Problem) => readonly Space[];

const places = (devices: readonly PlannerDevice[]): number[] => devices.map((device) => device.place);

/**
 * The paper's space: devices by memory, largest first (earlier stages keep more activations), in stages of any size.
 */
export function asteroidSpaces(problem: Problem): readonly Space[] {
  const sorted = [...problem.available].sort((a, b) => b.memoryBytes - a.memoryBytes || a.place - b.place);
  return pinnedOrders(problem, places(sorted)).flatMap((order) => wholeSpaces(problem, order));
}

/**
 * All pipelines of all devices of an order. In a stream, more stages may need more versions of the weights; then each
 * number of versions has a space of its own, up to the most stages that it is enough for.
 */
export function wholeSpaces(problem: Problem, order: readonly number[]): readonly Space[] {
  const counts = order.map((_, index) => index + 1).filter((count) => mayHaveStages(problem, count));
  const limits = counts.filter(
    (count) =>
      count === counts.length || withStages(problem, count).roundsAhead < withStages(problem, count + 1).roundsAhead,
  );
  return limits.map((stageLimit) => ({ order, groupLimit: order.length, stageLimit }));
}

/** Each device alone; the first of identical devices. */
export function singleSpaces(problem: Problem): readonly Space[] {
  const { table, cluster, pins } = problem;
  const holder = cluster.dataDevice === undefined ? -1 : table.deviceIndex(cluster.dataDevice);
  const known = new Set<string>();
  const different = problem.available.filter(({ place, classIndex, memoryBytes }) => {
    const feed =
      holder === -1 || holder === place ? [] : [table.bandwidthMbps(holder, place), table.latencyMs(holder, place)];
    const key = [classIndex, memoryBytes, ...feed].join(' ');
    const isNew = !known.has(key);
    known.add(key);
    return isNew || pins.size > 0;
  });
  return places(different).map((place) => ({ order: [place], groupLimit: 1, stageLimit: 1 }));
}

/** All devices in one stage. */
export function dataParallelSpaces(problem: Problem): readonly Space[] {
  const dependent = problem.profile.layers.find((layer) => layer.batchDependent === true);
  if (dependent !== undefined && !problem.replicateBatchDependent && problem.available.length > 1) {
    const what =
      `Planner "dp" replicates every layer, but the result of layer "${dependent.name}" depends on the whole ` +
      'batch';
    throw new InputError(
      `${what}; use another planner, such as asteroid, or allow it with replicateBatchDependent ` +
        '(--replicate-batch-norm).',
    );
  }
  return [{ order: places(problem.available), groupLimit: problem.available.length, stageLimit: 1 }];
}

/** Single devices in the cluster's order. */
export function straightSpaces(problem: Problem): readonly Space[] {
  return pinnedOrders(problem, places(problem.available)).map((all) => {
    const order = all.slice(0, problem.profile.layers.length);
    return { order, groupLimit: 1, stageLimit: order.length };
  });
}

/**
 * The spaces to explain that nothing fits: every order of any devices in small problems, otherwise the paper's order
 * and each device alone.
 */
export function everySpace(problem: Problem): readonly Space[] {
  const known = [...asteroidSpaces(problem), ...singleSpaces(problem)];
  if (problem.available.length > 4 || problem.profile.layers.length > 16) return known;
  const orders: number[][] = [];
  const arrange = (order: readonly number[]): void => {
    if (order.length > 0) orders.push([...order]);
    for (const { place } of problem.available) if (!order.includes(place)) arrange([...order, place]);
  };
  arrange([]);
  return orders.flatMap((order) => wholeSpaces(problem, order));
}

/**
 * The order itself or, if pins fix the order of some devices, orders that respect them: the other devices before,
 * after, and interleaved.
 */
function pinnedOrders({ pins }: Problem, order: readonly number[]): readonly (readonly number[])[] {
  if (pins.size === 0) return [order];
  const pinned = [...new Set([...pins].sort(([a], [b]) => a - b).flatMap(([, wanted]) => wanted))].filter((place) =>
    order.includes(place),
  );
  const free = order.filter((place) => !pinned.includes(place));
  return free
    .map((_, at) => [...free.slice(0, at), ...pinned, ...free.slice(at)])
    .concat([[...free, ...pinned], ...spread(pinned, free)]);
}

/** Interleaves the free devices evenly with the pinned ones. */
function spread(pinned: readonly number[], free: readonly number[]): number[][] {
  if (pinned.length < 2) return [];
  const share = (index: number): readonly number[] =>
    free.slice(
      Math.floor((index * free.length) / (pinned.length - 1)),
      Math.floor(((index + 1) * free.length) / (pinned.length - 1)),
    );
  return [pinned.flatMap((place, index) => [place, ...share(index)])];
}
