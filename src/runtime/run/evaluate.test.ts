import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { Graph } from '../../graph/graph.ts';
import { tensor } from '../../graph/tensor.ts';
import { createDataset, type Dataset, inputField, labelField, subset } from '../../training/data/dataset.ts';
import { evaluate } from '../host/session-here.ts';
import type { EvaluateOptions } from './evaluate.ts';

const options: EvaluateOptions = { loss: 'cross-entropy', engine: 'reference', threads: 1 };

/**
 * Logits 2x behind what only matters while training: dropout, and batch normalization that takes (x − 1) / √4 by its
 * running statistics.
 */
function net(): Graph {
  const b = new GraphBuilder('net', { seed: 1 });
  const normed = b.batchNorm(b.input('x', 'float32', ['N', 2]), { name: 'norm', epsilon: 0 });
  const graph = b.build([b.linear(b.dropout(normed, 0.5), { name: 'head', outFeatures: 2, bias: false })]);
  const values = {
    'norm.running_mean': tensor('float32', [2], [1, 1]),
    'norm.running_var': tensor('float32', [2], [4, 4]),
    'head.weight': tensor('float32', [2, 2], [4, 0, 0, 4]),
  };
  return { ...graph, initializers: new Map([...graph.initializers, ...Object.entries(values)]) };
}

/** Samples whose logits are 2(x − 1) = ±1, ∓1; every fourth one's label is the other class. */
function data(count: number): Dataset {
  const inputs: number[] = [];
  const labels: number[] = [];
  for (let index = 0; index < count; index++) {
    const first = index % 2 === 0;
    inputs.push(...(first ? [1.5, 0.5] : [0.5, 1.5]));
    labels.push((first ? 0 : 1) ^ (index % 4 === 3 ? 1 : 0));
  }
  return createDataset(
    'data',
    [inputField('x', tensor('float32', [count, 2], inputs), 'x.npy')],
    labelField(tensor('int64', [count], labels), 'y.npy'),
  );
}

// log(1 + e^−2) where right, log(1 + e²) where wrong.
const [right, wrong] = [0.126928, 2.126928];

test('all samples count once, over several batches and a smaller last one, in inference mode', async () => {
  for (const [count, wrongCount] of [
    [1, 0],
    [3, 0],
    [100, 25],
    [250, 62],
  ] as const) {
    const { accuracy, loss, sampleCount } = await evaluate(net(), data(count), options);
    assert.equal(sampleCount, count);
    assert.equal(accuracy, (count - wrongCount) / count);
    const expected = ((count - wrongCount) * right + wrongCount * wrong) / count;
    assert.ok(Math.abs(loss - expected) < 1e-5, `${count}: ${loss} and ${expected}`);
  }
});

test('a part of a data set is tested on its own samples', async () => {
  const part = subset(data(8), Uint32Array.of(3, 7, 0));
  assert.equal((await evaluate(net(), part, options)).accuracy, 1 / 3);
});

test('ONNX Runtime finds the same', async () => {
  const [a, b] = [
    await evaluate(net(), data(130), options),
    await evaluate(net(), data(130), { ...options, engine: 'onnxruntime' }),
  ];
  assert.equal(a.accuracy, b.accuracy);
  assert.ok(Math.abs(a.loss - b.loss) < 1e-6);
});

test('mse has a loss and no accuracy', async () => {
  const inputs = inputField('x', tensor('float32', [2, 2], [1.5, 0.5, 0.5, 1.5]), 'x.npy');
  const targets = labelField(tensor('float32', [2, 2], [1, -1, 0, 0]), 'y.npy');
  const { details, ...found } = await evaluate(net(), createDataset('data', [inputs], targets), {
    ...options,
    loss: 'mse',
  });
  // Logits (1, −1) and (−1, 1): no error, then a mean of 1.
  assert.deepEqual(found, { accuracy: null, loss: 0.5, sampleCount: 2 });
  assert.deepEqual([details?.meanAbsoluteError, details?.r2], [0.5, -1]);
});

test('a model exported for one batch size is tested on as many samples, the rest filled up', async () => {
  const graph = net();
  const fixed: Graph = {
    ...graph,
    inputs: graph.inputs.map((input) => ({ ...input, shape: [4, 2] })),
    outputs: graph.outputs.map((output) => ({ ...output, shape: [4, 2] })),
    fixedBatch: 4,
  };
  const found = await evaluate(fixed, data(10), options);
  assert.equal(found.sampleCount, 10);
  assert.equal(found.accuracy, 0.8);
  assert.ok(Math.abs(found.loss - (8 * right + 2 * wrong) / 10) < 1e-5);
});

test('data that does not fit is the user’s mistake', async () => {
  await assert.rejects(
    evaluate(
      net(),
      createDataset(
        'data',
        [inputField('x', tensor('float32', [1, 3], [1, 2, 3]), 'x.npy')],
        labelField(tensor('int64', [1], [0]), 'y.npy'),
      ),
      options,
    ),
    (error) =>
      error instanceof InputError &&
      /^x\.npy has the shape \[N, 3\], but the model's input x takes \[N, 2\]/.test(error.message),
  );
});

test('labels that are left out count neither in the loss nor in the accuracy', async () => {
  const whole = data(230);
  const kept = Uint32Array.from({ length: 230 }, (_, index) => index).filter((index) => index % 3 !== 1);
  const values = Int32Array.from(whole.labels.values.data, Number).map((label, index) =>
    index % 3 === 1 ? 255 : label,
  );
  const some = { ...whole, labels: labelField(tensor('int32', [230], [...values]), 'y.npy') };
  const found = await evaluate(net(), some, { ...options, ignoreLabel: 255 });
  const expected = await evaluate(net(), subset(whole, kept), options);
  assert.equal(found.sampleCount, 230);
  assert.equal(found.accuracy, expected.accuracy);
  assert.ok(Math.abs(found.loss - expected.loss) < 1e-6, `${found.loss} and ${expected.loss}`);
});
