// A device of a stream becomes slow. Rounds overlap, so that what one takes says little of a device; but each reports
// how long it computed. Layers move away from the slow one while training goes on, and losses and weights stay those
// of the oracle with late gradients, restarted where the run's events say that a stream begins.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { plan } from '../../planner/plan.ts';
import { withStaleness } from '../../schedule/staleness.ts';
import { delayedOracle } from '../../testing/delayed-oracle.ts';
import { difference, type MemoryCluster, type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import { batches, chainOfLinears, subjectOf, type TestNet } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import type { RunEvent } from '../protocol/events.ts';
import { StreamParts } from './delayed-streams.ts';

const timeout = 120_000;
/** Seven layers that take no time. What devices say that they computed is made up. */
const net: TestNet = { graph: chainOfLinears(6).graph, loss: 'mse', classCount: 0 };
const subject = subjectOf(net, 4);
const layerCount = subject.sequence.layers.length;
/** Of the way to the coordinator, whose commits rounds wait for: they take much longer than devices compute. */
const latencyMs = 1000;
const endRound = 80;
/** A layout has settled, and is looked at for the first time after 20 s, or 40 rounds. */
const slowFromRound = 25;
const slowFactor = 3;

/** Where a round takes a device so long in each layer. */
const profileOf = (layerMs: number): ProfileCache => ({
  read: async () => ({
    layers: subject.sequence.layers.map(({ name }) => ({
      ...{ name, outputBytes: 4, weightBytes: 4, savedBytes: 4, flops: 1 },
    })),
    times: { forwardMs: [Array(layerCount).fill(0.4 * layerMs)], backwardMs: [Array(layerCount).fill(0.6 * layerMs)] },
    cached: true,
  }),
  write: async () => {},
});

const planOf = (profile: Profile, cluster: Cluster) =>
  withStaleness(
    plan({
      ...{ profile, cluster, planner: 'ftpipehd', schedule: 'async' },
      ...{ batchSize: 4, microBatchSize: 4, optimizerState: 1 },
    }),
    {},
  );

/**
 * Three workers that take so long for a layer; b three times as long from some round on. The run has been compared with
 * the oracle.
 */
async function runWithSlowWorker(layerMs: number): Promise<MemoryCluster> {
  const clock = createVirtualClock();
  const parts = new StreamParts();
  let layout: PlanLayout | undefined;
  let latestRound = 0;
  const layersOf = (device: string): number => {
    const [first, end] = layout?.stages.find(({ devices }) => devices.includes(device))?.layers ?? [0, 0];
    return end - first;
  };
  const engineOf = (device: string): ReturnType<typeof createReferenceEngine> => {
    let busyMs = 0;
    // It is asked once for each round.
    const computed = (): number => {
      busyMs += layersOf(device) * layerMs * (device === 'b' && latestRound >= slowFromRound ? slowFactor : 1);
      return busyMs;
    };
    return Object.assign(createReferenceEngine(), { busyMs: computed });
  };
  const batch = batches(net, subject);
  const run: MemoryRun = {
    ...{ subject, clock, profileCache: profileOf(layerMs), workerNames: ['a', 'b', 'c'], links: { clock } },
    linkBetween: (one) => (one === 'coordinator' ? { clock, latencyMs } : undefined),
    batch: (round) => {
      latestRound = round;
      return batch(round);
    },
    machine: { endRound, replicateEvery: 5, batchSizesToProfile: [4], thoroughness: 'quick' },
    factsOf: () => ({ cpuModel: 'all alike: one link is measured for all' }),
    choosePlan: planOf,
    planAgain: async (profile, cluster) => planOf(profile, cluster),
    createEngine: engineOf,
    observe: (event, running) => {
      if (event.kind === 'deployment') layout = event.plan;
      parts.observe(event, running.losses.length);
    },
  };
  const cluster = await startCluster(run);
  const found = await clock.runUntil(cluster.outcome());
  assert.equal(found.losses.length, endRound);
  const oracle = await delayedOracle({ ...run, batch }, parts.parts, endRound);
  const { loss, weight, worst } = difference(found, { ...found, ...oracle });
  const text = JSON.stringify(parts.parts.map(({ first, recorded }) => [first, recorded]));
  assert.ok(loss <= 1e-5, `losses differ by ${loss}, streams ${text}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}, streams ${text}`);
  return cluster;
}

const eventsOf = <Kind extends RunEvent['kind']>(
  { events }: MemoryCluster,
  kind: Kind,
): readonly Extract<RunEvent, { kind: Kind }>[] =>
  events.filter((event): event is Extract<RunEvent, { kind: Kind }> => event.kind === kind);

const layoutsOf = (cluster: MemoryCluster): readonly Readonly<Record<string, number>>[] =>
  eventsOf(cluster, 'deployment').map(({ plan: { stages } }) =>
    Object.fromEntries(stages.map(({ layers, devices }) => [devices.join('+'), layers[1] - layers[0]])),
  );

test('a device of a stream becomes three times slower: its layers move, and no batch is lost or doubled', {
  timeout,
}, async () => {
  const cluster = await runWithSlowWorker(100);
  const [drift, ...others] = eventsOf(cluster, 'drift');
  assert.deepEqual(Object.keys(drift?.factors ?? {}), ['b']);
  assert.ok(Math.abs((drift?.factors['b'] ?? Number.NaN) / slowFactor - 1) < 0.05, JSON.stringify(drift));
  assert.deepEqual(others, []);
  const [before = {}, after, ...more] = layoutsOf(cluster);
  assert.ok((before['b'] ?? 0) > 1, JSON.stringify(before));
  // One layer of b takes as long as three of a or c.
  assert.deepEqual(after, { a: 3, b: 1, c: 3 });
  assert.deepEqual(more, []);
  const [change, ...rest] = eventsOf(cluster, 'recovering');
  assert.deepEqual([change?.lost, change?.repeatedRounds, change?.source, rest], [[], 0, 'devices', []]);
  assert.deepEqual(
    eventsOf(cluster, 'stream').map(({ round }) => round),
    [0, change?.round],
  );
});

test('a device of a stream becomes three times slower, but moving would cost more than it saves: nothing moves', {
  timeout,
}, async () => {
  // Rounds are to be 12 ms shorter, of which those that are left make half a second; a change costs two.
  const cluster = await runWithSlowWorker(3);
  const [drift] = eventsOf(cluster, 'drift');
  assert.ok(Math.abs((drift?.factors['b'] ?? Number.NaN) / slowFactor - 1) < 0.05, JSON.stringify(drift));
  assert.equal(layoutsOf(cluster).length, 1);
  assert.deepEqual(eventsOf(cluster, 'recovering'), []);
  assert.deepEqual(
    eventsOf(cluster, 'stream').map(({ round }) => round),
    [0],
  );
});
