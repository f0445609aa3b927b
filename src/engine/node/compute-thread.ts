// An engine in a thread of its own, so that computing never blocks the thread that moves bytes. Calls post messages and
// return; buffers are moved, not copied. Calls made in one turn travel as one message. If the thread dies, everything
// pending and everything later fails with RunError.

import { Worker } from 'node:worker_threads';
import { assert, defined } from '../../assert.ts';
import { RunError } from '../../errors.ts';
import type { Graph } from '../../graph/graph.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { Noise } from '../../noise.ts';
import { movable } from '../buffers.ts';
import type { DeviceChoice, Engine, Executable, Translation, TranslationTarget, Value } from '../engine.ts';
import {
  checkUpload,
  orderedInputs,
  replacedInputs,
  type Signature,
  signatureOf,
  ValueTable,
  wantedOutputs,
} from '../values.ts';
import {
  type EngineChoice,
  fromFailure,
  type Reply,
  type Request,
  sharedNow,
  type ThreadOptions,
} from './compute-thread-messages.ts';
import { packGraph } from './packed-graph.ts';

export interface ComputeThreadOptions {
  /** Default 'onnxruntime'. 'reference' needs nothing and is slow. */
  readonly engine?: EngineChoice;
  /** What it computes on. Default 'cpu'. ONNX Runtime only. */
  readonly device?: DeviceChoice;
  /** Threads inside one operator, where the engine has them. Default 1. */
  readonly threadCount?: number;
  /** The part of the time in which it may compute, above 0 and at most 1. Default 1. ONNX Runtime only. */
  readonly maxCpu?: number;
  /** A kernel of the GPU is wrong or refused here, and the CPU computes in its place. Default: nobody hears of it. */
  readonly onDetour?: (kernel: string) => void;
  /** Steps back while other processes use the machine. Default false. ONNX Runtime only. */
  readonly isCourteous?: boolean;
}

/**
 * Starts a compute thread. Rejects with InputError where its engine cannot be had here. Its owner must `close` it: a
 * thread keeps the process alive.
 */
export async function createComputeThread(options: ComputeThreadOptions = {}): Promise<Engine> {
  const threadOptions: ThreadOptions = {
    engine: options.engine ?? 'onnxruntime',
    device: options.device ?? 'cpu',
    threadCount: options.threadCount ?? 1,
    maxCpu: options.maxCpu ?? 1,
    isCourteous: options.isCourteous ?? false,
  };
  const worker = new Worker(new URL('./compute-thread-entry.js', import.meta.url), {
    workerData: threadOptions,
    name: 'compute',
  });
  const calls = new Calls(worker, options.onDetour);
  try {
    return new ComputeThread(await calls.ready, calls);
  } catch (error) {
    await worker.terminate();
    throw error;
  }
}

interface Pending {
  resolve(reply: Reply): void;
  reject(error: Error): void;
}

/** The messages to the thread, and the promises of its replies. */
class Calls {
  /** The thread's first message. */
  readonly ready: Promise<Reply>;
  busyMs = 0;
  threadMs: number | undefined;
  readonly #worker: Worker;
  readonly #pending = new Map<number, Pending>();
  #next = 0;
  #outbox: Request[] = [];
  #moved = new Set<ArrayBuffer>();
  #end: Error | undefined;
  #isEndSeen = false;

  constructor(worker: Worker, onDetour: (kernel: string) => void = () => {}) {
    this.#worker = worker;
    this.ready = this.#expect(this.nextId());
    worker.on('message', (replies: readonly Reply[]) => {
      for (const reply of replies) {
        if (reply.detour === undefined) this.#settle(reply);
        else onDetour(reply.detour);
      }
    });
    worker.on('error', (error: unknown) =>
      this.#die(`The compute thread failed: ${error instanceof Error ? error.message : String(error)}`),
    );
    worker.on('messageerror', (error) => this.#die(`A message of the compute thread cannot be read: ${error.message}`));
    worker.on('exit', (code) => this.#die(`The compute thread ended with code ${code}.`));
  }

  /** A number for a call that wants a reply. */
  nextId(): number {
    return this.#next++;
  }

  /** True for a buffer that goes with the requests of this turn. */
  isLeaving(buffer: ArrayBuffer): boolean {
    return this.#moved.has(buffer);
  }

  /** Posts a request, together with all others of this turn; `moved` go along. */
  post(request: Request, ...moved: readonly ArrayBuffer[]): void {
    if (this.#end !== undefined) return;
    if (this.#outbox.length === 0) queueMicrotask(() => this.#flush());
    this.#outbox.push(request);
    for (const buffer of moved) this.#moved.add(buffer);
  }

  /** Posts a request and resolves with its reply. */
  async ask(request: Request & { readonly id: number }, ...moved: readonly ArrayBuffer[]): Promise<Reply> {
    this.post(request, ...moved);
    return this.#expect(request.id);
  }

  /** Ends the thread. Rejects if the thread had died before and no caller was informed. */
  async terminate(): Promise<void> {
    const unseen = this.#isEndSeen ? undefined : this.#end;
    this.#isEndSeen = true;
    this.#end ??= new RunError('The compute thread was closed.');
    await this.#worker.terminate();
    if (unseen !== undefined) throw unseen;
  }

  get hasEnded(): boolean {
    return this.#end !== undefined;
  }

  async #expect(id: number): Promise<Reply> {
    if (this.#end !== undefined) {
      this.#isEndSeen = true;
      throw this.#end;
    }
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
    });
  }

  #flush(): void {
    const [requests, moved] = [this.#outbox, this.#moved];
    this.#outbox = [];
    this.#moved = new Set();
    if (this.#end !== undefined) return;
    try {
      this.#worker.postMessage(requests, [...moved]);
    } catch {
      this.#worker.postMessage(requests); // Some buffer cannot be moved, such as WebAssembly memory: all are copied.
    }
  }

  #settle(reply: Reply): void {
    const pending = this.#pending.get(reply.id);
    if (pending === undefined) return; // Its caller was informed of the thread's end.
    this.#pending.delete(reply.id);
    this.busyMs = reply.busyMs;
    this.threadMs = reply.threadMs;
    if (reply.failure === undefined) pending.resolve(reply);
    else pending.reject(fromFailure(reply.failure));
  }

  #die(reason: string): void {
    this.#end ??= new RunError(reason);
    this.#isEndSeen ||= this.#pending.size > 0;
    for (const { reject } of this.#pending.values()) reject(this.#end);
    this.#pending.clear();
  }
}

class ComputeThread implements Engine {
  readonly name: string;
  readonly warning: string | undefined;
  readonly blockSize: number | undefined;
  readonly translate: Engine['translate'];
  readonly translationTarget: TranslationTarget | undefined;
  readonly #calls: Calls;
  readonly #values = new ValueTable<undefined>();
  readonly #executables = new Set<number>();
  #closing: Promise<void> | undefined;

  constructor({ name, warning, blockSize, translationTarget }: Reply, calls: Calls) {
    this.name = defined(name, "the engine's name");
    this.warning = warning;
    this.blockSize = blockSize;
    this.translationTarget = translationTarget;
    this.translate = translationTarget && ((graph) => this.#translate(graph));
    this.#calls = calls;
  }

  async compile(source: Graph | Translation): Promise<Executable> {
    this.#checkOpen();
    const signature = signatureOf(source);
    const id = this.#calls.nextId();
    const { name } = source;
    // A translation's model is copied, which takes a millisecond: the caller may have other uses for it.
    const { packed, moved } = 'model' in source ? { packed: source, moved: [] } : packGraph(source);
    await this.#calls.ask({ kind: 'compile', id, executable: id, source: packed }, ...moved);
    this.#executables.add(id);
    return {
      inputs: [...signature.inputs.keys()],
      outputs: [...signature.outputs.keys()],
      run: (...args) => this.#run({ graph: name, executable: id, signature }, ...args),
      release: () => {
        assert(this.#executables.delete(id), `graph "${name}" was released before`);
        this.#calls.post({ kind: 'release-executable', executable: id });
      },
    };
  }

  async #translate(graph: Graph): Promise<Translation> {
    this.#checkOpen();
    const { packed, moved } = packGraph(graph);
    const { translation } = await this.#calls.ask(
      { kind: 'translate', id: this.#calls.nextId(), graph: packed },
      ...moved,
    );
    return defined(translation, 'the translation of a reply');
  }

  upload(tensor: Tensor): Value {
    this.#checkOpen();
    checkUpload(tensor);
    const data = movable(tensor.data);
    assert(!this.#calls.isLeaving(data.buffer), 'a tensor was uploaded twice');
    const value = this.#values.add(tensor, undefined);
    this.#calls.post({ kind: 'upload', handle: value.handle, tensor: { ...tensor, data } }, data.buffer);
    return value;
  }

  draw(shape: readonly number[], noise: Noise): Value {
    this.#checkOpen();
    const value = this.#values.add({ type: 'float32', shape }, undefined);
    this.#calls.post({ kind: 'draw', handle: value.handle, shape, noise });
    return value;
  }

  async download(value: Value): Promise<Tensor> {
    this.#values.get(value);
    return this.#read('download', value.handle);
  }

  async take(value: Value): Promise<Tensor> {
    this.#values.remove(value);
    return this.#read('take', value.handle);
  }

  release(value: Value): void {
    this.#values.remove(value);
    this.#calls.post({ kind: 'release', handle: value.handle });
  }

  trim(leastBytes = 0): void {
    this.#checkOpen();
    this.#calls.post({ kind: 'trim', leastBytes });
  }

  async settled(): Promise<void> {
    this.#checkOpen();
    await this.#calls.ask({ kind: 'settled', id: this.#calls.nextId() });
  }

  async computed(): Promise<number> {
    this.#checkOpen();
    const { atMs } = await this.#calls.ask({ kind: 'computed', id: this.#calls.nextId() });
    return Math.max(0, sharedNow() - defined(atMs, 'the time of a reply'));
  }

  valueBytes(): number {
    return this.#values.bytes;
  }

  busyMs(): number {
    return this.#calls.busyMs;
  }

  threadMs(): number | undefined {
    return this.#calls.threadMs;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#values.clear();
    try {
      if (!this.#calls.hasEnded) await this.#calls.ask({ kind: 'close', id: this.#calls.nextId() });
    } finally {
      await this.#calls.terminate();
    }
  }

  #run(
    {
      graph,
      executable,
      signature,
    }: { readonly graph: string; readonly executable: number; readonly signature: Signature },
    ...[inputs, outputs, replaced]: Parameters<Executable['run']>
  ): Record<string, Value> {
    this.#checkOpen();
    assert(this.#executables.has(executable), `graph "${graph}" was released`);
    const sources = orderedInputs(signature, inputs);
    for (const value of sources) this.#values.get(value);
    const names = [...signature.inputs.keys()];
    const handles = Object.fromEntries(sources.map(({ handle }, index) => [names[index], handle]));
    const results: Record<string, Value> = {};
    const targets: Record<string, number> = {};
    const wanted = wantedOutputs(signature, outputs);
    for (const value of replacedInputs(signature, inputs, { wanted, replaced }).values()) this.#values.remove(value);
    for (const [name, type] of wanted) {
      const value = this.#values.add(type, undefined);
      results[name] = value;
      targets[name] = value.handle;
    }
    this.#calls.post({ kind: 'run', executable, inputs: handles, outputs: targets, replaced });
    return results;
  }

  async #read(kind: 'download' | 'take', handle: number): Promise<Tensor> {
    this.#checkOpen();
    const { tensor } = await this.#calls.ask({ kind, id: this.#calls.nextId(), handle });
    return defined(tensor, 'the tensor of a reply');
  }

  #checkOpen(): void {
    assert(this.#closing === undefined, 'the engine is closed');
  }
}
