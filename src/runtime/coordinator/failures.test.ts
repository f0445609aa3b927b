// What ends a run: lost links at every phase, between any two devices, and numbers that are not finite. It always ends with one sentence that names the
// device; everybody else ends with the run, and nothing waits for ever.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { RunError } from '../../errors.ts';
import { tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import { cut, type MemoryCluster, type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import { batches, regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import { defaultFrameLimits } from '../../transport/frame.ts';
import { defaultLinkLimits } from '../../transport/wire-link.ts';
import type { WorkerEnd } from '../worker/worker.ts';
import type { Phase } from './machine-types.ts';

const timeout = 20_000;
const predicted = { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} };
const hybrid: HandPlan = { schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 };

function runOf(plan: HandPlan = hybrid): MemoryRun {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  return { subject, batch: batches(net, subject), plan: handPlan(plan, 4), machine: { endRound: 4, checkpointEvery: 2 } };
}

/** The same run with everything measured first. */
function measuredRun(): MemoryRun {
  const { plan, ...rest } = runOf();
  const choosePlan = (_profile: Profile, _cluster: Cluster): Plan => ({ ...(plan as NonNullable<typeof plan>), predicted });
  return { ...rest, workerNames: ['a', 'b', 'c'], choosePlan, links: { bandwidthMbps: 10_000 } };
}

/** The sentence that the run ends with, and how the workers ended. */
async function failure(cluster: MemoryCluster): Promise<{ message: string; ends: ReadonlyMap<string, WorkerEnd> }> {
  let message = '';
  await assert.rejects(cluster.coordinator.end, (error) => {
    assert.ok(error instanceof RunError, String(error));
    message = error.message;
    return true;
  });
  const ends = await cluster.workersEnd();
  for (const name of cluster.workers.keys()) for (const end of cluster.peerLink(name, 'a') ?? []) await end.ended;
  return { message, ends };
}

const where: readonly (readonly [Phase, RegExp])[] = [
  ['preparing', /^Training ended: b left while preparing \(the connection was lost\); nothing was saved yet\.$/],
  ['connecting', /^Training ended: b left while connecting \(the connection was lost\); nothing was saved yet\.$/],
  ['measuring', /^Training ended: b left while measuring \(the connection was lost\); nothing was saved yet\.$/],
  ['profiling', /^Training ended: b left while profiling \(the connection was lost\); nothing was saved yet\.$/],
  ['deploying', /^Training ended: b left while deploying \(the connection was lost\); nothing was saved yet\.$/],
  ['training', /^Training ended: b left in round 0 \(the connection was lost\); nothing was saved yet\.$/],
];

for (const [phase, expected] of where) {
  test(`a device that is lost while ${phase} ends the run and the other devices`, { timeout }, async () => {
    const cluster = await startCluster({
      ...measuredRun(),
      observe: (event, { workers }) => {
        // As the first thing that happens in the phase, before any answer.
        if (event.kind === 'phase' && event.phase === phase) queueMicrotask(() => workers.get('b')?.cut());
      },
    });
    const { message, ends } = await failure(cluster);
    assert.match(message, expected);
    assert.deepEqual(ends.get('b'), { clean: false, reason: 'the coordinator is gone: the connection was lost' });
    for (const name of ['a', 'c']) {
      assert.equal(ends.get(name)?.clean, true);
      assert.match(ends.get(name)?.reason ?? '', /^b left /);
    }
    assert.deepEqual(
      cluster.events.filter((event) => event.kind === 'left').map((event) => event.device),
      ['b'],
    );
  });
}

test('a device that is lost in a snapshot: the checkpoint before is the last, and the sentence says so', { timeout }, async () => {
  const cluster = await startCluster({
    ...runOf(),
    observe: (event, { losses, workers }) => {
      // The second snapshot: everything is asked for by then, and c has begun to send.
      if (event.kind === 'statistics' && event.device === 'a' && losses.length === 4) workers.get('c')?.cut();
    },
  });
  const { message } = await failure(cluster);
  assert.equal(
    message,
    'Training ended: c left in round 4 (the connection was lost); the last checkpoint is after round 2; continue with --resume.',
  );
  assert.deepEqual([...cluster.checkpoints.keys()], [2]);
  assert.equal(cluster.losses.length, 4);
});

test('a device that is lost while others are awaited is missed; another may take its place', { timeout }, async () => {
  const run = runOf();
  const cluster = await startCluster({ ...run, workerNames: [], machine: { ...run.machine, workerCount: 3 } });
  await cluster.addWorker('b');
  const first = cluster.workers.get('b');
  assert.ok(first !== undefined);
  first.cut();
  assert.equal((await first.end).clean, false);
  for (const name of ['c', 'b', 'a']) await cluster.addWorker(name);
  const { losses } = await cluster.outcome();
  assert.equal(losses.length, 4);
});

for (const [name, peer] of [
  ['a', 'b'],
  ['a', 'c'],
  ['b', 'c'],
] as const) {
  test(`the link between ${name} and ${peer} is lost while training: one of them says so when the coordinator has not`, {
    timeout,
  }, async () => {
    const clock = createVirtualClock();
    const cluster = await startCluster({
      ...runOf(),
      clock,
      links: { clock },
      observe: (event, cluster) => {
        if (event.kind !== 'trace' || event.round !== 1) return;
        cut(...(cluster.peerLink(name, peer) ?? []));
      },
    });
    const { message, ends } = await clock.runUntil(failure(cluster));
    assert.match(
      message,
      new RegExp(`^Training ended: [${name}${peer}] cannot go on: the link to [${name}${peer}] ended: the connection was lost; `),
    );
    assert.equal([...ends.values()].filter(({ clean }) => !clean).length >= 1, true);
  });
}

for (const phase of ['measuring', 'profiling', 'deploying'] as const) {
  test(`a link between two devices that is lost while ${phase} is noticed, not waited for`, { timeout }, async () => {
    const clock = createVirtualClock();
    const cluster = await startCluster({
      ...measuredRun(),
      clock,
      links: { clock, bandwidthMbps: 100, latencyMs: 2 },
      observe: (event, cluster) => {
        if (event.kind !== 'phase' || event.phase !== phase) return;
        // While measuring, in the middle of the first of a's links.
        clock.after(5, () => cut(...(cluster.peerLink('a', phase === 'measuring' ? 'b' : 'c') ?? [])));
      },
    });
    const { message } = await clock.runUntil(failure(cluster));
    assert.match(message, /^Training ended: [abc] cannot go on: (the link to [abc] ended|There is no link from [ac] to [ac])/);
  });
}

test('measured links are what the network is', { timeout }, async () => {
  const clock = createVirtualClock();
  const cluster = await startCluster({ ...measuredRun(), clock, links: { clock, bandwidthMbps: 80, latencyMs: 3 } });
  await clock.runUntil(cluster.outcome());
  const found = cluster.events.find((event) => event.kind === 'cluster');
  assert.ok(found !== undefined);
  const { devices, links } = found.cluster;
  // Four of them share this machine's memory.
  assert.deepEqual(
    devices,
    ['a', 'b', 'c'].map((name) => ({ name, memoryMiB: 1365 })),
  );
  assert.deepEqual(
    links.pairs?.map(({ between }) => between.join()),
    ['a,b', 'a,c', 'b,c'],
  );
  for (const { bandwidthMbps, latencyMs = 0 } of links.pairs ?? []) {
    assert.ok(Math.abs(bandwidthMbps - 80) < 4, `${bandwidthMbps} Mbps`);
    assert.ok(Math.abs(latencyMs - 3) < 0.2, `${latencyMs} ms`);
  }
});

test('a device that the plan leaves out goes, and the others train on', { timeout }, async () => {
  const plan = { ...handPlan({ schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 4), predicted };
  const run = measuredRun();
  const cluster = await startCluster({
    ...run,
    choosePlan: () => ({ ...plan, stages: plan.stages.map((stage, index) => ({ ...stage, devices: [index === 0 ? 'c' : 'a'] })) }),
  });
  const { losses } = await cluster.outcome();
  assert.equal(losses.length, 4);
  assert.deepEqual(await cluster.workers.get('b')?.end, { clean: true, reason: 'the plan is faster without this device' });
});

test('one device too many is told so; what it sends changes nothing', { timeout }, async () => {
  const cluster = await startCluster(runOf());
  const extra = cluster.joinAlone('d');
  const kinds: string[] = [];
  extra.receive((frame) => {
    kinds.push(frame.kind);
    const weights = tensor('float32', [7], new Array(7).fill(9));
    void extra.send({
      kind: 'prepared',
      epoch: 0,
      round: -1,
      microBatch: -1,
      control: { round: 0, lossSum: 1e9, correctCount: 0, squaredNorm: 0, finite: true, roundMs: 1, busyMs: 1 },
    });
    void extra.send({
      kind: 'statistics',
      epoch: 0,
      round: -1,
      microBatch: -1,
      control: { eventLoopDelayP99Ms: 1, eventLoopDelayMaxMs: 1, peakMemoryMiB: 1 },
    });
    void extra.send({
      kind: 'state',
      epoch: 0,
      round: -1,
      microBatch: -1,
      control: { role: 'parameter', name: 'a.bias' },
      tensors: [weights],
    });
  });
  const { losses, state } = await cluster.outcome();
  assert.deepEqual(kinds, ['end']);
  assert.ok(losses.every((loss) => loss < 100));
  assert.ok(state.parameter.get('a.bias')?.data[0] !== 9);
  assert.deepEqual(
    cluster.events.filter((event) => 'device' in event && event.device === 'd').map(({ kind }) => kind),
    ['joined'],
  );
  assert.deepEqual(await extra.ended, { clean: true, reason: 'the run is over' });
});

test('a loss that is not finite ends the run, on all devices, before anything of the round is committed', { timeout }, async () => {
  const run = runOf();
  const cluster = await startCluster({
    ...run,
    machine: { endRound: 4, checkpointEvery: 1 },
    batch: (round) => {
      const { inputs, labels } = run.batch(round);
      return round < 2
        ? { inputs, labels }
        : { inputs, labels: { ...labels, data: new Float32Array(labels.data.length).fill(Number.NaN) } };
    },
  });
  const { message, ends } = await failure(cluster);
  const sentence =
    'the loss or a gradient of round 2 is not a finite number: lower the learning rate (--lr) or clip gradients (--clip-norm)';
  assert.equal(message, `Training ended: ${sentence}; the last checkpoint is after round 2; continue with --resume.`);
  assert.deepEqual([...cluster.checkpoints.keys()], [1, 2]);
  assert.equal(cluster.losses.length, 2);
  for (const end of ends.values()) assert.deepEqual(end, { clean: true, reason: sentence });
  for (const state of cluster.checkpoints.values()) {
    for (const { data } of state.parameter.values()) assert.ok((data as Float32Array).every(Number.isFinite));
  }
});

test('a learning rate that lets the weights overflow ends the same way', { timeout }, async () => {
  const cluster = await startCluster({ ...runOf(), machine: { endRound: 20, learningRate: () => 1e20 } });
  const { message } = await failure(cluster);
  assert.match(message, /^Training ended: the loss or a gradient of round \d+ is not a finite number: lower the learning rate/);
});

test('a stop while training commits what has begun, writes a checkpoint and ends everybody; before training it ends at once', {
  timeout,
}, async () => {
  const run = runOf();
  const training = await startCluster({
    ...run,
    machine: { endRound: 1000 },
    observe: (event, { coordinator }) => {
      if (event.kind === 'trace' && event.round === 2) coordinator.stop();
    },
  });
  const { end, losses, checkpoints } = await training.outcome();
  assert.equal(end.stopped, true);
  assert.equal(losses.length, end.round);
  assert.ok(end.round >= 3 && end.round <= 5, String(end.round));
  assert.deepEqual([...checkpoints.keys()], [end.round]);
  for (const worker of training.workers.values()) assert.deepEqual(await worker.end, { clean: true, reason: 'the run was stopped' });

  const early = await startCluster({
    ...run,
    observe: (event, { coordinator }) => event.kind === 'phase' && event.phase === 'connecting' && coordinator.stop(),
  });
  assert.deepEqual(await early.coordinator.end, { round: 0, stopped: true });
  await early.workersEnd();
});

test('what fails on our own side ends the run with that error: the data, the plan, the checkpoint, an observer', { timeout }, async () => {
  const broken = (what: string): never => {
    throw new RunError(`${what} is broken`);
  };
  const run = runOf();
  const runs: readonly (readonly [string, MemoryRun])[] = [
    ['the data', { ...run, batch: (round) => (round === 1 ? broken('the data') : run.batch(round)) }],
    ['the plan', { ...measuredRun(), choosePlan: () => broken('the plan') }],
    ['the disk', { ...run, onCheckpoint: async () => broken('the disk') }],
    ['the observer', { ...run, observe: (event) => event.kind === 'trace' && broken('the observer') }],
    ['the phase', { ...run, observe: (event) => event.kind === 'phase' && event.phase === 'deploying' && broken('the phase') }],
  ];
  for (const [what, failing] of runs) {
    const cluster = await startCluster(failing);
    const { message, ends } = await failure(cluster);
    assert.match(message, new RegExp(`${what} is broken`));
    assert.equal(ends.size, 3);
  }
});

test('a message that no link takes ends the run, not in silence', { timeout }, async () => {
  const limits = { ...defaultLinkLimits, frame: { ...defaultFrameLimits, frameBytes: 600 } };
  const { message } = await failure(await startCluster({ ...runOf(), links: { limits } }));
  assert.match(
    message,
    /^Training ended: [abc] left while preparing \(a model frame has \d+ bytes, more than the 600 a link takes\); nothing was saved yet\.$/,
  );
  // The same for weights that are not what their shape says.
  const run = runOf();
  const broken = { ...tensor('float32', [7], new Array(7).fill(0)), data: new Float32Array(3) };
  const state = { ...run.subject.state, parameter: new Map([...run.subject.state.parameter, ['c.bias', broken] as const]) };
  const end = await failure(await startCluster({ ...run, subject: { ...run.subject, state } }));
  assert.match(
    end.message,
    /^Training ended: c left while deploying \(Asteroid made a mistake: state frame has a float32 tensor of shape \[7\] with 3 elements/,
  );
});

test('a worker whose engine fails says why, and the run ends with its words', { timeout }, async () => {
  const cluster = await startCluster({
    ...runOf(),
    createEngine: (device) => {
      const engine = createReferenceEngine();
      if (device !== 'b') return engine;
      return Object.assign(Object.create(engine) as typeof engine, {
        name: engine.name,
        compile: () => Promise.reject(new RunError('out of memory')),
        settled: () => engine.settled(),
        close: () => engine.close(),
      });
    },
  });
  const { message, ends } = await failure(cluster);
  assert.equal(message, 'Training ended: b cannot go on: out of memory; nothing was saved yet.');
  assert.deepEqual(ends.get('b'), { clean: false, reason: 'out of memory' });
});

test('on a network that damages messages a run ends well or with one sentence, 40 times', { timeout }, async () => {
  let failureCount = 0;
  for (let seed = 0; seed < 40; seed++) {
    const random = createRandom(seed, 0xbad);
    const clock = createVirtualClock();
    const cluster = await startCluster({
      ...runOf(),
      clock,
      links: {
        clock,
        tamper: (message) => {
          if (random.integer(150) > 0) return [message];
          const kind = random.integer(3);
          if (kind === 0) return [message, Uint8Array.from(message)]; // doubled
          if (kind === 1) return [message.subarray(0, random.integer(message.length))]; // cut
          const at = random.integer(message.length);
          message[at] = (message[at] as number) ^ (1 << random.integer(8));
          return [message];
        },
      },
    });
    try {
      const { losses } = await clock.runUntil(cluster.outcome());
      assert.equal(losses.length, 4);
    } catch (error) {
      assert.ok(error instanceof RunError, `seed ${seed}: ${String(error)}`);
      assert.match(error.message, /^Training ended: [abc] (left|cannot go on)/, `seed ${seed}`);
      failureCount++;
    }
  }
  assert.ok(failureCount >= 10 && failureCount < 40, String(failureCount));
});
