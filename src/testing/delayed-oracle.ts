// What a run whose rounds overlap must come to: one device with gradients that are as late as the plan has them,
// restarted from the version at which the run's events say that a stream begins. Used by tests.

import assert from 'node:assert/strict';
import { defined } from '../assert.ts';
import type { PlanLayout } from '../cluster/cluster.ts';
import { createReferenceEngine } from '../engine/reference.ts';
import type { RunEvent } from '../runtime/protocol/events.ts';
import type { RunState } from '../runtime/protocol/run-state.ts';
import { type DelayedRun, DelayedTraining } from '../runtime/run/delayed-training.ts';
import type { MemoryRun, Outcome } from './memory-cluster.ts';

/** A stream of a run. */
export interface StreamPart {
  readonly plan: PlanLayout;
  readonly staleness: readonly number[];
  /** The version that it began with. */
  readonly first: number;
  /** Losses of earlier rounds had been recorded. */
  readonly recorded: number;
}

/** Notes the streams of a run from its events. */
export class StreamParts {
  readonly parts: StreamPart[] = [];
  #plan: PlanLayout | undefined;

  /** `recorded`: losses that have been recorded so far. */
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

/** Losses and final state of the run on one device. `more`: how the oracle aggregates and corrects. */
export async function delayedOracle(
  run: MemoryRun,
  parts: readonly StreamPart[],
  endRound: number,
  more: Pick<DelayedRun, 'aggregateEvery' | 'correction'> = {},
): Promise<Pick<Outcome, 'losses' | 'state'>> {
  const engine = createReferenceEngine();
  const losses: number[] = [];
  /** By number: versions with which parts begin. A part may begin with a version from before the part before it. */
  const versions = new Map<number, RunState>([[parts[0]?.first ?? 0, run.subject.state]]);
  let state: RunState = run.subject.state;
  try {
    for (const [index, part] of parts.entries()) {
      const next = parts[index + 1];
      state = defined(versions.get(part.first), `version ${part.first}`);
      const training = await DelayedTraining.create(engine, {
        ...delayedRun({ ...run, subject: { ...run.subject, state } }, part, endRound),
        ...more,
      });
      // A part may have recorded rounds beyond the version at which the next begins: they are computed again.
      const recordedEnd = next?.recorded ?? endRound;
      const later = new Set(parts.slice(index + 1).map(({ first }) => first));
      for (let round = part.first; round < Math.max(recordedEnd, next?.first ?? 0); round++) {
        const { loss } = await training.next();
        if (round >= part.recorded && round < recordedEnd) losses.push(loss);
        if (later.has(round + 1)) versions.set(round + 1, await training.state());
      }
      state = await training.state();
      training.dispose();
    }
  } finally {
    await engine.close();
  }
  assert.equal(losses.length, endRound);
  return { losses, state };
}

function delayedRun({ subject, batch, machine }: MemoryRun, part: StreamPart, endRound: number): DelayedRun {
  const { plan, staleness, first } = part;
  return {
    subject,
    batch,
    config: {
      firstRound: first,
      endRound,
      batchSize: plan.batchSize,
      ...(machine?.batchAt === undefined ? {} : { batchAt: machine.batchAt }),
      learningRate: machine?.learningRate ?? (() => 0.1),
      gradientScale: machine?.gradientScale ?? (() => 1),
    },
    microBatchSize: plan.microBatchSize,
    stages: plan.stages.map(({ layers }, stage) => ({ layers, staleness: defined(staleness[stage], 'staleness') })),
  };
}
