import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan, StagePlan } from '../../cluster/cluster.ts';
import { type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import { batches, subjectOf, wideNet } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import { Readiness } from './readiness.ts';

test('all devices have to answer, each once; what is repeated or was never asked says nothing', () => {
  const readiness = new Readiness(createVirtualClock());
  const heard: string[] = [];
  const first = readiness.ask(['a', 'b', 'a'], (isComplete) => heard.push(`first ${isComplete}`));
  const second = readiness.ask(['a'], () => heard.push('second'));
  readiness.answered('a', first);
  readiness.answered('a', first);
  readiness.answered('c', first);
  readiness.answered('a', 99);
  assert.deepEqual(heard, []);
  readiness.answered('a', second);
  assert.deepEqual(heard, ['second']);
  assert.equal(readiness.isAsking, true);
  readiness.answered('b', first);
  readiness.answered('b', first);
  assert.deepEqual(heard, ['second', 'first true']);
  assert.equal(readiness.isAsking, false);
});

test('devices that are gone, or take too long, are not waited for; of what is cleared nothing is heard', async () => {
  const clock = createVirtualClock();
  const readiness = new Readiness(clock);
  const heard: string[] = [];
  const gone = readiness.ask(['a', 'b'], () => heard.push('gone'));
  readiness.answered('a', gone);
  readiness.gone('b');
  readiness.gone('b');
  assert.deepEqual(heard, ['gone']);
  const cleared = readiness.ask(['a'], () => heard.push('cleared'));
  readiness.clear();
  readiness.answered('a', cleared);
  readiness.ask(['a', 'b'], (isComplete) => heard.push(`late after ${clock.now() - startMs} ms, ${isComplete}`));
  const startMs = clock.now();
  await clock.runUntil(new Promise<void>((resolve) => clock.after(60_000, resolve)));
  assert.deepEqual(heard, ['gone', 'late after 30000 ms, false']);
  assert.equal(readiness.isAsking, false);
});

/** A pipeline of two devices. */
function planOver(...devices: readonly [string, string]): Plan {
  const stages = devices.map(
    (device, index): StagePlan => ({
      layers: index === 0 ? [0, 1] : [1, 2],
      devices: [device],
      samples: [4],
      inFlight: 2 - index,
    }),
  );
  const predicted = { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: {} };
  return { planner: 'best', schedule: '1f1b', batchSize: 8, microBatchSize: 4, microBatchCount: 2, stages, predicted };
}

test('a faster layout is taken when the last of its devices is ready for it; until then training goes on', {
  timeout: 120_000,
}, async () => {
  const clock = createVirtualClock();
  const changing = { clock, bandwidthMbps: 2 };
  const net = wideNet();
  const subject = subjectOf(net, 8);
  const batch = batches(net, subject);
  const [asked, taken] = [
    [] as { atMs: number; roundCount: number; to: string }[],
    [] as { atMs: number; roundCount: number }[],
  ];
  const run: MemoryRun = {
    subject,
    batch: (round) => {
      if (round === 20) changing.bandwidthMbps = 0.1;
      return batch(round);
    },
    workerNames: ['a', 'b', 'c'],
    machine: { endRound: 100, replicateEvery: 1_000_000 },
    clock,
    links: { clock, bandwidthMbps: 2 },
    linkBetween: (a, b) => ([a, b].sort().join() === 'a,b' ? changing : undefined),
    choosePlan: () => planOver('a', 'b'),
    planAgain: async () => planOver('a', 'c'),
    observe: (event, { losses }) => {
      if (event.kind === 'deployment') taken.push({ atMs: clock.now(), roundCount: losses.length });
    },
  };
  const cluster = await startCluster(run);
  for (const [to, { coordinatorLink, link }] of cluster.workers) {
    const [toWorker, toCoordinator] = [coordinatorLink.send.bind(coordinatorLink), link.send.bind(link)];
    coordinatorLink.send = (frame, priority) => {
      if (frame.kind === 'reserve') asked.push({ atMs: clock.now(), roundCount: cluster.losses.length, to });
      return toWorker(frame, priority);
    };
    link.send = async (frame, priority) => {
      if (frame.kind === 'reserved' && to === 'c') await new Promise<void>((resolve) => clock.after(8_000, resolve));
      return toCoordinator(frame, priority);
    };
  }
  await clock.runUntil(cluster.outcome());
  assert.deepEqual(asked.map(({ to }) => to).slice(0, 2), ['a', 'c']);
  const [{ atMs, roundCount } = { atMs: Number.NaN, roundCount: Number.NaN }] = asked;
  const change = taken[1];
  assert.equal(taken.length, 2);
  assert.ok(
    change !== undefined && change.atMs >= atMs + 8_000 && change.atMs < atMs + 25_000,
    `${change?.atMs} ms, asked at ${atMs} ms`,
  );
  assert.ok(change.roundCount > roundCount, `${change.roundCount - roundCount} rounds meanwhile`);
});
