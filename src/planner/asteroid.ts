// The search behind planner `asteroid`: Algorithm 2 (dynamic-program.ts) on all layers and devices, with a bar from a coarse run first; for
// many devices the hierarchical one (grid.ts).

import { Search } from './dynamic-program.ts';
import { allCuts, evenCuts, hugeDeviceCount, refine } from './grid.ts';
import type { Problem } from './problem.ts';
import type { Found, Space } from './space.ts';
import type { Steps } from './steps.ts';

/**
 * The best pipeline of a space by Algorithm 2; undefined when none fits the devices' memory or is below the bar. With more than
 * `exactDeviceCount` devices, and groups of them, the borders between groups come from a grid that is refined around what was found (grid.ts).
 */
export function* search(problem: Problem, space: Space, barMs: number = Number.POSITIVE_INFINITY): Steps<Found | undefined> {
  const every = allCuts(problem.profile.layers.length);
  const deviceCount = space.order.length;
  const run = (layerCuts: readonly number[], deviceCuts: readonly number[], bar: number): Steps<readonly Found[]> =>
    new Search(problem, space, { layerCuts, deviceCuts }, bar).run();
  if (deviceCount > exactDeviceCount && space.groupLimit > 1) {
    const slack = deviceCount >= hugeDeviceCount ? hierarchicalSlack.huge : hierarchicalSlack.normal;
    return yield* refine(problem, space, (layerCuts, deviceCuts, groupLimit) =>
      new Search(problem, { ...space, groupLimit }, { layerCuts, deviceCuts }, barMs * slack).run(),
    );
  }
  const devices = allCuts(deviceCount);
  if (every.length - 1 <= 2 * coarseCount) return (yield* run(every, devices, barMs))[0];
  const coarse = (yield* run(evenCuts(every.length - 1, coarseCount), devices, barMs))[0];
  return (yield* run(every, devices, coarse?.roundMs ?? barMs))[0] ?? coarse;
}

/** The same with few places to cut the layers. */
export function* coarseSearch(problem: Problem, space: Space, barMs: number): Steps<Found | undefined> {
  const cuts = { layerCuts: evenCuts(problem.profile.layers.length, coarseCount), deviceCuts: allCuts(space.order.length) };
  return (yield* new Search(problem, space, cuts, barMs).run())[0];
}

/** Runs of layers that the first search does not cut. */
const coarseCount = 24;
/** With more devices than this the search is hierarchical. */
const exactDeviceCount = 20;
/** How much worse than the bar a pipeline of the coarse grid may be, since refinement gains that much. */
const hierarchicalSlack = { normal: 1.3, huge: 1.1 };
