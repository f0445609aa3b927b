import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../errors.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { randomInstance } from '../testing/random-plans.ts';
import { checkGrains, planInGrains, planInSamples, profileInGrains } from './grains.ts';
import { plan } from './plan.ts';

test('a plan in grains has shares that are multiples of the grain, and the time of its grains in sequence', () => {
  const { profile, cluster: tight } = randomInstance(7, { deviceCount: 4, layerCount: 12 });
  const cluster = { ...tight, devices: tight.devices.map((device) => ({ ...device, memoryMiB: 1e6 })) };
  const grain = 4;
  const inGrains = profileInGrains(profile, grain);
  const found = plan({
    profile: inGrains,
    cluster,
    batchSize: 8,
    microBatchSize: 4,
    optimizerState: 1,
    planner: 'dp',
    replicateBatchDependent: true,
  });
  const inSamples = planInSamples(found, grain);
  checkGrains(inSamples, grain);
  assert.deepEqual([inSamples.batchSize, inSamples.microBatchSize, inSamples.microBatchCount], [32, 16, 2]);
  assert.deepEqual(planInGrains(inSamples, grain), found);
  const [stage] = inSamples.stages;
  assert.equal(
    stage?.samples.reduce((sum, share) => sum + share, 0),
    16,
  );
  // Each device takes its forward time for 4 samples (a measured size) once for each grain.
  const { events } = simulate(program(found), found, inGrains, cluster);
  const sized = profile.batchSizes.indexOf(grain);
  for (const [index, device] of (stage?.devices ?? []).entries()) {
    const kind = cluster.devices.find(({ name }) => name === device)?.kind ?? '';
    const each = (profile.devices[kind]?.forwardMs[sized] ?? []).reduce((sum, ms) => sum + ms, 0);
    const forward = events.find((event) => event.device === device && event.kind === 'forward');
    const grains = (stage?.samples[index] ?? 0) / grain;
    assert.ok(Math.abs((forward?.endMs ?? 0) - (forward?.startMs ?? 0) - grains * each) < 1e-6 * each, device);
  }
});

test('a share that is not a multiple of the grain is refused', () => {
  const stages = [{ layers: [0, 1] as const, devices: ['a', 'b'], samples: [5, 3], inFlight: 1 }];
  assert.throws(
    () => checkGrains({ microBatchSize: 8, stages }, 2),
    new InputError(
      'A strict run computes 2 samples at a time, and the plan has a share of 5: make shares and micro-batches ' +
        'multiples of 2, or give another --grain.',
    ),
  );
});

test('strict stages do not run steps as one graph: those times are not used', () => {
  const { profile } = randomInstance(7, { deviceCount: 1, layerCount: 3 });
  const stepMs = profile.batchSizes.map(() => [1, 1, 1]);
  const devices = Object.fromEntries(
    Object.entries(profile.devices).map(([name, times]) => [name, { ...times, stepMs }]),
  );
  for (const times of Object.values(profileInGrains({ ...profile, devices }, 4).devices))
    assert.equal('stepMs' in times, false);
});
