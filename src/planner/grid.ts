// Where a search may cut, and the hierarchical search for many devices: Algorithm 2 on a coarse grid over the layers
// and over the devices in their order; then, for the best pipelines of several lengths, every border moves within a
// window of two grid steps to either side, by the same dynamic program with a fixed number of stages; the steps are
// halved until they are 1, and the whole is repeated while it helps. Finds a pipeline of the full space, not
// necessarily the best one.

import type { LayerProfile } from '../cluster/cluster.ts';
import type { LinkTable } from '../cluster/links.ts';
import { fedBytes, feedMs, transferMs } from './cost.ts';
import { gradientsCross, type Problem, type StageLayout, withStages } from './problem.ts';
import type { Found, Space } from './space.ts';
import { type Group, inFlightFromEnd, neighbourGroups, reduceTimeMs, StageTable, type StageTimes } from './stages.ts';
import type { Steps } from './steps.ts';

/** 0, 1, …, count. */
export function allCuts(count: number): number[] {
  return Array.from({ length: count + 1 }, (_, index) => index);
}

/** Cuts from 0 to `count` that form about `runCount` runs of equal length. */
export function evenCuts(count: number, runCount: number): number[] {
  if (count <= runCount) return allCuts(count);
  return Array.from({ length: runCount + 1 }, (_, index) => Math.round((index * count) / runCount));
}

/**
 * evenCuts over layers, each cut moved to the nearest place where the fewest bytes cross: of even cuts half would be
 * inside a block of the model, where it is widest.
 */
export function thinCuts(layers: readonly LayerProfile[], runCount: number): number[] {
  const even = evenCuts(layers.length, runCount);
  const bytesAt = (cut: number): number => layers[cut - 1]?.outputBytes ?? 0;
  return even.map((cut, index) => {
    const [before, after] = [even[index - 1], even[index + 1]];
    if (before === undefined || after === undefined) return cut;
    let thinnest = cut;
    for (let other = Math.floor((before + cut) / 2) + 1; other <= Math.floor((cut + after) / 2); other++) {
      const [bytes, least] = [bytesAt(other), bytesAt(thinnest)];
      if (bytes < least || (bytes === least && Math.abs(other - cut) < Math.abs(thinnest - cut))) thinnest = other;
    }
    return thinnest;
  });
}

/**
 * Runs Algorithm 2 on a grid, with groups of at most `groupLimit` devices: the best pipeline of each length, best
 * first.
 */
type Run = (layerCuts: readonly number[], deviceCuts: readonly number[], groupLimit: number) => Steps<readonly Found[]>;

const coarseLayerRuns = 24;
const coarseDeviceRuns = 20;
/** How many pipelines of the grid are refined. */
const refinedCount = 3;
/** From this number of devices on, a cluster is huge: refinement is reduced. */
export const hugeDeviceCount = 200;
/** Most rounds of refinement with steps of 1. */
const roundLimit = 12;

/** The hierarchical search. */
export function* refine(problem: Problem, space: Space, run: Run): Steps<Found | undefined> {
  const [layerCount, deviceCount] = [problem.profile.layers.length, space.order.length];
  const coarse = yield* run(
    thinCuts(problem.profile.layers, coarseLayerRuns),
    evenCuts(deviceCount, coarseDeviceRuns),
    space.groupLimit,
  );
  // The grid has no groups of a single device; pipelines of single devices are few enough to try them all.
  const line = deviceCount <= layerCount ? yield* run(allCuts(layerCount), allCuts(deviceCount), 1) : [];
  let best: Found | undefined;
  const window = new Window(problem, space);
  for (const start of [...coarse.slice(0, refinedCount), ...line]) {
    let found = start;
    let layerStep = Math.ceil(layerCount / coarseLayerRuns / 2);
    let deviceStep = Math.ceil(deviceCount / coarseDeviceRuns / 2);
    for (let round = 0; round < roundLimit; ) {
      yield round / roundLimit;
      const before = found.roundMs;
      // In huge clusters the two dimensions alternate, which is a twelfth of the work.
      const moves =
        deviceCount >= hugeDeviceCount
          ? ([
              [layerStep, 0],
              [0, deviceStep],
            ] as const)
          : ([[layerStep, deviceStep]] as const);
      for (const [layers, devices] of moves) found = window.around(found, layers, devices) ?? found;
      const helped = found.roundMs < before * (1 - 1e-6);
      if (layerStep === 1 && deviceStep === 1) round++;
      if (helped) continue;
      if (layerStep === 1 && deviceStep === 1) break;
      layerStep = Math.ceil(layerStep / 2);
      deviceStep = Math.ceil(deviceStep / 2);
    }
    if (best === undefined || found.roundMs < best.roundMs) best = found;
  }
  return best;
}

/** Where a stage begins: its first layer, and its first device in the order. */
interface Border {
  readonly layer: number;
  readonly device: number;
}

/** The best end of a pipeline from a border on; `aligned` and `tail` as in dynamic-program.ts. */
interface End {
  readonly border: Border;
  readonly head: StageTimes | undefined;
  readonly next: End | undefined;
  readonly alignedMs: number;
  readonly tailMs: number;
  /** Of streams: what a micro-batch takes to the last stage and back. */
  readonly wayMs: number;
}

const reach = [0, -1, 1, -2, 2];
/** In pipelines with more stages than this, borders move by one step only. */
const wideStageCount = 24;

/** Moves all borders of a pipeline at once. */
class Window {
  readonly #problem: Problem;
  readonly #space: Space;
  readonly #table: StageTable;
  readonly #links: LinkTable;
  readonly #group: (start: number, end: number) => Group;

  constructor(asked: Problem, space: Space) {
    const problem = withStages(asked, space.stageLimit);
    this.#problem = problem;
    this.#space = space;
    this.#table = new StageTable(problem);
    this.#links = problem.table;
    this.#group = neighbourGroups(problem, space.order);
  }

  /**
   * The best pipeline with the same number of stages whose borders are at most two steps from the given ones; undefined
   * if none is better.
   */
  around({ layouts, roundMs }: Found, layerStep: number, deviceStep: number): Found | undefined {
    const [L, N] = [this.#problem.profile.layers.length, this.#space.order.length];
    const P = layouts.length;
    const inFlight = inFlightFromEnd(this.#problem, P);
    let ends: readonly End[] = [
      { border: { layer: L, device: N }, head: undefined, next: undefined, alignedMs: 0, tailMs: 0, wayMs: 0 },
    ];
    for (let stage = P - 1; stage >= 0; stage--) {
      const borders = stage === 0 ? [{ layer: 0, device: 0 }] : this.#borders(layouts, stage, layerStep, deviceStep);
      ends = this.#extend(borders, ends, inFlight[P - stage] ?? 1, roundMs, stage === 0 ? P : 0);
    }
    const best = ends[0];
    if (best === undefined) return undefined;
    const found: StageLayout[] = [];
    for (let end = best; end.head !== undefined && end.next !== undefined; end = end.next) {
      const { devices, samples } = end.head.shares;
      const used = devices.flatMap((_, index) => ((samples[index] ?? 0) > 0 ? [index] : []));
      found.push({
        layers: [end.border.layer, end.next.border.layer],
        devices: used.map((index) => devices[index] ?? 0),
        samples: used.map((index) => samples[index] ?? 0),
      });
    }
    return { layouts: found, roundMs: best.alignedMs + best.tailMs };
  }

  #borders(layouts: readonly StageLayout[], stage: number, layerStep: number, deviceStep: number): Border[] {
    const { layers, devices } = layouts[stage] as StageLayout;
    const device = this.#space.order.indexOf(devices[0] ?? 0);
    const steps = layouts.length > wideStageCount ? reach.slice(0, 3) : reach;
    const [layerMoves, deviceMoves] = [layerStep === 0 ? [0] : steps, deviceStep === 0 ? [0] : steps];
    return layerMoves.flatMap((a) =>
      deviceMoves.map((b) => ({ layer: layers[0] + a * layerStep, device: device + b * deviceStep })),
    );
  }

  /**
   * For each border, the best stage from it to one of the ends. `stageCount` is given for a complete pipeline, which
   * includes the feed.
   */
  #extend(
    borders: readonly Border[],
    ends: readonly End[],
    inFlight: number,
    barMs: number,
    stageCount: number,
  ): End[] {
    const best = new Map<Border, End>();
    for (const end of [...ends].sort((a, b) => a.border.layer - b.border.layer)) {
      for (const border of borders) {
        const [size, start] = [end.border.device - border.device, border.device];
        if (
          border.layer < 0 ||
          start < 0 ||
          border.layer >= end.border.layer ||
          size < 1 ||
          size > this.#space.groupLimit
        )
          continue;
        this.#table.setLayers(border.layer, end.border.layer);
        const group = this.#group(start, end.border.device);
        const known = best.get(border);
        const bar = known === undefined ? barMs : Math.min(barMs, known.alignedMs + known.tailMs);
        const leastMs = this.#table.leastMs(group) * (1 - 1e-9);
        const frontMs = this.#problem.schedule.isStream ? 0 : leastMs;
        if (end.alignedMs + frontMs >= bar || this.#problem.microBatchCount * leastMs >= bar) continue;
        const head = this.#table.stage(group, inFlight);
        if (head === undefined) continue;
        const joined = this.#join(border, { head, group }, end, { stageCount, inFlight });
        if (joined.alignedMs < barMs && joined.alignedMs + joined.tailMs < bar) best.set(border, joined);
      }
    }
    return [...best.values()];
  }

  /** As Search.#join in dynamic-program.ts. */
  #join(
    border: Border,
    { head, group }: { readonly head: StageTimes; readonly group: Group },
    next: End,
    { stageCount, inFlight }: { readonly stageCount: number; readonly inFlight: number },
  ): End {
    const { profile, sums, cluster, microBatchCount: M } = this.#problem;
    const each = head.forwardMs + head.backwardMs;
    const reduceMs = reduceTimeMs(this.#links, head, group, sums.weightBytes(border.layer, next.border.layer));
    const { isStream } = this.#problem.schedule;
    let alignedMs = isStream ? Math.max(next.alignedMs, M * each, reduceMs) : M * each;
    let tailMs = isStream ? 0 : reduceMs;
    let wayMs = next.wayMs + each;
    if (next.head !== undefined) {
      const bytes = profile.layers[next.border.layer - 1]?.outputBytes ?? 0;
      const crossMs = transferMs(this.#links, head.shares, next.head.shares, bytes);
      const backMs = gradientsCross(this.#problem, next.border.layer) ? crossMs : 0;
      wayMs += crossMs + backMs;
      if (isStream) alignedMs = Math.max(alignedMs, M * crossMs);
      else {
        alignedMs = Math.max(next.alignedMs + each + crossMs + backMs, M * each, M * (crossMs + backMs) + each);
        tailMs = Math.max(reduceMs, next.tailMs - head.backwardMs - backMs);
      }
    }
    if (isStream) alignedMs = Math.max(alignedMs, (M * wayMs) / inFlight);
    if (stageCount > 0 && cluster.dataDevice !== undefined) {
      const holder = this.#links.deviceIndex(cluster.dataDevice);
      const feed = feedMs(this.#links, holder, head.shares, fedBytes(profile, stageCount));
      alignedMs = Math.max(alignedMs + (isStream ? 0 : feed), M * feed);
    }
    return { border, head, next, alignedMs, tailMs, wayMs };
  }
}
