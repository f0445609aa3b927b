// A checkpoint of a stream is still being written when a device is lost. Its state is at hand, so the run goes on from
// there, when it is written: from an older copy it would take another course than the one that the checkpoint is of,
// and a loss after that lead back to the first. Each step waits for what it follows, none for a time.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { withStaleness } from '../../schedule/staleness.ts';
import { delayedOracle } from '../../testing/delayed-oracle.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { difference, type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import { batches, dropoutNet, subjectOf } from '../../testing/training-subjects.ts';
import type { RunEvent } from '../protocol/events.ts';
import { StreamParts } from './delayed-streams.ts';

const timeout = 60_000;
const checkpointRound = 4;
const endRound = 7;

/** When the checkpoint is written at last, and when c is lost after b. */
interface Course {
  /** The write ends with so many of the events. */
  readonly writtenWith: readonly [kind: 'recovering' | 'stream', count: number];
  /** The layout without b stands; or the data of this round are asked for. */
  readonly nextLoss: 'stream' | number;
}

const eventsOf = <Kind extends RunEvent['kind']>(
  events: readonly RunEvent[],
  kind: Kind,
): readonly Extract<RunEvent, { kind: Kind }>[] =>
  events.filter((event): event is Extract<RunEvent, { kind: Kind }> => event.kind === kind);

/** b is lost while the checkpoint is written, then c. The run has been compared with the oracle restarted likewise. */
async function runCourse({ writtenWith: [kind, count], nextLoss }: Course): Promise<void> {
  const net = dropoutNet();
  const subject = subjectOf(net, 4);
  const plan = handPlan(
    { schedule: 'async', cuts: [1, 2], shares: [[4], [4], [4]], microBatchCount: 1 },
    subject.sequence.layers.length,
  );
  const parts = new StreamParts();
  const written: number[] = [];
  let endWrite = (): void => {};
  const batch = batches(net, subject);
  const run: MemoryRun = {
    subject,
    plan: withStaleness(plan, {}),
    machine: { endRound, checkpointEvery: checkpointRound, learningRate: (round) => 0.1 / (round + 1) },
    batch: (round) => {
      if (round === nextLoss && parts.parts.length === 2) queueMicrotask(() => cluster.kill('c'));
      return batch(round);
    },
    observe: (event, { losses, events }) => {
      parts.observe(event, losses.length);
      if (event.kind === 'stream' && parts.parts.length === 2 && nextLoss === 'stream')
        queueMicrotask(() => cluster.kill('c'));
      if (event.kind === kind && eventsOf(events, kind).length === count) endWrite();
    },
    onCheckpoint: async (round) => {
      written.push(round);
      if (written.length > 1) return;
      cluster.kill('b');
      await new Promise<void>((resolve) => {
        endWrite = resolve;
      });
    },
  };
  const cluster = await startCluster(run);
  const found = await cluster.outcome();
  assert.deepEqual(written, [checkpointRound, endRound], 'each checkpoint is written once');
  assert.deepEqual(
    eventsOf(cluster.events, 'recovering').map((event) => [
      event.lost,
      event.round,
      event.source,
      event.repeatedRounds,
    ]),
    [
      [['b'], checkpointRound, 'checkpoint', 0],
      [['c'], checkpointRound, 'checkpoint', 0],
    ],
  );
  const oracle = await delayedOracle({ ...run, batch }, parts.parts, endRound);
  const { loss, weight, worst } = difference(found, { ...found, ...oracle });
  const text = JSON.stringify(parts.parts.map(({ first, recorded }) => [first, recorded]));
  assert.ok(loss <= 1e-5, `losses differ by ${loss}, streams ${text}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}, streams ${text}`);
}

const courses: Readonly<Record<string, Course>> = {
  'the write ends before the next layout stands': { writtenWith: ['recovering', 1], nextLoss: checkpointRound },
  'the next layout stands first, and waits': { writtenWith: ['stream', 2], nextLoss: checkpointRound },
  'another device is lost before the write ends': { writtenWith: ['recovering', 2], nextLoss: 'stream' },
};

for (const [title, course] of Object.entries(courses))
  test(`a device is lost while a checkpoint is written; ${title}`, { timeout }, () => runCourse(course));
