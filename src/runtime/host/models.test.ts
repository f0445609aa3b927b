// A new head in every net that was exported for the other tests, as users get it: found, replaced, cut into layers, and
// run by ONNX Runtime.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { defined } from '../../assert.ts';
import { InputError } from '../../errors.ts';
import { layers } from '../../graph/layers.ts';
import { instantiate } from '../../graph/static.ts';
import { elementCount } from '../../graph/tensor.ts';
import { familyFixtures, type PytorchFixture, pytorchFixtures } from '../../testing/pytorch-fixtures.ts';
import { loadModel } from './models.ts';

const newCount = 3;

async function check({ modelPath, batch, batchSize: fixedSize }: PytorchFixture): Promise<void> {
  const [old, model] = [await loadModel(modelPath, 0), await loadModel(modelPath, 0, { headClasses: newCount })];
  const classAxis = model.graph.outputs[0]?.shape.length === 4 ? 1 : -1;
  const sequence = layers(model.graph);
  assert.equal(defined(sequence.layers.at(-1)?.outputs[0], 'the output').shape.at(classAxis), newCount);
  const { parameters, initializers } = model.graph;
  assert.deepEqual(parameters, old.graph.parameters);
  const changed = parameters.filter(
    (name) => String(initializers.get(name)?.shape) !== String(old.graph.initializers.get(name)?.shape),
  );
  assert.ok(changed.length === 1 || changed.length === 2, String(changed));

  const bytes = model.write(
    new Map([...parameters, ...model.graph.buffers].map((name) => [name, defined(initializers.get(name), name)])),
  );
  const batchSize = batch === 'fixed' ? fixedSize : 2;
  const [input] = instantiate(sequence.graph, batchSize).graph.inputs;
  const { name, type, shape } = defined(input, 'an input');
  const count = elementCount(shape as number[]);
  const data = type === 'int64' ? new BigInt64Array(count) : new Float32Array(count).fill(0.5);
  const session = await InferenceSession.create(bytes, { logSeverityLevel: 3, intraOpNumThreads: 1 });
  const results = await session.run({
    [name]: new OrtTensor(type as 'float32', data as Float32Array, shape as number[]),
  });
  assert.equal(defined(Object.values(results)[0], 'the output').dims.at(classAxis), newCount);
  await session.release();
}

for (const fixture of [...pytorchFixtures(), ...familyFixtures()]) {
  test(`${fixture.name}: a new head`, async () => {
    if (!fixture.tiedWeights) return check(fixture);
    await assert.rejects(
      loadModel(fixture.modelPath, 0, { headClasses: newCount }),
      (error) =>
        error instanceof InputError && /also read by .*, so --head-classes cannot replace it/.test(error.message),
    );
  });
}

test('a built-in model takes a new head as a file does', async () => {
  const model = await loadModel('fashion', 5, { headClasses: newCount });
  assert.deepEqual(model.graph.initializers.get('classifier.bias')?.shape, [newCount]);
  assert.deepEqual(model.notes, [
    'The classifier is new: classifier.weight and classifier.bias have fresh weights for 3 classes instead of 10.',
  ]);
});
