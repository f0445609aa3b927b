// Prepares stages that this device would run in other layouts, before one is needed: after a loss all devices wait for
// the slowest to compile. A thread of its own translates them, one stage at a time, while the device works, and stores
// the result where compiling looks first. Then the engine makes its sessions, which delays one round, and keeps them
// for as long as there is memory.

import { Worker } from 'node:worker_threads';
import type { Engine, TranslationTarget } from '../../engine/engine.ts';
import { prepareStage, type StageStore } from '../device/compiled-stages.ts';
import { type StageWish, wishedOptions } from '../device/create-stage.ts';
import { graphsKey } from '../device/graphs-key.ts';
import type { ModelMessage } from '../protocol/model-message.ts';
import type { Model } from '../worker/model.ts';
import type { StagePreparer } from '../worker/options.ts';

/**
 * The input of the thread. It answers with the pieces of the bundle (stage-bundle.ts), or ends without an answer if the
 * stage cannot be translated.
 */
export interface StageJob {
  readonly message: ModelMessage;
  /** The graph, as the coordinator sent it. */
  readonly graph: Uint8Array;
  readonly wish: StageWish;
  readonly memoryBytes: number | undefined;
  readonly target: TranslationTarget;
}

export interface StagesAheadOptions {
  readonly engine: Engine;
  readonly store: StageStore;
  /** Memory that the device may use; undefined: not known. */
  readonly memoryBytes: number | undefined;
  /** Free memory of this device. Default: the system's figure. */
  spareBytes?(): number;
}

/**
 * Translating makes mostly short-lived objects: a young generation four times as large takes 20 to 50 MiB more, and is
 * no faster.
 */
const youngHeapMiB = 8;
/** With less spare memory than this, a stage is translated only when it is needed. */
const leastSpareBytes = 2 ** 28;
/** With less spare memory than this, sessions are made only when needed: they take tens of MiB for a hundred layers. */
const leastSessionSpareBytes = 2 ** 30;

/** Prepares stages in the order in which they were added. */
export class StagesAhead implements StagePreparer {
  readonly #options: StagesAheadOptions;
  /** Settles, and never rejects, when all stages so far are done. */
  #done: Promise<void> = Promise.resolve();
  #thread: Worker | undefined;
  #isClosed = false;

  constructor(options: StagesAheadOptions) {
    this.#options = options;
  }

  add(model: Model, wish: StageWish): Promise<void> {
    // A stage that fails here is compiled, and fails, when it is needed.
    this.#done = this.#done.then(() => this.#prepare(model, wish)).catch(() => {});
    return this.#done;
  }

  async #prepare(model: Model, wish: StageWish): Promise<void> {
    const { engine, store, memoryBytes, spareBytes = () => process.availableMemory() } = this.#options;
    const { translationTarget: target } = engine;
    if (this.#isClosed || target === undefined || model.graph === undefined || spareBytes() < leastSpareBytes) return;
    const options = wishedOptions(model, wish, memoryBytes);
    if (options === undefined) return;
    const key = graphsKey(engine, options);
    if ((await store.read(key)) === undefined) {
      const pieces = await this.#run({ message: model.message, graph: model.graph, wish, memoryBytes, target });
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

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#thread?.terminate();
    await this.#done;
  }
}
