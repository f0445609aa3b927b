// What exact stages that train (exact-model.ts) have in common, whatever their passes: the state of their layers, the
// rows that they take and give, and the time that computing takes. It looks at everything that it is given: whose
// samples, of which round and epoch, and of which round its own weights are.

import { defined } from '../assert.ts';
import { type CutTensor, cutBefore, cutBytes } from '../graph/layers.ts';
import type { Tensor } from '../graph/tensor.ts';
import { Residuals } from '../runtime/device/codec.ts';
import type { MicroBatchId } from '../runtime/device/pieces.ts';
import type { RestShare } from '../runtime/device/stage.ts';
import type { StageOptions } from '../runtime/device/stage-graphs.ts';
import type { EntryOptions, StateEntry } from '../runtime/device/stage-state.ts';
import { sampleIdAt } from './exact-model.ts';
import { rowsOf, wrongRows } from './exact-rows.ts';
import { ExactState } from './exact-state.ts';
import { witnessCount } from './exact-sums.ts';
import type { StageWorld } from './exact-world.ts';

/** A stage of exact layers that trains. */
export abstract class ExactTraining {
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly isLast: boolean;
  readonly statisticCount = 0;
  readonly residuals: Residuals = new Residuals();
  protected readonly options: StageOptions;
  protected readonly world: StageWorld;
  protected readonly layers: readonly number[];
  protected readonly numbers: ExactState;
  readonly #seed: number;
  #takenMs = 0;

  /** `traveling`: what crosses a cut of these tensors. */
  constructor(
    options: StageOptions,
    world: StageWorld,
    traveling: (cuts: readonly CutTensor[]) => readonly CutTensor[],
  ) {
    const { sequence, layers, training } = options;
    this.inputs = traveling(cutBefore(sequence, layers[0]));
    this.outputs = traveling(cutBefore(sequence, layers[1]));
    this.label = options.label;
    this.isLast = layers[1] === sequence.layers.length;
    this.options = options;
    this.world = world;
    this.#seed = training.seed;
    this.layers = Array.from({ length: layers[1] - layers[0] }, (_, index) => layers[0] + index);
    const own = { layers: this.layers, frozen: training.frozen };
    this.numbers = new ExactState(world.engine, own, (what) => this.violate(what));
  }

  get versions(): readonly number[] {
    return this.numbers.kept.versions;
  }

  load(entry: StateEntry): void {
    if (entry.role === 'parameter') this.numbers.weights.replace();
    this.numbers.kept.load(entry);
  }

  missingState(): readonly string[] {
    return this.numbers.missing();
  }

  async *state(options: EntryOptions = {}): AsyncGenerator<StateEntry> {
    for await (const entry of this.numbers.kept.entries(options)) {
      await this.computedIn(0);
      yield entry;
    }
  }

  keepVersion(round: number): void {
    this.numbers.keepVersion(round);
  }

  dropVersion(round: number): void {
    this.numbers.kept.drop(round);
  }

  returnTo(round: number): void {
    this.forgetAll();
    this.numbers.weights.endStream();
    this.numbers.weights.replace();
    this.numbers.kept.returnTo(round);
  }

  dispose(): void {
    this.forgetAll();
    this.numbers.weights.endStream();
    this.numbers.weights.replace();
    this.numbers.kept.dispose();
  }

  /** Forgets what rounds have left. */
  protected abstract forgetAll(): void;

  takeBusyMs(): number {
    const beforeMs = this.#takenMs;
    this.#takenMs = this.world.engine.busyMs();
    return this.#takenMs - beforeMs;
  }

  computed(): undefined {
    return undefined; // passes count as done when they are queued
  }

  mailboxBytes(microBatchCount: number): number {
    const share = cutBytes([...this.inputs, ...this.outputs, this.label], this.options.sampleCount);
    const vectorLength = 2 * this.layers.length + witnessCount;
    return 2 * microBatchCount * share + 2 * 4 * vectorLength + 2 ** 12;
  }

  protected get staleness(): number {
    return this.options.staleness ?? 0;
  }

  /** The samples of this device in a micro-batch. `rest`: its part of a smaller round, if it is one. */
  protected samplesOf(
    { round, index: microBatch }: MicroBatchId,
    firstSample: number,
    rest: RestShare | undefined,
  ): number[] {
    const first = microBatch * this.options.microBatchSize + firstSample;
    const isOdd = microBatch === rest?.lastMicroBatch;
    const length = isOdd ? rest?.lastSampleCount : this.options.sampleCount;
    return Array.from({ length: length ?? 0 }, (_, index) => sampleIdAt(this.#seed, round, first + index));
  }

  /** Looks at rows that came in; the feed knows no epoch. */
  protected checkRows(
    rows: Float32Array,
    samples: readonly number[],
    what: string,
    round: number,
    isFed = false,
  ): void {
    const due = { round, epoch: isFed ? undefined : this.world.epoch() };
    for (const wrong of wrongRows(rows, samples, due)) this.violate(`${what} holds ${wrong}`);
  }

  /** The samples' labels, which come with their samples; zeros where there are none. */
  protected labelsOf(labels: Tensor | undefined, samples: readonly number[]): readonly number[] {
    if (labels === undefined) return samples.map(() => 0);
    const rows = labels.data as Float32Array;
    return samples.map((sample, index) => {
      if (rows[2 * index + 1] !== sample)
        this.violate(`the label of sample ${rows[2 * index + 1]} came with sample ${sample}`);
      return rows[2 * index] ?? 0;
    });
  }

  protected rows(samples: readonly number[], values: readonly number[], round: number): Tensor {
    return rowsOf(samples, values, { round, epoch: this.world.epoch() });
  }

  protected get bucketCount(): number {
    return this.options.form.pieces?.buckets.length ?? 1;
  }

  /** Where a bucket's layers, or all, lie among this stage's. */
  protected placesOf(bucket: number | undefined): readonly [first: number, end: number] {
    if (bucket === undefined) return [0, this.layers.length];
    const [first, end] = defined(this.options.form.pieces?.buckets[bucket], 'a bucket');
    const offset = this.layers[0] as number;
    return [first - offset, end - offset];
  }

  /**
   * Resolves when the device has computed this, after all that was queued before; `passes` in units of a forward pass,
   * of a bucket's layers or of all.
   */
  protected computedIn(passes: number, bucket?: number): Promise<void> {
    const [first, end] = this.placesOf(bucket);
    return this.world.engine.work(passes * (end - first) * this.options.sampleCount * this.world.msPerSample());
  }

  /** The round that is at work, for sentences. */
  protected abstract get roundAtWork(): number;

  protected violate(what: string): void {
    this.world.violate(`round ${this.roundAtWork}, stage of layers ${this.layers.join(' ')}: ${what}`);
  }
}

/** The sum of integers. */
export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
