// Small changes to a pipeline, taken as long as one of them makes it better: a cut moves, samples of a stage move from
// one device to another, a device joins, leaves or changes its stage, two devices trade places, two stages become one.

import type { StageLayout } from '../problem.ts';
import { isBetter, type Objective, type Rated, rate } from './evaluate.ts';
import { fits, type InferenceProblem } from './problem.ts';
import { evenShares } from './search.ts';

/** Changes that are tried at most, for each start; a written limit, since each is counted work. */
const changeLimit = 20_000;

/** The best that small changes make of a pipeline. */
export function improve(start: Rated, objective: Objective): Rated {
  const { problem } = start;
  let best = start;
  let left = changeLimit;
  for (let isBetterFound = true; isBetterFound && left > 0; ) {
    isBetterFound = false;
    for (const layouts of changes(problem, best.layouts)) {
      if (--left <= 0) break;
      if (!fits(problem, layouts)) continue;
      const found = rate(problem, layouts);
      if (!isBetter(found, best, objective)) continue;
      best = found;
      isBetterFound = true;
      break;
    }
  }
  return best;
}

type Layouts = readonly StageLayout[];

function* changes(problem: InferenceProblem, layouts: Layouts): Generator<Layouts, void, void> {
  yield* movedCuts(layouts);
  yield* movedSamples(layouts);
  yield* tradedPlaces(problem, layouts);
  yield* movedDevices(problem, layouts);
  for (let stage = 0; stage + 1 < layouts.length; stage++) {
    const [one, other] = [layouts[stage], layouts[stage + 1]] as [StageLayout, StageLayout];
    const joined = withDevices(problem, [one.layers[0], other.layers[1]], [...one.devices, ...other.devices]);
    if (joined !== undefined) yield layouts.toSpliced(stage, 2, joined);
  }
}

function* movedCuts(layouts: Layouts): Generator<Layouts, void, void> {
  for (let stage = 0; stage + 1 < layouts.length; stage++) {
    const [before, after] = [layouts[stage], layouts[stage + 1]] as [StageLayout, StageLayout];
    for (const by of [1, -1, 2, -2, 4, -4]) {
      const cut = before.layers[1] + by;
      if (cut <= before.layers[0] || cut >= after.layers[1]) continue;
      const moved = [
        { ...before, layers: [before.layers[0], cut] as const },
        { ...after, layers: [cut, after.layers[1]] as const },
      ];
      yield layouts.toSpliced(stage, 2, ...moved);
    }
  }
}

function* movedSamples(layouts: Layouts): Generator<Layouts, void, void> {
  for (const [stage, layout] of layouts.entries()) {
    for (const [from, share] of layout.samples.entries()) {
      if (share < 2) continue;
      for (const to of layout.samples.keys()) {
        if (to === from) continue;
        const samples = layout.samples.map((each, index) => each + (index === to ? 1 : index === from ? -1 : 0));
        yield layouts.with(stage, { ...layout, samples });
      }
    }
  }
}

/** Two devices of different stages, or a device and one that is left out. */
function* tradedPlaces({ base }: InferenceProblem, layouts: Layouts): Generator<Layouts, void, void> {
  const used = new Set(layouts.flatMap(({ devices }) => devices));
  const spare = base.available.map(({ place }) => place).filter((place) => !used.has(place));
  const traded = (a: number, b: number): Layouts =>
    layouts.map((layout) => ({
      ...layout,
      devices: layout.devices.map((place) => (place === a ? b : place === b ? a : place)),
    }));
  const all = [...used];
  for (const [index, a] of all.entries()) for (const b of [...all.slice(index + 1), ...spare]) yield traded(a, b);
}

/** A device leaves its stage, for another one, for a stage of its own, or altogether. */
function* movedDevices(problem: InferenceProblem, layouts: Layouts): Generator<Layouts, void, void> {
  for (const { place } of problem.base.available) {
    const without = layouts.flatMap((layout) => {
      if (!layout.devices.includes(place)) return [layout];
      const rest = withDevices(
        problem,
        layout.layers,
        layout.devices.filter((other) => other !== place),
      );
      return rest === undefined ? [] : [rest];
    });
    const isWhole = without.length === layouts.length;
    if (isWhole) yield without;
    const closed = isWhole ? without : closedGaps(without, problem.base.profile.layers.length);
    if (closed.length === 0) continue;
    if (!isWhole) yield closed;
    for (const [stage, layout] of closed.entries()) {
      const joined = withDevices(problem, layout.layers, [...layout.devices, place]);
      if (joined !== undefined) yield closed.with(stage, joined);
      const [first, end] = layout.layers;
      const middle = Math.floor((first + end) / 2);
      const own = withDevices(problem, [first, middle], [place]);
      if (middle === first || own === undefined) continue;
      yield closed.toSpliced(stage, 1, own, { ...layout, layers: [middle, end] });
      yield closed.toSpliced(stage, 1, { ...layout, layers: [first, middle] }, { ...own, layers: [middle, end] });
    }
  }
}

/** Stages around layers that nobody has, which the stages in front of them take, or the one behind. */
function closedGaps(layouts: Layouts, layerCount: number): Layouts {
  return layouts.map((layout, stage) => {
    const next = layouts[stage + 1];
    const first = stage === 0 ? 0 : layout.layers[0];
    return { ...layout, layers: [first, next?.layers[0] ?? layerCount] as const };
  });
}

/** A stage of these devices with even shares; undefined without devices, or if one of them would get no sample. */
function withDevices(
  problem: InferenceProblem,
  layers: readonly [number, number],
  devices: readonly number[],
): StageLayout | undefined {
  if (devices.length === 0 || devices.length > problem.microBatchSize) return undefined;
  const samples = evenShares(problem, devices);
  return samples === undefined ? undefined : { layers, devices, samples };
}
