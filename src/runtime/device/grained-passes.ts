// The passes of a stage in a strict run: its share of each micro-batch is computed in grains, blocks of samples of one
// size, each for itself, and the gradients of the grains at one place of the micro-batch are summed apart. Which
// kernels see which samples together, and in which order gradients are added, then depends on the grain alone, not on
// how a plan shares and cuts: two plans give equal bits on engines of one kind.

import { assert, defined } from '../../assert.ts';
import type { CutTensor } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { MicroBatchId } from './pieces.ts';
import { joinSamples, owned, sliceSamples } from './samples.ts';
import type { StageCuts, StagePasses } from './stage.ts';

/** How a device's share lies in grains. */
export interface GrainLayout {
  /** Samples of a grain. */
  readonly grain: number;
  /** Grains of the device's share, and of a micro-batch. */
  readonly ownCount: number;
  readonly count: number;
}

/** A smaller grain behind the whole ones of a share, at the end of a smaller micro-batch. */
export interface RestGrain {
  readonly passes: StagePasses;
  readonly sampleCount: number;
}

/** A grain of a share: its place there, its micro-batch and its passes. */
interface Grain {
  readonly index: number;
  readonly id: MicroBatchId;
  readonly passes: StagePasses;
}

/** Wraps the passes of one grain: their micro-batch m · count + g is the g-th grain of micro-batch m. */
export class GrainedPasses implements StagePasses {
  readonly #inner: StagePasses;
  readonly #cuts: StageCuts;
  readonly #layout: GrainLayout;
  readonly #rest: RestGrain | undefined;
  /** The first of the device's grains in a micro-batch; known from the first forward on. */
  #firstGrain = 0;

  /** `inner`: of a whole grain, of which the share has `layout.ownCount`. */
  constructor(inner: StagePasses, cuts: StageCuts, layout: GrainLayout, rest?: RestGrain) {
    this.#inner = inner;
    this.#cuts = cuts;
    this.#layout = layout;
    this.#rest = rest;
  }

  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    const { grain } = this.#layout;
    assert(firstSample % grain === 0, `a share that begins at sample ${firstSample}, inside a grain of ${grain}`);
    this.#firstGrain = firstSample / grain;
    const results = this.#grains(microBatch).map(({ index, id, passes }) => {
      const own = inputs.map((input, place) =>
        this.#part(input, defined(this.#cuts.inputs[place], 'an input').batchAxis, index),
      );
      return passes.forward(id, 0, own, labels && this.#part(labels, 0, index));
    });
    return this.#joined(results, this.#cuts.isLast ? [] : this.#cuts.outputs);
  }

  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]> {
    const results = this.#grains(microBatch).map(({ index, id, passes }) =>
      passes.backward(id, this.#gradientsOf(outputGradients, index), bucket),
    );
    return this.#joined(results, differentiable(this.#cuts.inputs));
  }

  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]> {
    const results = this.#grains(microBatch).map(({ index, id, passes }) =>
      passes.backwardInput(id, this.#gradientsOf(outputGradients, index)),
    );
    return this.#joined(results, differentiable(this.#cuts.inputs));
  }

  backwardWeight(microBatch: MicroBatchId, bucket?: number): void {
    for (const { id, passes } of this.#grains(microBatch)) passes.backwardWeight(id, bucket);
  }

  #grains(microBatch: MicroBatchId): readonly Grain[] {
    const { ownCount, count } = this.#layout;
    const all = [...new Array<StagePasses>(ownCount).fill(this.#inner), ...(this.#rest ? [this.#rest.passes] : [])];
    return all.map((passes, index) => ({
      index,
      id: { round: microBatch.round, index: microBatch.index * count + this.#firstGrain + index },
      passes,
    }));
  }

  /** One grain's samples of a tensor of the share, in a buffer of its own. */
  #part(value: Tensor, axis: number, index: number): Tensor {
    const { grain, ownCount } = this.#layout;
    const size = index === ownCount ? (this.#rest?.sampleCount ?? 0) : grain;
    return owned(sliceSamples(value, axis, index * grain, index * grain + size));
  }

  #gradientsOf(gradients: readonly Tensor[], index: number): readonly Tensor[] {
    const cuts = differentiable(this.#cuts.outputs);
    return gradients.map((gradient, place) => this.#part(gradient, defined(cuts[place], 'an output').batchAxis, index));
  }

  async #joined(
    results: readonly Promise<readonly Tensor[]>[],
    cuts: readonly CutTensor[],
  ): Promise<readonly Tensor[]> {
    const grains = await Promise.all(results);
    if ((grains[0]?.length ?? 0) === 0) return [];
    return cuts.map(({ name, batchAxis }, place) =>
      joinSamples(
        grains.map((tensors) => defined(tensors[place], name)),
        batchAxis,
      ),
    );
  }
}

function differentiable(cuts: readonly CutTensor[]): readonly CutTensor[] {
  return cuts.filter((cut) => cut.differentiable);
}
