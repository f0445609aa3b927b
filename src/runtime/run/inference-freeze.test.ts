// A device of a run that only infers freezes: while it owes a compilation, whoever asks waits for less than half a
// minute; where nothing is left to compile, no longer than in any round. On virtual time.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Clock } from '../../clock.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { inferenceRun } from '../../testing/inference-run.ts';
import { type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import { batches, chainOfLinears, subjectOf, type TestNet } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import { sliceSamples } from '../device/samples.ts';
import type { RunEvent } from '../protocol/events.ts';
import { InferenceRounds } from './inference-rounds.ts';

const batchSize = 4;
const net: TestNet = { graph: inferenceMode(chainOfLinears(6).graph), loss: 'mse', classCount: 0 };
const subject = subjectOf(net, batchSize, { isInference: true });

function runOf(clock: Clock, rounds: InferenceRounds): MemoryRun {
  const plan = handPlan(
    { schedule: 'inference', cuts: [2, 4], shares: [[4], [4], [4]], microBatchCount: 1 },
    subject.sequence.layers.length,
  );
  return { ...inferenceRun(subject, rounds, 6), clock, plan, links: { clock, latencyMs: 20 } };
}

const inputs = (sampleCount: number): readonly Tensor[] =>
  batches(net, subject)(0).inputs.map((value) => sliceSamples(value, 0, 0, sampleCount));

/** Seconds of silence after which a device was given up. */
function silentS(events: readonly RunEvent[], device: string): number {
  const reason = events.flatMap((event) => (event.kind === 'left' && event.device === device ? [event.reason] : []))[0];
  return Number(/^no sign of life for (\d+\.\d) s/.exec(reason ?? 'it has not left')?.[1]);
}

test('frozen while a layout is deployed: given up after ten seconds, and what was asked is answered', async () => {
  const clock = createVirtualClock();
  const rounds = new InferenceRounds();
  const cluster = await startCluster({
    ...runOf(clock, rounds),
    observe(event, own) {
      if (event.kind === 'deployment' && event.plan.stages.some(({ devices }) => devices.includes('b')))
        own.silence('b');
    },
  });
  const [output] = await clock.runUntil(rounds.submit(inputs(batchSize)));
  assert.equal(output?.shape[0], batchSize);
  const seconds = silentS(cluster.events, 'b');
  assert.ok(seconds >= 10 && seconds < 11, `${seconds} s`);
  rounds.end();
  await clock.runUntil(cluster.coordinator.end);
});

test('frozen in rounds of fewer samples, for which all have compiled: given up as in any round', async () => {
  const clock = createVirtualClock();
  const rounds = new InferenceRounds();
  const cluster = await startCluster(runOf(clock, rounds));
  for (let round = 0; round < 40; round++) await clock.runUntil(rounds.submit(inputs(1)));
  const startMs = clock.now();
  cluster.silence('b');
  const [output] = await clock.runUntil(rounds.submit(inputs(1)));
  assert.equal(output?.shape[0], 1);
  const seconds = silentS(cluster.events, 'b');
  assert.ok(seconds >= 3 && seconds < 4, `${seconds} s`);
  assert.ok(clock.now() - startMs < 5_000, `${clock.now() - startMs} ms`);
  // Another size has to be compiled for.
  cluster.silence('c');
  await clock.runUntil(rounds.submit(inputs(2)));
  const longer = silentS(cluster.events, 'c');
  assert.ok(longer >= 10 && longer < 11, `${longer} s`);
  rounds.end();
  await clock.runUntil(cluster.coordinator.end);
});
