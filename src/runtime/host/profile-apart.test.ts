// A model measured in a process of its own: the same facts as here, progress on the way, and its failures.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { InputError, RunError } from '../../errors.ts';
import { model as message, modelBytes } from '../../testing/lone-worker.ts';
import { profileLayers } from '../device/measure/profiler.ts';
import { modelOf } from '../worker/model.ts';
import type { ProfileJob } from '../worker/options.ts';
import { startProfile } from './profile-apart.ts';

const timeout = 60_000;
const graph = modelBytes.data as Uint8Array;
const job: ProfileJob = { message, graph, batchSizes: [1, 4], memoryBytes: undefined };

test('a model measured in another process is measured as in this one', { timeout }, async () => {
  const { sequence, label } = modelOf(message, graph);
  const engine = await createComputeThread();
  const seenHere: string[] = [];
  const options = {
    batchSizes: job.batchSizes,
    training: message.training,
    label,
    memoryBytes: undefined,
    clock: systemClock,
  };
  const here = await profileLayers(engine, sequence, {
    ...options,
    onProgress: (done, total) => seenHere.push(`${done}/${total}`),
  });
  await engine.close();
  const seen: string[] = [];
  const { profile } = startProfile(job, { engine: 'onnxruntime' }, (done, total) => seen.push(`${done}/${total}`));
  const apart = await profile;
  assert.deepEqual(apart.layers, here.layers);
  assert.equal(apart.cached, false);
  assert.deepEqual(seen, seenHere);
  assert.deepEqual(Object.keys(apart.times).toSorted(), Object.keys(here.times).toSorted());
  for (const [name, byBatch] of Object.entries(apart.times) as [
    string,
    number | readonly (number | readonly number[])[],
  ][]) {
    for (const ms of [byBatch].flat(2)) assert.ok(Number.isFinite(ms) && ms >= 0, `${name}: ${ms} ms`);
  }
  assert.ok(apart.times.forwardMs.flat().every((ms) => ms > 0));
});

test('errors come across as they were; a killed process is an error, and the worker lives', {
  timeout,
}, async () => {
  const broken = startProfile({ ...job, graph: graph.subarray(0, graph.length / 2) }, {}, () => {});
  await assert.rejects(broken.profile, InputError);
  const killed = startProfile(job, {}, () => killed.end());
  await assert.rejects(
    killed.profile,
    (error) => error instanceof RunError && /was killed, as systems do for want of memory/.test(error.message),
  );
});
