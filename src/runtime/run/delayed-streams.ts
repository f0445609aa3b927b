// What a run whose rounds overlap must come to, whatever happened on its way: one device with gradients that are as
// late as the run's plans have them, restarted from the version at which its events say that a stream begins. A stream
// begins anew where a device is lost, or layers move to where they are faster.

import { defined } from '../../assert.ts';
import type { PlanLayout } from '../../cluster/cluster.ts';
import type { Engine } from '../../engine/engine.ts';
import type { RunEvent } from '../protocol/events.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { DelayedRun } from './delayed-run.ts';
import { type DelayedResult, DelayedTraining } from './delayed-training.ts';

/** A stream of a run. */
export interface StreamPart {
  readonly plan: PlanLayout;
  readonly staleness: readonly number[];
  /** The version that it began with. */
  readonly first: number;
  /** The losses of rounds before this one had been recorded. */
  readonly recorded: number;
}

/** Notes the streams of a run from its events. */
export class StreamParts {
  readonly parts: StreamPart[] = [];
  #plan: PlanLayout | undefined;

  /** `recorded`: the first round whose loss has not been recorded so far. */
  observe(event: RunEvent, recorded: number): void {
    if (event.kind === 'deployment') this.#plan = event.plan;
    if (event.kind === 'stream')
      this.parts.push({
        plan: defined(this.#plan, 'a plan'),
        staleness: event.staleness,
        first: event.round,
        recorded,
      });
  }
}

/** Runs the streams one after the other, each as far as its run went, or until `signal` aborts. */
export async function trainStreams(
  engine: Engine,
  run: Omit<DelayedRun, 'microBatchSize' | 'stages'>,
  parts: readonly StreamPart[],
): Promise<DelayedResult> {
  const losses: number[] = [];
  const { endRound, firstRound } = run.config;
  let { state } = run.subject;
  /** By number: versions with which parts begin. A part may begin with a version from before the part before it. */
  const versions = new Map<number, RunState>([[parts[0]?.first ?? firstRound, state]]);
  for (const [index, part] of parts.entries()) {
    const next = parts[index + 1];
    // A part may have recorded rounds beyond the version at which the next begins: they are computed again.
    const recordedEnd = next?.recorded ?? endRound;
    const begins = new Set(parts.slice(index + 1).map(({ first }) => first));
    const training = await DelayedTraining.create(
      engine,
      partOf(run, part, defined(versions.get(part.first), `version ${part.first}`)),
    );
    for (let round = part.first; round < Math.max(recordedEnd, next?.first ?? 0); round++) {
      if (run.signal?.aborted === true) break;
      const { loss } = await training.next();
      if (round >= part.recorded && round < recordedEnd) losses.push(loss);
      if (begins.has(round + 1)) versions.set(round + 1, await training.state());
    }
    const isOver = next === undefined || run.signal?.aborted === true;
    if (isOver) state = await training.state();
    training.dispose();
    if (isOver) break;
  }
  return { losses, state };
}

/** What a part computes, from its first version on. */
function partOf(
  run: Omit<DelayedRun, 'microBatchSize' | 'stages'>,
  { plan, staleness, first }: StreamPart,
  state: RunState,
): DelayedRun {
  return {
    ...run,
    subject: { ...run.subject, state },
    config: { ...run.config, firstRound: first },
    microBatchSize: plan.microBatchSize,
    stages: plan.stages.map(({ layers }, stage) => ({ layers, staleness: defined(staleness[stage], 'staleness') })),
  };
}
