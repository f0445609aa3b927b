// The period of a pipeline as a stream, without a Program: what waits for what in a tick (simulator/cycle-ratio.ts),
// straight from the stages. Equals the simulator's to the last bit.

import { criticalCycle, WaitGraph } from '../simulator/cycle-ratio.ts';
import {
  createFeeds,
  type Feed,
  type FlatContext,
  type FlatDevice,
  type FlatStage,
  type Piece,
} from './flat-stages.ts';
import { leastInFlight, type StageLayout } from './problem.ts';

export interface FlatPipeline {
  readonly context: FlatContext;
  readonly layouts: readonly StageLayout[];
  readonly stages: readonly FlatStage[];
  readonly devices: readonly FlatDevice[];
}

/**
 * Milliseconds of a tick; Infinity if some device, link or group is busy for `stopMs` or longer, or a tick takes it.
 */
export function tickPeriodMs(pipeline: FlatPipeline, stopMs: number): number {
  if (leastTickMs(pipeline) * (1 - 1e-12) >= stopMs) return Number.POSITIVE_INFINITY;
  const { periodMs } = criticalCycle(new Tick(pipeline).graph());
  return periodMs < stopMs ? periodMs : Number.POSITIVE_INFINITY;
}

/** What the busiest device is busy for. */
function leastTickMs({ context, stages, devices }: FlatPipeline): number {
  const M = context.problem.microBatchCount;
  let least = 0;
  for (const { first, end, isForwardOnly, reduceMs } of stages) {
    least = Math.max(least, reduceMs[0] ?? 0);
    for (let index = first; index < end; index++) {
      const { forwardMs, backwardMs, updateMs, forward, backward } = devices[index] as FlatDevice;
      const forwardTotal = forwardMs + forward.receivingMs + forward.sendingMs;
      const backwardTotal = isForwardOnly ? 0 : backwardMs + backward.receivingMs + backward.sendingMs;
      least = Math.max(least, M * (forwardTotal + backwardTotal) + updateMs);
    }
  }
  return least;
}

/**
 * Nodes: of each device its M forwards (of micro-batches `ahead` further on), its M backwards and its update; of each
 * pair of devices M activations and M gradients; of each device that is fed M pieces; of each group its AllReduce.
 * Events of passes and updates are counted by the tick, those of pieces and AllReduces by the round.
 */
class Tick {
  readonly #pipeline: FlatPipeline;
  readonly #M: number;
  readonly #graph: WaitGraph;
  readonly #feeds: readonly (Feed | undefined)[];
  readonly #pieceBase: number;
  readonly #feedBase: number;
  readonly #groupBase: number;

  constructor(pipeline: FlatPipeline) {
    const { context, layouts, stages, devices } = pipeline;
    this.#pipeline = pipeline;
    this.#M = context.problem.microBatchCount;
    this.#feeds = createFeeds(context, layouts);
    this.#pieceBase = devices.length * (2 * this.#M + 1);
    const pieceCount = stages.reduce((sum, { pieces }) => sum + pieces.length, 0);
    this.#feedBase = this.#pieceBase + 2 * this.#M * pieceCount;
    this.#groupBase = this.#feedBase + this.#M * devices.length;
    this.#graph = new WaitGraph(this.#groupBase + stages.length);
  }

  graph(): WaitGraph {
    let pieceBase = this.#pieceBase;
    for (const [stage, flat] of this.#pipeline.stages.entries()) {
      for (let index = flat.first; index < flat.end; index++) this.#addDevice(stage, flat, index);
      if (flat.reduceMs.length > 0)
        this.#graph.add(this.#groupBase + stage, this.#groupBase + stage, flat.reduceMs[0] ?? 0, 1);
      for (const piece of flat.pieces) {
        this.#addPiece(stage, piece, pieceBase);
        pieceBase += 2 * this.#M;
      }
    }
    return this.#graph;
  }

  #forward(index: number, m: number): number {
    return index * (2 * this.#M + 1) + m;
  }

  #backward(index: number, m: number): number {
    return index * (2 * this.#M + 1) + this.#M + m;
  }

  #update(index: number): number {
    return index * (2 * this.#M + 1) + 2 * this.#M;
  }

  /** K_p − 1. */
  #ahead(stage: number): number {
    const { context, stages } = this.#pipeline;
    return leastInFlight(context.problem, stage, stages.length) - 1;
  }

  /** The forward of micro-batch `i` of a round: its place among a stage's forwards, and the rounds that it is ahead. */
  #forwardOf(stage: number, i: number): { readonly m: number; readonly round: number } {
    const ahead = this.#ahead(stage);
    const m = (((i - ahead) % this.#M) + this.#M) % this.#M;
    return { m, round: (m + ahead - i) / this.#M };
  }

  /** A device does one thing after the other; a group reduces meanwhile. */
  #addDevice(stage: number, flat: FlatStage, index: number): void {
    const { stages, devices, context } = this.#pipeline;
    const { forward, backward, forwardMs, backwardMs, updateMs, reduceCpuMs } = devices[index] as FlatDevice;
    const order: { node: number; ms: number; paidMs: number; owedMs: number }[] = [];
    for (let m = 0; m < this.#M; m++) {
      const [given, taken] = [forward, backward];
      order.push({ node: this.#forward(index, m), ms: forwardMs, paidMs: given.receivingMs, owedMs: given.sendingMs });
      if (!flat.isForwardOnly)
        order.push({
          ...{ node: this.#backward(index, m), ms: backwardMs },
          ...{ paidMs: taken.receivingMs, owedMs: taken.sendingMs },
        });
    }
    const isGroup = flat.reduceMs.length > 0;
    const aheadOfFirst = leastInFlight(context.problem, 0, stages.length) - 1;
    const late = isGroup ? this.#lateUpdate(stage, Math.ceil(aheadOfFirst / this.#M)) : 0;
    const lastPass = order.at(-1)?.node ?? 0;
    const update = { node: this.#update(index), ms: updateMs, paidMs: reduceCpuMs, owedMs: 0 };
    order.splice(late === 0 ? order.length : late, 0, update);
    for (const [place, { node, ms, paidMs }] of order.entries()) {
      const before = order[(place + order.length - 1) % order.length] as (typeof order)[number];
      this.#graph.add(before.node, node, before.owedMs + paidMs + ms, place === 0 ? 1 : 0);
    }
    if (isGroup) {
      const handedOn = late === order.length - 1 ? update.node : lastPass;
      this.#graph.add(handedOn, this.#groupBase + stage, flat.reduceMs[0] ?? 0, 0);
      this.#graph.add(this.#groupBase + stage, update.node, updateMs, late === 0 ? 0 : 1);
    }
    this.#addFeed(stage, flat, index);
  }

  /** Before which of a tick's passes a group updates with the round before (schedule/generate.ts); 0: at its end. */
  #lateUpdate(stage: number, staleness: number): number {
    const ahead = this.#ahead(stage);
    for (let m = 0; m < this.#M; m++) if (Math.floor((m + ahead) / this.#M) >= staleness) return 2 * m;
    return 2 * this.#M;
  }

  #addFeed(stage: number, { isForwardOnly }: FlatStage, index: number): void {
    const feed = this.#feeds[index];
    if (feed === undefined) return;
    const { forwardMs } = this.#pipeline.devices[index] as FlatDevice;
    const M = this.#M;
    const occupancyMs = feed.occupancyMs + feed.labelOccupancyMs;
    const base = this.#feedBase + M * index;
    const kept = this.#ahead(stage) + 1;
    for (let i = 0; i < M; i++) {
      this.#graph.add(base + ((i + M - 1) % M), base + i, occupancyMs, i === 0 ? 1 : 0);
      const { m, round } = this.#forwardOf(stage, i);
      this.#graph.add(base + i, this.#forward(index, m), feed.latencyMs + forwardMs, -round);
      const freed = Math.floor((i - kept) / M);
      if (!isForwardOnly) this.#graph.add(this.#backward(index, i - kept - freed * M), base + i, occupancyMs, -freed);
    }
  }

  /** Activations and gradients between two devices. */
  #addPiece(stage: number, piece: Piece, base: number): void {
    const { stages, devices } = this.#pipeline;
    const { from, to, forwardOccupancyMs, backwardOccupancyMs, latencyMs } = piece;
    const M = this.#M;
    const isBack = stages[stage + 1]?.isGradientWanted === true;
    for (let i = 0; i < M; i++) {
      const [out, back] = [base + i, base + M + i];
      const [sent, taken] = [this.#forwardOf(stage, i), this.#forwardOf(stage + 1, i)];
      const arrivedMs = latencyMs + (devices[to] as FlatDevice).forwardMs;
      this.#graph.add(base + ((i + M - 1) % M), out, forwardOccupancyMs, i === 0 ? 1 : 0);
      this.#graph.add(this.#forward(from, sent.m), out, forwardOccupancyMs, sent.round);
      this.#graph.add(out, this.#forward(to, taken.m), arrivedMs, -taken.round);
      if (!isBack) continue;
      this.#graph.add(base + M + ((i + M - 1) % M), back, backwardOccupancyMs, i === 0 ? 1 : 0);
      this.#graph.add(this.#backward(to, i), back, backwardOccupancyMs, 0);
      this.#graph.add(back, this.#backward(from, i), latencyMs + (devices[from] as FlatDevice).backwardMs, 0);
    }
  }
}
