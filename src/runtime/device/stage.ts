// One stage of the model on one device: its compiled graphs, its weights and optimizer state, and what each micro-batch in flight keeps.
// Everything heavy lives in the engine; calls queue work and return. It knows nothing of links, other devices, or whether a round commits.

import { assert, defined } from '../../assert.ts';
import { type StageGraphs, differentiate, gradientName } from '../../autodiff/differentiate.ts';
import { type DropoutMask, dropoutMask, replaceDropout } from '../../autodiff/dropout.ts';
import type { Engine, Executable, Value } from '../../engine/engine.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import { extractStage } from '../../graph/stage.ts';
import { type Tensor, allocate, byteLength, elementCount, scalar, wrap } from '../../graph/tensor.ts';
import { squaredNormGraph } from '../../training/clipping.ts';
import { lossGraph } from '../../training/losses.ts';
import { type OptimizerGraph, accumulateGraph, optimizerGraph } from '../../training/optimizers.ts';
import type { StateRole, TensorSpec } from '../messages.ts';
import type { TrainingSpec } from '../training-spec.ts';

/** What a stage is made of. */
export interface StageOptions {
  readonly sequence: LayerSequence;
  /** Half-open range of layers. */
  readonly layers: readonly [first: number, end: number];
  /** Samples of each micro-batch that this device computes. */
  readonly sampleCount: number;
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  /** Seeds of dropout differ by the sample's place in the batch: micro-batch · microBatchSize + sample. */
  readonly microBatchSize: number;
}

/** One named tensor of a stage's state. */
export interface StateEntry {
  readonly role: StateRole;
  readonly name: string;
  readonly value: Tensor;
}

interface InFlight {
  /** Kept for the backward pass. */
  readonly values: Record<string, Value>;
  /** Intermediate results between the two halves of a split backward pass. */
  readonly halves?: Record<string, Value>;
}

/** The sums of a round on this device. */
export interface RoundTotals {
  readonly lossSum: number;
  readonly correctCount: number;
  readonly squaredNorm: number;
  readonly finite: boolean;
}

interface Compiled {
  readonly graphs: StageGraphs;
  readonly masks: readonly DropoutMask[];
  readonly forward: Executable;
  readonly backward: Executable;
  readonly loss: Executable | undefined;
  readonly optimizer: OptimizerGraph | undefined;
  readonly update: Executable | undefined;
  readonly accumulate: Executable | undefined;
  readonly squaredNorm: Executable | undefined;
}

/** A stage that computes. Made by `createStage`; all methods but the promises' results return at once. */
export class Stage {
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly isLast: boolean;
  readonly #engine: Engine;
  readonly #options: StageOptions;
  readonly #compiled: Compiled;
  readonly #parameters = new Map<string, Value>();
  readonly #buffers = new Map<string, Value>();
  readonly #optimizerState = new Map<string, Value>();
  readonly #inFlight = new Map<number, InFlight>();
  #gradients: Record<string, Value> | undefined;
  #losses: Promise<readonly [Tensor, Tensor]>[] = [];
  #round = 0;

  /** Use `createStage`. */
  constructor(engine: Engine, options: StageOptions, cuts: { inputs: readonly CutTensor[]; outputs: readonly CutTensor[] }, compiled: Compiled) {
    this.inputs = cuts.inputs;
    this.outputs = cuts.outputs;
    this.label = options.label;
    this.isLast = options.layers[1] === options.sequence.layers.length;
    this.#engine = engine;
    this.#options = options;
    this.#compiled = compiled;
  }

  /** Puts one tensor of the state in place (again: replaces it). Unknown names are an error of the sender. */
  load(entry: StateEntry): void {
    const store = this.#store(entry.role);
    const old = store.get(entry.name);
    if (old !== undefined) this.#engine.release(old);
    store.set(entry.name, this.#engine.upload(owned(entry.value)));
  }

  /** What has not been loaded yet; optimizer state that nobody sent starts from zeros. */
  missingState(): readonly string[] {
    const wanted = [...this.#compiled.graphs.parameters, ...this.#compiled.graphs.buffers.map((buffer) => buffer.name)];
    return wanted.filter((name) => !this.#parameters.has(name) && !this.#buffers.has(name));
  }
}
