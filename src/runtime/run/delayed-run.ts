// What the delayed oracle (delayed-training.ts) computes, and its stages: their parameters, and the graphs that update
// them.

import { defined } from '../../assert.ts';
import type { Engine, Executable } from '../../engine/engine.ts';
import type { Parameter } from '../../training/names.ts';
import { type OptimizerGraph, optimizerGraph } from '../../training/optimizers.ts';
import { correctionOf, type StalenessCorrection } from '../../training/staleness.ts';
import type { MachineConfig } from '../coordinator/machine-types.ts';
import type { Batch } from '../coordinator/options.ts';
import type { RunSubject } from '../protocol/run-subject.ts';

/** Layers that read the same version. */
export interface DelayedStage {
  /** Half-open range. */
  readonly layers: readonly [first: number, end: number];
  readonly staleness: number;
}

/** What a delayed run computes. Its first version is `subject.state`, the one after `config.firstRound` rounds. */
export interface DelayedRun {
  readonly subject: RunSubject;
  readonly config: Pick<
    MachineConfig,
    'firstRound' | 'endRound' | 'batchSize' | 'batchAt' | 'learningRate' | 'gradientScale'
  >;
  readonly batch: (round: number) => Batch;
  /** Samples of a micro-batch: batch normalization sees one at a time. */
  readonly microBatchSize: number;
  /** In the order of the layers, together all of them. Aggregation goes by a stage's place. */
  readonly stages: readonly DelayedStage[];
  /** K of `--aggregate K`. Default 0: never. */
  readonly aggregateEvery?: number;
  /** Default: none. */
  readonly correction?: StalenessCorrection;
  /** Once it is aborted, no further round begins. */
  readonly signal?: AbortSignal;
}

/** A stage's parameters and how they are updated. */
export interface Part {
  readonly trained: readonly Parameter[];
  readonly staleness: number;
  /** n of the aggregation: the versions that the stage trains with at once. */
  readonly versionCount: number;
  readonly optimizer: OptimizerGraph;
  readonly update: Executable;
}

/** The part of the run's stage `index`, its update compiled. */
export async function partOf(engine: Engine, run: DelayedRun, index: number): Promise<Part> {
  const { subject, stages, correction = 'none' } = run;
  const { layers, staleness } = defined(stages[index], 'a stage');
  const { sequence, training } = subject;
  const frozen = new Set(training.frozen);
  const names = sequence.layers.slice(...layers).flatMap(({ parameters }) => parameters);
  const trained = names
    .filter((name) => !frozen.has(name))
    .map((name): Parameter => {
      const { type, shape } = defined(subject.state.parameter.get(name), name);
      return { name, type, shape };
    });
  const corrected = correctionOf(correction, staleness);
  const optimizer = optimizerGraph(training.optimizer.kind, trained, { ...training.optimizer, correction: corrected });
  const update = await engine.compile(optimizer.graph);
  return { trained, staleness, versionCount: stages.length - index, optimizer, update };
}
