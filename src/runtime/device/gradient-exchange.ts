// A round's gradients on their way to the group and back: out of the engine as the tensors that they are (strict runs:
// as the parts of them that are to be summed in order), and the group's sums in their place. Running statistics, which
// replicas average, travel with the last bucket.

import { assert, defined } from '../../assert.ts';
import type { Engine } from '../../engine/engine.ts';
import { wrap } from '../../graph/tensor.ts';
import type { TensorSpec } from '../protocol/model-message.ts';
import type { CompiledStage } from './compiled-stages.ts';
import { gradientArrays, type SumsByRound } from './gradient-sums.ts';
import type { OrderedParts } from './ordered-all-reduce.ts';
import { owned } from './samples.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { StageState } from './stage-state.ts';

interface ExchangeOptions {
  readonly engine: Engine;
  readonly compiled: Pick<CompiledStage, 'trained' | 'buckets' | 'statistics'>;
  readonly sums: SumsByRound;
  readonly state: StageState;
}

/**
 * Takes gradients out of a round's sums and puts the group's in. A bucket is out or in; without buckets all are one.
 */
export class GradientExchange {
  readonly #options: ExchangeOptions;

  constructor(options: ExchangeOptions) {
    this.#options = options;
  }

  /**
   * The gradients of a bucket, behind the last one the statistics: a segment for each tensor. `sampleShare`: this
   * device's share of the round's samples, which is what its statistics count in the group's average. What is queued
   * after this call is not waited for.
   */
  async take(bucket: number | undefined, sampleShare: number, round: number): Promise<SegmentedVector> {
    const { engine, sums, state } = this.#options;
    const gradients = gradientArrays(this.#trainedOf(bucket), defined(sums.of(round).take(bucket)[0], 'the sums'));
    const averages = this.#statisticsOf(bucket).map(({ name }) =>
      engine.download(defined(state.bufferAfter(round, name), name)),
    );
    const [own, statistics] = await Promise.all([gradients, Promise.all(averages)]);
    return new SegmentedVector([
      ...own,
      ...statistics.map(({ data }) => (data as Float32Array).map((value) => value * sampleShare)),
    ]);
  }

  /**
   * The gradients of a bucket in a strict run: the parts that are added in the order of the samples, none if
   * `hasSamples` is false. Without statistics, which are one device's there.
   */
  async takeParts(bucket: number | undefined, hasSamples: boolean, round: number): Promise<OrderedParts> {
    const { compiled, sums } = this.#options;
    assert(compiled.statistics.length === 0, 'replicas of a strict run have no running statistics');
    const specs = this.#trainedOf(bucket);
    const positions = sums.of(round).take(bucket);
    const parts = await Promise.all(
      positions.map(async (tensors) => new SegmentedVector(await gradientArrays(specs, tensors))),
    );
    return { parts: hasSamples ? parts : [], total: defined(parts[0], 'a position') };
  }

  /**
   * Puts the group's sums in place of what was taken, a segment for each tensor. The memory of `values` is this
   * object's from here on.
   */
  put({ segments }: SegmentedVector, bucket: number | undefined, round: number): void {
    const { engine, sums, state } = this.#options;
    const gradientCount = this.#trainedOf(bucket).length;
    const statistics = this.#statisticsOf(bucket);
    assert(segments.length === gradientCount + statistics.length, 'a segment for each tensor');
    sums.of(round).put(bucket, segments.slice(0, gradientCount));
    for (const [index, { name, shape }] of statistics.entries())
      state.setBufferAfter(
        round,
        name,
        engine.upload(owned(wrap('float32', shape, defined(segments[gradientCount + index], name)))),
      );
  }

  #trainedOf(bucket: number | undefined): readonly TensorSpec[] {
    const { trained, buckets } = this.#options.compiled;
    return bucket === undefined ? trained : defined(buckets[bucket], 'a bucket');
  }

  #statisticsOf(bucket: number | undefined): readonly TensorSpec[] {
    const { statistics, buckets } = this.#options.compiled;
    return bucket === undefined || bucket === buckets.length - 1 ? statistics : [];
  }
}
