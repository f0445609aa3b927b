// The search of planner `asteroid`: Algorithm 2 (dynamic-program.ts) on all layers and devices, with an upper bound
// from a coarse search; the hierarchical search (grid.ts) for many devices.

import { Search } from './dynamic-program.ts';
import { allCuts, evenCuts, hugeDeviceCount, refine, thinCuts } from './grid.ts';
import type { Problem } from './problem.ts';
import type { Found, Space } from './space.ts';
import type { Steps } from './steps.ts';

/**
 * The best pipeline of a space by Algorithm 2; undefined if none fits the devices' memory with a round below `barMs`.
 * With more than `exactDeviceCount` devices, and groups of them, the borders between groups come from a grid that is
 * refined around the best pipelines (grid.ts). `rough`: the result of roughSearch, if known.
 */
export function* search(
  problem: Problem,
  space: Space,
  barMs: number = Number.POSITIVE_INFINITY,
  rough?: Found,
): Steps<Found | undefined> {
  if (isHierarchical(space)) {
    const slack = space.order.length >= hugeDeviceCount ? hierarchicalSlack.huge : hierarchicalSlack.normal;
    return yield* refine(problem, space, (layerCuts, deviceCuts, groupLimit) =>
      new Search(problem, { ...space, groupLimit }, { layerCuts, deviceCuts }, barMs * slack).run(),
    );
  }
  const coarse = rough ?? (yield* roughSearch(problem, space, barMs));
  const fineBarMs = Math.min(barMs, coarse?.roundMs ?? Number.POSITIVE_INFINITY);
  const cuts = { layerCuts: allCuts(problem.profile.layers.length), deviceCuts: allCuts(space.order.length) };
  return (yield* new Search(problem, space, cuts, fineBarMs).run())[0] ?? coarse;
}

/** `search` with few places to cut the layers; by default those where the fewest bytes cross. */
export function* coarseSearch(
  problem: Problem,
  space: Space,
  barMs: number,
  layerCuts: readonly number[] = thinCuts(problem.profile.layers, coarseCount),
): Steps<Found | undefined> {
  return (yield* new Search(problem, space, { layerCuts, deviceCuts: allCuts(space.order.length) }, barMs).run())[0];
}

/** Grids of cuts that yield different rough pipelines. */
export function coarseGrids({ profile: { layers } }: Problem): readonly (readonly number[])[] {
  return [evenCuts(layers.length, coarseCount), thinCuts(layers, coarseCount)];
}

/** coarseSearch if it is much less work than `search`, which begins with it; otherwise undefined. */
export function* roughSearch(problem: Problem, space: Space, barMs: number): Steps<Found | undefined> {
  if (isHierarchical(space) || problem.profile.layers.length <= 2 * coarseCount) return undefined;
  return yield* coarseSearch(problem, space, barMs);
}

/** Whether a space has too many devices for the exact search. */
function isHierarchical({ order, groupLimit }: Space): boolean {
  return order.length > exactDeviceCount && groupLimit > 1;
}

/** Number of runs of layers that the first search does not cut. */
const coarseCount = 24;
/** Above this number of devices the search is hierarchical. */
const exactDeviceCount = 20;
/** Factor by which a pipeline of the coarse grid may exceed the bar; refinement gains up to that much. */
const hierarchicalSlack = { normal: 1.3, huge: 1.1 };
