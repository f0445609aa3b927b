// What a run survives: devices that are lost in every phase, fall silent, or send nonsense. Only the loss of the last
// device ends it.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { tensor } from '../../graph/tensor.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { expectNothingLost, hybridRun, measuredRun, runFailure } from '../../testing/losing-run.ts';
import { startCluster } from '../../testing/memory-cluster.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';

const timeout = 60_000;

for (const phase of [
  'preparing',
  'connecting',
  'measuring',
  'profiling',
  'planning',
  'deploying',
  'training',
  'snapshotting',
] as const) {
  test(`a device that is lost while ${phase} costs nothing but time`, { timeout }, async () => {
    let isKilled = false;
    const clock = createVirtualClock();
    const cluster = await startCluster({
      ...measuredRun(),
      clock,
      links: { clock, bandwidthMbps: 10_000 },
      observe: (event, running) => {
        const isNow =
          phase === 'snapshotting'
            ? event.kind === 'statistics' && event.device === 'a' && running.losses.length === 2
            : event.kind === 'phase' && event.phase === phase;
        if (!isNow || isKilled) return;
        isKilled = true;
        // As the first thing that happens in the phase, before any answer.
        queueMicrotask(() => running.kill('b'));
      },
    });
    await expectNothingLost(cluster, clock.runUntil(cluster.outcome()));
    // Nobody waits for the call of a device that is known to be gone: that would be ten seconds.
    if (phase === 'connecting') assert.ok(clock.now() < 5_000, `${clock.now()} ms`);
    const ends = await cluster.workersEnd();
    assert.deepEqual(ends.get('b'), {
      clean: false,
      lost: true,
      reason: 'the coordinator is gone: the connection was lost',
    });
    for (const name of ['a', 'c']) assert.deepEqual(ends.get(name), { clean: true, reason: 'the run is done' });
    assert.deepEqual(
      cluster.events.filter((event) => event.kind === 'left').map((event) => event.device),
      ['b'],
    );
  });
}

test('when the last device is lost, the run ends and says from where it can be resumed', { timeout }, async () => {
  const cluster = await startCluster({
    ...hybridRun(),
    observe: (event, running) => {
      if (event.kind === 'trace' && event.round === 2 && event.device === 'c')
        for (const name of ['a', 'b', 'c']) running.kill(name);
    },
  });
  const { message } = await runFailure(cluster);
  assert.match(
    message,
    /^Training ended: [abc] left (in round [23]|while (planning|deploying)) \(the connection was lost\); the last /,
  );
  assert.ok(message.endsWith('; the last checkpoint is after round 2; continue with --resume.'), message);
  assert.deepEqual([...cluster.checkpoints.keys()], [2]);
});

test('a device may be lost while others are awaited, and another may take its place', { timeout }, async () => {
  const run = hybridRun();
  const cluster = await startCluster({ ...run, workerNames: [], machine: { ...run.machine, workerCount: 3 } });
  await cluster.addWorker('b');
  const first = cluster.workers.get('b');
  assert.ok(first !== undefined);
  first.cut();
  assert.equal((await first.end).clean, false);
  for (const name of ['c', 'b', 'a']) await cluster.addWorker(name);
  await expectNothingLost(cluster);
});

test('a device that falls silent is asked and given up; what it sends later is ignored', { timeout }, async () => {
  const clock = createVirtualClock();
  const cluster = await startCluster({
    ...hybridRun(),
    clock,
    links: { clock },
    observe: (event, running) => {
      // b hears nothing any more, and nobody hears it, but its connections stand.
      if (event.kind === 'trace' && event.round === 1 && event.device === 'b') running.silence('b');
    },
  });
  await expectNothingLost(cluster, clock.runUntil(cluster.outcome()));
  const suspected = cluster.events.find((event) => event.kind === 'suspected');
  assert.ok(
    suspected !== undefined && suspected.device === 'b' && suspected.silentMs >= 1500 && suspected.silentMs < 2000,
    JSON.stringify(suspected),
  );
  const left = cluster.events.find((event) => event.kind === 'left');
  assert.match(left?.reason ?? '', /^no sign of life for 3\.\d s, with 3\.0 s allowed$/);
});

test('a device that the plan leaves out stays as a spare and takes the place of one that is lost', {
  timeout,
}, async () => {
  const two = handPlan({ schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 4);
  const withSpare = {
    ...two,
    stages: two.stages.map((stage, index) => ({ ...stage, devices: [index === 0 ? 'c' : 'a'] })),
    predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
  };
  const cluster = await startCluster({
    ...measuredRun(),
    choosePlan: () => withSpare,
    observe: (event, running) => {
      if (event.kind === 'replicated' && event.round === 0) queueMicrotask(() => running.kill('c'));
    },
  });
  await expectNothingLost(cluster);
  const recovering = cluster.events.find((event) => event.kind === 'recovering');
  assert.deepEqual(
    recovering?.plan.stages.map(({ devices }) => devices),
    [['b'], ['a']],
  );
  assert.equal(recovering?.source, 'devices');
});

test('a device that joins during the run and breaks the protocol is sent away; what it sends changes nothing', {
  timeout,
}, async () => {
  const run = hybridRun();
  const cluster = await startCluster({
    ...run,
    observe: (event, running) => {
      if (event.kind !== 'trace' || event.round !== 0 || event.device !== 'a') return;
      const extra = running.joinAlone('d');
      extra.receive(() => {
        const control = {
          round: 0,
          lossSum: 1e9,
          correctCount: 0,
          squaredNorm: 0,
          finite: true,
          roundMs: 1,
          busyMs: 1,
        };
        for (const epoch of [0, 1, 2, 3, 4, 5, 6]) {
          // sent away by then
          void extra.send({ kind: 'prepared', epoch, round: -1, microBatch: -1, control }).catch(() => {});
        }
        const tensors = [tensor('float32', [7], new Array(7).fill(9))];
        const weights = { role: 'parameter', name: 'a.bias' };
        void extra
          .send({ kind: 'state', epoch: 5, round: -1, microBatch: -1, control: weights, tensors })
          .catch(() => {});
      });
    },
  });
  await expectNothingLost(cluster);
  const left = cluster.events.find((event) => event.kind === 'left');
  assert.equal(left?.device, 'd');
});
