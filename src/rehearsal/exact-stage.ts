// A stage of the exact model (exact-model.ts) in the place of one on an engine. It takes as long as its device is slow,
// and looks at everything that it is given: whose samples, of which round and epoch, and of which round its own weights
// are.

import { assert, defined } from '../assert.ts';
import { type CutTensor, cutBefore, cutBytes } from '../graph/layers.ts';
import { type Tensor, wrap } from '../graph/tensor.ts';
import { Residuals } from '../runtime/device/codec.ts';
import { keyOf, type MicroBatchId, type RoundRange } from '../runtime/device/pieces.ts';
import type { RoundTotals } from '../runtime/device/round-sums.ts';
import { SegmentedVector } from '../runtime/device/segmented-vector.ts';
import type { StagePort } from '../runtime/device/stage.ts';
import type { StageOptions } from '../runtime/device/stage-graphs.ts';
import { type EntryOptions, StageState, type StateEntry } from '../runtime/device/stage-state.ts';
import type { UpdateOptions } from '../runtime/device/stage-update.ts';
import { type Weights, WeightVersions } from '../runtime/device/weight-versions.ts';
import type { StateRole } from '../runtime/protocol/messages.ts';
import type { ExactEngine } from './exact-engine.ts';
import { layerRules, learningRate, rowLength, sampleIdAt, stateNames, versioned, writeRow } from './exact-model.ts';

/** What a stage takes from the world. */
export interface StageWorld {
  readonly engine: ExactEngine;
  /** Milliseconds for one layer and one sample, forward; may change at any time. */
  msPerSample(): number;
  /** The membership epoch in which it computes. */
  epoch(): number;
  violate(what: string): void;
  /** Rounds by which weights may lag behind the round that reads them. Default: 0, a synchronous run. */
  readonly staleness?: number;
  /** Default: `held`. A backward pass that reads the weights as they are is a mistake, planted to be found. */
  readonly backwardReads?: 'held' | 'live';
}

/** A layer's weight, momentum and running statistic, and the rounds that each has seen. */
type LayerState = Readonly<Record<StateRole, readonly [value: number, version: number]>>;

/** A micro-batch between its forward and its backward pass. */
interface Kept {
  readonly round: number;
  /** What the forward pass has read. */
  readonly weights: Weights;
  readonly samples: readonly number[];
  /** By layer, then sample: what went into the layer, and last what came out. */
  readonly values: readonly (readonly number[])[];
  readonly labels: readonly number[];
  /** By layer, then sample: the gradients of the layer's output. */
  gradients: readonly (readonly number[])[] | undefined;
  /** What goes to the stage before. */
  inputGradients: readonly Tensor[];
}

/** What a round adds up. */
interface Sums {
  /** The statistics before the round. */
  readonly statistics: readonly (readonly [number, number])[];
  readonly gradients: number[];
  readonly outputs: number[];
  sampleCount: number;
  /** Samples in the group's sums, once there are any. */
  summedCount: number | undefined;
  lossSum: number;
  correctCount: number;
}

/** In the all-reduced vector, behind the layers' sums: members, samples, rounds, epochs. */
const witnessCount = 4;
/** The state before the last commit, the one before the round, and a few that devices may have to return to. */
const maxVersionCount = 6;

/** The stage. */
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
  readonly #state: StageState;
  readonly #weights: WeightVersions;
  readonly #kept = new Map<string, Kept>();
  /** By round, until its update. */
  readonly #sums = new Map<number, Sums>();
  /** The round whose gradients are being made, reduced or applied. */
  #round = -1;
  #takenMs = 0;

  constructor(options: StageOptions, world: StageWorld) {
    const { sequence, layers, training } = options;
    this.inputs = cutBefore(sequence, layers[0]);
    this.outputs = cutBefore(sequence, layers[1]);
    this.label = options.label;
    this.isLast = layers[1] === sequence.layers.length;
    this.#options = options;
    this.#world = world;
    this.#state = new StageState(world.engine, []);
    this.#weights = new WeightVersions(this.#state, () => ({}));
    this.#seed = training.seed;
    this.#layers = Array.from({ length: layers[1] - layers[0] }, (_, index) => layers[0] + index);
  }

  get versions(): readonly number[] {
    return this.#state.versions;
  }

  load(entry: StateEntry): void {
    if (entry.role === 'parameter') this.#weights.replace();
    this.#state.load(entry);
  }

  missingState(): readonly string[] {
    return this.#layers.flatMap((layer) => {
      const { parameter, buffer } = stateNames(layer);
      return [
        this.#state.has('parameter', parameter) ? [] : parameter,
        this.#state.has('buffer', buffer) ? [] : buffer,
      ].flat();
    });
  }

  async *state(options: EntryOptions = {}): AsyncGenerator<StateEntry> {
    for await (const entry of this.#state.entries(options)) {
      await this.#computed(0);
      yield entry;
    }
  }

  keepVersion(round: number): void {
    this.#state.keep(round);
    this.#checkVersionCount();
  }

  dropVersion(round: number): void {
    this.#state.drop(round);
  }

  returnTo(round: number): void {
    this.#forget();
    this.#weights.replace();
    this.#state.returnTo(round);
  }

  dispose(): void {
    this.#forget();
    this.#weights.replace();
    this.#state.dispose();
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
    return 2 * microBatchCount * share + 2 * 4 * this.#vectorLength() + 2 ** 12;
  }

  beginRound(round: number, _planned?: UpdateOptions, firstInFlight: number = round): void {
    this.#round = round;
    this.#forget([firstInFlight, round]);
    this.keepVersion(round);
    this.#sums.set(round, {
      statistics: this.#layers.map((layer) => this.#layerState(layer).buffer),
      gradients: this.#layers.map(() => 0),
      outputs: this.#layers.map(() => 0),
      ...{ sampleCount: 0, summedCount: undefined, lossSum: 0, correctCount: 0 },
    });
    for (const layer of this.#layers)
      this.#checkVersions(layer, ['parameter', 'buffer'], Math.max(0, round - (this.#world.staleness ?? 0)));
  }

  /** Forgets micro-batches and sums of all rounds but [first, end). */
  #forget([first, end]: RoundRange = [0, 0]): void {
    for (const round of [...this.#sums.keys()]) if (round < first || round >= end) this.#sums.delete(round);
    for (const [key, { round, weights }] of this.#kept) {
      if (round >= first && round < end) continue;
      this.#kept.delete(key);
      this.#weights.release(weights);
    }
  }

  #sumsOf(round: number): Sums {
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
    this.#checkRows(rows, samples, `micro-batch ${microBatch.index}`, { round, hasEpoch: this.#layers[0] !== 0 });
    const weights = this.#weights.hold();
    const sums = this.#sumsOf(round);
    const values: number[][] = [samples.map((_, index) => rows[index * rowLength] as number)];
    for (const [index, layer] of this.#layers.entries()) {
      const weight = this.#weight(layer, weights);
      const outputs = (values[index] as number[]).map((input) => layerRules.forward(input, weight, layer));
      values.push(outputs);
      sums.outputs[index] = (sums.outputs[index] as number) + sum(outputs);
    }
    this.#addToStatistics(sums);
    const outputs = values.at(-1) as number[];
    const labelRows = (labels?.data ?? []) as Float32Array;
    if (labels !== undefined) {
      for (const [index, sample] of samples.entries()) {
        if (labelRows[2 * index + 1] !== sample)
          this.#violate(`the label of sample ${labelRows[2 * index + 1]} came with sample ${sample}`);
      }
    }
    const ownLabels = samples.map((_, index) => labelRows[2 * index] ?? 0);
    const kept = { round, weights, samples, values, labels: ownLabels };
    this.#kept.set(keyOf(microBatch), { ...kept, gradients: undefined, inputGradients: [] });
    const microBatchCount = this.#options.training.batchSize / this.#options.microBatchSize;
    if (this.#kept.size > microBatchCount * (1 + (this.#world.staleness ?? 0)))
      this.#violate(`${this.#kept.size} micro-batches are in flight`);
    return this.#computed(1).then(() => (this.isLast ? [] : [this.#rows(samples, outputs, round)]));
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

  async takeGradients(bucket?: number): Promise<SegmentedVector> {
    const [first, end] = this.#placesOf(bucket);
    const { gradients, outputs, sampleCount } = this.#sumsOf(this.#round);
    const witnesses = [1, sampleCount, this.#round, this.#world.epoch()];
    const parts = [gradients.slice(first, end), outputs.slice(first, end), witnesses];
    await this.#computed(0);
    return new SegmentedVector(parts.map((values) => Float32Array.from(values)));
  }

  putGradients({ segments }: SegmentedVector, bucket?: number): void {
    const [gradients = [], outputs = [], witnesses = []] = segments;
    const [first, end] = this.#placesOf(bucket);
    const sums = this.#sumsOf(this.#round);
    for (let index = 0; first + index < end; index++) {
      sums.gradients[first + index] = gradients[index] as number;
      sums.outputs[first + index] = outputs[index] as number;
    }
    const [members, samples, rounds, epochs] = witnesses as unknown as readonly [number, number, number, number];
    if (rounds !== members * this.#round)
      this.#violate(`sums of gradients of another round came in: ${rounds} of ${members} members`);
    if (epochs !== members * this.#world.epoch())
      this.#violate(`sums of gradients of another epoch came in: ${epochs} of ${members} members`);
    if (sums.summedCount !== undefined && samples !== sums.summedCount)
      this.#violate(`the sums of one bucket are of ${sums.summedCount} samples, those of another of ${samples}`);
    sums.summedCount = samples;
    this.#addToStatistics(sums);
  }

  async finishRound(countNorm: boolean): Promise<RoundTotals> {
    const { batchSize } = this.#options.training;
    const sums = this.#sumsOf(this.#round);
    const { lossSum, correctCount, gradients } = sums;
    const sampleCount = sums.summedCount ?? sums.sampleCount;
    if (sampleCount !== batchSize) this.#violate(`${sampleCount} samples of ${batchSize} are in the sums`);
    const norm = countNorm ? sum(gradients.map(layerRules.norm)) : 0;
    const totals = { lossSum, correctCount, squaredNorm: norm, finite: true };
    await this.#computed(0);
    return totals;
  }

  update({ learningRate: rate, gradientScale, step }: UpdateOptions): void {
    if (rate !== learningRate(this.#round)) this.#violate(`the update has the rate ${rate}`);
    if (step !== this.#round + 1) this.#violate(`the update calls itself step ${step}`);
    const { gradients } = this.#sumsOf(this.#round);
    this.#weights.replace();
    for (const [index, layer] of this.#layers.entries()) {
      this.#checkVersions(layer, ['optimizer'], this.#round);
      const { parameter, optimizer, buffer } = this.#layerState(layer);
      const moved = layerRules.momentum(optimizer[0], gradients[index] as number, gradientScale, parameter[0], rate);
      this.#set('parameter', layer, [layerRules.weight(parameter[0], moved, step), parameter[1] + 1]);
      this.#set('optimizer', layer, [moved, optimizer[1] + 1]);
      this.#set('buffer', layer, [buffer[0], buffer[1] + 1]);
    }
    this.#sums.delete(this.#round);
    void this.#computed(0);
  }

  #layerState(layer: number): LayerState {
    return {
      parameter: this.#stateOf('parameter', layer),
      // nobody has sent it: there was no update yet, or it comes before the next
      optimizer: this.#held('optimizer', layer) ?? [0, 0],
      buffer: this.#stateOf('buffer', layer),
    };
  }

  #weight(layer: number, { parameters }: Weights): number {
    const held = defined(parameters[stateNames(layer).parameter], 'a weight');
    return this.#world.engine.peek(held).data[0] as number;
  }

  #stateOf(role: StateRole, layer: number): readonly [number, number] {
    return defined(this.#held(role, layer), role);
  }

  #held(role: StateRole, layer: number): readonly [number, number] | undefined {
    const held = this.#state.get(role, stateNames(layer)[role]);
    return held && (this.#world.engine.peek(held).data as unknown as readonly [number, number]);
  }

  #set(role: StateRole, layer: number, [value, version]: readonly [number, number]): void {
    this.#state.set(role, stateNames(layer)[role], this.#world.engine.upload(versioned(value, version)));
  }

  /** The statistics are what they were before the round, and what has come since. */
  #addToStatistics({ statistics, outputs }: Sums): void {
    for (const [index, layer] of this.#layers.entries()) {
      const [value, version] = statistics[index] as readonly [number, number];
      this.#set('buffer', layer, [layerRules.statistic(value, outputs[index] as number), version]);
    }
  }

  /** A layer's state has seen as many rounds as it should have. */
  #checkVersions(layer: number, roles: readonly StateRole[], expected: number): void {
    const state = this.#layerState(layer);
    for (const role of roles) {
      const version = state[role][1];
      if (version !== expected) this.#violate(`the ${role} of layer ${layer} is that of round ${version}`);
    }
  }

  #checkVersionCount(): void {
    if (this.versions.length > maxVersionCount) this.#violate(`the versions ${this.versions.join(' ')} are kept`);
  }

  #samplesOf({ round, index: microBatch }: MicroBatchId, firstSample: number): number[] {
    const first = microBatch * this.#options.microBatchSize + firstSample;
    return Array.from({ length: this.#options.sampleCount }, (_, index) =>
      sampleIdAt(this.#seed, round, first + index),
    );
  }

  #checkRows(
    rows: Float32Array,
    samples: readonly number[],
    what: string,
    due: { readonly round: number; readonly hasEpoch: boolean },
  ): void {
    assert(rows.length === samples.length * rowLength, 'a row a sample');
    const ownEpoch = this.#world.epoch();
    for (let index = 0; index < samples.length; index++) {
      const start = index * rowLength;
      const [sample, found, round, epoch] = [samples[index], rows[start + 1], rows[start + 2], rows[start + 3]];
      const isRight = found === sample && round === due.round && (!due.hasEpoch || epoch === ownEpoch);
      if (!isRight)
        this.#violate(
          `${what} holds sample ${found} of round ${round} and epoch ${epoch} in the place of sample ${sample}`,
        );
    }
  }

  /** The gradients of the stage's inputs; those of its layers' outputs are kept. */
  #inputGradients(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): readonly Tensor[] {
    const kept = defined(this.#kept.get(keyOf(microBatch)), `micro-batch ${microBatch.index}`);
    const { samples, values, labels } = kept;
    const weights = this.#world.backwardReads === 'live' ? this.#weights.live() : kept.weights;
    const sums = this.#sumsOf(microBatch.round);
    let gradients = this.isLast
      ? (values.at(-1) as readonly number[]).map((output, index) => this.#loss(sums, output, labels[index] as number))
      : this.#received(outputGradients, samples, microBatch);
    const byLayer: (readonly number[])[] = [];
    for (let index = this.#layers.length - 1; index >= 0; index--) {
      byLayer.unshift(gradients);
      const weight = this.#weight(this.#layers[index] as number, weights);
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
    this.#checkRows(rows, samples, `the gradient of micro-batch ${microBatch.index}`, {
      round: microBatch.round,
      hasEpoch: true,
    });
    return samples.map((_, index) => rows[index * rowLength] as number);
  }

  #loss(sums: Sums, output: number, labelValue: number): number {
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
      this.#weights.release(weights);
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
    const rows = new Float32Array(samples.length * rowLength);
    const epoch = this.#world.epoch();
    for (const [index, sample] of samples.entries())
      writeRow(rows, index, { value: values[index] as number, sample, round, epoch });
    return wrap('float32', [samples.length, rowLength], rows);
  }

  #vectorLength(): number {
    return 2 * this.#layers.length + witnessCount;
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
