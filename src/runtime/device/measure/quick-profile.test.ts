import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../../clock.ts';
import { bytesInMiB } from '../../../cluster/memory.ts';
import { layers } from '../../../graph/layers.ts';
import { createFakeEngine } from '../../../testing/fake-engine.ts';
import { chainOfLinears, residualNet } from '../../../testing/training-subjects.ts';
import { assumedTraining } from '../../host/profile-here.ts';
import type { ProfileOptions } from './measurement.ts';
import { profileLayers } from './profiler.ts';

const label = { name: 'label', type: 'int64', shape: ['N'], batchAxis: 0, differentiable: false } as const;

const options = (changes: Partial<ProfileOptions> = {}): ProfileOptions => ({
  batchSizes: [1, 8],
  thoroughness: 'quick',
  training: assumedTraining(8, []),
  label,
  clock: systemClock,
  onProgress: () => {},
  ...changes,
});

const sum = (values: readonly number[] = []): number => values.reduce((all, ms) => all + ms, 0);

test('a quick profile has the rows of a full one, and nearly its sums, from a fraction of the graphs', async () => {
  const sequence = layers(residualNet().graph);
  const [quickly, fully] = [createFakeEngine(), createFakeEngine()];
  const quick = await profileLayers(quickly, sequence, options());
  const full = await profileLayers(fully, sequence, options({ batchSizes: [1, 3, 5, 8], thoroughness: 'full' }));
  assert.deepEqual(
    quick.layers.map(({ name, weightBytes, outputBytes, savedBytes }) => ({
      name,
      weightBytes,
      outputBytes,
      savedBytes,
    })),
    full.layers.map(({ name, weightBytes, outputBytes, savedBytes }) => ({
      name,
      weightBytes,
      outputBytes,
      savedBytes,
    })),
  );
  assert.ok(
    quickly.compiled.length < fully.compiled.length / 4,
    `${quickly.compiled.length} of ${fully.compiled.length}`,
  );
  for (const table of ['forwardMs', 'backwardMs', 'stepMs'] as const) {
    const [few, many] = [sum(quick.times[table]?.[0]), sum(quick.times[table]?.[1])];
    const [expectedFew, expectedMany] = [sum(full.times[table]?.[0]), sum(full.times[table]?.at(-1))];
    // A run of the fake engine takes longer than a layer with one sample, of which a quick profile knows less.
    assert.ok(few > expectedFew / 2 && few < 2 * expectedFew, `${table} of 1 sample: ${few} for ${expectedFew}`);
    assert.ok(Math.abs(many / expectedMany - 1) < 0.2, `${table} of 8 samples: ${many} for ${expectedMany}`);
  }
  assert.equal(quickly.valueCount, 0);
});

test('a batch that takes long is not measured: its times are on the line through what is', async () => {
  const engine = createFakeEngine();
  // So many operations a sample that the fake engine's 1/8 ms for a node counts as slow: few samples are measured.
  const sequence = chainOfLinears(4);
  const { times } = await profileLayers(engine, sequence, options({ batchSizes: [1, 100_000] }));
  const largest = Math.max(...engine.compiled.map(({ inputs }) => Number(inputs[0]?.shape[0] ?? 1)));
  assert.ok(largest < 10_000, `${largest} samples at once`);
  // The fake engine takes 1 ms for a run and 1/8 ms for each node and sample: a line.
  const few = sum(times.forwardMs[0]);
  const many = sum(times.forwardMs[1]);
  assert.ok(many > 1_000 * few, `${few} and ${many} ms`);
  assert.ok((times.forwardMs[1] ?? []).every((ms, layer) => ms > (times.forwardMs[0]?.[layer] ?? 0)));
});

test('one batch size is one row; stages that do not fit are left out', async () => {
  const { times } = await profileLayers(
    createFakeEngine(),
    chainOfLinears(3),
    options({ batchSizes: [4], memoryBytes: 0.0001 * bytesInMiB }),
  );
  assert.equal(times.forwardMs.length, 1);
  assert.ok(times.forwardMs[0]?.every((ms) => ms > 0));
  assert.equal(times.callMs, 0);
  assert.equal(times.updateMs, undefined);
});
