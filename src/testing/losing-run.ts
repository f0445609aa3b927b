// A run of three devices in two stages that may lose devices and links: alike for every test of what a run survives and
// of how it ends.

import assert from 'node:assert/strict';
import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import { RunError } from '../errors.ts';
import type { ProfileCache } from '../runtime/device/measure/cached-profile.ts';
import type { MeasuredProfile } from '../runtime/device/measure/measurement.ts';
import type { WorkerEnd } from '../runtime/worker/options.ts';
import { type HandPlan, handPlan } from './hand-plans.ts';
import { difference, type MemoryCluster, type MemoryRun, type Outcome, runAlone } from './memory-cluster.ts';
import { batches, regressionNet, subjectOf } from './training-subjects.ts';

const predicted = { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} };
const hybrid: HandPlan = { schedule: '1f1b', cuts: [2], shares: [[3, 1], [4]], microBatchCount: 2 };

/** Four rounds with a hand-made plan: a and b share the first stage, c has the second. */
export function hybridRun(): MemoryRun {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  return {
    subject,
    batch: batches(net, subject),
    plan: handPlan(hybrid, 4),
    machine: { endRound: 4, checkpointEvery: 2 },
  };
}

const measured = new Map<string, MeasuredProfile>();

/** All devices are alike: the first to be profiled measures for all tests of a file. */
const profileCache: ProfileCache = {
  read: async (key) => measured.get(key),
  write: async (key, profile) => {
    measured.set(key, profile);
  },
};

/** A plan for one, two or three devices. */
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

/** hybridRun with links measured and devices profiled before a plan is chosen. */
export function measuredRun(): MemoryRun {
  const { plan: _, ...rest } = hybridRun();
  const choosePlan = (_profile: Profile, { devices }: Cluster): Plan => planFor(devices.map(({ name }) => name));
  return { ...rest, workerNames: ['a', 'b', 'c'], choosePlan, profileCache, links: { bandwidthMbps: 10_000 } };
}

/** The sentence that a failed run ends with, and how its workers ended. */
export async function runFailure(
  cluster: MemoryCluster,
): Promise<{ readonly message: string; readonly ends: ReadonlyMap<string, WorkerEnd> }> {
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

/** The run ends with the losses and weights of a single device, up to rounding. */
export async function expectNothingLost(
  cluster: MemoryCluster,
  outcome: Promise<Outcome> = cluster.outcome(),
): Promise<void> {
  const alone = await runAlone({ ...hybridRun(), microBatchSize: 4 });
  const { loss, weight, worst } = difference(await outcome, alone);
  assert.ok(loss <= 1e-5, `losses differ by ${loss}`);
  assert.ok(weight <= 1e-5, `${worst} differs by ${weight}`);
}
