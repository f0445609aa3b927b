// The round of a pipeline by the rules of the simulated world (planner.md), without a Program: what the simulator says,
// some fifty times sooner. It holds because every device has one order of work and every link one kind of message, so
// that times are sums and maxima in a fixed order. Where the data's holder sends two kinds of messages over one link
// (inputs or labels beside gradients or activations), each kind gets a link of its own here: the result is then a lower
// bound, `isExact` is false, and the simulator must be asked.

import type { StageDemand } from '../cluster/memory.ts';
import { overlapsAllReduce, type Pace, program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { bucketsOfStage, isSplitStage, layoutPlan, paceOfStage } from './layout.ts';
import { gradientsCross, type Problem, type StageLayout, stageDemand } from './problem.ts';
import { recomputeMs } from './recomputation.ts';
import { groupReduceMs, onGrid, reduceCostMs, ringBytes, type ShareTimes, shareTimes } from './share-times.ts';

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
  readonly forward: Handling;
  readonly backward: Handling;
  readonly forwardMs: number;
  /** Until the gradients can go back: the whole backward, or its first half. */
  readonly backwardMs: number;
  /** The second half; 0 where there is one backward. */
  readonly weightMs: number;
  /** What a pass costs besides, whatever it sends. */
  readonly passMs: number;
  /** By bucket, of the last micro-batch's pass that makes weight gradients final. One where nothing is cut. */
  readonly lastMs: readonly number[];
  readonly updateMs: number;
  /** What its AllReduces beside the computing cost. */
  readonly besideMs: number;
}

/** What bytes and frames of a pass cost its device: until it may begin, and from its end on. */
interface Handling {
  readonly receivingMs: number;
  readonly sendingMs: number;
}

/** What a device's times depend on besides its share. */
interface NodeContext {
  readonly buckets: readonly (readonly [number, number])[];
  /** Whether they are reduced beside the computing. */
  readonly isOverlapped: boolean;
  readonly demand: StageDemand;
  readonly passed: PassedBytes;
  readonly frames: PassedFrames;
}

/** What crosses links for a micro-batch. */
interface Passed {
  readonly bytes: number;
  readonly frames: number;
}

/** Bytes that a device sends and receives for a micro-batch: a sample's, but for what the data's holder hands out. */
interface PassedBytes {
  readonly forward: { readonly received: number; readonly sent: number };
  readonly backward: { readonly received: number; readonly sent: number };
  /** Inputs and labels that come to it. */
  readonly fed: number;
  readonly handedOut: number;
}

/**
 * Frames of a micro-batch: from and to the stage before, to and from the next, inputs and labels, and those that the
 * data's holder hands out.
 */
interface PassedFrames {
  readonly before: number;
  readonly behind: number;
  readonly fed: number;
  readonly handedOut: number;
}

interface FlatStage {
  /** Nodes [first, end) of the flat list. */
  readonly first: number;
  readonly end: number;
  readonly pace: Pace;
  /** It has no backward pass. */
  readonly isForwardOnly: boolean;
  /** Whether the stage before waits for its gradients. */
  readonly isGradientWanted: boolean;
  /** By bucket, in the order in which they are reduced; empty for a device alone. */
  readonly reduceMs: readonly number[];
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

/** What rounding may do. */
const slack = 1e-12;

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

  /**
   * Milliseconds of a round; Infinity, and sooner, when it takes `stopMs` or longer. No device may have zero samples.
   */
  roundMs(layouts: readonly StageLayout[], stopMs: number = Number.POSITIVE_INFINITY): number {
    const nodes: Node[] = [];
    const stages = this.#flatten(layouts, nodes);
    this.isExact = this.isExactFor(layouts);
    if (this.#leastMs(stages, nodes) * (1 - slack) >= stopMs) return Number.POSITIVE_INFINITY;
    const feeds = this.#createFeeds(layouts, nodes);
    return this.#run(stages, nodes, feeds, stopMs);
  }

  #flatten(layouts: readonly StageLayout[], nodes: Node[]): FlatStage[] {
    const overlaps = overlapsAllReduce(this.#problem.schedule);
    const handedOut = this.#handedOut(layouts);
    const last = layouts.length - 1;
    let piecesBefore: readonly Piece[] = [];
    return layouts.map((layout, stage) => {
      const first = nodes.length;
      const pieces = this.#pieces(layout, layouts[stage + 1], first, first + layout.devices.length);
      const fed = (stage === 0 ? 1 : 0) + (stage === last ? 1 : 0);
      const pace = paceOfStage(this.#problem, layout, stage, layouts.length);
      const isForwardOnly = layout.layers[1] <= this.#problem.forwardOnlyLayers;
      const isGroup = layout.devices.length > 1 && !isForwardOnly;
      const demand = stageDemand(this.#problem, ...layout.layers, pace.ahead);
      const buckets = isGroup && overlaps ? bucketsOfStage(this.#problem, this.#times, layout) : [layout.layers];
      const isOverlapped = isGroup && overlaps;
      const passed = { ...this.#passedBytes(layouts, stage), handedOut: handedOut.bytes };
      const counts = framesOf(layout.devices.length, first, { before: piecesBefore, behind: pieces });
      for (const [index, place] of layout.devices.entries()) {
        const frames = {
          before: counts.before[index] ?? 0,
          behind: counts.behind[index] ?? 0,
          fed,
          handedOut: handedOut.frames,
        };
        nodes.push(
          this.#node(place, layout, layout.samples[index] ?? 0, { buckets, isOverlapped, demand, passed, frames }),
        );
      }
      piecesBefore = pieces;
      const reduceMs = isGroup ? buckets.map((range) => groupReduceMs(this.#problem, layout.devices, ...range)) : [];
      const isGradientWanted = gradientsCross(this.#problem, layout.layers[0]);
      return { first, end: nodes.length, pace, isForwardOnly, isGradientWanted, reduceMs, pieces };
    });
  }

  #node(
    place: number,
    layout: StageLayout,
    share: number,
    { buckets, isOverlapped, demand, passed, frames }: NodeContext,
  ): Node {
    const times = this.#times;
    const { layers, devices } = layout;
    const isSplit = isSplitStage(this.#problem, layout);
    const handling = (received: Passed, sent: Passed): Handling => ({
      receivingMs: times.handlingMs(place, received.bytes) + received.frames * times.frameMs(place),
      sendingMs: times.handlingMs(place, sent.bytes) + sent.frames * times.frameMs(place) + times.passMs(place),
    });
    const { forward, backward, fed, handedOut } = passed;
    const isHolder = place === this.#holder;
    // What is computed again is part of the first half, or of the first piece.
    const again = onGrid(recomputeMs(this.#problem, place, layers, demand, share));
    const pieceMs = (range: readonly [number, number]): number =>
      isSplit ? times.backwardWeightMs(place, ...range, share) : times.backwardMs(place, ...range, share);
    const costMs = (range: readonly [number, number]): number =>
      reduceCostMs(this.#problem, place, ringBytes(this.#problem, devices.length, ...range));
    return {
      place,
      forward: handling(
        { bytes: (forward.received + (isHolder ? 0 : fed)) * share, frames: frames.before + frames.fed },
        {
          bytes: forward.sent * share + (isHolder ? handedOut : 0),
          frames: frames.behind + (isHolder ? frames.handedOut : 0),
        },
      ),
      backward: handling(
        { bytes: backward.received * share, frames: gradientsCross(this.#problem, layers[1]) ? frames.behind : 0 },
        { bytes: backward.sent * share, frames: gradientsCross(this.#problem, layers[0]) ? frames.before : 0 },
      ),
      forwardMs: times.forwardMs(place, ...layers, share),
      backwardMs:
        again + (isSplit ? times.backwardInputMs(place, ...layers, share) : times.backwardMs(place, ...layers, share)),
      weightMs: isSplit ? pieceMs(layers) : 0,
      passMs: times.passMs(place),
      lastMs: buckets.map((range, index) => pieceMs(range) + (isSplit || index > 0 ? 0 : again)),
      updateMs: times.updateMs(place, ...layers),
      besideMs: isOverlapped ? buckets.reduce((sum, range) => sum + costMs(range), 0) : 0,
    };
  }

  /** What devices of a stage send and receive. */
  #passedBytes(layouts: readonly StageLayout[], stage: number): Omit<PassedBytes, 'handedOut'> {
    const { layers, inputBytes, labelBytes } = this.#problem.profile;
    const last = layouts.length - 1;
    const [first, end] = (layouts[stage] as StageLayout).layers;
    const inBytes = stage === 0 ? 0 : (layers[first - 1]?.outputBytes ?? 0);
    const outBytes = stage === last ? 0 : (layers[end - 1]?.outputBytes ?? 0);
    const backward = {
      received: gradientsCross(this.#problem, end) ? outBytes : 0,
      sent: gradientsCross(this.#problem, first) ? inBytes : 0,
    };
    const fed = this.#holder === -1 ? 0 : (stage === 0 ? inputBytes : 0) + (stage === last ? labelBytes : 0);
    return { forward: { received: inBytes, sent: outBytes }, backward, fed };
  }

  /** Inputs and labels that the data's holder hands to others for a micro-batch. */
  #handedOut(layouts: readonly StageLayout[]): Passed {
    const { inputBytes, labelBytes } = this.#problem.profile;
    const [first, last] = [layouts[0], layouts.at(-1)] as [StageLayout, StageLayout];
    const others = ({ devices, samples }: StageLayout): number =>
      devices.reduce((sum, place, index) => sum + (place === this.#holder ? 0 : (samples[index] ?? 0)), 0);
    const frames = ({ devices }: StageLayout): number => devices.filter((place) => place !== this.#holder).length;
    return { bytes: inputBytes * others(first) + labelBytes * others(last), frames: frames(first) + frames(last) };
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

  /**
   * A lower bound of the round, from what each device computes, what comes before its first forward, and what follows
   * when its last gradients have left.
   */
  #leastMs(stages: readonly FlatStage[], nodes: readonly Node[]): number {
    const M = this.#problem.microBatchCount;
    let [least, beforeMs, behindMs] = [0, 0, 0];
    for (const [index, { first, end, pace, isForwardOnly, pieces }] of stages.entries()) {
      let [forwardMs, backwardMs] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
      for (let place = first; place < end; place++) {
        const node = nodes[place] as Node;
        const lastMs = lastPassMs(node);
        const { forward, backward } = node;
        // Of its bytes, what the first forward is given may be paid before that comes, and what the last gradient costs
        // after that has left.
        const forwardBytesMs = (M - 1) * forward.receivingMs + M * forward.sendingMs;
        const bytesMs = forwardBytesMs + M * backward.receivingMs + (M - 1) * backward.sendingMs;
        forwardMs = Math.min(forwardMs, node.forwardMs);
        if (isForwardOnly) least = Math.max(least, beforeMs + M * node.forwardMs + forwardBytesMs);
        else if (pace.delay === undefined) {
          least = Math.max(
            least,
            beforeMs + M * node.forwardMs + (M - 1) * node.backwardMs + lastMs + bytesMs + behindMs,
          );
          backwardMs = Math.min(backwardMs, node.backwardMs, lastMs);
        } else {
          // Weight gradients are computed while others wait for nothing.
          const gradientsMs = beforeMs + M * (node.forwardMs + node.backwardMs) + bytesMs;
          least = Math.max(
            least,
            gradientsMs + behindMs,
            gradientsMs + (M - 1) * (node.weightMs + node.passMs) + lastMs,
          );
          backwardMs = Math.min(backwardMs, node.backwardMs);
        }
      }
      beforeMs += forwardMs + leastOf(pieces, ({ forwardOccupancyMs, latencyMs }) => forwardOccupancyMs + latencyMs);
      if (stages[index + 1]?.isGradientWanted === true)
        behindMs +=
          backwardMs + leastOf(pieces, ({ backwardOccupancyMs, latencyMs }) => backwardOccupancyMs + latencyMs);
    }
    return least;
  }

  #run(
    stages: readonly FlatStage[],
    nodes: readonly Node[],
    feeds: readonly (Feed | undefined)[],
    stopMs: number,
  ): number {
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
    /** What bytes that have left a device since then cost it. */
    const owed = new Float64Array(nodes.length);
    const leaves = new Float64Array(nodes.length);
    const forwardLinks = stages.map(({ pieces }) => new Float64Array(pieces.length));
    const backwardLinks = stages.map(({ pieces }) => new Float64Array(pieces.length));
    const forwards = new Int32Array(P);
    const backwards = new Int32Array(P);
    /** Runs what a stage can run now. False: the time is up. */
    const advance = (p: number): boolean => {
      const stage = stages[p] as FlatStage;
      const { ahead, delay } = stage.pace;
      const kept = ahead + (delay ?? 0);
      const before = p > 0 ? (stages[p - 1] as FlatStage) : undefined;
      for (;;) {
        const f = forwards[p] as number;
        const b = backwards[p] as number;
        const isForward = f < M && f - b < ahead;
        if (!isForward && (b >= M || stage.isForwardOnly)) return true;
        if (isForward ? p > 0 && (forwards[p - 1] as number) <= f : p < P - 1 && (backwards[p + 1] as number) <= b)
          return true;
        const m = isForward ? f : b;
        for (let index = stage.first; index < stage.end; index++) {
          const node = nodes[index] as Node;
          let start = free[index] as number;
          const arrival = (isForward ? arrivals : gradients)[index * M + m] as number;
          const feed = isForward ? feeds[index] : undefined;
          if (feed !== undefined) {
            feed.freeMs = Math.max(start * Number(f >= kept), feed.freeMs) + feed.occupancyMs + feed.labelOccupancyMs;
            start = Math.max(start, feed.freeMs + feed.latencyMs);
          }
          const { receivingMs, sendingMs } = isForward ? node.forward : node.backward;
          start = Math.max(start, arrival, (free[index] as number) + (owed[index] as number) + receivingMs);
          const end =
            start +
            (isForward ? node.forwardMs : delay === undefined && m === M - 1 ? lastPassMs(node) : node.backwardMs);
          // What leaves does so before a weight gradient that follows.
          leaves[index] = end;
          const isFollowed = !isForward && delay !== undefined && (m >= delay || m === M - 1);
          free[index] = isFollowed ? end + sendingMs + weightsBehindMs(node, m, delay, M) : end;
          owed[index] = isFollowed ? node.passMs : sendingMs;
          if ((free[index] as number) >= stopMs) return false;
        }
        if (isForward) {
          forwards[p] = f + 1;
          const links = forwardLinks[p] as Float64Array;
          const { pieces } = stage;
          for (let index = 0; index < pieces.length; index++) {
            const piece = pieces[index] as Piece;
            const done = Math.max(leaves[piece.from] as number, links[index] as number) + piece.forwardOccupancyMs;
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
            const done = Math.max(leaves[piece.to] as number, links[index] as number) + piece.backwardOccupancyMs;
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
    const round = roundEnd(stages, nodes, free, owed);
    return round < stopMs ? round : Number.POSITIVE_INFINITY;
  }
}

/** By device of a stage that begins at node `first`: pieces that it shares with the stages before and behind. */
function framesOf(
  deviceCount: number,
  first: number,
  pieces: { readonly before: readonly Piece[]; readonly behind: readonly Piece[] },
): { readonly before: Int32Array; readonly behind: Int32Array } {
  const [before, behind] = [new Int32Array(deviceCount), new Int32Array(deviceCount)];
  for (const { to } of pieces.before) before[to - first] = (before[to - first] as number) + 1;
  for (const { from } of pieces.behind) behind[from - first] = (behind[from - first] as number) + 1;
  return { before, behind };
}

function leastOf(pieces: readonly Piece[], msOf: (piece: Piece) => number): number {
  let least = Number.POSITIVE_INFINITY;
  for (const piece of pieces) least = Math.min(least, msOf(piece));
  return pieces.length === 0 ? 0 : least;
}

/** The last micro-batch's pass that makes weight gradients final, in all of its pieces. */
function lastPassMs({ lastMs }: Node): number {
  let sum = 0;
  for (const ms of lastMs) sum += ms;
  return sum;
}

/**
 * Weight gradients that a device computes right after micro-batch m's input gradient, where it computes any: that of
 * `delay` micro-batches ago, and after the last one all that are left. What the last of them costs besides is not in
 * it.
 */
function weightsBehindMs(node: Node, m: number, delay: number, M: number): number {
  if (m < M - 1) return node.weightMs;
  return Math.min(M - 1, delay) * (node.weightMs + node.passMs) + lastPassMs(node);
}

/** The latest device's end, after AllReduce and update. */
function roundEnd(
  stages: readonly FlatStage[],
  nodes: readonly Node[],
  free: Float64Array,
  owed: Float64Array,
): number {
  let round = 0;
  for (const { first, end, reduceMs } of stages) {
    let reducedMs = 0;
    for (const [bucket, ms] of reduceMs.entries()) {
      let readyMs = reducedMs;
      for (let index = first; index < end; index++)
        readyMs = Math.max(readyMs, (free[index] ?? 0) - behindMs(nodes[index] as Node, bucket));
      reducedMs = readyMs + ms;
    }
    for (let index = first; index < end; index++) {
      const { besideMs, updateMs } = nodes[index] as Node;
      const paidMs = (free[index] as number) + (owed[index] as number) + besideMs;
      round = Math.max(round, Math.max(reducedMs, paidMs) + updateMs);
    }
  }
  return round;
}

/** What a device still computes when the gradients of a bucket are final. */
function behindMs({ lastMs }: Node, bucket: number): number {
  let sum = 0;
  for (let index = bucket + 1; index < lastMs.length; index++) sum += lastMs[index] ?? 0;
  return sum;
}

/** The simulator's round. */
export function simulatedMs(problem: Problem, layouts: readonly StageLayout[]): number {
  const plan = layoutPlan(problem, 'any', layouts);
  return simulate(program(plan), plan, problem.profile, problem.cluster, { events: false }).roundMs;
}
