// One stage of the model on one device: its weights and optimizer state, and what each micro-batch in flight keeps.
// Everything heavy lives in the engine; calls queue work there and return. It knows nothing of links, other devices, or
// whether a round commits.

import { assert, defined } from '../../assert.ts';
import { outputGradientName } from '../../autodiff/differentiate.ts';
import { dropoutMask } from '../../autodiff/dropout.ts';
import type { Engine, Executable, Value } from '../../engine/engine.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import { type CutTensor, cutBefore, cutBytes } from '../../graph/layers.ts';
import { allocate, elementCount, scalar, type Tensor, wrap } from '../../graph/tensor.ts';
import { squaredNormName } from '../../training/clipping.ts';
import type { StateRole } from '../protocol/messages.ts';
import { Residuals } from './codec.ts';
import type { CompiledStage } from './compiled-stages.ts';
import { GradientExchange, type GrainSums } from './gradient-exchange.ts';
import { GradientSums, type SumPart } from './gradient-sums.ts';
import { InFlight } from './in-flight.ts';
import type { OrderedParts } from './ordered-all-reduce.ts';
import type { MicroBatchId, RoundRange } from './pieces.ts';
import { RoundSums, type RoundTotals } from './round-sums.ts';
import type { SegmentedVector } from './segmented-vector.ts';
import { type PassNotes, type StageOptions, stepNames } from './stage-graphs.ts';
import { type EntryOptions, StageState, type StateEntry } from './stage-state.ts';
import { StageUpdate, type UpdateOptions } from './stage-update.ts';
import { type Weights, WeightVersions } from './weight-versions.ts';

/**
 * What a round and a worker need of a stage; tensors that it gives are the caller's. The rehearsal passes one without
 * an engine, whose arithmetic is exact.
 */
export type StagePort = Pick<
  Stage,
  | 'inputs'
  | 'outputs'
  | 'label'
  | 'isLast'
  | 'load'
  | 'missingState'
  | 'state'
  | 'takeBusyMs'
  | 'mailboxBytes'
  | 'beginRound'
  | 'forward'
  | 'backward'
  | 'backwardInput'
  | 'backwardWeight'
  | 'takeGradients'
  | 'putGradients'
  | 'finishRound'
  | 'update'
  | 'versions'
  | 'keepVersion'
  | 'dropVersion'
  | 'returnTo'
  | 'dispose'
> & {
  /** Of a strict stage, in place of takeGradients. */
  takePartials?(bucket?: number): Promise<OrderedParts>;
} & Partial<Pick<Stage, 'statisticCount' | 'residuals' | 'computed'>>;

type Values = Record<string, Value>;

/** Less is kept for the next round: to allocate it anew would cost more than it is worth. */
const leastTrimmedBytes = 2 ** 25;

/** A stage that computes. Work is queued in the order of the calls. */
export class Stage {
  /** The cut before the stage; in the first stage the model's inputs. */
  readonly inputs: readonly CutTensor[];
  /** The cut after it; in the last stage the model's output. */
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly isLast: boolean;
  /** Elements at the end of `takeGradients` that are no gradients but running statistics. */
  readonly statisticCount: number;
  /** What an AllReduce in 8 bits has not sent yet. */
  readonly residuals: Residuals = new Residuals();
  readonly #engine: Engine;
  readonly #options: StageOptions;
  readonly #compiled: CompiledStage;
  readonly #state: StageState;
  readonly #weights: WeightVersions;
  readonly #inFlight: InFlight;
  readonly #sums: GradientSums;
  readonly #exchange: GradientExchange;
  readonly #update: StageUpdate;
  /** By round, until they are given. */
  readonly #totals = new Map<number, RoundSums>();
  /** The round whose gradients are being made, reduced or applied. */
  #round = 0;
  #takenMs: number;

  /** Use `createStage`. */
  constructor(engine: Engine, options: StageOptions, compiled: CompiledStage) {
    const { sequence, layers } = options;
    this.inputs = cutBefore(sequence, layers[0]);
    this.outputs = cutBefore(sequence, layers[1]);
    this.label = options.label;
    this.isLast = layers[1] === sequence.layers.length;
    this.#engine = engine;
    this.#options = options;
    this.#compiled = compiled;
    this.statisticCount = compiled.statistics.reduce((sum, { shape }) => sum + elementCount(shape), 0);
    this.#state = new StageState(engine, compiled.packs);
    const { filters } = compiled.graphs;
    this.#weights = new WeightVersions(this.#state, (parameters) =>
      filters === undefined ? {} : this.#run(filters, [parameters]),
    );
    this.#inFlight = new InFlight(this.#state, this.#weights);
    this.#sums = new GradientSums(engine, compiled);
    const sampleShare = options.sampleCount / options.microBatchSize;
    this.#exchange = new GradientExchange({ engine, compiled, sums: this.#sums, state: this.#state, sampleShare });
    this.#update = new StageUpdate(engine, compiled, this.#state);
    this.#takenMs = engine.busyMs();
  }

  /**
   * Puts one tensor of the state in place. Later all can be replaced together, or single large ones; small ones share a
   * pack. The engine takes the tensor's buffer where it holds nothing else.
   */
  load(entry: StateEntry): void {
    if (entry.role === 'parameter') this.#weights.replace();
    this.#state.load(entry);
  }

  /** The parameters and buffers that have not been loaded. Optimizer state that nobody loads starts from zeros. */
  missingState(): readonly string[] {
    const { parameters, buffers } = this.#compiled;
    const missing = (specs: typeof parameters, role: StateRole): string[] =>
      specs.map(({ name }) => name).filter((name) => !this.#state.has(role, name));
    return [...missing(parameters, 'parameter'), ...missing(buffers, 'buffer')];
  }

  /** Parameters, buffers and optimizer state, copied out one by one: live, or of a version. */
  state(options: EntryOptions = {}): AsyncGenerator<StateEntry> {
    return this.#state.entries(options);
  }

  /** The versions that are kept, by the number of rounds committed before, ascending. */
  get versions(): readonly number[] {
    return this.#state.versions;
  }

  /**
   * Keeps the live state as the one after `round` rounds. Costs handles only, until an update replaces what they hold.
   */
  keepVersion(round: number): void {
    this.#state.keep(round);
  }

  /** Lets go of a version, if there is one. */
  dropVersion(round: number): void {
    this.#state.drop(round);
  }

  /** Goes back to a version; what rounds have left beyond it is forgotten. */
  returnTo(round: number): void {
    this.#forget();
    this.#weights.replace();
    this.#state.returnTo(round);
  }

  /** Lets go of all state and graphs; the stage is of no use afterwards. */
  dispose(): void {
    this.#forget();
    this.#weights.replace();
    this.#state.dispose();
    this.#compiled.release();
    this.#engine.trim();
  }

  /** Milliseconds that the engine has computed since this was asked last, or since the stage was made. */
  takeBusyMs(): number {
    const beforeMs = this.#takenMs;
    this.#takenMs = this.#engine.busyMs();
    return this.#takenMs - beforeMs;
  }

  /** Resolves when everything queued so far is computed, with how many milliseconds ago that was. */
  computed(): Promise<number> {
    return this.#engine.computed();
  }

  /**
   * Bytes of received tensors that may wait on this device: its share of two rounds, and the pieces of an AllReduce.
   */
  mailboxBytes(microBatchCount: number): number {
    const share = cutBytes([...this.inputs, ...this.outputs, this.label], this.#options.sampleCount);
    const gradientBytes = this.#compiled.trained.reduce((sum, { shape }) => sum + 4 * elementCount(shape), 0);
    return 2 * microBatchCount * share + 2 * gradientBytes + 2 ** 20;
  }

  /**
   * The live state is the one after `round` rounds and is kept as that; what an abandoned round left is forgotten.
   * `plannedUpdate`: how the round will be updated with; a stage whose step updates must know.
   * `firstInFlight`: of a stream, the first round before this one that is still in flight.
   */
  beginRound(round: number, plannedUpdate?: UpdateOptions, firstInFlight: number = round): void {
    this.#forget([firstInFlight, round]);
    this.#state.keep(round);
    this.#update.plan(plannedUpdate);
    this.#round = round;
  }

  #forget(inFlight: RoundRange = [0, 0]): void {
    this.#inFlight.clear(inFlight);
    this.#sums.clear();
    this.#update.forget();
    for (const round of [...this.#totals.keys()])
      if (round < inFlight[0] || round >= inFlight[1]) this.#totals.delete(round);
  }

  /**
   * Queues the forward pass of one micro-batch. `inputs` follow this.inputs and go to the engine; `firstSample` is the
   * first of this device's samples in the micro-batch. The last stage takes labels and adds to the round's loss; where
   * backward passes follow at once, all is left to them. Resolves with this.outputs, or nothing on the last stage.
   */
  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    const pass = this.#pass();
    const { step, forward } = this.#compiled.graphs;
    const feeds: Values = {};
    this.inputs.forEach((cut, index) => {
      feeds[cut.name] = this.#engine.upload(defined(inputs[index], cut.name));
    });
    Object.assign(feeds, this.#dropoutMasks(pass, microBatch, firstSample));
    const weights = this.#weights.hold();
    if (step !== undefined && !this.#isInPieces(microBatch)) {
      feeds[stepNames.labels] = this.#engine.upload(defined(labels, 'the labels'));
      feeds[stepNames.scale] = this.#engine.upload(scalar('float32', 1 / this.#options.training.batchSize));
      this.#inFlight.begin(microBatch, feeds, weights);
      return Promise.resolve([]);
    }
    const results = this.#run(defined(forward, 'the forward pass'), [feeds, ...this.#read(weights)]);
    const kept: Values = {};
    for (const name of pass.savedInputs) {
      const fed = feeds[name];
      kept[name] = defined(fed ?? this.#state.get('buffer', name), name);
      if (fed === undefined) this.#state.retain(kept[name]);
      delete feeds[name];
    }
    this.#releaseAll(feeds);
    for (const name of pass.saved) kept[name] = defined(results[name], name);
    this.#replaceBuffers(pass, results);
    this.#inFlight.begin(microBatch, kept, weights);
    if (labels !== undefined) this.#addLoss(microBatch, results, labels, kept);
    const outputs = this.outputs.map(({ name }) => this.#result(name, results, kept));
    return labels === undefined ? Promise.all(outputs as Promise<Tensor>[]) : Promise.resolve([]);
  }

  /**
   * Queues the whole backward pass. `outputGradients` follow the differentiable ones of this.outputs (none on the last
   * stage). Resolves with those of this.inputs. With `bucket`, the pass comes in pieces, called in turn: the first
   * takes the output gradients, the last resolves with the input gradients.
   */
  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]> {
    const pass = this.#pass();
    if (bucket === undefined || bucket === 0) this.#seed(microBatch, outputGradients);
    if (bucket !== undefined) {
      const results = this.#piece(pass, microBatch, bucket);
      return bucket === pass.pieces.length - 1 ? this.#inputGradients(pass, results) : Promise.resolve([]);
    }
    const { step, backward } = this.#compiled.graphs;
    if (step !== undefined) return this.#step(pass, step, microBatch);
    const part = { gradients: pass.gradients, position: this.#positionOf(microBatch) };
    const results = this.#sum(part, backward, microBatch);
    this.#inFlight.end(microBatch);
    return this.#inputGradients(pass, results);
  }

  /**
   * One piece of the last micro-batch's pass. What it carries is kept for the next pieces; what none of them reads
   * goes.
   */
  #piece({ pieces }: PassNotes, microBatch: MicroBatchId, bucket: number): Values {
    const { graphs } = this.#compiled;
    const { carried, gradients } = defined(pieces[bucket], 'a piece');
    const kept = this.#inFlight.of(microBatch);
    const graph = graphs[`piece${bucket}`];
    const part = { gradients, bucket, position: this.#positionOf(microBatch) };
    const results = this.#sum(part, graph, microBatch);
    for (const name of carried) kept[name] = defined(results[name], name);
    const later = pieces.map((_, index) => (index > bucket ? graphs[`piece${index}`] : undefined));
    this.#inFlight.keepFor(microBatch, later);
    if (bucket === pieces.length - 1) {
      this.#inFlight.end(microBatch);
      // The passes as one graph, which come next, hand nothing over: what this one kept between its graphs would lie
      // there beside what they need.
      if (graphs.step !== undefined) this.#engine.trim(leastTrimmedBytes);
    }
    return results;
  }

  #isInPieces(microBatch: MicroBatchId): boolean {
    return this.#options.form.pieces?.pass?.microBatch === Math.floor(microBatch.index / this.#options.form.grains);
  }

  /** Where in its micro-batch a grain lies: its gradients are summed apart. */
  #positionOf(microBatch: MicroBatchId): number {
    return microBatch.index % this.#options.form.grains;
  }

  /** Forward pass, loss and backward pass of one micro-batch, whose inputs waited for it. */
  #step(pass: PassNotes, step: Executable, microBatch: MicroBatchId): Promise<readonly Tensor[]> {
    this.#round = microBatch.round;
    const scalars = pass.isUpdating ? this.#update.plannedScalars() : {};
    const part = { gradients: pass.gradients, position: this.#positionOf(microBatch) };
    const results = pass.isUpdating
      ? this.#run(step, [scalars, this.#update.optimizerState(), ...this.#given(microBatch)])
      : this.#sum(part, step, microBatch);
    this.#inFlight.end(microBatch);
    this.#releaseAll(scalars);
    this.#replaceBuffers(pass, results);
    this.#totalsOf(microBatch.round).addLoss(results[stepNames.loss], results[stepNames.correct]);
    if (pass.isUpdating) this.#keepUpdate(results);
    return this.#inputGradients(pass, results);
  }

  /** The new state waits for `update`; of the gradients, their norms are left. */
  #keepUpdate(results: Values): void {
    for (const { name } of this.#compiled.trained)
      this.#totalsOf(this.#round).addNorm(defined(results[squaredNormName(name)], name));
    this.#update.keepEarly(results);
  }

  /**
   * The first half of a split backward pass: input gradients only. Of what the forward pass kept, what the second half
   * reads stays.
   */
  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]> {
    const pass = this.#pass();
    this.#seed(microBatch, outputGradients);
    const kept = this.#inFlight.of(microBatch);
    const { backwardInput, backwardWeight } = this.#compiled.graphs;
    const results = backwardInput === undefined ? {} : this.#run(backwardInput, this.#given(microBatch));
    for (const name of pass.intermediates) kept[name] = defined(results[name], name);
    this.#inFlight.keepFor(microBatch, [backwardWeight]);
    return this.#inputGradients(pass, results, new Set(pass.intermediates));
  }

  /** The second half: weight gradients; with `bucket`, one piece of them, called in turn. */
  backwardWeight(microBatch: MicroBatchId, bucket?: number): void {
    const pass = this.#pass();
    if (bucket !== undefined) {
      this.#piece(pass, microBatch, bucket);
      return;
    }
    const { backwardWeight } = this.#compiled.graphs;
    const part = { gradients: pass.gradients, position: this.#positionOf(microBatch) };
    this.#sum(part, backwardWeight, microBatch);
    this.#inFlight.end(microBatch);
  }

  /**
   * The round's weight gradients (and, weighted by this device's samples, its running statistics) for AllReduce, a
   * segment for each tensor; those of a bucket, if given, the statistics with the last. They are gone from here until
   * they are put back. What is queued after this call is not waited for.
   */
  takeGradients(bucket?: number): Promise<SegmentedVector> {
    return this.#exchange.take(bucket);
  }

  /**
   * The same with the grains' sums apart, in their order, as tensors that arrive. Without statistics: they are one
   * device's in a strict run.
   */
  takeGrainSums(bucket: number | undefined): GrainSums {
    return this.#exchange.takeGrainSums(bucket);
  }

  /**
   * Puts the group's sums in place of the own gradients and statistics, of a bucket if given: a segment for each
   * tensor, whose memory is this stage's from here on.
   */
  putGradients(values: SegmentedVector, bucket?: number): void {
    this.#exchange.put(values, bucket);
  }

  /**
   * Queues the round's sums at once, and resolves with them. `countNorm`: whether this device reports its gradients'
   * squared norm (one of each group does).
   */
  async finishRound(countNorm: boolean): Promise<RoundTotals> {
    const { squaredNorm } = this.#compiled.graphs;
    const feeds = this.#sums.complete();
    if (squaredNorm !== undefined && feeds !== undefined)
      this.#totalsOf(this.#round).addNorm(defined(Object.values(this.#run(squaredNorm, [feeds]))[0], 'the norm'));
    const totals = this.#totalsOf(this.#round);
    this.#totals.delete(this.#round);
    return totals.totals(countNorm);
  }

  /** Queues the update with the round's gradients. The state before it stays where a version has it. */
  update(options: UpdateOptions): void {
    const { pass } = this.#compiled;
    const { update } = this.#compiled.graphs;
    if (update === undefined && pass?.isUpdating !== true) return;
    this.#weights.replace();
    if (update === undefined) return this.#update.replaceEarly(options);
    const own = { ...this.#sums.remove(), ...this.#update.scalars(options) };
    const results = this.#run(update, [own, this.#update.optimizerState(), this.#state.values()]);
    this.#releaseAll(own);
    this.#update.replace(results);
    this.#weights.live().filters(); // while the other devices end their round
  }

  #totalsOf(round: number): RoundSums {
    const totals = this.#totals.get(round) ?? new RoundSums(this.#engine);
    this.#totals.set(round, totals);
    return totals;
  }

  #pass(): PassNotes {
    return defined(this.#compiled.pass, 'a pass (this device has no samples)');
  }

  /**
   * Queues a graph that makes gradients, which are added to the sums. What the graph is not there for has no results.
   */
  #sum(part: SumPart, executable: Executable | undefined, microBatch: MicroBatchId): Values {
    this.#round = microBatch.round;
    return this.#sums.add(part, (sums, replaced) =>
      executable === undefined ? {} : this.#run(executable, [sums, ...this.#given(microBatch)], replaced),
    );
  }

  /** What a micro-batch's passes after the forward pass are given: what it keeps, and the weights that it has read. */
  #given(microBatch: MicroBatchId): readonly Readonly<Values>[] {
    return [this.#inFlight.of(microBatch), ...this.#read(this.#inFlight.weightsOf(microBatch))];
  }

  /** Weights, running statistics as they are now, and filters, as the passes take them. */
  #read(weights: Weights): readonly Readonly<Values>[] {
    return [weights.parameters, this.#state.buffers(), weights.filters()];
  }

  /**
   * Runs a graph with those of the values that it reads, each from the first source that has it. (To put them into one
   * object took a fifth of a stage's time.)
   */

  #run(
    executable: Executable,
    sources: readonly Readonly<Values>[],
    replaced?: Readonly<Record<string, string>>,
  ): Values {
    const feeds: Values = {};
    for (const name of executable.inputs)
      feeds[name] = defined(sources.find((source) => source[name] !== undefined)?.[name], name);
    return executable.run(feeds, undefined, replaced);
  }

  /** New running statistics take the place of the old ones, which stay alive where the backward pass reads them. */
  #replaceBuffers({ bufferUpdates }: PassNotes, results: Values): void {
    for (const { buffer, output } of bufferUpdates) this.#state.set('buffer', buffer, defined(results[output], output));
  }

  #dropoutMasks({ dropouts }: PassNotes, microBatch: MicroBatchId, firstSample: number): Values {
    const { sampleCount, microBatchSize, training } = this.#options;
    const first = microBatch.index * microBatchSize;
    const samples = Array.from({ length: sampleCount }, (_, index) => first + firstSample + index);
    const masks: Values = {};
    for (const { name, shape, ratio, index, distribution, sampleAxis } of dropouts) {
      // A mask that no sample owns is the same on all devices that compute the micro-batch.
      const owners =
        sampleAxis === undefined ? { batchAxis: 0, sampleIds: [first] } : { batchAxis: sampleAxis, sampleIds: samples };
      const drawn = { ratio, shape, ...(distribution === undefined ? {} : { distribution }) };
      const data = dropoutMask({ seed: training.seed, round: microBatch.round, index, ...drawn, ...owners });
      masks[name] = this.#engine.upload(wrap('float32', shape, data));
    }
    return masks;
  }

  /** An output on its way out: moved where nothing else needs it, copied where the backward pass does. */
  #result(name: string, results: Values, kept: Readonly<Values>): Promise<Tensor> | undefined {
    const value = defined(results[name], name);
    if (kept[name]?.handle === value.handle) return this.isLast ? undefined : this.#engine.download(value);
    if (!this.isLast) return this.#engine.take(value);
    this.#engine.release(value);
    return undefined;
  }

  /** Loss, right predictions and the output's gradient, which waits with what is kept. */
  #addLoss({ round }: MicroBatchId, results: Values, labels: Tensor, kept: Values): void {
    const output = defined(this.outputs[0], 'the output').name;
    const feeds: Values = {
      labels: this.#engine.upload(labels),
      scale: this.#engine.upload(scalar('float32', 1 / this.#options.training.batchSize)),
    };
    const logits = { logits: defined(results[output], output) };
    const { loss, correct, gradient } = this.#run(defined(this.#compiled.graphs.loss, 'the loss'), [feeds, logits]);
    this.#releaseAll(feeds);
    kept[outputGradientName(output)] = defined(gradient, 'the gradient');
    this.#totalsOf(round).addLoss(loss, correct);
  }

  #seed(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): void {
    const kept = this.#inFlight.of(microBatch);
    if (this.isLast) return;
    const differentiable = this.outputs.filter((output) => output.differentiable);
    assert(outputGradients.length === differentiable.length, 'every differentiable output has its gradient');
    differentiable.forEach(({ name }, index) => {
      kept[outputGradientName(name)] = this.#engine.upload(defined(outputGradients[index], name));
    });
  }

  /** Gradients of the differentiable inputs; zeros for those that nothing depends on. */
  #inputGradients(
    { inputGradients }: PassNotes,
    results: Values,
    keep: ReadonlySet<string> = new Set(),
  ): Promise<readonly Tensor[]> {
    const withGradient = new Set(inputGradients);
    const gradients = this.inputs
      .filter((cut) => cut.differentiable)
      .map(({ name, type, shape }): Promise<Tensor> => {
        const gradient = gradientName(name);
        if (withGradient.has(name))
          return keep.has(gradient)
            ? this.#engine.download(defined(results[gradient], name))
            : this.#engine.take(defined(results[gradient], name));
        const sizes = shape.map((size) => (size === 'N' ? this.#options.sampleCount : size));
        return Promise.resolve({ type, shape: sizes, data: allocate(type, elementCount(sizes)) });
      });
    return Promise.all(gradients);
  }

  #releaseAll(values: Readonly<Values>): void {
    for (const value of Object.values(values)) this.#state.release(value);
  }
}
