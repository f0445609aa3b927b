// A stage of the exact model (exact-model.ts) in a run that only infers, in the place of one on an engine. It takes as
// long as its device is slow, and looks at the rows that it is given: whose samples, of which round and epoch. Its
// weights never change.

import { defined } from '../assert.ts';
import { type CutTensor, cutBefore, cutBytes } from '../graph/layers.ts';
import type { Tensor } from '../graph/tensor.ts';
import { ForwardOnly } from '../runtime/device/forward-only.ts';
import type { MicroBatchId } from '../runtime/device/pieces.ts';
import type { RoundStage, StagePort } from '../runtime/device/stage.ts';
import type { StageOptions } from '../runtime/device/stage-graphs.ts';
import type { EntryOptions, StateEntry } from '../runtime/device/stage-state.ts';
import { layerRules, rowLength, sampleIdAt, stateNames } from './exact-model.ts';
import { rowsOf, valuesOf, wrongRows } from './exact-rows.ts';
import type { StageWorld } from './exact-world.ts';

/** A stage of exact layers that only infers. */
export class ExactForwardStage extends ForwardOnly implements StagePort {
  readonly inputs: readonly CutTensor[];
  readonly outputs: readonly CutTensor[];
  readonly label: CutTensor;
  readonly #options: StageOptions;
  readonly #world: StageWorld;
  readonly #seed: number;
  readonly #layers: readonly number[];
  readonly #entries = new Map<string, StateEntry>();

  /** `seed`: of the samples. */
  constructor(options: StageOptions, world: StageWorld, seed: number) {
    super(world.engine);
    const { sequence, layers } = options;
    this.inputs = cutBefore(sequence, layers[0]);
    this.outputs = cutBefore(sequence, layers[1]);
    this.label = options.label;
    this.#options = options;
    this.#world = world;
    this.#seed = seed;
    this.#layers = Array.from({ length: layers[1] - layers[0] }, (_, index) => layers[0] + index);
  }

  load(entry: StateEntry): void {
    this.#entries.set(entry.name, entry);
  }

  missingState(): readonly string[] {
    return this.#layers
      .map(stateNames)
      .flatMap(({ parameter, buffer }) => [parameter, buffer])
      .filter((name) => !this.#entries.has(name));
  }

  async finish(): Promise<void> {
    const missing = this.missingState();
    if (missing.length > 0) this.#world.violate(`a stage without ${missing.join(' ')} is to infer`);
    await this.#world.engine.work(0);
  }

  async *state({ names, part }: EntryOptions = {}): AsyncGenerator<StateEntry> {
    if (part === 'optimizer') return;
    for (const entry of this.#entries.values()) {
      if (names !== undefined && !names.has(entry.name)) continue;
      await this.#world.engine.work(0);
      yield { ...entry, value: { ...entry.value, data: entry.value.data.slice() } };
    }
  }

  dispose(): void {
    this.#entries.clear();
  }

  async rest(): Promise<RoundStage> {
    return this;
  }

  forward(
    { round, index }: MicroBatchId,
    firstSample: number,
    inputs: readonly Tensor[],
    labels: Tensor | undefined,
  ): Promise<readonly Tensor[]> {
    const rows = defined(inputs[0], 'the input').data as Float32Array;
    const first = index * this.#options.microBatchSize + firstSample;
    const samples = Array.from({ length: rows.length / rowLength }, (_, at) =>
      sampleIdAt(this.#seed, round, first + at),
    );
    const violate = (what: string): void => this.#world.violate(`micro-batch ${index} of round ${round}: ${what}`);
    if (labels !== undefined) violate('labels came');
    const epoch = this.#layers[0] === 0 ? undefined : this.#world.epoch(); // the feed knows none
    for (const wrong of wrongRows(rows, samples, { round, epoch })) violate(wrong);
    const values = valuesOf(rows, samples.length).map((value) =>
      this.#layers.reduce((input, layer) => layerRules.forward(input, this.#weight(layer), layer), value),
    );
    const outputs = [rowsOf(samples, values, { round, epoch: this.#world.epoch() })];
    const takesMs = this.#layers.length * samples.length * this.#world.msPerSample();
    return this.#world.engine.work(takesMs).then(() => outputs);
  }

  #weight(layer: number): number {
    const { parameter } = stateNames(layer);
    return defined(this.#entries.get(parameter), parameter).value.data[0] as number;
  }

  computed(): undefined {
    return undefined; // passes count as done when they are queued
  }

  mailboxBytes(microBatchCount: number): number {
    return 2 * microBatchCount * cutBytes(this.inputs, this.#options.sampleCount) + 2 ** 12;
  }
}
