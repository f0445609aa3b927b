// Models whose weights are outside: what is read of their files, and when.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { InputError } from '../../errors.ts';
import { evaluateGraph } from '../../graph/evaluate.ts';
import { layers } from '../../graph/layers.ts';
import { importModel } from '../../graph/onnx/import.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { type ElementArray, filePlace, isUnread, type Tensor, tensor } from '../../graph/tensor.ts';
import { buildModel } from '../../models/zoo.ts';
import { createRandom } from '../../random.ts';
import { program } from '../../schedule/generate.ts';
import { temporaryFolder } from '../../testing/command.ts';
import { writeExternalModel } from '../../testing/external-model.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { subjectOf } from '../../testing/training-subjects.ts';
import { InferenceStage } from '../device/inference-stage.ts';
import { stageOptionsOf } from '../device/stage-options.ts';
import type { WeightFile } from '../device/weight-files.ts';
import { graphWeights } from '../run/graph-weights.ts';
import { loadInferenceModel } from './models.ts';
import { createWeightFiles } from './weight-files.ts';

const folder = temporaryFolder();
const graph = inferenceMode(buildModel('digits', { seed: 4 }).graph);
const large = [...graph.initializers].filter(([, { data }]) => data.byteLength >= 2 ** 16).map(([name]) => name);

test('large weights stay in their file, and are read one by one when a device gets them', async () => {
  const path = join(folder, 'whole.onnx');
  writeExternalModel(path, graph);
  const { graph: loaded } = await loadInferenceModel(path);
  assert.notDeepEqual(large, []);
  const unread = [...loaded.initializers].filter(([, value]) => isUnread(value)).map(([name]) => name);
  assert.deepEqual(unread, large);
  const sequence = layers(loaded);
  const entries = [...graphWeights(sequence).entries([0, sequence.layers.length])];
  assert.deepEqual(entries.map(({ name }) => name).sort(), [...graph.parameters, ...graph.buffers].sort());
  for (const { name, value } of entries) assert.deepEqual(value.data, graph.initializers.get(name)?.data, name);
  assert.ok(large.every((name) => isUnread(loaded.initializers.get(name) as Tensor)));
});

test('no large weight is read before a device gets it: all of them together may be more than memory holds', () => {
  const path = join(folder, 'counted.onnx');
  writeExternalModel(path, graph);
  const bytes = readFileSync(`${path}.data`);
  const lengths: number[] = [];
  const imported = importModel(readFileSync(path), {
    leavesLarge: true,
    loadExternal: (_file, offset, length = bytes.length - offset) => {
      lengths.push(length);
      return bytes.subarray(offset, offset + length);
    },
  });
  const sequence = layers(inferenceMode(imported.graph));
  assert.ok(Math.max(...lengths) < 2 ** 16, `${lengths}`);
  const [first] = large;
  const weights = graphWeights(sequence).entries([0, sequence.layers.length]);
  for (const { name, value } of weights) if (name === first) assert.ok(value.data.length > 0);
  assert.ok(Math.max(...lengths) >= 2 ** 16);
});

test('a file that is cut off is refused when the model is loaded', async () => {
  const path = join(folder, 'cut.onnx');
  writeExternalModel(path, graph);
  truncateSync(`${path}.data`, 1000);
  await assert.rejects(loadInferenceModel(path), (error) => {
    assert.ok(error instanceof InputError);
    assert.match(
      error.message,
      /^\S+cut\.onnx: its weights in \S+cut\.onnx\.data are cut off: the file has 1000 bytes/,
    );
    return true;
  });
});

test('a stage with its weights in a file computes the same, hands them on, and leaves no file', async () => {
  const subject = subjectOf({ graph, loss: 'cross-entropy', classCount: 10 }, 2);
  const { sequence } = subject;
  const count = sequence.layers.length;
  const plan = handPlan({ schedule: 'inference', cuts: [], shares: [[2]], microBatchCount: 1 }, count);
  const device = defined(program(plan).devices[0], 'a device');
  const files = createWeightFiles(join(folder, 'weights'));
  const engine = await createComputeThread();
  const kept: Tensor[] = [];
  let removed = (): void => {};
  const isRemoved = new Promise<void>((resolve) => {
    removed = resolve;
  });
  const open = (): WeightFile => {
    const file = files.open();
    return {
      async keep(value) {
        kept.push(await file.keep(value));
        return defined(kept.at(-1), 'what was kept');
      },
      remove: () => file.remove().then(removed),
    };
  };
  const options = stageOptionsOf(subject, device, plan, undefined);
  const stage = new InferenceStage(engine, options, { files: { open }, memoryBytes: 0 });
  try {
    for (const entry of graphWeights(sequence).entries([0, count]))
      stage.load({ ...entry, value: { ...entry.value, data: entry.value.data.slice() as ElementArray } });
    await stage.finish();
    const places = kept.flatMap((value) => filePlace(value) ?? []);
    assert.equal(places.length, large.length);
    const random = createRandom(2);
    const x = tensor(
      'float32',
      [2, 1, 28, 28],
      Array.from({ length: 2 * 784 }, () => random.uniform()),
    );
    const wanted = [...evaluateGraph(graph, new Map([[defined(graph.inputs[0], 'x').name, x]])).values()][0];
    const [found] = await stage.forward({ round: 0, index: 0 }, 0, [x], undefined);
    const scale = Math.max(...Array.from(wanted?.data as Float32Array, Math.abs));
    for (const [index, value] of Array.from(wanted?.data as Float32Array).entries())
      assert.ok(Math.abs(Number(found?.data[index]) - value) <= 1e-5 * scale, `output ${index}`);
    for await (const { name, value } of stage.state())
      assert.deepEqual(value.data, graph.initializers.get(name)?.data, name);
    stage.dispose();
    await isRemoved;
    assert.deepEqual(readdirSync(defined(places[0], 'a place').folder), []);
  } finally {
    await engine.close();
  }
});
