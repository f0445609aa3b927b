// FTPipeHD's and ResPipe's ways of going on, over real workers in this process: capacities from what batches took, the
// model partitioned again while it is trained, and losses. Whatever happens, losses and weights are those of the oracle
// with late gradients, restarted where the run's events say that a stream begins: no batch is applied twice, none is
// left out.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { plan } from '../../planner/plan.ts';
import { createRandom } from '../../random.ts';
import { withStaleness } from '../../schedule/staleness.ts';
import { delayedOracle } from '../../testing/delayed-oracle.ts';
import { difference, type MemoryCluster, type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import { batches, chainOfLinears, subjectOf, type TestNet } from '../../testing/training-subjects.ts';
import { createVirtualClock, type VirtualClock } from '../../testing/virtual-clock.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import { type RecoveryPolicy, recoveryPolicies } from '../knowledge/recovery-policies.ts';
import type { RunEvent } from '../protocol/events.ts';
import { StreamParts } from './delayed-streams.ts';

const timeout = 120_000;
/** Seven layers that take no time: the work here is what happens between them. */
const net: TestNet = { graph: chainOfLinears(6).graph, loss: 'mse', classCount: 0 };
const subject = subjectOf(net, 4);

/** All layers alike: a batch takes the central node 3 ms in each. */
const layerMs = 3;
const profileCache: ProfileCache = {
  read: async () => ({
    layers: subject.sequence.layers.map(({ name }) => ({
      name,
      outputBytes: 4,
      weightBytes: 4,
      savedBytes: 4,
      flops: 1,
    })),
    times: {
      forwardMs: [subject.sequence.layers.map(() => 1)],
      backwardMs: [subject.sequence.layers.map(() => layerMs - 1)],
    },
    cached: true,
  }),
  write: async () => {},
};

interface Given {
  readonly policy: RecoveryPolicy;
  /** How many times as long as the central node devices take. Default 1. */
  readonly factors?: Readonly<Record<string, number>>;
  readonly endRound?: number;
  readonly checkpointEvery?: number;
  readonly copyEvery?: number;
  /** Devices that are lost when the data of a round are asked for. */
  readonly losses?: readonly { readonly device: string; readonly atRound: number }[];
  /** Time passes when nothing else can happen. Default: real time. */
  readonly clock?: VirtualClock;
  readonly isDropped?: (from: string, to: string) => boolean;
  readonly observe?: MemoryRun['observe'];
}

/** Their policy, with periods for few rounds. */
const theirs: RecoveryPolicy = { ...recoveryPolicies.ftpipehd, repartition: { first: 3, every: 27 } };

/** An engine that has computed, each time it is asked after a batch, what `layersOf` layers take a device. */
function engineOf(layersOf: () => number, factor: number): ReturnType<typeof createReferenceEngine> {
  let busyMs = 0;
  return Object.assign(createReferenceEngine(), {
    busyMs: () => {
      busyMs += layersOf() * layerMs * factor;
      return busyMs;
    },
  });
}

/** Links that take time, if there is a clock, and may drop what is sent. */
function linksOf({ clock, isDropped = () => false }: Given): Pick<MemoryRun, 'clock' | 'links' | 'linkBetween'> {
  if (clock === undefined) return {};
  const links = { clock, bandwidthMbps: 1000, latencyMs: 1 };
  return {
    ...{ clock, links },
    linkBetween: (one, other) => ({
      ...links,
      tamper: (message, from) => (isDropped(from, from === one ? other : one) ? [] : [message]),
    }),
  };
}

/** Three workers whose first plan is the planner's. `layersOf`: how many layers a device has now. */
function runOf(given: Given, layersOf: (device: string) => number): MemoryRun & { readonly endRound: number } {
  const { policy, factors = {}, endRound = 14, checkpointEvery = 10, copyEvery = 5 } = given;
  const batching = { planner: 'ftpipehd', schedule: 'async', batchSize: 4, microBatchSize: 4 };
  return {
    subject,
    endRound,
    batch: batches(net, subject),
    workerNames: ['a', 'b', 'c'],
    machine: {
      ...{ endRound, checkpointEvery, replicateEvery: copyEvery, replicatesAtMultiples: true },
      ...{ batchSizesToProfile: [4], thoroughness: 'quick' },
    },
    factsOf: () => ({ cpuModel: 'all alike: one link is measured for all' }),
    profileCache,
    recovery: policy,
    choosePlan: (profile, cluster) =>
      withStaleness(plan({ ...{ profile, cluster, ...batching }, optimizerState: 1 }), {}),
    createEngine: (device) => engineOf(() => layersOf(device), factors[device] ?? 1),
    ...linksOf(given),
  };
}

/** Runs three workers to the end, and compares with the oracle. */
async function runWith(given: Given): Promise<MemoryCluster> {
  const parts = new StreamParts();
  const due = [...(given.losses ?? [])];
  let layout: PlanLayout | undefined;
  const run = runOf(given, (device) => {
    const [first, end] = layout?.stages.find(({ devices }) => devices.includes(device))?.layers ?? [0, 0];
    return end - first;
  });
  const cluster = await startCluster({
    ...run,
    batch: (round) => {
      const lost = due.findIndex(({ atRound }) => atRound <= round);
      for (const { device } of lost < 0 ? [] : due.splice(lost, 1)) queueMicrotask(() => cluster.kill(device));
      return run.batch(round);
    },
    observe: (event, running) => {
      given.observe?.(event, running);
      if (event.kind === 'deployment') layout = event.plan;
      parts.observe(event, running.losses.length);
    },
  });
  const found = await (given.clock === undefined ? cluster.outcome() : given.clock.runUntil(cluster.outcome()));
  assert.equal(found.losses.length, run.endRound);
  const oracle = await delayedOracle(run, parts.parts, run.endRound);
  const { loss, weight, worst } = difference(found, { ...found, ...oracle });
  const text = JSON.stringify(parts.parts.map(({ first, recorded }) => [first, recorded]));
  assert.ok(loss <= 1e-5, `losses differ by ${loss}: ${found.losses} and ${oracle.losses}, streams ${text}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}, streams ${text}`);
  return cluster;
}

const eventsOf = <Kind extends RunEvent['kind']>(
  { events }: MemoryCluster,
  kind: Kind,
): readonly Extract<RunEvent, { kind: Kind }>[] =>
  events.filter((event): event is Extract<RunEvent, { kind: Kind }> => event.kind === kind);

const layoutsOf = (cluster: MemoryCluster): string[] =>
  eventsOf(cluster, 'deployment').map(({ plan: { stages } }) =>
    stages.map(({ layers, devices }) => `${layers[1] - layers[0]} on ${devices.join('+')}`).join(', '),
  );

test('one worker three times slower: its layers move away while training goes on, and nothing is applied twice', {
  timeout,
}, async () => {
  const cluster = await runWith({ policy: theirs, factors: { b: 3 }, endRound: 32 });
  const [first, again] = eventsOf(cluster, 'capacities');
  for (const [device, factor] of [
    ['a', 1],
    ['b', 3],
    ['c', 1],
  ] as const) {
    const found = first?.capacities[device] ?? Number.NaN;
    assert.ok(Math.abs(found / factor - 1) < 0.05, `${device}: ${found}`);
  }
  assert.equal(first?.isKept, false);
  assert.equal(again?.isKept, true, 'nothing has changed since');
  const [before = '', after, ...more] = layoutsOf(cluster);
  assert.match(before, /^(\d+) on a, (\d+) on b, (\d+) on c$/);
  assert.ok(Number(/(\d+) on b/.exec(before)?.[1]) > 1, before);
  // One layer of b takes as long as three of a or c.
  assert.equal(after, '3 on a, 1 on b, 3 on c');
  assert.deepEqual(more, []);
  const [change] = eventsOf(cluster, 'recovering');
  assert.deepEqual([change?.lost, change?.repeatedRounds, change?.source], [[], 0, 'devices']);
  assert.ok((change?.round ?? 0) >= 3);
  assert.deepEqual(
    eventsOf(cluster, 'stream').map(({ round }) => round),
    [0, change?.round],
  );
});

test('copies at multiples of their period, once for each layout besides', { timeout }, async () => {
  const cluster = await runWith({ policy: { ...theirs, repartition: { first: 100, every: 100 } }, copyEvery: 6 });
  assert.deepEqual(
    eventsOf(cluster, 'replicated').map(({ round }) => round),
    [0, 6, 12],
  );
  assert.equal(eventsOf(cluster, 'deployment')[0]?.plan.lastCopyTo, 'first');
});

test('ResPipe: the next worker takes over all layers of a lost one, and keeps its own', { timeout }, async () => {
  const cluster = await runWith({ policy: recoveryPolicies.respipe, losses: [{ device: 'b', atRound: 8 }] });
  const [before = '', after] = layoutsOf(cluster);
  const [a = 0, b = 0, c = 0] = [...before.matchAll(/(\d+) on/g)].map(([, count]) => Number(count));
  assert.equal(after, `${a} on a, ${b + c} on c`);
  assert.equal(eventsOf(cluster, 'recovering')[0]?.movedMiB, 0, 'it has the copy');
});

const timed: RecoveryPolicy = { ...theirs, timer: { leastMs: 400, batches: 8 } };

test('the timer: a worker that does not answer is given up, before its silence says so', { timeout }, async () => {
  const cluster = await runWith({
    ...{ policy: timed, clock: createVirtualClock() },
    observe: (event, running) => {
      if (event.kind === 'replicated' && event.round === 5) running.silence('b');
    },
  });
  assert.equal(eventsOf(cluster, 'overdue').length, 1);
  assert.deepEqual(
    eventsOf(cluster, 'left').map(({ device, reason }) => [device, reason]),
    [['b', 'no answer within 1 s']],
  );
  assert.equal(eventsOf(cluster, 'deployment').at(-1)?.plan.stages.length, 2);
});

test('the timer: all workers answer, so that training begins again with the batch that is missing', {
  timeout,
}, async () => {
  let isLossy = false;
  const cluster = await runWith({
    ...{ policy: { ...timed, repartition: { first: 100, every: 100 } }, clock: createVirtualClock() },
    isDropped: (from, to) => isLossy && [from, to].sort().join() === 'a,b',
    observe: (event) => {
      if (event.kind === 'replicated' && event.round === 5) isLossy = true;
      if (event.kind === 'recovering') isLossy = false;
    },
  });
  assert.equal(eventsOf(cluster, 'left').length, 0);
  const [overdue] = eventsOf(cluster, 'overdue');
  const [change] = eventsOf(cluster, 'recovering');
  assert.deepEqual([change?.lost, change?.round], [[], overdue?.round]);
  assert.match(change?.cause ?? '', /^the gradients of round \d+ did not come for 0\.\d s$/);
  assert.equal(new Set(layoutsOf(cluster)).size, 1);
});

test('20 seeded losses by their policy: the run is the oracle restarted where its events say', {
  timeout,
}, async () => {
  for (let seed = 0; seed < 20; seed++) {
    const random = createRandom(seed, 0xf7b1);
    const device = ['a', 'b', 'c'][random.integer(3)] as string;
    const others = ['a', 'b', 'c'].filter((name) => name !== device);
    const losses = [{ device, atRound: 1 + random.integer(12) }];
    if (random.uniform() < 0.3)
      losses.push({ device: others[random.integer(2)] as string, atRound: 1 + random.integer(12) });
    const given: Given = {
      policy: { ...theirs, repartition: { first: 1 + random.integer(8), every: 1 + random.integer(6) } },
      factors: { b: random.uniform() < 0.5 ? 10 : 1, c: random.uniform() < 0.3 ? 4 : 1 },
      checkpointEvery: 2 + random.integer(9),
      copyEvery: 1 + random.integer(6),
      losses,
    };
    await runWith(given).catch((error: unknown) => {
      throw new Error(`seed ${seed}: ${error instanceof Error ? error.message : error}`, { cause: error });
    });
  }
});
