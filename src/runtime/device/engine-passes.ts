// The passes of micro-batches on an engine: what goes in is uploaded, graphs are queued, and what later passes need is
// kept for them. Gradients go to the round's sums (gradient-sums.ts), losses to its totals (round-sums.ts).

import { assert, defined } from '../../assert.ts';
import { outputGradientName } from '../../autodiff/differentiate.ts';
import { dropoutMask } from '../../autodiff/dropout.ts';
import type { Engine, Executable, Value } from '../../engine/engine.ts';
import { gradientName } from '../../graph/gradient-name.ts';
import { allocate, elementCount, scalar, type Tensor, wrap } from '../../graph/tensor.ts';
import { squaredNormName } from '../../training/clipping.ts';
import type { CompiledStage } from './compiled-stages.ts';
import type { SumPart, SumsByRound } from './gradient-sums.ts';
import type { InFlight } from './in-flight.ts';
import type { MicroBatchId } from './pieces.ts';
import type { OpenRounds } from './round-sums.ts';
import type { StageCuts, StagePasses } from './stage.ts';
import { type PassNotes, type StageOptions, stepNames } from './stage-graphs.ts';
import type { StageState } from './stage-state.ts';
import type { StageUpdate } from './stage-update.ts';
import type { Weights, WeightVersions } from './weight-versions.ts';

type Values = Record<string, Value>;

/** Less is kept for the next round: to allocate it anew would cost more than it is worth. */
const leastTrimmedBytes = 2 ** 25;

/** What passes work on; it is the stage's. */
export interface PassParts {
  readonly engine: Engine;
  readonly options: StageOptions;
  readonly compiled: CompiledStage;
  readonly cuts: StageCuts;
  readonly state: StageState;
  readonly weights: WeightVersions;
  readonly inFlight: InFlight;
  readonly sums: SumsByRound;
  readonly update: StageUpdate;
  readonly rounds: OpenRounds;
}

/** The passes of a stage whose device has samples. */
export class EnginePasses implements StagePasses {
  readonly #parts: PassParts;

  constructor(parts: PassParts) {
    this.#parts = parts;
  }

  forward(
    microBatch: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    const { engine, options, compiled, cuts, weights: versions, inFlight } = this.#parts;
    const pass = this.#pass();
    const { step, forward } = compiled.graphs;
    const feeds: Values = {};
    cuts.inputs.forEach((cut, index) => {
      feeds[cut.name] = engine.upload(defined(inputs[index], cut.name));
    });
    Object.assign(feeds, dropoutMasks(this.#parts, pass, microBatch, firstSample));
    const weights = versions.holdFor(microBatch.round);
    if (step !== undefined && !this.#isInPieces(microBatch)) {
      feeds[stepNames.labels] = engine.upload(defined(labels, 'the labels'));
      feeds[stepNames.scale] = engine.upload(scalar('float32', 1 / options.training.batchSize));
      inFlight.begin(microBatch, feeds, weights);
      return Promise.resolve([]);
    }
    const results = runGraph(defined(forward, 'the forward pass'), [feeds, ...this.#read(weights)]);
    const kept = this.#keptOf(pass, feeds, results);
    this.#replaceBuffers(pass, results, microBatch);
    inFlight.begin(microBatch, kept, weights);
    if (labels !== undefined) this.#addLoss(microBatch, results, labels, kept);
    const outputs = cuts.outputs.map(({ name }) => this.#result(name, results, kept));
    return labels === undefined ? Promise.all(outputs as Promise<Tensor>[]) : Promise.resolve([]);
  }

  /** What a forward pass keeps for the backward pass; the rest of its feeds goes. */
  #keptOf(pass: PassNotes, feeds: Values, results: Readonly<Values>): Values {
    const { state } = this.#parts;
    const kept: Values = {};
    for (const name of pass.savedInputs) {
      const fed = feeds[name];
      kept[name] = defined(fed ?? state.get('buffer', name), name);
      if (fed === undefined) state.retain(kept[name]);
      delete feeds[name];
    }
    this.#releaseAll(feeds);
    for (const name of pass.saved) kept[name] = defined(results[name], name);
    return kept;
  }

  backward(microBatch: MicroBatchId, outputGradients: readonly Tensor[], bucket?: number): Promise<readonly Tensor[]> {
    const pass = this.#pass();
    if (bucket === undefined || bucket === 0) this.#seed(microBatch, outputGradients);
    if (bucket !== undefined) {
      const results = this.#piece(pass, microBatch, bucket);
      return bucket === pass.pieces.length - 1 ? this.#inputGradients(pass, results) : Promise.resolve([]);
    }
    const { step, backward } = this.#parts.compiled.graphs;
    if (step !== undefined) return this.#step(pass, step, microBatch);
    const part = { gradients: pass.gradients, position: this.#positionOf(microBatch) };
    const results = this.#sum(part, backward, microBatch);
    this.#parts.inFlight.end(microBatch);
    return this.#inputGradients(pass, results);
  }

  /**
   * One piece of the last micro-batch's pass. What it carries is kept for the next pieces; what none of them reads
   * goes.
   */
  #piece({ pieces }: PassNotes, microBatch: MicroBatchId, bucket: number): Values {
    const { engine, compiled, inFlight } = this.#parts;
    const { graphs } = compiled;
    const { carried, gradients } = defined(pieces[bucket], 'a piece');
    const kept = inFlight.of(microBatch);
    const graph = graphs[`piece${bucket}`];
    const part = { gradients, bucket, position: this.#positionOf(microBatch) };
    const results = this.#sum(part, graph, microBatch);
    for (const name of carried) kept[name] = defined(results[name], name);
    const later = pieces.map((_, index) => (index > bucket ? graphs[`piece${index}`] : undefined));
    inFlight.keepFor(microBatch, later);
    if (bucket === pieces.length - 1) {
      inFlight.end(microBatch);
      // The passes as one graph, which come next, hand nothing over: the memory that this one kept between its graphs
      // would only add to theirs.
      if (graphs.step !== undefined) engine.trim(leastTrimmedBytes);
    }
    return results;
  }

  #isInPieces(microBatch: MicroBatchId): boolean {
    const { pieces, grains } = this.#parts.options.form;
    return pieces?.pass?.microBatch === Math.floor(microBatch.index / grains);
  }

  /** Where in its micro-batch a grain lies: its gradients are summed apart. */
  #positionOf(microBatch: MicroBatchId): number {
    return microBatch.index % this.#parts.options.form.grains;
  }

  /** Forward pass, loss and backward pass of one micro-batch, whose inputs waited for it. */
  #step(pass: PassNotes, step: Executable, microBatch: MicroBatchId): Promise<readonly Tensor[]> {
    const { update, inFlight, rounds } = this.#parts;
    rounds.current = microBatch.round;
    const scalars = pass.isUpdating ? update.plannedScalars() : {};
    const part = { gradients: pass.gradients, position: this.#positionOf(microBatch) };
    const results = pass.isUpdating
      ? runGraph(step, [scalars, update.optimizerState(), ...this.#given(microBatch)])
      : this.#sum(part, step, microBatch);
    inFlight.end(microBatch);
    this.#releaseAll(scalars);
    this.#replaceBuffers(pass, results, microBatch);
    rounds.of(microBatch.round).addLoss(results[stepNames.loss], results[stepNames.correct]);
    if (pass.isUpdating) this.#keepUpdate(results);
    return this.#inputGradients(pass, results);
  }

  /** The new state waits for the update; of the gradients, their norms are left. */
  #keepUpdate(results: Values): void {
    const { compiled, rounds, update } = this.#parts;
    for (const { name } of compiled.trained)
      rounds.of(rounds.current).addNorm(defined(results[squaredNormName(name)], name));
    update.keepEarly(results);
  }

  /** Of what the forward pass kept, what the second half reads stays. */
  backwardInput(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): Promise<readonly Tensor[]> {
    const { compiled, inFlight } = this.#parts;
    const pass = this.#pass();
    this.#seed(microBatch, outputGradients);
    const kept = inFlight.of(microBatch);
    const { backwardInput, backwardWeight } = compiled.graphs;
    const results = backwardInput === undefined ? {} : runGraph(backwardInput, this.#given(microBatch));
    for (const name of pass.intermediates) kept[name] = defined(results[name], name);
    inFlight.keepFor(microBatch, [backwardWeight]);
    return this.#inputGradients(pass, results, new Set(pass.intermediates));
  }

  backwardWeight(microBatch: MicroBatchId, bucket?: number): void {
    const pass = this.#pass();
    if (bucket !== undefined) {
      this.#piece(pass, microBatch, bucket);
      return;
    }
    const { compiled, inFlight } = this.#parts;
    const part = { gradients: pass.gradients, position: this.#positionOf(microBatch) };
    this.#sum(part, compiled.graphs.backwardWeight, microBatch);
    inFlight.end(microBatch);
  }

  #pass(): PassNotes {
    return defined(this.#parts.compiled.pass, 'a pass (this device has no samples)');
  }

  /** Queues a graph that makes gradients, which are added to the sums. Without a graph there are no results. */
  #sum(part: SumPart, executable: Executable | undefined, microBatch: MicroBatchId): Values {
    this.#parts.rounds.current = microBatch.round;
    return this.#parts.sums
      .of(microBatch.round)
      .add(part, (sums, replaced) =>
        executable === undefined ? {} : runGraph(executable, [sums, ...this.#given(microBatch)], replaced),
      );
  }

  /** What a micro-batch's passes after the forward pass are given: what it keeps, and the weights that it has read. */
  #given(microBatch: MicroBatchId): readonly Readonly<Values>[] {
    const { inFlight } = this.#parts;
    return [inFlight.of(microBatch), ...this.#read(inFlight.weightsOf(microBatch))];
  }

  /** Weights, running statistics as they are now, and filters, as the passes take them. */
  #read(weights: Weights): readonly Readonly<Values>[] {
    return [weights.parameters, this.#parts.state.buffers(), weights.filters()];
  }

  /** New running statistics take the place of the old ones, which stay alive where the backward pass reads them. */
  #replaceBuffers({ bufferUpdates }: PassNotes, results: Values, { round }: MicroBatchId): void {
    const { state } = this.#parts;
    for (const { buffer, output } of bufferUpdates) state.set('buffer', buffer, defined(results[output], output));
    if (bufferUpdates.length > 0) state.noteBuffers(round);
  }

  /** An output on its way out: moved where nothing else needs it, copied where the backward pass does. */
  #result(name: string, results: Values, kept: Readonly<Values>): Promise<Tensor> | undefined {
    const { engine, cuts } = this.#parts;
    const value = defined(results[name], name);
    if (kept[name]?.handle === value.handle) return cuts.isLast ? undefined : engine.download(value);
    if (!cuts.isLast) return engine.take(value);
    engine.release(value);
    return undefined;
  }

  /** Loss, right predictions and the output's gradient, which waits with what is kept. */
  #addLoss({ round }: MicroBatchId, results: Values, labels: Tensor, kept: Values): void {
    const { engine, options, compiled, cuts, rounds } = this.#parts;
    const output = defined(cuts.outputs[0], 'the output').name;
    const feeds: Values = {
      labels: engine.upload(labels),
      scale: engine.upload(scalar('float32', 1 / options.training.batchSize)),
    };
    const logits = { logits: defined(results[output], output) };
    const { loss, correct, gradient } = runGraph(defined(compiled.graphs.loss, 'the loss'), [feeds, logits]);
    this.#releaseAll(feeds);
    kept[outputGradientName(output)] = defined(gradient, 'the gradient');
    rounds.of(round).addLoss(loss, correct);
  }

  /** Puts the received output gradients with what the micro-batch keeps. */
  #seed(microBatch: MicroBatchId, outputGradients: readonly Tensor[]): void {
    const { engine, cuts, inFlight } = this.#parts;
    const kept = inFlight.of(microBatch);
    if (cuts.isLast) return;
    const differentiable = cuts.outputs.filter((output) => output.differentiable);
    assert(outputGradients.length === differentiable.length, 'every differentiable output has its gradient');
    differentiable.forEach(({ name }, index) => {
      kept[outputGradientName(name)] = engine.upload(defined(outputGradients[index], name));
    });
  }

  /** Gradients of the differentiable inputs; zeros where nothing depends on the input. */
  #inputGradients(
    { inputGradients }: PassNotes,
    results: Values,
    keep: ReadonlySet<string> = new Set(),
  ): Promise<readonly Tensor[]> {
    const { engine, options, cuts } = this.#parts;
    const withGradient = new Set(inputGradients);
    const gradients = cuts.inputs
      .filter((cut) => cut.differentiable)
      .map(({ name, type, shape }): Promise<Tensor> => {
        const gradient = gradientName(name);
        if (withGradient.has(name)) {
          const value = defined(results[gradient], name);
          return keep.has(gradient) ? engine.download(value) : engine.take(value);
        }
        const sizes = shape.map((size) => (size === 'N' ? options.sampleCount : size));
        return Promise.resolve({ type, shape: sizes, data: allocate(type, elementCount(sizes)) });
      });
    return Promise.all(gradients);
  }

  #releaseAll(values: Readonly<Values>): void {
    for (const value of Object.values(values)) this.#parts.state.release(value);
  }
}

/** The dropout masks of a micro-batch, and other random numbers of the net: the caller's. */
export function dropoutMasks(
  { engine, options }: Pick<PassParts, 'engine' | 'options'>,
  { dropouts }: PassNotes,
  microBatch: MicroBatchId,
  firstSample: number,
): Values {
  const { sampleCount, microBatchSize, training } = options;
  const first = microBatch.index * microBatchSize;
  const samples = Array.from({ length: sampleCount }, (_, index) => first + firstSample + index);
  const masks: Values = {};
  for (const { name, shape, ratio, index, distribution, sampleAxis } of dropouts) {
    // A mask that no sample owns is equal on all devices that compute the micro-batch.
    const owners =
      sampleAxis === undefined ? { batchAxis: 0, sampleIds: [first] } : { batchAxis: sampleAxis, sampleIds: samples };
    const drawn = { ratio, shape, ...(distribution === undefined ? {} : { distribution }) };
    const data = dropoutMask({ seed: training.seed, round: microBatch.round, index, ...drawn, ...owners });
    masks[name] = engine.upload(wrap('float32', shape, data));
  }
  return masks;
}

/**
 * Runs a graph with the values that it reads, each from the first source that has it. (To put the sources into one
 * object took a fifth of a stage's time.)
 */
export function runGraph(
  executable: Executable,
  sources: readonly Readonly<Values>[],
  replaced?: Readonly<Record<string, string>>,
): Values {
  const feeds: Values = {};
  for (const name of executable.inputs)
    feeds[name] = defined(sources.find((source) => source[name] !== undefined)?.[name], name);
  return executable.run(feeds, undefined, replaced);
}
