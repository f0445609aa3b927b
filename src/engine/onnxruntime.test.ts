import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import { evaluateGraph } from '../graph/evaluate.ts';
import { int, ints, string } from '../graph/graph.ts';
import { tensor, toNumbers } from '../graph/tensor.ts';
import { engineSuite } from '../testing/engine-suite.ts';
import { runGraph } from '../testing/run-graph.ts';
import { createOnnxRuntimeNodeEngine } from './node/onnxruntime-node.ts';

engineSuite('onnxruntime-node in this thread', () => createOnnxRuntimeNodeEngine(), { isThreaded: false });
engineSuite('onnxruntime-node with two threads', () => createOnnxRuntimeNodeEngine({ threadCount: 2 }), {
  isThreaded: false,
});

for (const pool of ['AveragePool', 'MaxPool']) {
  test(`a wide Pad before a ${pool} runs, though the optimizer spoils such graphs`, async () => {
    const emitter = new Emitter();
    const padded = emitter.emit('Pad', [
      emitter.input('x', 'float32', [1, 1, 2, 3]),
      emitter.int64s([0, 0, 0, 0, 0, 0, 0, 2]),
    ]);
    const graph = emitter.build('padded', [emitter.emit(pool, [padded], { kernel_shape: ints([2, 2]) })]);
    const x = tensor('float32', [1, 1, 2, 3], [-1, -2, -3, -4, -5, -6]);
    const engine = await createOnnxRuntimeNodeEngine();
    assert.deepEqual(Object.values(await runGraph(engine, graph, { x })), [
      ...evaluateGraph(graph, new Map([['x', x]])).values(),
    ]);
    await engine.close();
  });
}

test('the name says what computes and with how many threads', async () => {
  const engine = await createOnnxRuntimeNodeEngine({ threadCount: 2 });
  assert.match(engine.name, /^onnxruntime-node \d+\.\d+\.\d+ cpu \(2 threads\)$/);
  await engine.close();
});

test('a missing package is an input error that says what to do', async () => {
  const load = (): Promise<never> =>
    Promise.reject(Object.assign(new Error('Cannot find package'), { code: 'ERR_MODULE_NOT_FOUND' }));
  await assert.rejects(
    createOnnxRuntimeNodeEngine({ load }),
    (error) =>
      error instanceof InputError &&
      /npm install --ignore-scripts onnxruntime-node.*npm install onnxruntime-web/.test(error.message),
  );
});

test('a package that does not load is an input error with its reason', async () => {
  const load = (): Promise<never> => Promise.reject(new Error('GLIBC_2.38 not found'));
  await assert.rejects(
    createOnnxRuntimeNodeEngine({ load }),
    (error) => error instanceof InputError && /GLIBC_2\.38/.test(error.message),
  );
});

test('a session precomputes no large values: 128 MiB of zeros behind an embedding’s gradient', async () => {
  const rows = 2 ** 20;
  const e = new Emitter();
  const [indices, g] = [e.input('indices', 'int64', [4, 1]), e.input('g', 'float32', [4, 32])];
  const zeros = e.emit('ConstantOfShape', [e.int64s([rows, 32])]);
  const added = e.emit('ScatterND', [zeros, indices, g], { reduction: string('add') });
  const graph = e.build('scatter', [e.emit('ReduceSum', [added, e.int64s([1])], { keepdims: int(0) })]);
  const engine = await createOnnxRuntimeNodeEngine();
  const before = process.memoryUsage().rss;
  const kernel = await engine.compile(graph);
  const grownMiB = (process.memoryUsage().rss - before) / 2 ** 20;
  assert.ok(grownMiB < 64, `the process grew by ${grownMiB.toFixed(0)} MiB`);
  const values = {
    indices: engine.upload(tensor('int64', [4, 1], [1, 7, 1, rows - 1])),
    g: engine.upload(
      tensor(
        'float32',
        [4, 32],
        Array.from({ length: 128 }, (_, index) => Math.floor(index / 32) + 1),
      ),
    ),
  };
  const [sums] = Object.values(kernel.run(values));
  const found = toNumbers(await engine.take(defined(sums, 'sums')));
  assert.deepEqual([found[0], found[1], found[7], found[rows - 1]], [0, 32 * 4, 64, 128]);
  await engine.close();
});
