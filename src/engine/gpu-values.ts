// Values of ONNX Runtime's WebGPU provider. Outputs stay in buffers of the GPU and can be fed again. `getData` of such
// a tensor ends the process (onnxruntime-node 1.30), so a value is brought down by a run whose output is in memory. A
// run returns when its kernels are queued: the GPU is done when something that was queued behind them has come down. A
// buffer belongs to the session that made it, and freeing it when that has gone ends the process: a session goes with
// the last of its values.

import { defined } from '../assert.ts';
import { Emitter } from '../graph/emitter.ts';
import type { Graph, ValueInfo } from '../graph/graph.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import { elementCount, type Tensor, type ValueType } from '../graph/tensor.ts';
import type { OnnxRuntime, RuntimeSession, RuntimeTensor } from './onnxruntime-module.ts';
import type { Resident } from './resident.ts';

/** A tensor in a buffer of the GPU. */
export class GpuValue implements Resident {
  readonly type = 'float32';
  readonly shape: readonly number[];
  readonly tensor: RuntimeTensor;
  readonly #values: GpuValues;
  readonly #maker: GpuSession;

  constructor(tensor: RuntimeTensor, values: GpuValues, maker: GpuSession) {
    this.tensor = tensor;
    this.shape = [...tensor.dims];
    this.#values = values;
    this.#maker = maker;
    maker.hold();
  }

  read(): Promise<Tensor> {
    return this.#values.read(this.tensor);
  }

  dispose(): void {
    this.tensor.dispose?.();
    this.#maker.letGo();
  }
}

/** A session, which ends when it is released and all values that it made are disposed of. */
export class GpuSession {
  readonly session: RuntimeSession;
  /** Its owner, and its values. */
  #holderCount = 1;

  constructor(session: RuntimeSession) {
    this.session = session;
  }

  hold(): void {
    this.#holderCount++;
  }

  /** Called by its owner, once, and by each of its values. */
  letGo(): void {
    if (--this.#holderCount === 0) void this.session.release();
  }
}

/** Whether a value of this type stays on the GPU as an output: its kernels know little else. */
export function staysOnGpu({ type, shape }: ValueType): boolean {
  return type === 'float32' && elementCount(shape) > 0;
}

/** Moves values between memory and GPU; shared by the sessions of an engine. */
export class GpuValues {
  readonly #runtime: OnnxRuntime;
  readonly #options: Readonly<Record<string, unknown>>;
  /** By rank. */
  readonly #readers = new Map<number, RuntimeSession>();
  /** The first session, and the last to go: the GPU and all values on it are let go with the last one. */
  #uploader: RuntimeSession | undefined;
  #beacon: RuntimeTensor | undefined;

  constructor(runtime: OnnxRuntime, options: Readonly<Record<string, unknown>>) {
    this.#runtime = runtime;
    this.#options = options;
  }

  /** Rejects where no GPU can be had. */
  async open(): Promise<void> {
    this.#uploader = await this.#session(1, 'gpu-buffer');
    const one = new this.#runtime.Tensor('float32', Float32Array.of(1), [1]);
    this.#beacon = (await this.#uploader.run({ x: one }, ['y']))['y'];
    await this.synchronize();
  }

  /** Resolves when everything that was queued before has been computed. */
  async synchronize(): Promise<void> {
    await this.read(defined(this.#beacon, 'an open GPU'));
  }

  async read(tensor: RuntimeTensor): Promise<Tensor> {
    const rank = tensor.dims.length;
    const known = this.#readers.get(rank);
    const reader = known ?? (await this.#session(rank, 'cpu'));
    this.#readers.set(rank, reader);
    const { y } = await reader.run({ x: tensor }, ['y']);
    const data = defined(y, 'the value').data as Float32Array;
    return { type: 'float32', shape: [...tensor.dims], data };
  }

  /** Frees everything. */
  async close(): Promise<void> {
    for (const reader of this.#readers.values()) await reader.release();
    this.#readers.clear();
    this.#beacon?.dispose?.();
    await this.#uploader?.release();
  }

  #session(rank: number, preferredOutputLocation: string): Promise<RuntimeSession> {
    return this.#runtime.InferenceSession.create(exportGraph(copyGraph(rank)), {
      ...this.#options,
      preferredOutputLocation,
    });
  }
}

/** y = x of any shape of this rank. */
function copyGraph(rank: number): Graph {
  const emitter = new Emitter();
  const shape = Array.from({ length: rank }, () => 1);
  const x = emitter.input('x', 'float32', shape);
  emitter.append({ operator: 'Identity', domain: '', name: 'copy', inputs: [x], outputs: ['y'], attributes: {} });
  const graph = emitter.build('copy', ['y']);
  const free = (value: ValueInfo): ValueInfo => ({ ...value, shape: shape.map((_, axis) => `d${axis}`) });
  return { ...graph, inputs: graph.inputs.map(free), outputs: graph.outputs.map(free) };
}
