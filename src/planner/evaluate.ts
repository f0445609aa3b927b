// The round of a pipeline by the rules of the simulated world (planner.md), without a Program: what the simulator says, some fifty times
// sooner. It holds because every device has one order of work and every link one kind of message, so that times are sums and maxima in a
// fixed order. Where the data's holder sends two kinds of messages over one link (inputs or labels beside gradients or activations), each
// kind gets a link of its own here: the result is then a lower bound, `isExact` is false, and the simulator must be asked.

import { slowestInGroup } from '../cluster/links.ts';
import { deviceTimes, type Interpolation, interpolation, layerTimes, rangeOf } from '../cluster/times.ts';
import { inFlight, program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { gradientsCross, layoutPlan, type Problem, type StageLayout } from './problem.ts';
import { againMs } from './recomputation.ts';

const gridPerMs = 2 ** 30;

/** The simulator's grid of times, on which sums are exact. */
export function onGrid(ms: number): number {
  return Math.round(ms * gridPerMs) / gridPerMs;
}

/** Times of a device for layers [first, end) at a share, on the grid. */
export interface ShareTimes {
  forwardMs(place: number, first: number, end: number, samples: number): number;
  backwardMs(place: number, first: number, end: number, samples: number): number;
  updateMs(place: number, first: number, end: number): number;
}

/** Times of a problem's devices. */
export function shareTimes(problem: Problem): ShareTimes {
  const { profile, cluster, devices, classes } = problem;
  const at: Interpolation[] = [];
  const rangeMs = (sums: readonly Float64Array[] | undefined, first: number, end: number, samples: number): number => {
    if (sums === undefined || samples === 0) return 0;
    at[samples] ??= interpolation(profile.batchSizes, samples);
    const where = at[samples];
    const lower = rangeOf(sums[where.lower] as Float64Array, first, end);
    const upper = where.upper === where.lower ? 0 : rangeOf(sums[where.upper] as Float64Array, first, end);
    return onGrid(Math.max(0, where.lowerWeight * lower + where.upperWeight * upper));
  };
  const updates = cluster.devices.map((device) => {
    const times = deviceTimes(profile, device);
    return times.updateMs === undefined ? undefined : layerTimes(times, profile.batchSizes);
  });
  return {
    forwardMs: (place, first, end, samples) => rangeMs(classes[devices[place]?.classIndex ?? -1]?.forward, first, end, samples),
    backwardMs: (place, first, end, samples) => rangeMs(classes[devices[place]?.classIndex ?? -1]?.backward, first, end, samples),
    updateMs: (place, first, end) => onGrid(updates[place]?.updateMs(first, end) ?? 0),
  };
}

/** Rule 5's AllReduce of a group. */
export function groupReduceMs({ table, sums, forwardOnlyLayers }: Problem, devices: readonly number[], first: number, end: number): number {
  const count = devices.length;
  if (count < 2 || end <= forwardOnlyLayers) return 0;
  const { bandwidthMbps, latencyMs } = slowestInGroup(table, devices);
  const bytes = (2 * (count - 1) * sums.weightBytes(first, end)) / count;
  return onGrid((bytes * 8) / (bandwidthMbps * 1000) + 2 * (count - 1) * latencyMs);
}

/** One piece across the border between two stages: places in the flat list of devices, and times of the link. */
interface Piece {
  readonly from: number;
  readonly to: number;
  readonly forwardOccupancyMs: number;
  readonly backwardOccupancyMs: number;
  readonly latencyMs: number;
}

interface Node {
  readonly place: number;
  readonly forwardMs: number;
  readonly backwardMs: number;
  readonly updateMs: number;
}

interface FlatStage {
  /** Nodes [first, end) of the flat list. */
  readonly first: number;
  readonly end: number;
  readonly inFlight: number;
  /** It has no backward pass. */
  readonly isForwardOnly: boolean;
  /** Whether the stage before waits for its gradients. */
  readonly isGradientWanted: boolean;
  readonly reduceMs: number;
  /** To the next stage. */
  readonly pieces: readonly Piece[];
}

/** A link from the data's holder to a device: `null` where the data is there already. */
interface Feed {
  readonly occupancyMs: number;
  readonly labelOccupancyMs: number;
  readonly latencyMs: number;
  freeMs: number;
}

/** Evaluates pipelines of one problem. */
export class Evaluator {
  /** Whether the last result is the simulator's, or a lower bound of it. */
  isExact = true;
  readonly #problem: Problem;
  readonly #times: ShareTimes;
  readonly #holder: number;
  #arrivals = new Float64Array(0);
  #gradients = new Float64Array(0);

  constructor(problem: Problem) {
    this.#problem = problem;
    this.#times = shareTimes(problem);
    const { dataDevice } = problem.cluster;
    this.#holder = dataDevice === undefined ? -1 : problem.table.deviceIndex(dataDevice);
  }

  /** Whether roundMs() is the simulator's for these stages. */
  isExactFor(layouts: readonly StageLayout[]): boolean {
    const last = layouts.length - 1;
    return (
      this.#holder === -1 ||
      last === 0 ||
      !layouts.some(({ devices }, stage) => (stage === 1 || stage === last - 1) && devices.includes(this.#holder))
    );
  }

  /** Milliseconds of a round; Infinity, and sooner, when it takes `stopMs` or longer. No device may have zero samples. */
  roundMs(layouts: readonly StageLayout[], stopMs: number = Number.POSITIVE_INFINITY): number {
    const nodes: Node[] = [];
    const stages = this.#flatten(layouts, nodes);
    this.isExact = this.isExactFor(layouts);
    const feeds = this.#createFeeds(layouts, nodes);
    return this.#run(stages, nodes, feeds, stopMs);
  }

  #flatten(layouts: readonly StageLayout[], nodes: Node[]): FlatStage[] {
    const { schedule, microBatchCount, forwardOnlyLayers } = this.#problem;
    const firsts: number[] = [];
    for (const [stage, { layers, devices, samples }] of layouts.entries()) {
      const [first, end] = layers;
      firsts.push(nodes.length);
      for (const [index, place] of devices.entries()) {
        const share = samples[index] ?? 0;
        nodes.push({
          place,
          forwardMs: this.#times.forwardMs(place, first, end, share),
          backwardMs:
            this.#times.backwardMs(place, first, end, share) +
            onGrid(againMs(this.#problem, place, layers, inFlight(schedule, stage, layouts.length, microBatchCount), share)),
          updateMs: this.#times.updateMs(place, first, end),
        });
      }
    }
    return layouts.map((layout, stage) => ({
      first: firsts[stage] ?? 0,
      end: firsts[stage + 1] ?? nodes.length,
      inFlight: layout.layers[1] <= forwardOnlyLayers ? microBatchCount : inFlight(schedule, stage, layouts.length, microBatchCount),
      isForwardOnly: layout.layers[1] <= forwardOnlyLayers,
      isGradientWanted: gradientsCross(this.#problem, layout.layers[0]),
      reduceMs: groupReduceMs(this.#problem, layout.devices, ...layout.layers),
      pieces: this.#pieces(layout, layouts[stage + 1], firsts[stage] ?? 0, firsts[stage + 1] ?? 0),
    }));
  }

  /** Rule 3: overlapping sample ranges of neighbouring stages. */
  #pieces(from: StageLayout, to: StageLayout | undefined, fromFirst: number, toFirst: number): Piece[] {
    if (to === undefined) return [];
    const { table, profile } = this.#problem;
    const bytes = profile.layers[from.layers[1] - 1]?.outputBytes ?? 0;
    const found: Piece[] = [];
    let [i, j, start] = [0, 0, 0];
    let [fromEnd, toEnd] = [from.samples[0] ?? 0, to.samples[0] ?? 0];
    while (i < from.devices.length && j < to.devices.length) {
      const end = Math.min(fromEnd, toEnd);
      if (end > start) {
        const [a, b] = [from.devices[i] ?? 0, to.devices[j] ?? 0];
        found.push({
          from: fromFirst + i,
          to: toFirst + j,
          forwardOccupancyMs: onGrid(table.occupancyMs(a, b, (end - start) * bytes)),
          backwardOccupancyMs: onGrid(table.occupancyMs(b, a, (end - start) * bytes)),
          latencyMs: onGrid(table.latencyMs(a, b)),
        });
      }
      start = end;
      if (fromEnd === end) fromEnd += from.samples[++i] ?? 0;
      else toEnd += to.samples[++j] ?? 0;
    }
    return found;
  }

  /** By node: the holder's link to it where it brings inputs or labels. */
  #createFeeds(layouts: readonly StageLayout[], nodes: readonly Node[]): (Feed | undefined)[] {
    const feeds = new Array<Feed | undefined>(nodes.length).fill(undefined);
    const holder = this.#holder;
    if (holder === -1) return feeds;
    const { table, profile } = this.#problem;
    const last = layouts.length - 1;
    let node = 0;
    for (const [stage, { devices, samples }] of layouts.entries()) {
      for (const [index, place] of devices.entries()) {
        if (place !== holder && (stage === 0 || stage === last)) {
          const share = samples[index] ?? 0;
          const labelMs = onGrid(table.occupancyMs(holder, place, share * profile.labelBytes));
          feeds[node] = {
            occupancyMs: stage === 0 ? onGrid(table.occupancyMs(holder, place, share * profile.inputBytes)) : labelMs,
            labelOccupancyMs: last === 0 ? labelMs : 0,
            latencyMs: onGrid(table.latencyMs(holder, place)),
            freeMs: 0,
          };
        }
        node++;
      }
    }
    return feeds;
  }

  #run(stages: readonly FlatStage[], nodes: readonly Node[], feeds: readonly (Feed | undefined)[], stopMs: number): number {
    const M = this.#problem.microBatchCount;
    const P = stages.length;
    const size = nodes.length * M;
    if (this.#arrivals.length < size) {
      this.#arrivals = new Float64Array(size);
      this.#gradients = new Float64Array(size);
    }
    const arrivals = this.#arrivals.fill(0, 0, size);
    const gradients = this.#gradients.fill(0, 0, size);
    const free = new Float64Array(nodes.length);
    const forwardLinks = stages.map(({ pieces }) => new Float64Array(pieces.length));
    const backwardLinks = stages.map(({ pieces }) => new Float64Array(pieces.length));
    const forwards = new Int32Array(P);
    const backwards = new Int32Array(P);
    /** Runs what a stage can run now. False: the time is up. */
    const advance = (p: number): boolean => {
      const stage = stages[p] as FlatStage;
      const before = p > 0 ? (stages[p - 1] as FlatStage) : undefined;
      for (;;) {
        const f = forwards[p] as number;
        const b = backwards[p] as number;
        const isForward = f < M && f - b < stage.inFlight;
        if (!isForward && (b >= M || stage.isForwardOnly)) return true;
        if (isForward ? p > 0 && (forwards[p - 1] as number) <= f : p < P - 1 && (backwards[p + 1] as number) <= b) return true;
        const m = isForward ? f : b;
        for (let index = stage.first; index < stage.end; index++) {
          const node = nodes[index] as Node;
          let start = free[index] as number;
          const arrival = (isForward ? arrivals : gradients)[index * M + m] as number;
          const feed = isForward ? feeds[index] : undefined;
          if (feed !== undefined) {
            feed.freeMs = Math.max(start * Number(f >= stage.inFlight), feed.freeMs) + feed.occupancyMs + feed.labelOccupancyMs;
            start = Math.max(start, feed.freeMs + feed.latencyMs);
          }
          if (arrival > start) start = arrival;
          const end = start + (isForward ? node.forwardMs : node.backwardMs);
          if (end >= stopMs) return false;
          free[index] = end;
        }
        if (isForward) {
          forwards[p] = f + 1;
          const links = forwardLinks[p] as Float64Array;
          const { pieces } = stage;
          for (let index = 0; index < pieces.length; index++) {
            const piece = pieces[index] as Piece;
            const done = Math.max(free[piece.from] as number, links[index] as number) + piece.forwardOccupancyMs;
            links[index] = done;
            const at = piece.to * M + m;
            if (done + piece.latencyMs > (arrivals[at] as number)) arrivals[at] = done + piece.latencyMs;
          }
        } else {
          backwards[p] = b + 1;
          if (before === undefined || !stage.isGradientWanted) continue;
          const links = backwardLinks[p - 1] as Float64Array;
          const { pieces } = before;
          for (let index = 0; index < pieces.length; index++) {
            const piece = pieces[index] as Piece;
            const done = Math.max(free[piece.to] as number, links[index] as number) + piece.backwardOccupancyMs;
            links[index] = done;
            const at = piece.from * M + m;
            if (done + piece.latencyMs > (gradients[at] as number)) gradients[at] = done + piece.latencyMs;
          }
        }
      }
    };
    const first = stages.findIndex(({ isForwardOnly }) => !isForwardOnly);
    while ((backwards[first] as number) < M) {
      for (let p = 0; p < P; p++) if (!advance(p)) return Number.POSITIVE_INFINITY;
      for (let p = P - 2; p >= 0; p--) if (!advance(p)) return Number.POSITIVE_INFINITY;
    }
    const round = roundEnd(stages, nodes, free);
    return round < stopMs ? round : Number.POSITIVE_INFINITY;
  }
}

/** The latest device's end, after AllReduce and update. */
function roundEnd(stages: readonly FlatStage[], nodes: readonly Node[], free: Float64Array): number {
  let round = 0;
  for (const { first, end, reduceMs } of stages) {
    let latest = 0;
    for (let index = first; index < end; index++) latest = Math.max(latest, free[index] ?? 0);
    for (let index = first; index < end; index++) {
      const own = end - first > 1 ? latest + reduceMs : (free[index] ?? 0);
      round = Math.max(round, own + (nodes[index]?.updateMs ?? 0));
    }
  }
  return round;
}

/** The simulator's round. */
export function simulatedMs(problem: Problem, layouts: readonly StageLayout[]): number {
  const plan = layoutPlan(problem, 'any', layouts);
  return simulate(program(plan), plan, problem.profile, problem.cluster, { events: false }).roundMs;
}
