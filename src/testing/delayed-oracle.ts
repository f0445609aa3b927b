// What a run of a test whose rounds overlap must come to: one device with late gradients (runtime/run).

import assert from 'node:assert/strict';
import { defined } from '../assert.ts';
import { createReferenceEngine } from '../engine/reference.ts';
import type { DelayedRun } from '../runtime/run/delayed-run.ts';
import { type StreamPart, trainStreams } from '../runtime/run/delayed-streams.ts';
import type { MemoryRun, Outcome } from './memory-cluster.ts';

/** Losses and final state of the run on one device. `more`: how the oracle aggregates and corrects. */
export async function delayedOracle(
  { subject, batch, machine }: MemoryRun,
  parts: readonly StreamPart[],
  endRound: number,
  more: Pick<DelayedRun, 'aggregateEvery' | 'correction'> = {},
): Promise<Pick<Outcome, 'losses' | 'state'>> {
  const engine = createReferenceEngine();
  const config: DelayedRun['config'] = {
    ...{ firstRound: 0, endRound, batchSize: defined(parts[0], 'a stream').plan.batchSize },
    ...(machine?.batchAt === undefined ? {} : { batchAt: machine.batchAt }),
    learningRate: machine?.learningRate ?? (() => 0.1),
    gradientScale: machine?.gradientScale ?? (() => 1),
  };
  try {
    const found = await trainStreams(engine, { subject, batch, config, ...more }, parts);
    assert.equal(found.losses.length, endRound);
    return found;
  } finally {
    await engine.close();
  }
}
