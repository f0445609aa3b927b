// What a run survives: devices and links that are lost in every phase, and what it does not: the last device, and
// numbers that are not finite. Then it ends with one sentence that names the device; everybody else ends with the run,
// and nothing waits for ever.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { processMiB } from '../../cluster/memory.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { RunError } from '../../errors.ts';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { type HandPlan, handPlan } from '../../testing/hand-plans.ts';
import {
  cut,
  difference,
  type MemoryCluster,
  type MemoryRun,
  type Outcome,
  runAlone,
  startCluster,
} from '../../testing/memory-cluster.ts';
import { batches, regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import { defaultFrameLimits } from '../../transport/frame.ts';
import { defaultLinkLimits } from '../../transport/wire-link.ts';
import type { MeasuredProfile, ProfileCache } from '../device/measure/profiler.ts';
import type { WorkerEnd } from '../worker/options.ts';

const timeout = 60_000;
const predicted = { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} };
const hybrid: HandPlan = { schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 };

function runOf(plan: HandPlan = hybrid): MemoryRun {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  return {
    subject,
    batch: batches(net, subject),
    plan: handPlan(plan, 4),
    machine: { endRound: 4, checkpointEvery: 2 },
  };
}

const measured = new Map<string, MeasuredProfile>();

/** All devices here are alike: one measures, for all tests. */
const profileCache: ProfileCache = {
  read: async (key) => measured.get(key),
  write: async (key, profile) => {
    measured.set(key, profile);
  },
};

/** A plan for the devices that are there. */
function planFor(devices: readonly string[]): Plan {
  const layers = (first: number, end: number): readonly [number, number] => [first, end];
  const stages = [{ layers: layers(0, 4), devices: devices.slice(0, 1), samples: [4], inFlight: 1 }];
  const two = handPlan({ schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 4);
  if (devices.length === 1) return { ...two, stages, predicted };
  if (devices.length === 2)
    return {
      ...two,
      stages: two.stages.map((stage, index) => ({ ...stage, devices: devices.slice(index, index + 1) })),
      predicted,
    };
  return { ...handPlan(hybrid, 4), predicted };
}

/** The same run with everything measured first. */
function measuredRun(): MemoryRun {
  const { plan: _, ...rest } = runOf();
  const choosePlan = (_profile: Profile, { devices }: Cluster): Plan => planFor(devices.map(({ name }) => name));
  return { ...rest, workerNames: ['a', 'b', 'c'], choosePlan, profileCache, links: { bandwidthMbps: 10_000 } };
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

/** The run has ended as if nothing had happened. */
async function expectNothingLost(cluster: MemoryCluster, outcome: Promise<Outcome> = cluster.outcome()): Promise<void> {
  const run = runOf();
  const alone = await runAlone({ ...run, microBatchSize: 4 });
  const { loss, weight, worst } = difference(await outcome, alone);
  assert.ok(loss <= 1e-5, `losses differ by ${loss}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}`);
}

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

test('when the last device is lost, the run ends and says from where it can go on', { timeout }, async () => {
  const cluster = await startCluster({
    ...runOf(),
    observe: (event, running) => {
      if (event.kind === 'trace' && event.round === 2 && event.device === 'c')
        for (const name of ['a', 'b', 'c']) running.kill(name);
    },
  });
  const { message } = await failure(cluster);
  assert.match(
    message,
    /^Training ended: [abc] left (in round [23]|while (planning|deploying)) \(the connection was lost\); the last checkpoint is after round 2; continue with --resume\.$/,
  );
  assert.deepEqual([...cluster.checkpoints.keys()], [2]);
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
  await expectNothingLost(cluster);
});

for (const [name, peer] of [
  ['a', 'b'],
  ['a', 'c'],
  ['b', 'c'],
] as const) {
  test(`the link between ${name} and ${peer} is lost while training: both live, and link anew`, {
    timeout,
  }, async () => {
    const clock = createVirtualClock();
    let isCut = false;
    const cluster = await startCluster({
      ...runOf(),
      clock,
      links: { clock },
      observe: (event, running) => {
        if (event.kind !== 'trace' || event.round !== 1 || isCut) return;
        isCut = true;
        cut(...(running.peerLink(name, peer) ?? []));
      },
    });
    await expectNothingLost(cluster, clock.runUntil(cluster.outcome()));
    assert.deepEqual(
      cluster.events.filter((event) => event.kind === 'left'),
      [],
    );
    const causes = cluster.events.flatMap((event) => (event.kind === 'recovering' ? [event.cause] : []));
    // a and b exchange nothing but sums, at the end of the round.
    assert.match(
      causes.join(),
      new RegExp(`the link between [${name}${peer}] and [${name}${peer}] broke \\(the connection was lost\\)`),
    );
  });
}

for (const phase of ['measuring', 'profiling', 'deploying'] as const) {
  test(`a link between two devices that is lost while ${phase} is made anew when it is needed`, {
    timeout,
  }, async () => {
    const clock = createVirtualClock();
    const cluster = await startCluster({
      ...measuredRun(),
      clock,
      links: { clock, bandwidthMbps: 100, latencyMs: 2 },
      observe: (event, running) => {
        if (event.kind !== 'phase' || event.phase !== phase) return;
        // While measuring, in the middle of the first of a's links.
        clock.after(5, () => cut(...(running.peerLink('a', phase === 'measuring' ? 'b' : 'c') ?? [])));
      },
    });
    await expectNothingLost(cluster, clock.runUntil(cluster.outcome()));
  });
}

test('a device that falls silent is asked, given up, and what it says later is not heard', { timeout }, async () => {
  const clock = createVirtualClock();
  const cluster = await startCluster({
    ...runOf(),
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
    ['a', 'b', 'c'].map((name) => ({ name, memoryMiB: 1365 - processMiB })),
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

test('a device that the plan leaves out stays as a spare and takes the place of one that is lost', {
  timeout,
}, async () => {
  const two = handPlan({ schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 4);
  const withSpare = {
    ...two,
    stages: two.stages.map((stage, index) => ({ ...stage, devices: [index === 0 ? 'c' : 'a'] })),
    predicted,
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

test('a device that comes during the run and does not keep to the protocol is sent away; what it sends changes nothing', {
  timeout,
}, async () => {
  const run = runOf();
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

test('a loss that is not finite ends the run, on all devices, before anything of the round is committed', {
  timeout,
}, async () => {
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
  assert.match(
    message,
    /^Training ended: the loss or a gradient of round \d+ is not a finite number: lower the learning rate/,
  );
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
  for (const worker of training.workers.values())
    assert.deepEqual(await worker.end, { clean: true, reason: 'the run was stopped' });

  const early = await startCluster({
    ...run,
    observe: (event, { coordinator }) => event.kind === 'phase' && event.phase === 'connecting' && coordinator.stop(),
  });
  assert.deepEqual(await early.coordinator.end, { round: 0, stopped: true });
  await early.workersEnd();
});

test('what fails on our own side ends the run with that error: the data, the plan, the checkpoint, an observer', {
  timeout,
}, async () => {
  const broken = (what: string): never => {
    throw new RunError(`${what} is broken`);
  };
  const run = runOf();
  const runs: readonly (readonly [string, MemoryRun])[] = [
    ['the data', { ...run, batch: (round) => (round === 1 ? broken('the data') : run.batch(round)) }],
    ['the plan', { ...measuredRun(), choosePlan: () => broken('the plan') }],
    ['the disk', { ...run, onCheckpoint: async () => broken('the disk') }],
    ['the observer', { ...run, observe: (event) => event.kind === 'trace' && broken('the observer') }],
    [
      'the phase',
      { ...run, observe: (event) => event.kind === 'phase' && event.phase === 'deploying' && broken('the phase') },
    ],
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
  const state = {
    ...run.subject.state,
    parameter: new Map([...run.subject.state.parameter, ['c.bias', broken] as const]),
  };
  const end = await failure(await startCluster({ ...run, subject: { ...run.subject, state } }));
  assert.match(
    end.message,
    /^Training ended: [abc] left while deploying \(Asteroid made a mistake: state frame has a float32 tensor of shape \[7\] with 3 elements/,
  );
});

function brokenEngine(): Engine {
  const engine = createReferenceEngine();
  return Object.assign(Object.create(engine) as typeof engine, {
    name: engine.name,
    compile: () => Promise.reject(new RunError('out of memory')),
    settled: () => engine.settled(),
    computed: () => engine.computed(),
    valueBytes: () => engine.valueBytes(),
    busyMs: () => engine.busyMs(),
    upload: (value: Tensor) => engine.upload(value),
    download: (value: Value) => engine.download(value),
    take: (value: Value) => engine.take(value),
    release: (value: Value) => engine.release(value),
    trim: () => engine.trim(),
    close: () => engine.close(),
  });
}

test('a worker whose engine fails says why, and the others go on; what ails two of them alike ends the run with their words', {
  timeout,
}, async () => {
  const one = await startCluster({
    ...runOf(),
    createEngine: (device) => (device === 'b' ? brokenEngine() : createReferenceEngine()),
  });
  await expectNothingLost(one);
  assert.deepEqual((await one.workersEnd()).get('b'), { clean: false, reason: 'out of memory' });
  const two = await startCluster({
    ...runOf(),
    createEngine: (device) => (device === 'a' ? createReferenceEngine() : brokenEngine()),
  });
  const { message } = await failure(two);
  assert.match(message, /^Training ended: [bc] cannot go on: out of memory; nothing was saved yet\.$/);
});

test('on a network that damages messages a run ends well or with one sentence, 20 times', {
  timeout: 60_000,
}, async () => {
  let failureCount = 0;
  for (let seed = 0; seed < 20; seed++) {
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
      assert.ok(error instanceof RunError, `seed ${seed}: ${error instanceof Error ? error.stack : String(error)}`);
      assert.match(
        error.message,
        /^Training ended: ([abc] (left|cannot go on)|the link)/,
        `seed ${seed}: ${error.message}`,
      );
      failureCount++;
    }
  }
  assert.ok(failureCount < 10, String(failureCount));
});
