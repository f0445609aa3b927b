// The search behind planner `asteroid`: Algorithm 2 (dynamic-program.ts) on all layers and devices, with a bar from a
// coarse run first; for many devices the hierarchical one (grid.ts).

import { Search } from './dynamic-program.ts';
import { allCuts, evenCuts, hugeDeviceCount, refine, thinCuts } from './grid.ts';
import type { Problem } from './problem.ts';
import type { Found, Space } from './space.ts';
import type { Steps } from './steps.ts';

/**
 * The best pipeline of a space by Algorithm 2; undefined when none fits the devices' memory or is below the bar. With
 * more than `exactDeviceCount` devices, and groups of them, the borders between groups come from a grid that is refined
 * around what was found (grid.ts). `rough`: what roughSearch found, where that is known.
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

/** The same with few places to cut the layers: by default where few bytes cross. */
export function* coarseSearch(
  problem: Problem,
  space: Space,
  barMs: number,
  layerCuts: readonly number[] = thinCuts(problem.profile.layers, coarseCount),
): Steps<Found | undefined> {
  return (yield* new Search(problem, space, { layerCuts, deviceCuts: allCuts(space.order.length) }, barMs).run())[0];
}

/** Grids of cuts for different rough pipelines. */
export function coarseGrids({ profile: { layers } }: Problem): readonly (readonly number[])[] {
  return [evenCuts(layers.length, coarseCount), thinCuts(layers, coarseCount)];
}

/** The same where it is much less work than `search`, which begins with it; else undefined. */
export function* roughSearch(problem: Problem, space: Space, barMs: number): Steps<Found | undefined> {
  if (isHierarchical(space) || problem.profile.layers.length <= 2 * coarseCount) return undefined;
  return yield* coarseSearch(problem, space, barMs);
}

/** Whether a search of the space has many devices, and is not exact. */
function isHierarchical({ order, groupLimit }: Space): boolean {
  return order.length > exactDeviceCount && groupLimit > 1;
}

/** Runs of layers that the first search does not cut. */
const coarseCount = 24;
/** With more devices than this the search is hierarchical. */
const exactDeviceCount = 20;
/** How much worse than the bar a pipeline of the coarse grid may be, since refinement gains that much. */
const hierarchicalSlack = { normal: 1.3, huge: 1.1 };
