// One stage of the model on one device: its compiled graphs, its weights and optimizer state, and what each micro-batch in flight keeps.
// Everything heavy lives in the engine; calls queue work and return. It knows nothing of links, other devices, or whether a round commits.

import { assert, defined } from '../../assert.ts';
import { gradientName } from '../../autodiff/differentiate.ts';
import { dropoutMask } from '../../autodiff/dropout.ts';
import type { Engine, Executable, Value } from '../../engine/engine.ts';
import { type CutTensor, cutBytes } from '../../graph/layers.ts';
import { type Tensor, allocate, elementCount, scalar, toNumbers, wrap } from '../../graph/tensor.ts';
import type { StateRole } from '../messages.ts';
import { owned } from './samples.ts';
import { type CompiledStage, type StageOptions, compileStage } from './stage-graphs.ts';

/** One named tensor of a stage's state. */
export interface StateEntry {
  readonly role: StateRole;
  readonly name: string;
  readonly value: Tensor;
}

/** The sums of a round on this device. */
export interface RoundTotals {
  readonly lossSum: number;
  readonly correctCount: number;
  readonly squaredNorm: number;
  readonly finite: boolean;
}

/** What an update needs to know. */
export interface UpdateOptions {
  readonly learningRate: number;
  /** Multiplies all gradients (clipping). */
  readonly gradientScale: number;
  /** Updates so far, this one included: from 1 (Adam's bias correction). */
  readonly step: number;
}

type Values = Record<string, Value>;

/** Compiles a stage; its state is loaded afterwards. */
export async function createStage(engine: Engine, options: StageOptions): Promise<Stage> {
  return new Stage(engine, options, await compileStage(engine, options));
}

/** A stage that computes. Work is queued in the order of the calls. */
export class Stage {
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly isLast: boolean;
  readonly #engine: Engine;
  readonly #options: StageOptions;
  readonly #compiled: CompiledStage;
  readonly #state: Readonly<Record<StateRole, Map<string, Value>>> = { parameter: new Map(), buffer: new Map(), optimizer: new Map() };
  /** Kept by forward for backward, by micro-batch. */
  readonly #inFlight = new Map<number, Values>();
  /** Kept by backwardInput for backwardWeight. */
  readonly #halves = new Map<number, Values>();
  /** Sums of the round's weight gradients; undefined before its first backward. */
  #gradients: Values | undefined;
  #losses: Promise<readonly [lossSum: number, correctCount: number]>[] = [];
  #round = 0;

  /** Use `createStage`. */
  constructor(engine: Engine, options: StageOptions, compiled: CompiledStage) {
    this.inputs = compiled.stage.inputs;
    this.outputs = compiled.stage.outputs;
    this.label = options.label;
    this.isLast = options.layers[1] === options.sequence.layers.length;
    this.#engine = engine;
    this.#options = options;
    this.#compiled = compiled;
  }

  /** Puts one tensor of the state in place, or replaces it. The tensor's buffer goes to the engine where it is not shared. */
  load(entry: StateEntry): void {
    const store = this.#state[entry.role];
    const old = store.get(entry.name);
    if (old !== undefined) this.#engine.release(old);
    store.set(entry.name, this.#engine.upload(owned(entry.value)));
  }

  /** The parameters and buffers that have not been loaded. Optimizer state that nobody loads starts from zeros. */
  missingState(): readonly string[] {
    const { parameters, buffers } = this.#compiled;
    const { parameter, buffer } = this.#state;
    return [...parameters.map(({ name }) => name).filter((name) => !parameter.has(name)), ...buffers.map(({ name }) => name).filter((name) => !buffer.has(name))];
  }

  /** Parameters, buffers and optimizer state, copied out one by one. */
  async *state(): AsyncGenerator<StateEntry> {
    for (const role of ['parameter', 'buffer', 'optimizer'] as const) {
      for (const [name, value] of this.#state[role]) yield { role, name, value: await this.#engine.download(value) };
    }
  }

  /** Milliseconds of computing so far. */
  busyMs(): number {
    return this.#engine.busyMs();
  }

  /** Bytes of received tensors that may wait on this device: its share of two rounds, and the pieces of an AllReduce. */
  mailboxBytes(microBatchCount: number): number {
    const share = cutBytes([...this.inputs, ...this.outputs, this.label], this.#options.sampleCount);
    const gradients = this.#compiled.parameters.reduce((sum, { shape }) => sum + 4 * elementCount(shape), 0);
    return 2 * microBatchCount * share + 2 * gradients + 2 ** 20;
  }

  /** Forgets what an abandoned round left. */
  beginRound(round: number): void {
    for (const values of [...this.#inFlight.values(), ...this.#halves.values(), this.#gradients ?? {}]) this.#releaseAll(values);
    this.#inFlight.clear();
    this.#halves.clear();
    this.#gradients = undefined;
    this.#losses = [];
    this.#round = round;
  }

  /**
   * Queues the forward pass of one micro-batch. `inputs` follow this.inputs and go to the engine; `firstSample` is the first of this device's samples
   * in the micro-batch. The last stage takes labels and adds to the round's loss. Resolves with this.outputs, or nothing on the last stage.
   */
  forward(microBatch: number, firstSample: number, inputs: readonly Tensor[], labels: Tensor | undefined): Promise<readonly Tensor[]> {
    const { graphs, forward } = this.#compiled;
    const feeds: Values = {};
    this.inputs.forEach((cut, index) => {
      feeds[cut.name] = this.#engine.upload(defined(inputs[index], cut.name));
    });
    const masks = this.#masks(microBatch, firstSample);
    const results = forward.run({ ...feeds, ...masks, ...this.#weights() });
    this.#releaseAll(masks);
    for (const { buffer, output } of graphs.bufferUpdates) this.#replace('buffer', buffer, defined(results[output], output));
    const kept: Values = {};
    for (const { name } of [...graphs.savedInputs, ...graphs.saved]) kept[name] = defined(results[name] ?? feeds[name], name);
    const outputs = labels === undefined ? this.#outputs(results, kept) : this.#loss(results, labels, kept);
    this.#inFlight.set(microBatch, kept);
    const keptHandles = new Set(Object.values(kept).map(({ handle }) => handle));
    const updated = new Set(graphs.bufferUpdates.map(({ output }) => output));
    for (const [name, value] of Object.entries({ ...feeds, ...results })) {
      if (!keptHandles.has(value.handle) && !updated.has(name) && !outputs.taken.has(value.handle)) this.#engine.release(value);
    }
    return outputs.tensors;
  }
}
