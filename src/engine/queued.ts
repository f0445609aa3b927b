// What the engines of this thread share: handles, order, ownership, failures and accounting, over a backend that only
// computes. Calls queue tasks; one task runs at a time. The queue itself has no limit: its callers bound the
// micro-batches in flight.
//
// BUFFERS ARE WRITTEN AGAIN (buffer-pool.ts), where the backend writes into buffers that it is given. A buffer belongs
// to one slot. It is free when its slot is dropped, by a task that stands behind all runs that read the slot, and
// nothing else frees it: a value that is alive is never written over.

import { assert, defined } from '../assert.ts';
import { BufferPool } from '../buffer-pool.ts';
import { RunError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import { byteLength, type ElementArray, sameShape, type Tensor, type ValueType } from '../graph/tensor.ts';
import { type Noise, writeNoise } from '../noise.ts';
import { discard, discardBuffer, fillsBuffer } from './buffers.ts';
import type { Engine, Executable, Translation, TranslationTarget, Value } from './engine.ts';
import { type Content, isTensor } from './resident.ts';
import {
  checkUpload,
  orderedInputs,
  replacedInputs,
  type Signature,
  signatureOf,
  ValueTable,
  wantedOutputs,
} from './values.ts';

/** A graph ready to run. */
export interface Kernel {
  /**
   * Computes the wanted outputs, in their order. The inputs stand in the order of the graph's and must not be changed,
   * but where `buffers` gives an output the memory of one. Every result has a buffer of its own, which nothing else
   * refers to: one of `buffers`, or a new one; or it is resident, and only a backend that makes such values is given
   * any.
   */
  run(inputs: readonly Content[], wanted: readonly string[], buffers: OutputBuffers): Promise<readonly Content[]>;
  release(): Promise<void>;
}

/** Where the buffers of a run's outputs come from. */
export interface OutputBuffers {
  /** A buffer of exactly this many bytes, with any contents, for the output of this name. */
  take(byteLength: number, output: string): ArrayBuffer;
}

/** What computes. */
export interface Backend {
  readonly name: string;
  /** Default: none. */
  readonly blockSize?: number | undefined;
  /** Milliseconds, monotonic, by which runs are timed. Default performance.now. */
  readonly now?: (() => number) | undefined;
  /** Whether kernels write into the buffers that they are given. Default false: then none are kept. */
  readonly writesInPlace?: boolean;
  /** Throws InputError for a graph that it cannot run. */
  compile(graph: Graph): Promise<Kernel>;
  /** Resolves when what was started has been computed. Default: runs end when they are. */
  synchronize?(): Promise<void>;
  /** Frees what kernels share, behind the last of them. */
  close?(): Promise<void>;
  /** Where graphs are brought into another form first: the two halves of `compile`. */
  readonly translations?: {
    readonly target: TranslationTarget;
    translate(graph: Graph): Translation;
    compile(translation: Translation): Promise<Kernel>;
  };
}

/** An engine that computes in the calling thread, through `backend`. */
export function createQueuedEngine(backend: Backend): Engine {
  return new QueuedEngine(backend);
}

/**
 * A value's content: undefined before it is computed and after it was moved out; the failure, where it could not be
 * computed.
 */
interface Slot {
  content?: Content;
  failure?: Error;
}

/** What a run leaves behind. */
interface Outcome {
  readonly wanted: ReadonlyMap<string, ValueType>;
  /** In the order of `wanted`. */
  readonly targets: readonly Slot[];
  /** Slots that end with the run, by the output that replaces them. */
  readonly old: ReadonlyMap<string, Slot>;
}

class QueuedEngine implements Engine {
  readonly name: string;
  readonly blockSize: number | undefined;
  readonly translate: Engine['translate'];
  readonly translationTarget: TranslationTarget | undefined;
  readonly #backend: Backend;
  readonly #values = new ValueTable<Slot>();
  readonly #kernels = new Set<Kernel>();
  readonly #tasks: (() => Promise<void>)[] = [];
  /** The newest releases: those that follow each other are one task, since timing one takes longer than most. */
  #releases: { readonly slots: Slot[]; readonly task: () => Promise<void> } | undefined;
  readonly #pool: BufferPool | undefined;
  readonly #now: () => number;
  #isWorking = false;
  #busyMs = 0;
  /** The first failure since the last `settled`. */
  #failure: Error | undefined;
  /** The first failure that no caller has seen. */
  #unseen: Error | undefined;
  #closing: Promise<void> | undefined;

  constructor(backend: Backend) {
    this.name = backend.name;
    this.blockSize = backend.blockSize;
    this.#backend = backend;
    this.#now = backend.now ?? (() => performance.now());
    this.#pool = backend.writesInPlace === true ? new BufferPool(discardBuffer) : undefined;
    const { translations } = backend;
    this.translationTarget = translations?.target;
    this.translate = translations && (async (graph) => translations.translate(graph));
  }

  async compile(source: Graph | Translation): Promise<Executable> {
    this.#checkOpen();
    const signature = signatureOf(source);
    const { translations } = this.#backend;
    const kernel =
      'model' in source
        ? await defined(translations, 'an engine that translates').compile(source)
        : await this.#backend.compile(source);
    if (this.#closing !== undefined) {
      await kernel.release();
      throw new RunError(`The engine was closed while it compiled "${source.name}".`);
    }
    this.#kernels.add(kernel);
    return {
      inputs: [...signature.inputs.keys()],
      outputs: [...signature.outputs.keys()],
      run: (...args) => this.#run({ graph: source.name, signature, kernel }, ...args),
      release: () => {
        assert(this.#kernels.delete(kernel), `graph "${source.name}" was released before`);
        this.#enqueue(() => kernel.release());
      },
    };
  }

  upload(tensor: Tensor): Value {
    this.#checkOpen();
    checkUpload(tensor);
    if (fillsBuffer(tensor.data)) this.#pool?.adopt(tensor.data.byteLength);
    return this.#values.add(tensor, { content: tensor });
  }

  draw(shape: readonly number[], noise: Noise): Value {
    this.#checkOpen();
    const slot: Slot = {};
    const type = { type: 'float32', shape } as const;
    const value = this.#values.add(type, slot);
    this.#enqueue(() =>
      this.#timed(async () => {
        const bytes = byteLength(type);
        const buffer = this.#pool?.take(bytes) ?? new ArrayBuffer(bytes);
        const data = new Float32Array(buffer);
        writeNoise(data, noise);
        slot.content = { ...type, data };
      }),
    );
    return value;
  }

  async download(value: Value): Promise<Tensor> {
    return this.#read(this.#values.get(value), (content) =>
      isTensor(content) ? { ...content, data: content.data.slice() as ElementArray } : content.read(),
    );
  }

  async take(value: Value): Promise<Tensor> {
    return this.#read(this.#values.remove(value), (content) => {
      if (!isTensor(content)) return content.read().finally(() => content.dispose());
      if (fillsBuffer(content.data)) this.#pool?.leave(content.data.byteLength);
      return content;
    });
  }

  release(value: Value): void {
    const slot = this.#values.remove(value);
    const last = this.#releases;
    if (last !== undefined && this.#tasks.at(-1) === last.task) {
      last.slots.push(slot);
      return;
    }
    const slots = [slot];
    const task = (): Promise<void> => this.#timed(async () => slots.forEach((each) => this.#drop(each)));
    this.#releases = { slots, task };
    this.#enqueue(task);
  }

  trim(leastBytes = 0): void {
    this.#checkOpen();
    this.#enqueue(async () => this.#pool?.trim(leastBytes));
  }

  async settled(): Promise<void> {
    this.#checkOpen();
    await new Promise<void>((resolve, reject) => {
      this.#enqueue(async () => {
        if (this.#backend.synchronize !== undefined) await this.#synchronize(this.#backend);
        const failure = this.#failure;
        this.#failure = undefined;
        this.#unseen = undefined;
        if (failure === undefined) resolve();
        else reject(failure);
      });
    });
  }

  async computed(): Promise<number> {
    this.#checkOpen();
    return new Promise((resolve) =>
      this.#enqueue(async () => {
        if (this.#backend.synchronize !== undefined) await this.#synchronize(this.#backend);
        resolve(0);
      }),
    );
  }

  valueBytes(): number {
    return this.#values.bytes;
  }

  busyMs(): number {
    return this.#busyMs;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    await new Promise<void>((resolve) => this.#enqueue(async () => resolve()));
    for (const slot of this.#values.clear()) this.#drop(slot);
    this.#pool?.trim();
    for (const kernel of this.#kernels) await kernel.release();
    this.#kernels.clear();
    await this.#backend.close?.();
    if (this.#unseen !== undefined) throw this.#unseen;
  }

  #run(
    { graph, signature, kernel }: { readonly graph: string; readonly signature: Signature; readonly kernel: Kernel },
    ...[inputs, outputs, replaced]: Parameters<Executable['run']>
  ): Record<string, Value> {
    this.#checkOpen();
    assert(this.#kernels.has(kernel), `graph "${graph}" was released`);
    const sources = orderedInputs(signature, inputs).map((value) => this.#values.get(value));
    const wanted = wantedOutputs(signature, outputs);
    const places = replacedInputs(signature, inputs, { wanted, replaced });
    const old = new Map([...places].map(([output, value]) => [output, this.#values.remove(value)] as const));
    const targets: Slot[] = [];
    const results: Record<string, Value> = {};
    for (const [name, type] of wanted) {
      const slot: Slot = {};
      targets.push(slot);
      results[name] = this.#values.add(type, slot);
    }
    this.#enqueue(() => this.#timed(() => this.#compute(kernel, sources, { wanted, targets, old })));
    return results;
  }

  /** Waits for the backend, which counts as work. A failure is one of the engine. */
  async #synchronize(backend: Backend): Promise<void> {
    try {
      await this.#timed(async () => backend.synchronize?.());
    } catch (error) {
      this.#fail(error);
    }
  }

  async #timed(work: () => Promise<void>): Promise<void> {
    const startMs = this.#now();
    try {
      await work();
    } finally {
      this.#busyMs += this.#now() - startMs;
    }
  }

  /** Fills `targets`. A failure goes into them: reading them or computing with them throws it. */
  async #compute(kernel: Kernel, sources: readonly Slot[], { wanted, targets, old }: Outcome): Promise<void> {
    const broken = sources.find((slot) => slot.failure !== undefined)?.failure;
    const taken = new Set<ArrayBuffer>();
    try {
      if (broken !== undefined) throw broken;
      const inputs = sources.map((slot) => defined(slot.content, 'the content of an input'));
      const take = (byteLength: number, output: string): ArrayBuffer => {
        const buffer =
          this.#takeFrom(old.get(output), byteLength) ?? this.#pool?.take(byteLength) ?? new ArrayBuffer(byteLength);
        taken.add(buffer);
        return buffer;
      };
      const results = await kernel.run(inputs, [...wanted.keys()], { take });
      for (const [index, [name, type]] of [...wanted].entries()) {
        const result = defined(results[index], `output "${name}"`);
        assert(
          result.type === type.type && sameShape(result.shape, type.shape),
          `output "${name}" came as ${result.type} [${result.shape.join(', ')}]`,
        );
        this.#fill(defined(targets[index], 'the slot'), result, taken);
      }
    } catch (error) {
      const failure = this.#fail(error);
      for (const slot of targets) {
        this.#drop(slot);
        slot.failure = failure;
      }
    }
    for (const unused of taken) this.#pool?.give(unused);
    for (const slot of old.values()) this.#drop(slot);
  }

  /** The memory of a slot that ends, if it has exactly this many bytes. */
  #takeFrom(slot: Slot | undefined, byteLength: number): ArrayBuffer | undefined {
    const data = slot?.content?.data;
    if (data === undefined || !fillsBuffer(data) || data.byteLength !== byteLength) return undefined;
    delete slot?.content;
    return data.buffer;
  }

  /** The buffer is the slot's from here on. */
  #fill(slot: Slot, content: Content, taken: Set<ArrayBuffer>): void {
    const { data } = content;
    if (data !== undefined && fillsBuffer(data) && !taken.delete(data.buffer)) this.#pool?.adopt(data.byteLength);
    slot.content = content;
  }

  #drop(slot: Slot): void {
    const { content } = slot;
    delete slot.content;
    if (content === undefined) return;
    if (!isTensor(content)) return content.dispose();
    const { data } = content;
    if (this.#pool === undefined) discard(data);
    else if (fillsBuffer(data)) this.#pool.give(data.buffer);
  }

  /** Resolves with what `use` makes of the content once it is computed. */
  #read(slot: Slot, use: (content: Content) => Tensor | Promise<Tensor>): Promise<Tensor> {
    this.#checkOpen();
    return new Promise((resolve, reject) => {
      this.#enqueue(async () => {
        if (slot.failure === undefined) {
          const content = defined(slot.content, 'the content of a value');
          if (isTensor(content)) return resolve(use(content));
          return this.#timed(async () => resolve(await use(content))).catch((error) => reject(this.#fail(error)));
        }
        if (slot.failure === this.#unseen) this.#unseen = undefined;
        reject(slot.failure);
      });
    });
  }

  #enqueue(task: () => Promise<void>): void {
    this.#tasks.push(task);
    if (!this.#isWorking) void this.#work();
  }

  async #work(): Promise<void> {
    this.#isWorking = true;
    await Promise.resolve(); // Calls return before their work begins.
    for (let task = this.#tasks.shift(); task !== undefined; task = this.#tasks.shift()) {
      try {
        await task();
      } catch (error) {
        this.#fail(error);
      }
    }
    this.#isWorking = false;
  }

  #fail(error: unknown): Error {
    const failure = error instanceof Error ? error : new RunError(String(error));
    this.#failure ??= failure;
    this.#unseen ??= failure;
    return failure;
  }

  #checkOpen(): void {
    assert(this.#closing === undefined, 'the engine is closed');
  }
}
