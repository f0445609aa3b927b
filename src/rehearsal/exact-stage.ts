// A stage of the exact model (exact-model.ts) in the place of one on an engine. It takes as long as its device is slow,
// and looks at everything that it is given: whose samples, of which round and epoch, and of which round its own weights
// are.

import { defined } from '../assert.ts';
import { type CutTensor, cutBefore, cutBytes } from '../graph/layers.ts';
import type { Tensor } from '../graph/tensor.ts';
import { Residuals } from '../runtime/device/codec.ts';
import { keyOf, type MicroBatchId, type RoundRange } from '../runtime/device/pieces.ts';
import { withPasses } from '../runtime/device/rest-stage.ts';
import type { RoundTotals } from '../runtime/device/round-sums.ts';
import { SegmentedVector } from '../runtime/device/segmented-vector.ts';
import type { RestShare, RoundStage, StagePort } from '../runtime/device/stage.ts';
import type { StageOptions } from '../runtime/device/stage-graphs.ts';
import type { EntryOptions, StateEntry } from '../runtime/device/stage-state.ts';
import type { UpdateOptions } from '../runtime/device/stage-update.ts';
import type { Weights } from '../runtime/device/weight-versions.ts';
import { layerRules, learningRate, sampleIdAt } from './exact-model.ts';
import { rowsOf, valuesOf, wrongRows } from './exact-rows.ts';
import { ExactState } from './exact-state.ts';
import { beginSums, type ExactSums, takeWitnesses, witnessCount } from './exact-sums.ts';
import type { Kept, StageWorld } from './exact-world.ts';

/** A stage of exact layers. */
export class ExactStage implements StagePort {
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly isLast: boolean;
  readonly statisticCount = 0;
  readonly residuals: Residuals = new Residuals();
  readonly #options: StageOptions;
  readonly #world: StageWorld;
  readonly #seed: number;
  readonly #layers: readonly number[];
  readonly #state: ExactState;
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
  #takenMs = 0;

  constructor(options: StageOptions, world: StageWorld) {
    const { sequence, layers, training } = options;
    this.inputs = cutBefore(sequence, layers[0]);
    this.outputs = cutBefore(sequence, layers[1]);
    this.label = options.label;
    this.isLast = layers[1] === sequence.layers.length;
    this.#options = options;
    this.#world = world;
    this.#seed = training.seed;
    this.#layers = Array.from({ length: layers[1] - layers[0] }, (_, index) => layers[0] + index);
    const own = { layers: this.#layers, frozen: training.frozen };
    this.#state = new ExactState(world.engine, own, (what) => this.#violate(what));
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

  get versions(): readonly number[] {
    return this.#state.kept.versions;
  }

  load(entry: StateEntry): void {
    if (entry.role === 'parameter') this.#state.weights.replace();
    this.#state.kept.load(entry);
  }

  missingState(): readonly string[] {
    return this.#state.missing();
  }

  async *state(options: EntryOptions = {}): AsyncGenerator<StateEntry> {
    for await (const entry of this.#state.kept.entries(options)) {
      await this.#computed(0);
      yield entry;
    }
  }

  keepVersion(round: number): void {
    this.#state.keepVersion(round);
  }

  dropVersion(round: number): void {
    this.#state.kept.drop(round);
  }

  beginStream(first: number): void {
    this.#forget();
    this.#rests.clear();
    this.#first = first;
    this.#state.beginStream(first, this.#staleness, this.#options.aggregation);
  }

  get #staleness(): number {
    return this.#options.staleness ?? 0;
  }

  returnTo(round: number): void {
    this.#forget();
    this.#state.weights.endStream();
    this.#state.weights.replace();
    this.#state.kept.returnTo(round);
  }

  dispose(): void {
    this.#forget();
    this.#state.weights.endStream();
    this.#state.weights.replace();
    this.#state.kept.dispose();
  }

  takeBusyMs(): number {
    const beforeMs = this.#takenMs;
    this.#takenMs = this.#world.engine.busyMs();
    return this.#takenMs - beforeMs;
  }

  computed(): undefined {
    return undefined; // passes count as done when they are queued
  }

  mailboxBytes(microBatchCount: number): number {
    const share = cutBytes([...this.inputs, ...this.outputs, this.label], this.#options.sampleCount);
    const vectorLength = 2 * this.#layers.length + witnessCount;
    return 2 * microBatchCount * share + 2 * 4 * vectorLength + 2 ** 12;
  }

  beginRound(round: number, _planned?: UpdateOptions, firstInFlight: number = round): void {
    [this.#round, this.#rest] = [round, undefined];
    this.#forget([firstInFlight, round]);
    this.keepVersion(round);
    this.#sums.set(round, beginSums(this.#layers.map((layer) => this.#state.layer(layer).buffer)));
    for (const layer of this.#layers) this.#state.checkVersions(layer, ['parameter', 'buffer'], round);
  }

  /** Forgets micro-batches and sums of all rounds but [first, end). */
  #forget([first, end]: RoundRange = [0, 0]): void {
    for (const round of [...this.#sums.keys()]) if (round < first || round >= end) this.#sums.delete(round);
    for (const [key, { round, weights }] of this.#kept) {
      if (round >= first && round < end) continue;
      this.#kept.delete(key);
      this.#state.weights.release(weights);
    }
  }

  #sumsOf(round: number): ExactSums {
    if (this.#first !== undefined && !this.#sums.has(round))
      this.#sums.set(round, beginSums(this.#layers.map(() => [0, 0])));
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
    this.#checkRows(rows, samples, `micro-batch ${microBatch.index}`, round, this.#layers[0] === 0);
    const weights = this.#state.weights.holdFor(round);
    this.#checkRead(round, weights);
    const sums = this.#sumsOf(round);
    const values: number[][] = [valuesOf(rows, samples.length)];
    for (const [index, layer] of this.#layers.entries()) {
      const weight = this.#state.weight(layer, weights);
      const outputs = (values[index] as number[]).map((input) => layerRules.forward(input, weight, layer));
      values.push(outputs);
      sums.outputs[index] = (sums.outputs[index] as number) + sum(outputs);
    }
    if (this.#first === undefined) this.#state.setStatistics(sums.statistics, sums.outputs);
    const outputs = values.at(-1) as number[];
    const ownLabels = this.#labelsOf(labels, samples);
    const kept = { round, weights, samples, values, labels: ownLabels };
    this.#kept.set(keyOf(microBatch), { ...kept, gradients: undefined, inputGradients: [] });
    const { training, microBatchSize } = this.#options;
    if (this.#kept.size > (training.batchSize / microBatchSize) * (1 + this.#staleness))
      this.#violate(`${this.#kept.size} micro-batches are in flight`);
    return this.#computed(1).then(() => (this.isLast ? [] : [this.#rows(samples, outputs, round)]));
  }

  /** In a stream, a round reads the version that its staleness says. */
  #checkRead(round: number, weights: Weights): void {
    if (this.#first === undefined) return;
    const due = Math.max(this.#first, round - this.#staleness);
    const read = this.#state.readVersions(weights);
    if (read.some((version) => version !== due)) this.#violate(`round ${round} reads versions ${read}, not ${due}`);
  }

  /** The samples' labels, which come with their samples; zeros where there are none. */
  #labelsOf(labels: Tensor | undefined, samples: readonly number[]): readonly number[] {
    if (labels === undefined) return samples.map(() => 0);
    const rows = labels.data as Float32Array;
    return samples.map((sample, index) => {
      if (rows[2 * index + 1] !== sample)
        this.#violate(`the label of sample ${rows[2 * index + 1]} came with sample ${sample}`);
      return rows[2 * index] ?? 0;
    });
  }

  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]> {
    if (bucket === undefined || bucket === 0) this.#inputGradients(microBatch, outputGradients);
    const { inputGradients } = defined(this.#kept.get(keyOf(microBatch)), `micro-batch ${microBatch.index}`);
    this.#accumulate(microBatch, bucket);
    const isWhole = bucket === undefined || bucket === this.#bucketCount - 1;
    return this.#computed(2, bucket).then(() => (isWhole ? inputGradients : []));
  }

  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]> {
    const gradients = this.#inputGradients(microBatch, outputGradients);
    return this.#computed(1).then(() => gradients);
  }

  backwardWeight(microBatch: MicroBatchId, bucket?: number): void {
    this.#accumulate(microBatch, bucket);
    void this.#computed(1, bucket);
  }

  async takeGradients(bucket?: number, round: number = this.#round): Promise<SegmentedVector> {
    const [first, end] = this.#placesOf(bucket);
    const { gradients, outputs, sampleCount } = this.#sumsOf(round);
    const witnesses = [1, sampleCount, round, this.#world.epoch()];
    const parts = [gradients.slice(first, end), outputs.slice(first, end), witnesses];
    await this.#computed(0);
    return new SegmentedVector(parts.map((values) => Float32Array.from(values)));
  }

  putGradients({ segments }: SegmentedVector, bucket?: number, round: number = this.#round): void {
    const [gradients = [], outputs = [], witnesses = []] = segments;
    const [first, end] = this.#placesOf(bucket);
    const sums = this.#sumsOf(round);
    for (let index = 0; first + index < end; index++) {
      sums.gradients[first + index] = gradients[index] as number;
      sums.outputs[first + index] = outputs[index] as number;
    }
    const own = { round, epoch: this.#world.epoch() };
    for (const wrong of takeWitnesses(sums, witnesses, own)) this.#violate(wrong);
    if (this.#first === undefined) this.#state.setStatistics(sums.statistics, sums.outputs);
  }

  async finishRound(countNorm: boolean, round: number = this.#round): Promise<RoundTotals> {
    const batchSize = this.#world.samplesIn?.(round) ?? this.#options.training.batchSize;
    const sums = this.#sumsOf(round);
    const { lossSum, correctCount, gradients } = sums;
    const sampleCount = sums.summedCount ?? sums.sampleCount;
    if (sampleCount !== batchSize) this.#violate(`${sampleCount} samples of ${batchSize} are in the sums`);
    const norm = countNorm ? sum(gradients.map(layerRules.norm)) : 0;
    await this.#computed(0);
    return { lossSum, correctCount, squaredNorm: norm, finite: true };
  }

  update({ learningRate: rate, gradientScale, step }: UpdateOptions, round: number = this.#round): void {
    if (rate !== learningRate(round)) this.#violate(`the update has the rate ${rate}`);
    if (step !== round + 1) this.#violate(`the update calls itself step ${step}`);
    const [{ gradients, outputs }, isStream] = [this.#sumsOf(round), this.#first !== undefined];
    const bases = this.#state.meansFor(this.#world.aggregatesLate === true ? round - 1 : round);
    this.#state.weights.advance();
    for (const [index, layer] of this.#layers.entries()) {
      this.#state.checkVersions(layer, isStream ? ['parameter', 'optimizer', 'buffer'] : ['optimizer'], round);
      const sums = { gradient: gradients[index] as number, output: isStream ? (outputs[index] as number) : undefined };
      this.#state.update(layer, sums, { learningRate: rate, gradientScale, step }, bases[index]);
    }
    this.#sums.delete(round);
    this.#rests.delete(round);
    if (isStream) this.keepVersion(round + 1);
    if (this.#world.forgetsEarly === true && this.#staleness > 0) this.#state.forget(round);
    void this.#computed(0);
  }

  #samplesOf({ round, index: microBatch }: MicroBatchId, firstSample: number): number[] {
    const first = microBatch * this.#options.microBatchSize + firstSample;
    const rest = this.#first === undefined ? this.#rest : this.#rests.get(round);
    const isOdd = microBatch === rest?.lastMicroBatch;
    const length = isOdd ? rest?.lastSampleCount : this.#options.sampleCount;
    return Array.from({ length: length ?? 0 }, (_, index) => sampleIdAt(this.#seed, round, first + index));
  }

  /** Looks at rows that came in; the feed knows no epoch. */
  #checkRows(rows: Float32Array, samples: readonly number[], what: string, round: number, isFed = false): void {
    const due = { round, epoch: isFed ? undefined : this.#world.epoch() };
    for (const wrong of wrongRows(rows, samples, due)) this.#violate(`${what} holds ${wrong}`);
  }

  /** The gradients of the stage's inputs; the gradients of its layers' outputs are kept. */
  #inputGradients(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): readonly Tensor[] {
    const kept = defined(this.#kept.get(keyOf(microBatch)), `micro-batch ${microBatch.index}`);
    const { samples, values, labels } = kept;
    const weights = this.#world.backwardReads === 'live' ? this.#state.weights.live() : kept.weights;
    const sums = this.#sumsOf(microBatch.round);
    let gradients = this.isLast
      ? (values.at(-1) as readonly number[]).map((output, index) => this.#loss(sums, output, labels[index] as number))
      : this.#received(outputGradients, samples, microBatch);
    const byLayer: (readonly number[])[] = [];
    for (let index = this.#layers.length - 1; index >= 0; index--) {
      byLayer.unshift(gradients);
      const weight = this.#state.weight(this.#layers[index] as number, weights);
      const inputs = values[index] as readonly number[];
      gradients = gradients.map((gradient, sample) =>
        layerRules.inputGradient(gradient, weight, inputs[sample] as number),
      );
    }
    kept.gradients = byLayer;
    kept.inputGradients = this.#layers[0] === 0 ? [] : [this.#rows(samples, gradients, microBatch.round)];
    return kept.inputGradients;
  }

  #received(
    outputGradients: readonly Tensor[],
    samples: readonly number[],
    microBatch: MicroBatchId,
  ): readonly number[] {
    const rows = defined(outputGradients[0], 'the gradient').data as Float32Array;
    this.#checkRows(rows, samples, `the gradient of micro-batch ${microBatch.index}`, microBatch.round);
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
    if (bucket === undefined || bucket === this.#bucketCount - 1) {
      this.#kept.delete(keyOf(microBatch));
      this.#state.weights.release(weights);
    }
    this.#round = microBatch.round;
    const sums = this.#sumsOf(microBatch.round);
    if (bucket === undefined || bucket === 0) sums.sampleCount += samples.length;
    const [first, end] = this.#placesOf(bucket);
    for (let index = first; index < end; index++) {
      const outputGradients = defined(gradients, 'the gradients of the outputs')[index] as readonly number[];
      const inputs = values[index] as readonly number[];
      const own = outputGradients.map((gradient, sample) =>
        layerRules.weightGradient(gradient, inputs[sample] as number, samples[sample] as number),
      );
      sums.gradients[index] = (sums.gradients[index] as number) + sum(own);
    }
  }

  #rows(samples: readonly number[], values: readonly number[], round: number): Tensor {
    return rowsOf(samples, values, { round, epoch: this.#world.epoch() });
  }

  get #bucketCount(): number {
    return this.#options.form.pieces?.buckets.length ?? 1;
  }

  /** Where a bucket's layers, or all, lie among this stage's. */
  #placesOf(bucket: number | undefined): readonly [first: number, end: number] {
    if (bucket === undefined) return [0, this.#layers.length];
    const [first, end] = defined(this.#options.form.pieces?.buckets[bucket], 'a bucket');
    const offset = this.#layers[0] as number;
    return [first - offset, end - offset];
  }

  /**
   * Resolves when the device has computed this, after all that was queued before; `passes` in units of a forward pass,
   * of a bucket's layers or of all.
   */
  #computed(passes: number, bucket?: number): Promise<void> {
    const [first, end] = this.#placesOf(bucket);
    return this.#world.engine.work(passes * (end - first) * this.#options.sampleCount * this.#world.msPerSample());
  }

  #violate(what: string): void {
    this.#world.violate(`round ${this.#round}, stage of layers ${this.#layers.join(' ')}: ${what}`);
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
