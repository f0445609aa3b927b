// A round's gradients on their way to the group and back: out of the engine as one vector (strict runs: as the parts of it that are to be summed in order), and
// the group's sums in their place. Running statistics, which replicas average, travel with the last bucket.

import { assert, defined } from '../../assert.ts';
import type { Engine } from '../../engine/engine.ts';
import { elementCount, type Tensor, wrap } from '../../graph/tensor.ts';
import { giveMemory } from '../../transport/tensor-memory.ts';
import type { TensorSpec } from '../messages.ts';
import type { CompiledStage } from './compiled-stages.ts';
import { type GradientSums, vectorOf } from './gradient-sums.ts';
import type { StageState } from './stage-state.ts';

/** About 4 MiB, a few milliseconds of copying. */
const elementsBetweenYields = 2 ** 20;

/** Parts of gradients that are summed apart, as tensors that arrive; undefined stands for zeros. */
export interface GrainSums {
  readonly specs: readonly TensorSpec[];
  /** By grain, in their order. */
  readonly positions: readonly (readonly (Promise<Tensor> | undefined)[])[];
}

interface ExchangeOptions {
  readonly engine: Engine;
  readonly compiled: Pick<CompiledStage, 'trained' | 'buckets' | 'statistics'>;
  readonly sums: GradientSums;
  readonly state: StageState;
  /** This device's share of a micro-batch: what its running statistics count in the group's average. */
  readonly sampleShare: number;
}

/** Takes gradients out of a round's sums and puts the group's in. A bucket is out or in; without buckets all are one. */
export class GradientExchange {
  readonly #options: ExchangeOptions;
  /** The tensors of gradients that are being summed over the group, by bucket: the sums come back in their memory. */
  readonly #taken = new Map<number | undefined, readonly (Promise<Tensor> | undefined)[]>();

  constructor(options: ExchangeOptions) {
    this.#options = options;
  }

  /** The gradients of a bucket, behind the last one the statistics. What is queued after this call is not waited for. */
  async take(bucket: number | undefined): Promise<Float32Array> {
    const { engine, sums, state, sampleShare } = this.#options;
    const statistics = this.#statisticsOf(bucket);
    const parts = defined(sums.take(bucket)[0], 'the sums');
    const averages = statistics.map(({ name }) => engine.download(defined(state.get('buffer', name), name)));
    const extraCount = statistics.reduce((sum, { shape }) => sum + elementCount(shape), 0);
    this.#taken.set(bucket, parts);
    const values = await vectorOf(this.#trainedOf(bucket), parts, extraCount);
    let offset = values.length - extraCount;
    for (const average of averages) {
      const { data } = await average;
      for (let index = 0; index < data.length; index++) values[offset++] = (data[index] as number) * sampleShare;
    }
    return values;
  }

  /** The same with the grains' sums apart. Without statistics: they are one device's in a strict run. */
  takeGrainSums(bucket: number | undefined): GrainSums {
    const { compiled, sums } = this.#options;
    assert(compiled.statistics.length === 0, 'replicas of a strict run have no running statistics');
    return { specs: this.#trainedOf(bucket), positions: sums.take(bucket) };
  }

  /** Puts the group's sums in place of what was taken, in the memory that it came in. `values` is this object's from here on. Long copies let other work in between. */
  async put(values: Float32Array, bucket: number | undefined): Promise<void> {
    const { sums, state } = this.#options;
    const taken = this.#taken.get(bucket) ?? [];
    this.#taken.delete(bucket);
    let [index, offset, sinceYield] = [0, 0, 0];
    const next = async (shape: readonly number[]): Promise<Tensor> => {
      const end = offset + elementCount(shape);
      sinceYield += end - offset;
      if (sinceYield > elementsBetweenYields) {
        await new Promise((resolve) => setImmediate(resolve));
        sinceYield = 0;
      }
      const before = await taken[index++];
      const part = values.subarray(offset, end);
      offset = end;
      if (before === undefined) return wrap('float32', shape, part.slice());
      (before.data as Float32Array).set(part);
      return before;
    };
    await sums.put(bucket, next);
    for (const { name, shape } of this.#statisticsOf(bucket)) state.load({ role: 'buffer', name, value: await next(shape) });
    giveMemory(values);
  }

  /** Forgets what is out. */
  clear(): void {
    this.#taken.clear();
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
