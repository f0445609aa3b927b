// Stages that this device would run in other layouts, made before any is needed: after a loss all wait for the slowest
// device to compile. A thread of its own translates them, beside the work, one stage at a time, and keeps the result
// where compiling looks first; the engine then makes its sessions of it, which holds up a round once, and keeps them
// for as long as there is memory for it.

import { Worker } from 'node:worker_threads';
import type { Plan } from '../../cluster/cluster.ts';
import type { Engine, TranslationTarget } from '../../engine/engine.ts';
import type { DeviceProgram } from '../../schedule/program.ts';
import { prepareStage, type StageStore } from '../device/compiled-stages.ts';
import { compiledOptions } from '../device/create-stage.ts';
import { graphsKey } from '../device/graphs-key.ts';
import type { ModelMessage } from '../protocol/messages.ts';
import { type Model, stageOptionsOf } from '../worker/model.ts';

/**
 * What the thread is given. It answers with the pieces of the bundle (stage-bundle.ts), or ends without a word where
 * the stage cannot be translated.
 */
export interface StageJob {
  readonly message: ModelMessage;
  /** The graph, as the coordinator sent it. */
  readonly graph: Uint8Array;
  readonly device: DeviceProgram;
  readonly plan: Plan;
  readonly memoryBytes: number | undefined;
  readonly target: TranslationTarget;
}

export interface StagesAheadOptions {
  readonly engine: Engine;
  readonly store: StageStore;
  /** What the device may use, where that is known. */
  readonly memoryBytes: number | undefined;
  /** Memory that is free on this device. Default: what the system says. */
  spareBytes?(): number;
}

/**
 * Of what is made in translating little lives long: four times as much room for what is young is 20 to 50 MiB more on
 * the device, and no faster.
 */
const youngHeapMiB = 8;
/** With less memory than this to spare, a stage is translated when it is needed. */
const leastSpareBytes = 2 ** 28;
/** With less than this, sessions are made when they are needed: some tens of MiB for a hundred layers. */
const leastSessionSpareBytes = 2 ** 30;

/** Prepares stages in the order in which they were added. */
export class StagesAhead {
  readonly #options: StagesAheadOptions;
  /** Settles, and never rejects, when all stages so far are done. */
  #done: Promise<void> = Promise.resolve();
  #thread: Worker | undefined;
  #isClosed = false;

  constructor(options: StagesAheadOptions) {
    this.#options = options;
  }

  /**
   * The stage that this device would run as `device` of a plan. Resolves when it is kept, or cannot be: then it is
   * made, and fails, when it is needed.
   */
  add(model: Model, device: DeviceProgram, plan: Plan): Promise<void> {
    // it is made, and fails, when it is needed
    this.#done = this.#done.then(() => this.#prepare(model, device, plan)).catch(() => {});
    return this.#done;
  }

  async #prepare(model: Model, device: DeviceProgram, plan: Plan): Promise<void> {
    const { engine, store, memoryBytes, spareBytes = () => process.availableMemory() } = this.#options;
    const { translationTarget: target } = engine;
    if (this.#isClosed || target === undefined || model.graph === undefined || spareBytes() < leastSpareBytes) return;
    const options = compiledOptions(stageOptionsOf(model, device, plan, memoryBytes));
    const key = graphsKey(engine, options);
    if ((await store.read(key)) === undefined) {
      const pieces = await this.#run({ message: model.message, graph: model.graph, device, plan, memoryBytes, target });
      if (pieces === undefined) return;
      await store.write(key, pieces);
    }
    if (!this.#isClosed && spareBytes() >= leastSessionSpareBytes) await prepareStage(engine, options, store);
  }

  #run(job: StageJob): Promise<readonly Uint8Array[] | undefined> {
    if (this.#isClosed) return Promise.resolve(undefined);
    const thread = new Worker(new URL('./stages-ahead-entry.js', import.meta.url), {
      workerData: job,
      name: 'stages-ahead',
      resourceLimits: { maxYoungGenerationSizeMb: youngHeapMiB },
    });
    thread.unref();
    this.#thread = thread;
    return new Promise((resolve) => {
      thread.once('message', resolve);
      thread.once('error', () => resolve(undefined));
      thread.once('exit', () => resolve(undefined));
    });
  }

  /** Gives up what is not done. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#thread?.terminate();
    await this.#done;
  }
}
