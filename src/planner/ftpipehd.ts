// FTPipeHD's dynamic scheduler (§III-D, eq. 1–7): capacities of the workers from the times of their batches, and its
// dynamic program over the layers. T_{e,j}^i is the time of layer j, forward and backward, of a batch on worker i; the
// central node is worker 0. What the paper leaves open: every worker has a layer at least, in the given order, and
// T_c is bytes over bandwidth, without latency.

import { assert } from '../assert.ts';
import { prefixSums, rangeOf } from '../cluster/times.ts';
import { straightPartition } from './partition.ts';
import type { Problem, StageLayout } from './problem.ts';
import { shareTimes } from './share-times.ts';
import type { Steps } from './steps.ts';

/** What a worker took for a batch on the layers that it has: T̃_e^i, the mean of what it reported. */
export interface MeasuredWorker {
  readonly layers: readonly [first: number, end: number];
  readonly batchMs: number;
}

/**
 * C_i = T̃_e^i / Σ_j T_{e,j}^0 over the layers of worker i (eq. 1 and 2): how many times as long as the central node it
 * takes. `centralMs` is T_{e,j}^0 by layer. C_0 is 1, whatever the central node measures now.
 */
export function capacitiesOf(centralMs: readonly number[], measured: readonly MeasuredWorker[]): number[] {
  const sums = prefixSums(centralMs);
  return measured.map(({ layers: [first, end], batchMs }, worker) => {
    const ownMs = rangeOf(sums, first, end);
    assert(ownMs > 0, `layers ${first} to ${end} take the central node no time`);
    return worker === 0 ? 1 : batchMs / ownMs;
  });
}

export interface Partition {
  /** T_{e,j}^0 by layer. */
  readonly centralMs: readonly number[];
  /** C_i, in the workers' order. */
  readonly capacities: readonly number[];
  /**
   * T_{c,j}^k of eq. 6: the output of the layer before `cut` from worker index − 1 to worker index, in milliseconds.
   */
  readonly transferMs: (index: number, cut: number) => number;
}

/**
 * Where each worker's layers end: A(j, n) = min over l of max(A(l, n−1), 2·T_c, T^{n−1}(l+1, j)) (eq. 4 and 5), with
 * T^k(i, j) = Σ T_{e,m}^0 · C_k (eq. 3 and 7).
 */
export function partitionOf({ centralMs, capacities, transferMs }: Partition): number[] {
  const sums = prefixSums(centralMs);
  return straightPartition(centralMs.length, capacities.length, {
    stageMs: (index, first, end) => rangeOf(sums, first, end) * (capacities[index] ?? 1),
    crossMs: (index, cut) => 2 * transferMs(index, cut),
  });
}

/**
 * T_{e,j}^0: what the device at a place takes for each layer of a micro-batch, in proportion to what the layers alone
 * take; they add up to what it takes for the whole model.
 */
export function centralLayerMs(problem: Problem, place: number): number[] {
  const layerCount = problem.profile.layers.length;
  const batchMs = batchTimes(problem);
  const layerMs = Array.from({ length: layerCount }, (_, layer) => batchMs(place, layer, layer + 1));
  const sumMs = layerMs.reduce((sum, ms) => sum + ms, 0);
  const factor = sumMs === 0 ? 1 : batchMs(place, 0, layerCount) / sumMs;
  return layerMs.map((ms) => ms * factor);
}

type BatchTimes = (place: number, first: number, end: number) => number;

/** What devices take for layers [first, end) of a micro-batch, forward and backward. */
function batchTimes(problem: Problem): BatchTimes {
  const times = shareTimes(problem);
  const B = problem.microBatchSize;
  return (place, first, end) => times.forwardMs(place, first, end, B) + times.backwardMs(place, first, end, B);
}

/** The planner: capacities by each device's times over the whole model, which a profile knows. */
export function* ftpipehd(problem: Problem): Steps<readonly StageLayout[]> {
  yield 0;
  const { available, table, profile, microBatchSize: B } = problem;
  const layerCount = profile.layers.length;
  const order = available.map(({ place }) => place).slice(0, layerCount);
  const batchMs = batchTimes(problem);
  const centralMs = centralLayerMs(problem, order[0] ?? 0);
  const known = order.map((place) => ({ layers: [0, layerCount] as const, batchMs: batchMs(place, 0, layerCount) }));
  // Where nothing takes any time, nobody is slower.
  const capacities = known[0]?.batchMs === 0 ? order.map(() => 1) : capacitiesOf(centralMs, known);
  const transferMs = (index: number, cut: number): number =>
    table.occupancyMs(order[index - 1] ?? 0, order[index] ?? 0, B * (profile.layers[cut - 1]?.outputBytes ?? 0));
  const ends = partitionOf({ centralMs, capacities, transferMs });
  return order.map((place, index) => ({
    layers: [ends[index - 1] ?? 0, ends[index] ?? 0],
    devices: [place],
    samples: [B],
  }));
}
