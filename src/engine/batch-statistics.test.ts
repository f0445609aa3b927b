import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Emitter } from '../graph/emitter.ts';
import { float, int } from '../graph/graph.ts';
import { type Tensor, tensor } from '../graph/tensor.ts';
import { withStatistics } from './batch-statistics.ts';
import { createOnnxRuntimeNodeEngine } from './node/onnxruntime-node.ts';

/** y, and old mean + batch mean, old variance + batch variance, of a batch normalization that reads old statistics. */
function normalization(trainingMode: number): Emitter {
  const e = new Emitter();
  e.input('x', 'float32', [4, 2]);
  const vectors = ['scale', 'bias', 'mean', 'variance'].map((name) => e.input(name, 'float32', [2]));
  const outputs = trainingMode === 0 ? ['y'] : ['y', 'm', 'v'];
  const attributes = { training_mode: int(trainingMode), momentum: float(0) };
  e.append({ operator: 'BatchNormalization', domain: '', name: 'bn', inputs: ['x', ...vectors], outputs, attributes });
  return e;
}

test('the statistics become outputs, each once', () => {
  const e = normalization(1);
  const graph = e.build('bn', ['y', 'v', e.emit('Add', ['mean', 'm'])]);
  assert.deepEqual(withStatistics(graph).outputs.slice(3), [{ name: 'm', type: 'float32', shape: ['channels of bn'] }]);
  const inference = normalization(0).build('bn', ['y']);
  assert.equal(withStatistics(inference), inference);
});

test('the old statistics stay what they were, for other nodes and for the next run', async () => {
  const e = normalization(1);
  const graph = e.build('bn', ['y', e.emit('Add', ['mean', 'm']), e.emit('Add', ['variance', 'v'])]);
  const inputs: Readonly<Record<string, Tensor>> = {
    x: tensor('float32', [4, 2], [1, 2, 3, 4, 1, 2, 3, 4]),
    scale: tensor('float32', [2], [1, 1]),
    bias: tensor('float32', [2], [0, 0]),
    mean: tensor('float32', [2], [10, 20]),
    variance: tensor('float32', [2], [30, 40]),
  };
  const engine = await createOnnxRuntimeNodeEngine();
  const executable = await engine.compile(graph);
  const feeds = Object.fromEntries(Object.entries(inputs).map(([name, value]) => [name, engine.upload(value)]));
  for (const _ of ['first run', 'second run']) {
    const [, means, variances] = Object.values(executable.run(feeds)).map((value) => engine.take(value));
    assert.deepEqual((await means)?.data, Float32Array.of(12, 23));
    assert.deepEqual((await variances)?.data, Float32Array.of(31, 41));
  }
  await engine.close();
});
