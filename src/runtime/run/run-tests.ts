// The tests of a run on its test data, and what follows from them: which model is the best so far, and whether training
// still makes it better.

import { z } from 'zod';
import type { Clock } from '../../clock.ts';
import { InputError } from '../../errors.ts';
import { importModel } from '../../graph/onnx/import.ts';
import { join } from '../../paths.ts';
import { errorCode, readError } from '../../storage/disk.ts';
import type { RunFolder } from '../../storage/run-folder.ts';
import type { Observer } from '../protocol/events.ts';
import { type BestMetric, bestMetrics, isBetter, metricOf } from './best-metric.ts';
import { type EngineFactory, type Evaluation, evaluateOn } from './evaluate.ts';
import type { PreparedRun } from './prepare.ts';

/** The best test so far, as it is kept in the run folder. */
interface Best {
  readonly metric: BestMetric;
  readonly value: number;
  /** Rounds that the model had seen. */
  readonly round: number;
  /** Tests since then, none of them better. */
  readonly testsSince: number;
}

const bestSchema: z.ZodType<Best> = z.object({
  metric: z.enum(bestMetrics),
  value: z.number(),
  round: z.number().int().min(0),
  testsSince: z.number().int().min(0),
});

/** What is to be kept of a run. */
export interface Kept {
  readonly bytes: Uint8Array;
  readonly round: number;
  readonly evaluation: Evaluation | undefined;
}

export interface RunTestsOptions {
  readonly run: PreparedRun;
  readonly createEngine: EngineFactory;
  readonly clock: Clock;
  readonly observe: Observer;
  readonly folder: RunFolder | undefined;
}

/** Tests models of a run, each round at most once. */
export class RunTests {
  readonly #options: RunTestsOptions;
  readonly #metric: BestMetric | undefined;
  /** Time that tests have taken. */
  spentMs = 0;
  #last: { readonly round: number; readonly evaluation: Evaluation } | undefined;
  #best: Best | undefined;
  #bestEvaluation: Evaluation | undefined;
  /** Where there is no folder to keep it in. */
  #bestBytes: Uint8Array | undefined;
  #isRead = false;

  constructor(options: RunTestsOptions) {
    this.#options = options;
    const { keepBest, patience } = options.run.settings;
    this.#metric = keepBest ?? (patience === undefined ? undefined : 'loss');
  }

  /** Whether as many tests as --patience allows have found nothing better. */
  get isExhausted(): boolean {
    const { patience } = this.#options.run.settings;
    return patience !== undefined && this.#best !== undefined && this.#best.testsSince >= patience;
  }

  /** The best test so far, where one is kept. */
  get best(): Best | undefined {
    return this.#best;
  }

  /** Tests the model after `round` rounds; undefined without test data. */
  async at(round: number, bytes: Uint8Array): Promise<Evaluation | undefined> {
    if (this.#last?.round === round) return this.#last.evaluation;
    const { run, observe, clock } = this.#options;
    if (run.test === undefined) return undefined;
    const startMs = clock.now();
    const evaluation = await this.#evaluate(bytes);
    this.#last = { round, evaluation };
    const { details: _, ...shown } = evaluation;
    observe({ kind: 'evaluated', round, ...shown });
    await this.#consider(round, evaluation, bytes);
    this.spentMs += clock.now() - startMs;
    return evaluation;
  }

  /** The model that the run gives: the last, or the best where one is kept. */
  async result(round: number, bytes: Uint8Array): Promise<Kept> {
    const evaluation = await this.at(round, bytes);
    const best = this.#best;
    if (best === undefined || best.round === round) return { bytes, round, evaluation };
    const kept = this.#bestBytes ?? (await this.#read('best.onnx'));
    if (kept === undefined) return { bytes, round, evaluation };
    return { bytes: kept, round: best.round, evaluation: this.#bestEvaluation ?? (await this.#evaluate(kept)) };
  }

  #evaluate(bytes: Uint8Array): Promise<Evaluation> {
    const { run, createEngine } = this.#options;
    if (run.test === undefined) throw new InputError('There are no data to test on.');
    return evaluateOn(createEngine, importModel(bytes).graph, run.test, run.settings);
  }

  async #consider(round: number, evaluation: Evaluation, bytes: Uint8Array): Promise<void> {
    const metric = this.#metric;
    if (metric === undefined) return;
    const { folder, observe } = this.#options;
    await this.#readBest(metric);
    const value = metricOf(metric, evaluation);
    if (value === undefined)
      throw new InputError(
        `--keep-best ${metric} needs one of at most 1,000 classes a sample, and these data have none: use loss.`,
      );
    const before = this.#best;
    if (!isBetter(metric, value, before?.value)) {
      if (before !== undefined) this.#best = { ...before, testsSince: before.testsSince + 1 };
    } else {
      this.#best = { metric, value, round, testsSince: 0 };
      this.#bestEvaluation = evaluation;
      if (folder === undefined) this.#bestBytes = bytes;
      else await folder.write('best.onnx', bytes);
      observe({ kind: 'best', metric, value, round });
    }
    const best = this.#best;
    if (best === undefined) return;
    await folder?.write('best.json', `${JSON.stringify(best)}\n`);
    if (this.isExhausted) observe({ kind: 'early-stop', ...best, bestRound: best.round, round });
  }

  /** Goes on from what an earlier part of the run kept, if it kept by the same metric. */
  async #readBest(metric: BestMetric): Promise<void> {
    if (this.#isRead) return;
    this.#isRead = true;
    if (this.#options.run.machine.firstRound === 0) return;
    const bytes = await this.#read('best.json');
    if (bytes === undefined) return;
    let found: Best;
    try {
      found = bestSchema.parse(JSON.parse(new TextDecoder().decode(bytes)));
    } catch {
      return this.#options.observe({
        kind: 'warning',
        message: 'best.json of the run cannot be read: the best model is chosen among the tests from here on.',
      });
    }
    if (found.metric === metric) this.#best = found;
  }

  async #read(name: string): Promise<Uint8Array | undefined> {
    const { folder } = this.#options;
    if (folder === undefined) return undefined;
    const path = join(folder.path, name);
    try {
      return await folder.disk.read(path);
    } catch (error) {
      if (errorCode(error) === 'ENOENT') return undefined;
      throw readError(error, path);
    }
  }
}
