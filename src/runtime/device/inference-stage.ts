// A stage that infers: its graph has the weights as constants, so that the runtime packs them once and optimizes all of
// it. It is compiled when the weights are there, for each number of samples that comes up as far as memory allows, and
// keeps them to hand them on. Its state never changes: every version of it is the one that was loaded.

import { assert, defined } from '../../assert.ts';
import { type HeldStage, heldStage, layerSessionBytes, movedBytes } from '../../cluster/inference-memory.ts';
import { discard } from '../../engine/buffers.ts';
import type { Engine, Executable } from '../../engine/engine.ts';
import { type CutTensor, cutBefore, cutBytes } from '../../graph/layers.ts';
import { byteLength, type Tensor } from '../../graph/tensor.ts';
import { design } from './designers.ts';
import { ForwardOnly } from './forward-only.ts';
import type { MicroBatchId } from './pieces.ts';
import { joinSamples, ownCopy, sliceSamples } from './samples.ts';
import type { RestShare, RoundStage, StagePort } from './stage.ts';
import type { StageOptions } from './stage-graphs.ts';
import type { EntryOptions, StateEntry } from './stage-state.ts';
import type { WeightFile, WeightKeeping } from './weight-files.ts';

export class InferenceStage extends ForwardOnly implements StagePort {
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly #engine: Engine;
  readonly #options: StageOptions;
  readonly #names: ReadonlyMap<string, StateEntry['role']>;
  readonly #entries = new Map<string, StateEntry>();
  readonly #file: WeightFile | undefined;
  #writing: Promise<void> = Promise.resolve();
  readonly #held: HeldStage;
  /** By number of samples. */
  readonly #compiled = new Map<number, Promise<Executable>>();
  readonly #ready = new Map<number, Executable>();

  /** `keeping`: absent: weights stay in memory. */
  constructor(engine: Engine, options: StageOptions, keeping?: WeightKeeping) {
    super(engine);
    const { sequence, layers } = options;
    const own = sequence.layers.slice(...layers);
    this.inputs = cutBefore(sequence, layers[0]);
    this.outputs = cutBefore(sequence, layers[1]);
    this.label = options.label;
    this.#engine = engine;
    this.#options = options;
    this.#names = new Map([
      ...own.flatMap(({ parameters }) => parameters.map((name) => [name, 'parameter'] as const)),
      ...own.flatMap(({ buffers }) => buffers.map((name) => [name, 'buffer'] as const)),
    ]);
    this.#held = this.#holding(keeping?.memoryBytes);
    if (this.#held.isInFile) this.#file = keeping?.files?.open();
  }

  #holding(memoryBytes: number | undefined): HeldStage {
    const { sequence, layers, sampleCount } = this.#options;
    const cuts = Array.from({ length: sequence.layers.length + 1 }, (_, cut) => cutBytes(cutBefore(sequence, cut)));
    const sessionBytes = (layers[1] - layers[0]) * layerSessionBytes;
    const moved = movedBytes(cuts, layers, sampleCount);
    return heldStage({ weightBytes: this.#weightBytes(), sessionBytes, moved, memoryBytes });
  }

  #weightBytes(): number {
    const { initializers } = this.#options.sequence.graph;
    let bytes = 0;
    for (const name of this.#names.keys()) bytes += byteLength(defined(initializers.get(name), name));
    return bytes;
  }

  /** Where weights are kept in a file, the entry's buffer is the stage's. */
  load(entry: StateEntry): void {
    this.#entries.set(entry.name, entry);
    const file = this.#file;
    if (file === undefined) return;
    this.#writing = this.#writing.then(async () => {
      const value = await file.keep(entry.value);
      if (value === entry.value) return;
      this.#entries.set(entry.name, { ...entry, value });
      discard(entry.value.data); // now, not when the garbage is collected
    });
    this.#writing.catch(() => {}); // seen by finish
  }

  missingState(): readonly string[] {
    return [...this.#names.keys()].filter((name) => !this.#entries.has(name));
  }

  async finish(): Promise<void> {
    await this.#writing;
    const { sampleCount } = this.#options;
    if (sampleCount > 0) await this.#compile(sampleCount);
  }

  async *state({ names, part }: EntryOptions = {}): AsyncGenerator<StateEntry> {
    if (part === 'optimizer') return;
    for (const entry of this.#entries.values()) {
      if (names !== undefined && !names.has(entry.name)) continue;
      yield { ...entry, value: ownCopy(entry.value) };
    }
  }

  dispose(): void {
    for (const compiled of this.#compiled.values())
      compiled.then(
        (executable) => executable.release(),
        () => {}, // seen where it was asked for
      );
    this.#compiled.clear();
    this.#ready.clear();
    this.#entries.clear();
    const file = this.#file;
    if (file !== undefined)
      void this.#writing
        .catch(() => {}) // seen by finish
        .then(() => file.remove());
    this.#engine.trim();
  }

  async rest({ lastSampleCount }: RestShare): Promise<RoundStage> {
    if (lastSampleCount > 0) await this.#compile(this.#sizeFor(lastSampleCount));
    return this;
  }

  /** The number of samples with which so many are computed: as many, or, without room for one more, the next larger. */
  #sizeFor(sampleCount: number): number {
    if (this.#compiled.has(sampleCount) || this.#compiled.size < this.#held.compiledCount) return sampleCount;
    const larger = [...this.#compiled.keys()].filter((size) => size > sampleCount);
    return larger.length === 0 ? sampleCount : Math.min(...larger);
  }

  #compile(sampleCount: number): Promise<Executable> {
    const known = this.#compiled.get(sampleCount) ?? this.#translated(sampleCount);
    this.#compiled.set(sampleCount, known);
    return known;
  }

  async #translated(sampleCount: number): Promise<Executable> {
    const { sequence, layers } = this.#options;
    // Without room for more than its weights, a device gives back what a run needed.
    const keepsMemory = this.#file === undefined;
    const { graphs } = design(this.#engine, { kind: 'infer', sequence, layers, sampleCount, keepsMemory });
    const forward = defined(graphs.forward, 'the forward pass');
    const initializers = new Map(forward.initializers);
    for (const [name, { value }] of this.#entries) if (initializers.has(name)) initializers.set(name, value);
    const executable = await this.#engine.compile({ ...forward, initializers });
    this.#ready.set(sampleCount, executable);
    return executable;
  }

  forward(
    { index }: MicroBatchId,
    _firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    assert(labels === undefined, 'a stage that infers takes no labels');
    const [first] = this.inputs;
    const sampleCount = defined(inputs[0]?.shape[first?.batchAxis ?? 0], `samples of micro-batch ${index}`);
    const size = this.#sizeFor(sampleCount);
    const executable = defined(this.#ready.get(size), `a stage for ${size} samples`);
    const feeds = Object.fromEntries(
      this.inputs.map(({ name, batchAxis }, at) => [
        name,
        this.#engine.upload(filledUp(defined(inputs[at], name), batchAxis, size - sampleCount)),
      ]),
    );
    const results = executable.run(feeds);
    for (const value of Object.values(feeds)) this.#engine.release(value);
    return Promise.all(
      this.outputs.map(async ({ name, batchAxis }) => {
        const output = await this.#engine.take(defined(results[name], name));
        return size === sampleCount ? output : sliceSamples(output, batchAxis, 0, sampleCount);
      }),
    );
  }

  computed(): Promise<number> {
    return this.#engine.computed();
  }

  mailboxBytes(microBatchCount: number): number {
    return 2 * microBatchCount * cutBytes(this.inputs, this.#options.sampleCount) + 2 ** 20;
  }
}

/** The samples, and the last one again `count` times. */
function filledUp(value: Tensor, axis: number, count: number): Tensor {
  if (count === 0) return value;
  const end = defined(value.shape[axis], 'samples');
  const last = sliceSamples(value, axis, end - 1, end);
  return joinSamples([value, ...Array.from({ length: count }, () => last)], axis);
}
