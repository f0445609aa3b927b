// A device of a run that only infers becomes slow: layers move away from it while requests come, each of which is
// answered once, in order, with what the model gives.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Clock } from '../../clock.ts';
import type { Cluster, Plan, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { evaluateGraph } from '../../graph/evaluate.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { planInference } from '../../planner/inference/plan.ts';
import { inferenceRun } from '../../testing/inference-run.ts';
import { type MemoryRun, startCluster } from '../../testing/memory-cluster.ts';
import { batches, chainOfLinears, subjectOf, type TestNet } from '../../testing/training-subjects.ts';
import { createVirtualClock } from '../../testing/virtual-clock.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import { sliceSamples } from '../device/samples.ts';
import type { RunEvent } from '../protocol/events.ts';
import { InferenceRounds } from './inference-rounds.ts';

/** Seven layers that take no time. What devices say that they computed is made up. */
const net: TestNet = { graph: inferenceMode(chainOfLinears(6).graph), loss: 'mse', classCount: 0 };
const batchSize = 4;
const subject = subjectOf(net, batchSize, { isInference: true });
const layerCount = subject.sequence.layers.length;
/** A round takes a device so long in each layer, as profiled; a way to the coordinator takes much longer. */
const [layerMs, latencyMs] = [100, 1000];
/** A layout has settled, and is looked at for the first time after 20 s, or 40 rounds. */
const [roundCount, slowFromRound, slowFactor] = [140, 25, 3];

const profileCache: ProfileCache = {
  read: async () => ({
    layers: subject.sequence.layers.map(({ name }) => ({
      ...{ name, outputBytes: 4, weightBytes: 4, savedBytes: 4, flops: 1 },
    })),
    times: { forwardMs: [Array(layerCount).fill(layerMs)], backwardMs: [Array(layerCount).fill(0)] },
    cached: true,
  }),
  write: async () => {},
};

const planOf = (profile: Profile, cluster: Cluster): Plan =>
  planInference({
    ...{ profile, cluster, planner: 'pipeedge', objective: 'throughput', batchSize: 4, microBatchSize: 4 },
  });

/** Of a round of fewer samples than a batch, a device takes this part of what it takes for a whole one. */
const smallerPart = 0.7;

/** Devices that say what they have computed by the layout; b takes longer in each layer from some round on. */
class MadeUpDevices {
  readonly #part: number;
  #layout: PlanLayout | undefined;
  latestRound = 0;

  constructor(sampleCount: number) {
    this.#part = sampleCount === batchSize ? 1 : smallerPart;
  }

  observe(event: RunEvent): void {
    if (event.kind === 'deployment') this.#layout = event.plan;
  }

  engineOf(device: string): ReturnType<typeof createReferenceEngine> {
    let totalMs = 0;
    // It is asked once for each round.
    const busyMs = (): number => {
      const [first, end] = this.#layout?.stages.find(({ devices }) => devices.includes(device))?.layers ?? [0, 0];
      const usualMs = (end - first) * layerMs * this.#part;
      totalMs += usualMs * (device === 'b' && this.latestRound >= slowFromRound ? slowFactor : 1);
      return totalMs;
    };
    return Object.assign(createReferenceEngine(), { busyMs });
  }
}

function runOf(clock: Clock, rounds: InferenceRounds, devices: MadeUpDevices): MemoryRun {
  const run = inferenceRun(subject, rounds, 6);
  return {
    ...run,
    ...{ clock, profileCache, workerNames: ['a', 'b', 'c'], links: { clock } },
    linkBetween: (one) => (one === 'coordinator' ? { clock, latencyMs } : undefined),
    machine: { ...run.machine, batchSizesToProfile: [4], thoroughness: 'quick' },
    factsOf: () => ({ cpuModel: 'all alike: one link is measured for all' }),
    choosePlan: planOf,
    planAgain: async (profile, cluster) => planOf(profile, cluster),
    createEngine: (device) => devices.engineOf(device),
    observe: (event) => devices.observe(event),
  };
}

/** Asks six times at once; returns the rounds in the order of their answers. */
async function askAll(
  rounds: InferenceRounds,
  devices: MadeUpDevices,
  sampleCount: number,
): Promise<readonly number[]> {
  const { inputs } = batches(net, subject)(0);
  const names = net.graph.inputs.map(({ name }, index) => [name, inputs[index] ?? assert.fail(name)] as const);
  const wanted = [...evaluateGraph(net.graph, new Map(names)).values()][0]?.data as Float32Array;
  const order: number[] = [];
  const ask = async (): Promise<void> => {
    while (rounds.roundCount < roundCount) {
      const round = rounds.roundCount;
      devices.latestRound = round;
      const [found] = await rounds.submit(inputs.map((value) => sliceSamples(value, 0, 0, sampleCount)));
      order.push(round);
      assert.equal(found?.data.length, (wanted.length * sampleCount) / batchSize);
      for (const [at, value] of wanted.subarray(0, found?.data.length).entries())
        assert.ok(Math.abs(Number(found?.data[at]) - value) <= 1e-5 * Math.max(...wanted.map(Math.abs)), `${round}`);
    }
  };
  await Promise.all(Array.from({ length: 6 }, ask));
  rounds.end();
  return order;
}

for (const sampleCount of [batchSize, 2]) {
  const requests = `requests of ${sampleCount} of ${batchSize} samples`;
  test(`${requests}: a device becomes three times slower: layers move, and every request is answered`, () =>
    slowedRun(sampleCount));
}

async function slowedRun(sampleCount: number): Promise<void> {
  const clock = createVirtualClock();
  const rounds = new InferenceRounds();
  const devices = new MadeUpDevices(sampleCount);
  const cluster = await startCluster(runOf(clock, rounds, devices));
  const [order] = await clock.runUntil(Promise.all([askAll(rounds, devices, sampleCount), cluster.coordinator.end]));
  assert.deepEqual(
    order,
    Array.from({ length: roundCount }, (_, round) => round),
  );
  const [drift] = cluster.events.flatMap((event) => (event.kind === 'drift' ? [event.factors] : []));
  assert.deepEqual(Object.keys(drift ?? {}), ['b']);
  assert.ok(Math.abs((drift?.['b'] ?? Number.NaN) / slowFactor - 1) < 0.05, JSON.stringify(drift));
  const layouts = cluster.events.flatMap((event) =>
    event.kind === 'deployment'
      ? [event.plan.stages.map(({ devices: own, layers }) => `${own}: ${layers[1] - layers[0]}`).sort()]
      : [],
  );
  assert.equal(layouts.length, 2);
  // One layer of b takes as long as three of a or c.
  assert.deepEqual(layouts[1], ['a: 3', 'b: 1', 'c: 3']);
  await clock.runUntil(cluster.workersEnd());
}
