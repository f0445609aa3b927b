// An engine in a thread of its own, so that computing never blocks the thread that moves bytes: the caller's side, over
// any kind of thread (node/compute-thread.ts, a browser's worker); engine-service.ts is the other. Calls post messages
// and return; buffers are moved, not copied. Calls made in one turn travel as one message. If the thread dies,
// everything pending and everything later fails with RunError.

import { assert, defined } from '../assert.ts';
import { RunError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import type { Tensor } from '../graph/tensor.ts';
import type { Noise } from '../noise.ts';
import { movable } from './buffers.ts';
import type { Engine, Executable, Translation, TranslationTarget, Value } from './engine.ts';
import { packGraph } from './packed-graph.ts';
import { fromFailure, type Reply, type Request, sharedNow } from './thread-messages.ts';
import {
  checkUpload,
  orderedInputs,
  replacedInputs,
  type Signature,
  signatureOf,
  ValueTable,
  wantedOutputs,
} from './values.ts';

/** A thread that computes, as its caller has it. */
export interface EngineThread {
  /** Posts requests; `moved` are theirs from here on. Throws where some buffer cannot be moved. */
  post(requests: readonly Request[], moved: readonly ArrayBuffer[]): void;
  /** Hears the thread from here on: its replies, and why it has ended, in a sentence. */
  listen(heard: (replies: readonly Reply[]) => void, died: (reason: string) => void): void;
  /** Ends it at once. */
  terminate(): Promise<void>;
}

/**
 * The engine of a thread that was just started. Rejects with the thread's own error where its engine cannot be had; the
 * thread is ended then. `onDetour`: a kernel of the GPU is wrong or refused, and the CPU computes in its place.
 */
export async function createThreadedEngine(thread: EngineThread, onDetour?: (kernel: string) => void): Promise<Engine> {
  const calls = new Calls(thread, onDetour);
  try {
    return new ThreadedEngine(await calls.ready, calls);
  } catch (error) {
    await thread.terminate();
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
  readonly #thread: EngineThread;
  readonly #pending = new Map<number, Pending>();
  #next = 0;
  #outbox: Request[] = [];
  #moved = new Set<ArrayBuffer>();
  #end: Error | undefined;
  #isEndSeen = false;

  constructor(thread: EngineThread, onDetour: (kernel: string) => void = () => {}) {
    this.#thread = thread;
    this.ready = this.#expect(this.nextId());
    const heard = (replies: readonly Reply[]): void => {
      for (const reply of replies) {
        if (reply.detour === undefined) this.#settle(reply);
        else onDetour(reply.detour);
      }
    };
    thread.listen(heard, (reason) => this.#die(reason));
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
    await this.#thread.terminate();
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
      this.#thread.post(requests, [...moved]);
    } catch {
      this.#thread.post(requests, []); // Some buffer cannot be moved, such as WebAssembly memory: all are copied.
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

class ThreadedEngine implements Engine {
  readonly name: string;
  readonly warning: string | undefined;
  readonly choice: string | undefined;
  readonly blockSize: number | undefined;
  readonly translate: Engine['translate'];
  readonly translationTarget: TranslationTarget | undefined;
  readonly #calls: Calls;
  readonly #values = new ValueTable<undefined>();
  readonly #executables = new Set<number>();
  #closing: Promise<void> | undefined;

  constructor({ name, warning, choice, blockSize, translationTarget }: Reply, calls: Calls) {
    this.name = defined(name, "the engine's name");
    this.warning = warning;
    this.choice = choice;
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
