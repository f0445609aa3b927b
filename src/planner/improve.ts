// Local search: improves a pipeline by small changes as long as one shortens the simulated round. Borders move; devices
// join, leave, change places; stages split and merge; samples move between devices; devices of a stage change their
// order. Deterministic. Ends when none of these changes improves the pipeline, or when its budget is used up.

import type { Budget } from './branch-and-bound.ts';
import { Evaluator } from './evaluate.ts';
import { largestShare } from './memory.ts';
import {
  mayHaveStages,
  mayReplicate,
  type Problem,
  pinsAllow,
  type StageLayout,
  stageDemand,
  withStages,
} from './problem.ts';
import { type Group, inFlightFromEnd, kindsOf, StageTable } from './stages.ts';
import type { Steps } from './steps.ts';

/** A stage; Algorithm 1 chooses the shares if `samples` is absent. */
type Draft = Omit<StageLayout, 'samples'> & { readonly samples?: readonly number[] };

/** A pipeline and its round by the evaluator (a lower bound of the simulator's if the evaluator says so). */
export interface Improved {
  readonly layouts: readonly StageLayout[];
  readonly roundMs: number;
}

/** Local search over the pipelines of one problem; reusable for many starts. */
export class Improver {
  readonly #problem: Problem;
  /** By the versions of weights that a pipeline's stages keep. */
  readonly #tables = new Map<number, { readonly problem: Problem; readonly table: StageTable }>();
  readonly #evaluator: Evaluator;
  readonly #inFlight: readonly number[];
  #signature = 0;

  constructor(problem: Problem) {
    this.#problem = problem;
    this.#evaluator = new Evaluator(problem);
    this.#inFlight = inFlightFromEnd(problem, problem.profile.layers.length);
  }

  /** The same stages with this problem's micro-batch size and new shares; undefined if they do not fit. */
  adapt(layouts: readonly StageLayout[]): Improved | undefined {
    const settled = this.#settle(layouts.map(({ layers, devices }) => ({ layers, devices })));
    return settled === undefined ? undefined : { layouts: settled, roundMs: this.#evaluator.roundMs(settled) };
  }

  /** Applies the first change that helps until none does. A unit of the budget is one device for one micro-batch. */
  *improve(start: Improved, budget: Budget): Steps<Improved> {
    let best = start;
    for (let improved = true; improved && budget.left > 0; ) {
      improved = false;
      let changeCount = 0;
      for (const drafts of changes(best.layouts, this.#problem)) {
        if (budget.left <= 0) break;
        if (++changeCount % 64 === 0) yield 0;
        budget.left -= this.#problem.available.length;
        const layouts = this.#settle(drafts);
        if (layouts === undefined) continue;
        budget.left -= this.#problem.microBatchCount * layouts.reduce((sum, { devices }) => sum + devices.length, 0);
        const roundMs = this.#evaluator.roundMs(layouts, best.roundMs * (1 - 1e-9));
        if (roundMs >= best.roundMs) continue;
        best = { layouts, roundMs };
        improved = true;
        break;
      }
    }
    return best;
  }

  /** Chooses shares for stages without them; undefined if a stage is not allowed or does not fit. */
  #settle(drafts: readonly Draft[]): StageLayout[] | undefined {
    if (!mayHaveStages(this.#problem, drafts.length)) return undefined;
    const layouts: StageLayout[] = [];
    const problem = withStages(this.#problem, drafts.length);
    const known = this.#tables.get(problem.roundsAhead) ?? { problem, table: new StageTable(problem) };
    this.#tables.set(problem.roundsAhead, known);
    for (const [stage, draft] of drafts.entries()) {
      const settled = this.#settleStage(draft, this.#inFlight[drafts.length - stage] ?? 1, known);
      if (settled === undefined) return undefined;
      layouts.push(settled);
    }
    return layouts;
  }

  #settleStage(
    { layers, devices, samples }: Draft,
    inFlight: number,
    { problem, table }: { readonly problem: Problem; readonly table: StageTable },
  ): StageLayout | undefined {
    if (devices.length > 1 && !mayReplicate(problem, ...layers)) return undefined;
    if (!pinsAllow(problem, ...layers, devices)) return undefined;
    if (samples !== undefined) {
      const demand = stageDemand(problem, ...layers, inFlight);
      const fits = devices.every(
        (place, index) =>
          (samples[index] ?? 0) <=
          largestShare(demand, problem.devices[place]?.memoryBytes ?? 0, problem.microBatchSize),
      );
      return fits ? { layers, devices, samples } : undefined;
    }
    table.setLayers(...layers);
    const stage = table.stage(this.#groupOf(devices), inFlight);
    if (stage === undefined || stage.shares.samples.some((share) => share === 0)) return undefined;
    return { layers, devices, samples: stage.shares.samples };
  }

  #groupOf(places: readonly number[]): Group {
    const devices = places.flatMap((place) => this.#problem.devices[place] ?? []);
    return { devices, places, signature: this.#signature++, slowestMbps: () => 0, kinds: () => kindsOf(devices) };
  }
}

/** Every pipeline that is one change away. */
function* changes(layouts: readonly StageLayout[], problem: Problem): Generator<readonly Draft[], void, void> {
  yield* borderChanges(layouts);
  yield* sampleChanges(layouts, problem);
  yield* deviceChanges(layouts, problem);
  yield* stageChanges(layouts, problem);
}

function replaced(layouts: readonly Draft[], index: number, ...stages: readonly Draft[]): Draft[] {
  return [...layouts.slice(0, index), ...stages, ...layouts.slice(index + 1)];
}

function* borderChanges(layouts: readonly StageLayout[]): Generator<readonly Draft[], void, void> {
  for (let index = 0; index + 1 < layouts.length; index++) {
    const [before, after] = [layouts[index] as StageLayout, layouts[index + 1] as StageLayout];
    for (const step of [1, -1, 2, -2, 4, -4, 8, -8, 16, -16]) {
      const border = before.layers[1] + step;
      if (border <= before.layers[0] || border >= after.layers[1]) continue;
      const drafts = replaced(layouts, index, { layers: [before.layers[0], border], devices: before.devices });
      yield replaced(drafts, index + 1, { layers: [border, after.layers[1]], devices: after.devices });
    }
  }
}

function* sampleChanges(layouts: readonly StageLayout[], problem: Problem): Generator<readonly Draft[], void, void> {
  for (const [index, stage] of layouts.entries()) {
    for (let from = 0; from < stage.devices.length; from++) {
      for (let to = 0; to < stage.devices.length; to++) {
        for (
          let count = 1;
          from !== to && count < (stage.samples[from] ?? 0) && count <= problem.microBatchSize / 4;
          count *= 2
        ) {
          const samples = stage.samples.map(
            (share, device) => share + (device === to ? count : device === from ? -count : 0),
          );
          yield replaced(layouts, index, { ...stage, samples });
        }
      }
      if (from + 1 < stage.devices.length) {
        const order = stage.devices.map((_, device) =>
          device === from ? from + 1 : device === from + 1 ? from : device,
        );
        yield replaced(layouts, index, {
          layers: stage.layers,
          devices: order.map((device) => stage.devices[device] ?? 0),
          samples: order.map((device) => stage.samples[device] ?? 0),
        });
      }
    }
  }
}

/** A device joins, leaves or changes its stage; or two change places. */
function* deviceChanges(layouts: readonly StageLayout[], problem: Problem): Generator<readonly Draft[], void, void> {
  const used = layouts.flatMap(({ devices }) => devices);
  const idle = problem.available.map(({ place }) => place).filter((place) => !used.includes(place));
  for (const [index, { layers, devices }] of layouts.entries()) {
    const joined = (stage: readonly Draft[], at: number, place: number): Draft[] => {
      const target = stage[at] as Draft;
      return replaced(stage, at, { layers: target.layers, devices: [...target.devices, place] });
    };
    for (const place of idle) {
      yield joined(layouts, index, place);
      for (const own of devices)
        yield replaced(layouts, index, { layers, devices: devices.map((device) => (device === own ? place : device)) });
    }
    for (const own of devices) {
      if (devices.length > 1) {
        const without = replaced(layouts, index, { layers, devices: devices.filter((device) => device !== own) });
        yield without;
        for (let other = 0; other < layouts.length; other++) if (other !== index) yield joined(without, other, own);
      }
      for (const [later, stage] of layouts.slice(index + 1).entries()) {
        for (const theirs of stage.devices) {
          const mine = replaced(layouts, index, {
            layers,
            devices: devices.map((device) => (device === own ? theirs : device)),
          });
          yield replaced(mine, index + 1 + later, {
            layers: stage.layers,
            devices: stage.devices.map((device) => (device === theirs ? own : device)),
          });
        }
      }
    }
  }
}

/** Two stages merge; one splits; or a stage is removed and its layers join a neighbour. */
function* stageChanges(layouts: readonly StageLayout[], problem: Problem): Generator<readonly Draft[], void, void> {
  const used = layouts.flatMap(({ devices }) => devices);
  const idle = problem.available.map(({ place }) => place).filter((place) => !used.includes(place));
  for (const [index, stage] of layouts.entries()) {
    const [first, end] = stage.layers;
    const next = layouts[index + 1];
    if (next !== undefined) {
      const layers = [first, next.layers[1]] as const;
      for (const devices of [[...stage.devices, ...next.devices], stage.devices, next.devices])
        yield [...layouts.slice(0, index), { layers, devices }, ...layouts.slice(index + 2)];
    }
    const cuts = [...new Set([1, 2, 3].map((quarter) => first + Math.round(((end - first) * quarter) / 4)))];
    for (const cut of cuts.filter((layer) => layer > first && layer < end)) {
      for (let count = 1; count < stage.devices.length; count++) {
        const [head, rear] = [stage.devices.slice(0, count), stage.devices.slice(count)];
        yield replaced(layouts, index, { layers: [first, cut], devices: head }, { layers: [cut, end], devices: rear });
        yield replaced(layouts, index, { layers: [first, cut], devices: rear }, { layers: [cut, end], devices: head });
      }
      for (const place of idle) {
        yield replaced(
          layouts,
          index,
          { layers: [first, cut], devices: [place] },
          { layers: [cut, end], devices: stage.devices },
        );
        yield replaced(
          layouts,
          index,
          { layers: [first, cut], devices: stage.devices },
          { layers: [cut, end], devices: [place] },
        );
      }
    }
  }
}
