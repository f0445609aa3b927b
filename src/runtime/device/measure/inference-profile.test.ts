import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../../clock.ts';
import type { Cluster, Profile } from '../../../cluster/cluster.ts';
import { withLinkCosts } from '../../../cluster/overhead.ts';
import type { ProcessClock } from '../../../engine/process-clock.ts';
import { GraphBuilder } from '../../../graph/builder.ts';
import { type LayerSequence, layers } from '../../../graph/layers.ts';
import { planInference } from '../../../planner/inference/plan.ts';
import { createFakeEngine, type FakeEngine } from '../../../testing/fake-engine.ts';
import { assumedTraining } from '../../host/profile-here.ts';
import type { MeasuredProfile, ProfileOptions } from './measurement.ts';
import { profileLayers } from './profiler.ts';

const label = { name: 'label', type: 'int64', shape: ['N'], batchAxis: 0, differentiable: false } as const;
const options = (changes: Partial<ProfileOptions> = {}): ProfileOptions => ({
  batchSizes: [1, 8],
  thoroughness: 'quick',
  training: { ...assumedTraining(8, []), isInference: true },
  label,
  clock: systemClock,
  onProgress: () => {},
  ...changes,
});

/** Twelve blocks of two layers, of which the second has four operations more. */
function blocks(): LayerSequence {
  const b = new GraphBuilder('blocks', { seed: 1 });
  let x = b.input('x', 'float32', ['N', 6]);
  for (let block = 0; block < 12; block++) {
    x = b.linear(x, { name: `block${block}.a`, outFeatures: 6 });
    x = b.linear(x, { name: `block${block}.b`, outFeatures: 6 });
    for (let count = 0; count < 4; count++) x = b.tanh(x);
  }
  return layers(b.build([x]));
}

/** Nodes of each layer, and the fake engine's times: 1 ms for a run, an eighth for each node and sample. */
const nodeCounts = (sequence: LayerSequence): readonly number[] => sequence.layers.map(({ nodes }) => nodes.length);
/** A run of a single node with one sample. */
const callMs = 1 + 1 / 8;
const sum = (values: readonly number[]): number => values.reduce((all, one) => all + one, 0);
const isNear = (found: number, expected: number): boolean => Math.abs(found - expected) < 1e-9 * Math.max(1, expected);

/** A main thread that works so long for whatever is waited for; the rest is the engine's. */
function mainThread(engine: FakeEngine, passMs: number): { engine: FakeEngine; processWork: ProcessClock } {
  const processWork: ProcessClock = (threadMs = Number.NaN) => {
    const mainMs = engine.runCount * passMs;
    return { processMs: threadMs + mainMs, computeMs: threadMs, mainMs };
  };
  const threaded = Object.defineProperties({}, Object.getOwnPropertyDescriptors(engine)) as FakeEngine;
  return { engine: Object.assign(threaded, { threadMs: () => engine.busyMs() }), processWork };
}

test('layers share what their part takes by what they take alone, and a stage pays the call once', async () => {
  const sequence = blocks();
  const counts = nodeCounts(sequence);
  assert.equal(new Set(counts).size > 1, true, `${counts}`);
  const engine = createFakeEngine();
  const { times } = await profileLayers(engine, sequence, options());
  assert.equal(times.callMs, callMs);
  assert.equal(times.passMs, undefined);
  const whole = times.forwardMs[1] ?? [];
  // Of eight samples a node takes 1 ms; each of the parts loses an eighth of one with its call.
  const parts = 8;
  assert.ok(Math.abs(sum(whole) - sum(counts) + parts / 8) < 1e-9, `${sum(whole)} of ${sum(counts)}`);
  for (const [layer, ms] of whole.entries())
    assert.ok(Math.abs(ms / (counts[layer] as number) - 1) < 0.15, `layer ${layer}: ${ms} for ${counts[layer]} nodes`);
  assert.ok(times.backwardMs.flat().every((ms) => ms === 0));
  assert.equal(engine.valueCount, 0);
});

test('layers of a model without repeated blocks are not compiled alone: they share by their operations', async () => {
  const b = new GraphBuilder('uneven', { seed: 1 });
  let x = b.input('x', 'float32', ['N', 6]);
  for (let layer = 0; layer < 24; layer++) x = b.linear(x, { name: `layer${layer}`, outFeatures: 40 + layer });
  const sequence = layers(b.build([x]));
  const engine = createFakeEngine();
  const { times } = await profileLayers(engine, sequence, options({ batchSizes: [8] }));
  // Parts, and the call: none of the 24 layers.
  assert.ok(engine.compiled.length <= 10, `${engine.compiled.length} graphs`);
  const [row = []] = times.forwardMs;
  // The last part has three layers.
  const flops = sequence.layers.slice(-3).map((layer) => layer.flops);
  const shares = flops.map((own) => (0.9 * own) / sum(flops) + 0.1 / 3);
  const own = row.slice(-3);
  for (const [index, ms] of own.entries()) assert.ok(isNear(ms, sum(own) * (shares[index] as number)), `${own}`);
});

test('parts that compute the same take the mean of what they took', async () => {
  const fake = createFakeEngine();
  // One part after the other is slower: a host that is busy for a while.
  const busyMs = (): number => fake.busyMs() * (1 + fake.compiled.length / 100);
  const engine = Object.assign(Object.defineProperties({}, Object.getOwnPropertyDescriptors(fake)), { busyMs });
  const { times } = await profileLayers(engine as FakeEngine, blocks(), options({ batchSizes: [8] }));
  const [row = []] = times.forwardMs;
  // Twelve equal blocks in parts of one or two: all blocks inside equal parts have equal layers.
  const seconds = row.filter((_, layer) => layer % 2 === 1).map((ms) => ms.toFixed(6));
  assert.ok(new Set(seconds).size <= 3, `${[...new Set(seconds)]}`);
});

const cluster: Cluster = {
  devices: ['a', 'b'].map((name) => ({ name, memoryMiB: 1024 })),
  links: { default: { bandwidthMbps: 1000 } },
};

function profileOf({ layers: found, times }: MeasuredProfile): Profile {
  const linked = withLinkCosts(times, { transferMsPerMiB: 0, reduceMsPerMiB: undefined });
  const common = { model: 'blocks', inputBytes: 24, labelBytes: 0, batchSizes: [1, 8], layers: found };
  return { ...common, devices: { a: linked, b: linked } };
}

test('what the main thread does for a pass and for its frames is in the prediction', async () => {
  const passMs = 2;
  const sequence = blocks();
  const { engine, processWork } = mainThread(createFakeEngine(), passMs);
  const measured = await profileLayers(engine, sequence, options({ processWork }));
  assert.ok(isNear(measured.times.passMs ?? Number.NaN, passMs), `${measured.times.passMs}`);
  const profile = profileOf(measured);
  const plan = (planner: string) =>
    planInference({ profile, cluster, planner, objective: 'throughput', batchSize: 32, microBatchSize: 8 });
  const ofLayers = (first: number, end: number): number => sum((measured.times.forwardMs[1] ?? []).slice(first, end));
  const frameMs = 1.3 * passMs;
  const count = sequence.layers.length;
  // One device: its layers, the call, the pass, the frames of the input and of the result.
  const one = plan('single').predicted.roundMs / 4;
  assert.ok(Math.abs(one - (ofLayers(0, count) + callMs + passMs + 2 * frameMs)) < 1e-3, `${one}`);
  // Two stages: each is given a frame and hands one on.
  const two = plan('even').predicted.roundMs / 4;
  const halves = [ofLayers(0, count / 2), ofLayers(count / 2, count)];
  assert.ok(Math.abs(two - (Math.max(...halves) + callMs + passMs + 2 * frameMs)) < 1e-3, `${two}`);
});
