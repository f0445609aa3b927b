// A stage in a strict run: its share of each micro-batch is computed in grains, blocks of samples of one size, each for
// itself, and the gradients of the grains at one place of the micro-batch are summed apart. Which kernels see which
// samples together, and in which order gradients are added, then depends on the grain alone, not on how a plan shares
// and cuts: two plans give the same bits on engines of one kind. To the round it is a stage like any other.

import { assert, defined } from '../../assert.ts';
import type { CutTensor } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { gradientArrays } from './gradient-sums.ts';
import type { OrderedParts } from './ordered-all-reduce.ts';
import type { MicroBatchId } from './pieces.ts';
import type { RoundTotals } from './round-sums.ts';
import { joinSamples, owned, sliceSamples } from './samples.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { Stage, StagePort } from './stage.ts';
import type { EntryOptions, StateEntry } from './stage-state.ts';
import type { UpdateOptions } from './stage-update.ts';

/** How a device's share lies in grains. */
export interface GrainLayout {
  /** Samples of a grain. */
  readonly grain: number;
  /** Grains of the device's share, and of a micro-batch. */
  readonly ownCount: number;
  readonly count: number;
}

/** Wraps a stage that computes one grain: its micro-batch m · count + g is the g-th grain of micro-batch m. */
export class GrainedStage implements StagePort {
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly isLast: boolean;
  readonly #inner: Stage;
  readonly #layout: GrainLayout;
  /** The first of the device's grains in a micro-batch; known from the first forward on. */
  #firstGrain = 0;

  constructor(inner: Stage, layout: GrainLayout) {
    this.inputs = inner.inputs;
    this.outputs = inner.outputs;
    this.label = inner.label;
    this.isLast = inner.isLast;
    this.#inner = inner;
    this.#layout = layout;
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
    const results = this.#grains(microBatch).map(({ index, id }) => {
      const own = inputs.map((input, place) =>
        this.#part(input, defined(this.inputs[place], 'an input').batchAxis, index),
      );
      return this.#inner.forward(id, 0, own, labels && this.#part(labels, 0, index));
    });
    return this.#joined(results, this.isLast ? [] : this.outputs);
  }

  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]> {
    const results = this.#grains(microBatch).map(({ index, id }) =>
      this.#inner.backward(id, this.#gradientsOf(outputGradients, index), bucket),
    );
    return this.#joined(results, differentiable(this.inputs));
  }

  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]> {
    const results = this.#grains(microBatch).map(({ index, id }) =>
      this.#inner.backwardInput(id, this.#gradientsOf(outputGradients, index)),
    );
    return this.#joined(results, differentiable(this.inputs));
  }

  backwardWeight(microBatch: MicroBatchId, bucket?: number): void {
    for (const { id } of this.#grains(microBatch)) this.#inner.backwardWeight(id, bucket);
  }

  /**
   * A bucket's gradients (default: all), for the ordered sum over the group. They are gone from here until the group's
   * sums are put in their place.
   */
  async takePartials(bucket?: number): Promise<OrderedParts> {
    const { specs, positions } = this.#inner.takeGrainSums(bucket);
    const vectors = await Promise.all(
      positions.map(async (tensors) => new SegmentedVector(await gradientArrays(specs, tensors))),
    );
    return { parts: this.#layout.ownCount === 0 ? [] : vectors, total: defined(vectors[0], 'a position') };
  }

  takeGradients(): Promise<SegmentedVector> {
    throw new Error('a strict stage is reduced by its parts');
  }

  #grains(microBatch: MicroBatchId): { readonly index: number; readonly id: MicroBatchId }[] {
    const { ownCount, count } = this.#layout;
    return Array.from({ length: ownCount }, (_, index) => ({
      index,
      id: { round: microBatch.round, index: microBatch.index * count + this.#firstGrain + index },
    }));
  }

  /** One grain's samples of a tensor of the share, in a buffer of its own. */
  #part(value: Tensor, axis: number, index: number): Tensor {
    const { grain } = this.#layout;
    return owned(sliceSamples(value, axis, index * grain, (index + 1) * grain));
  }

  #gradientsOf(gradients: readonly Tensor[], index: number): readonly Tensor[] {
    const cuts = differentiable(this.outputs);
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

  mailboxBytes(microBatchCount: number): number {
    return this.#inner.mailboxBytes(microBatchCount * Math.max(1, this.#layout.ownCount));
  }

  load(entry: StateEntry): void {
    this.#inner.load(entry);
  }

  missingState(): readonly string[] {
    return this.#inner.missingState();
  }

  state(options?: EntryOptions): AsyncGenerator<StateEntry> {
    return this.#inner.state(options);
  }

  takeBusyMs(): number {
    return this.#inner.takeBusyMs();
  }

  computed(): Promise<number> {
    return this.#inner.computed();
  }

  beginRound(round: number, plannedUpdate?: UpdateOptions, firstInFlight?: number): void {
    this.#inner.beginRound(round, plannedUpdate, firstInFlight);
  }

  putGradients(values: SegmentedVector, bucket?: number): void {
    this.#inner.putGradients(values, bucket);
  }

  finishRound(countNorm: boolean): Promise<RoundTotals> {
    return this.#inner.finishRound(countNorm);
  }

  update(options: UpdateOptions): void {
    this.#inner.update(options);
  }

  get versions(): readonly number[] {
    return this.#inner.versions;
  }

  keepVersion(round: number): void {
    this.#inner.keepVersion(round);
  }

  dropVersion(round: number): void {
    this.#inner.dropVersion(round);
  }

  returnTo(round: number): void {
    this.#inner.returnTo(round);
  }

  dispose(): void {
    this.#inner.dispose();
  }
}

function differentiable(cuts: readonly CutTensor[]): readonly CutTensor[] {
  return cuts.filter((cut) => cut.differentiable);
}
