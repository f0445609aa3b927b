// A stage of the exact model (exact-model.ts) that trains by backward passes, in the place of one on an engine.

import { defined } from '../assert.ts';
import type { Tensor } from '../graph/tensor.ts';
import { keyOf, type MicroBatchId, type RoundRange } from '../runtime/device/pieces.ts';
import { withPasses } from '../runtime/device/rest-stage.ts';
import type { RoundTotals } from '../runtime/device/round-sums.ts';
import { SegmentedVector } from '../runtime/device/segmented-vector.ts';
import type { RestShare, RoundStage, StagePort } from '../runtime/device/stage.ts';
import type { StageOptions } from '../runtime/device/stage-graphs.ts';
import type { UpdateOptions } from '../runtime/device/stage-update.ts';
import type { Weights } from '../runtime/device/weight-versions.ts';
import { layerRules, learningRate } from './exact-model.ts';
import { valuesOf } from './exact-rows.ts';
import { beginSums, type ExactSums, takeWitnesses } from './exact-sums.ts';
import { ExactTraining, sum } from './exact-training.ts';
import type { Kept, StageWorld } from './exact-world.ts';

/** A stage of exact layers. */
export class ExactStage extends ExactTraining implements StagePort {
  readonly #kept = new Map<string, Kept>();
  /** By round, until its update. */
  readonly #sums = new Map<number, ExactSums>();
  /** The round whose gradients are being made, reduced or applied. */
  #round = -1;
  /** This device's part of a smaller round, if it is in one. */
  #rest: RestShare | undefined;
  /** In a stream, the version with which it began; undefined where rounds follow each other. */
  #first: number | undefined;
  /** In a stream, by round: this device's part of smaller rounds. */
  readonly #rests = new Map<number, RestShare>();

  constructor(options: StageOptions, world: StageWorld) {
    super(options, world, (cuts) => cuts);
  }

  protected get roundAtWork(): number {
    return this.#round;
  }

  async rest(share: RestShare): Promise<RoundStage> {
    const beginRound: RoundStage['beginRound'] = (...given) => {
      this.beginRound(...given);
      this.#rest = share;
    };
    const forward: RoundStage['forward'] = (microBatch, ...given) => {
      if (this.#first !== undefined) this.#rests.set(microBatch.round, share);
      return this.forward(microBatch, ...given);
    };
    return { ...withPasses(this, this, (...given) => this.takeGradients(...given)), beginRound, forward };
  }

  beginStream(first: number): void {
    this.#forget();
    this.#rests.clear();
    this.#first = first;
    this.numbers.beginStream(first, this.staleness, this.options.aggregation);
  }

  beginRound(round: number, _planned?: UpdateOptions, firstInFlight: number = round): void {
    [this.#round, this.#rest] = [round, undefined];
    this.#forget([firstInFlight, round]);
    this.keepVersion(round);
    this.#sums.set(round, beginSums(this.layers.map((layer) => this.numbers.layer(layer).buffer)));
    for (const layer of this.layers) this.numbers.checkVersions(layer, ['parameter', 'buffer'], round);
  }

  protected forgetAll(): void {
    this.#forget();
  }

  /** Forgets micro-batches and sums of all rounds but [first, end). */
  #forget([first, end]: RoundRange = [0, 0]): void {
    for (const round of [...this.#sums.keys()]) if (round < first || round >= end) this.#sums.delete(round);
    for (const [key, { round, weights }] of this.#kept) {
      if (round >= first && round < end) continue;
      this.#kept.delete(key);
      this.numbers.weights.release(weights);
    }
  }

  #sumsOf(round: number): ExactSums {
    if (this.#first !== undefined && !this.#sums.has(round))
      this.#sums.set(round, beginSums(this.layers.map(() => [0, 0])));
    return defined(this.#sums.get(round), `the sums of round ${round}`);
  }

  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    const { round } = microBatch;
    const rows = defined(inputs[0], 'the input').data as Float32Array;
    const samples = this.#samplesOf(microBatch, firstSample);
    this.checkRows(rows, samples, `micro-batch ${microBatch.index}`, round, this.layers[0] === 0);
    const weights = this.numbers.weights.holdFor(round);
    this.#checkRead(round, weights);
    const sums = this.#sumsOf(round);
    const values: number[][] = [valuesOf(rows, samples.length)];
    for (const [index, layer] of this.layers.entries()) {
      const weight = this.numbers.weight(layer, weights);
      const outputs = (values[index] as number[]).map((input) => layerRules.forward(input, weight, layer));
      values.push(outputs);
      sums.outputs[index] = (sums.outputs[index] as number) + sum(outputs);
    }
    if (this.#first === undefined) this.numbers.setStatistics(sums.statistics, sums.outputs);
    const outputs = values.at(-1) as number[];
    const ownLabels = this.labelsOf(labels, samples);
    const kept = { round, weights, samples, values, labels: ownLabels };
    this.#kept.set(keyOf(microBatch), { ...kept, gradients: undefined, inputGradients: [] });
    const { training, microBatchSize } = this.options;
    if (this.#kept.size > (training.batchSize / microBatchSize) * (1 + this.staleness))
      this.violate(`${this.#kept.size} micro-batches are in flight`);
    return this.computedIn(1).then(() => (this.isLast ? [] : [this.rows(samples, outputs, round)]));
  }

  /** In a stream, a round reads the version that its staleness says. */
  #checkRead(round: number, weights: Weights): void {
    if (this.#first === undefined) return;
    const due = Math.max(this.#first, round - this.staleness);
    const read = this.numbers.readVersions(weights);
    if (read.some((version) => version !== due)) this.violate(`round ${round} reads versions ${read}, not ${due}`);
  }

  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]> {
    if (bucket === undefined || bucket === 0) this.#inputGradients(microBatch, outputGradients);
    const { inputGradients } = defined(this.#kept.get(keyOf(microBatch)), `micro-batch ${microBatch.index}`);
    this.#accumulate(microBatch, bucket);
    const isWhole = bucket === undefined || bucket === this.bucketCount - 1;
    return this.computedIn(2, bucket).then(() => (isWhole ? inputGradients : []));
  }

  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]> {
    const gradients = this.#inputGradients(microBatch, outputGradients);
    return this.computedIn(1).then(() => gradients);
  }

  backwardWeight(microBatch: MicroBatchId, bucket?: number): void {
    this.#accumulate(microBatch, bucket);
    void this.computedIn(1, bucket);
  }

  async takeGradients(bucket?: number, round: number = this.#round): Promise<SegmentedVector> {
    const [first, end] = this.placesOf(bucket);
    const { gradients, outputs, sampleCount } = this.#sumsOf(round);
    const witnesses = [1, sampleCount, round, this.world.epoch()];
    const parts = [gradients.slice(first, end), outputs.slice(first, end), witnesses];
    await this.computedIn(0);
    return new SegmentedVector(parts.map((values) => Float32Array.from(values)));
  }

  putGradients({ segments }: SegmentedVector, bucket?: number, round: number = this.#round): void {
    const [gradients = [], outputs = [], witnesses = []] = segments;
    const [first, end] = this.placesOf(bucket);
    const sums = this.#sumsOf(round);
    for (let index = 0; first + index < end; index++) {
      sums.gradients[first + index] = gradients[index] as number;
      sums.outputs[first + index] = outputs[index] as number;
    }
    const own = { round, epoch: this.world.epoch() };
    for (const wrong of takeWitnesses(sums, witnesses, own)) this.violate(wrong);
    if (this.#first === undefined) this.numbers.setStatistics(sums.statistics, sums.outputs);
  }

  async finishRound(countNorm: boolean, round: number = this.#round): Promise<RoundTotals> {
    const batchSize = this.world.samplesIn?.(round) ?? this.options.training.batchSize;
    const sums = this.#sumsOf(round);
    const { lossSum, correctCount, gradients } = sums;
    const sampleCount = sums.summedCount ?? sums.sampleCount;
    if (sampleCount !== batchSize) this.violate(`${sampleCount} samples of ${batchSize} are in the sums`);
    const norm = countNorm ? sum(gradients.map(layerRules.norm)) : 0;
    await this.computedIn(0);
    return { lossSum, correctCount, squaredNorm: norm, finite: true };
  }

  update({ learningRate: rate, gradientScale, step }: UpdateOptions, round: number = this.#round): void {
    if (rate !== learningRate(round)) this.violate(`the update has the rate ${rate}`);
    if (step !== round + 1) this.violate(`the update calls itself step ${step}`);
    const [{ gradients, outputs }, isStream] = [this.#sumsOf(round), this.#first !== undefined];
    const bases = this.numbers.meansFor(this.world.aggregatesLate === true ? round - 1 : round);
    this.numbers.weights.advance();
    for (const [index, layer] of this.layers.entries()) {
      this.numbers.checkVersions(layer, isStream ? ['parameter', 'optimizer', 'buffer'] : ['optimizer'], round);
      const sums = { gradient: gradients[index] as number, output: isStream ? (outputs[index] as number) : undefined };
      this.numbers.update(layer, sums, { learningRate: rate, gradientScale, step }, bases[index]);
    }
    this.#sums.delete(round);
    this.#rests.delete(round);
    if (isStream) this.keepVersion(round + 1);
    if (this.world.forgetsEarly === true && this.staleness > 0) this.numbers.forget(round);
    void this.computedIn(0);
  }

  #samplesOf(microBatch: MicroBatchId, firstSample: number): number[] {
    const rest = this.#first === undefined ? this.#rest : this.#rests.get(microBatch.round);
    return this.samplesOf(microBatch, firstSample, rest);
  }

  /** The gradients of the stage's inputs; the gradients of its layers' outputs are kept. */
  #inputGradients(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): readonly Tensor[] {
    const kept = defined(this.#kept.get(keyOf(microBatch)), `micro-batch ${microBatch.index}`);
    const { samples, values, labels } = kept;
    const weights = this.world.backwardReads === 'live' ? this.numbers.weights.live() : kept.weights;
    const sums = this.#sumsOf(microBatch.round);
    let gradients = this.isLast
      ? (values.at(-1) as readonly number[]).map((output, index) => this.#loss(sums, output, labels[index] as number))
      : this.#received(outputGradients, samples, microBatch);
    const byLayer: (readonly number[])[] = [];
    for (let index = this.layers.length - 1; index >= 0; index--) {
      byLayer.unshift(gradients);
      const weight = this.numbers.weight(this.layers[index] as number, weights);
      const inputs = values[index] as readonly number[];
      gradients = gradients.map((gradient, sample) =>
        layerRules.inputGradient(gradient, weight, inputs[sample] as number),
      );
    }
    kept.gradients = byLayer;
    kept.inputGradients = this.layers[0] === 0 ? [] : [this.rows(samples, gradients, microBatch.round)];
    return kept.inputGradients;
  }

  #received(
    outputGradients: readonly Tensor[],
    samples: readonly number[],
    microBatch: MicroBatchId,
  ): readonly number[] {
    const rows = defined(outputGradients[0], 'the gradient').data as Float32Array;
    this.checkRows(rows, samples, `the gradient of micro-batch ${microBatch.index}`, microBatch.round);
    return valuesOf(rows, samples.length);
  }

  #loss(sums: ExactSums, output: number, labelValue: number): number {
    sums.lossSum += layerRules.loss(output, labelValue);
    sums.correctCount++;
    return layerRules.lossGradient(output, labelValue);
  }

  /**
   * Adds the weight gradients of a micro-batch, or of a bucket's layers; its samples count with the first bucket, the
   * last one ends it.
   */
  #accumulate(microBatch: MicroBatchId, bucket: number | undefined): void {
    const { samples, values, gradients, weights } = defined(
      this.#kept.get(keyOf(microBatch)),
      `micro-batch ${microBatch.index}`,
    );
    if (bucket === undefined || bucket === this.bucketCount - 1) {
      this.#kept.delete(keyOf(microBatch));
      this.numbers.weights.release(weights);
    }
    this.#round = microBatch.round;
    const sums = this.#sumsOf(microBatch.round);
    if (bucket === undefined || bucket === 0) sums.sampleCount += samples.length;
    const [first, end] = this.placesOf(bucket);
    for (let index = first; index < end; index++) {
      const outputGradients = defined(gradients, 'the gradients of the outputs')[index] as readonly number[];
      const inputs = values[index] as readonly number[];
      const own = outputGradients.map((gradient, sample) =>
        layerRules.weightGradient(gradient, inputs[sample] as number, samples[sample] as number),
      );
      sums.gradients[index] = (sums.gradients[index] as number) + sum(own);
    }
  }
}
