import assert from 'node:assert/strict';
import { test } from 'node:test';
import { markAsUntransferable } from 'node:worker_threads';
import { defined } from '../../assert.ts';
import { InputError, RunError } from '../../errors.ts';
import { Emitter } from '../../graph/emitter.ts';
import type { Graph } from '../../graph/graph.ts';
import { tensor, toNumbers, wrap } from '../../graph/tensor.ts';
import { engineSuite } from '../../testing/engine-suite.ts';
import type { Engine } from '../engine.ts';
import { createComputeThread } from './compute-thread.ts';

engineSuite('compute thread with onnxruntime-node', () => createComputeThread(), { isThreaded: true });
engineSuite('compute thread with the reference', () => createComputeThread({ engine: 'reference' }), {
  isThreaded: true,
});

const crashing = { module: new URL('../../testing/crashing-engine.js', import.meta.url).href };

function negate(size: number): Graph {
  const emitter = new Emitter();
  const inputs = [emitter.input('x', 'float32', [size])];
  emitter.append({ operator: 'Neg', domain: '', name: 'negate', inputs, outputs: ['y'], attributes: {} });
  return emitter.build('negate', ['y']);
}

test('uploads move into the thread: the caller’s array is empty afterwards', async () => {
  const engine = await createComputeThread({ engine: 'reference' });
  const data = new Float32Array([1, 2]);
  const value = engine.upload(wrap('float32', [2], data));
  await engine.settled();
  assert.equal(data.length, 0);
  assert.deepEqual(toNumbers(await engine.take(value)), [1, 2]);
  await engine.close();
});

test('a tensor that was handed over already is refused', async () => {
  const engine = await createComputeThread({ engine: 'reference' });
  const value = tensor('float32', [2], [1, 2]);
  const handle = engine.upload(value);
  assert.throws(() => engine.upload(value), /uploaded twice/);
  await engine.settled();
  assert.throws(() => engine.upload(value), /with 0 elements/);
  assert.deepEqual(toNumbers(await engine.take(handle)), [1, 2]);
  await engine.close();
});

test('memory that cannot be moved is copied', async () => {
  const engine = await createComputeThread({ engine: 'reference' });
  const data = new Float32Array([6, 7]);
  markAsUntransferable(data.buffer);
  assert.deepEqual(toNumbers(await engine.take(engine.upload(wrap('float32', [2], data)))), [6, 7]);
  assert.deepEqual([...data], [6, 7]);
  const shared = new Float32Array(new SharedArrayBuffer(8)).fill(5);
  assert.deepEqual(toNumbers(await engine.take(engine.upload(wrap('float32', [2], shared)))), [5, 5]);
  await engine.close();
});

test('errors keep their class and their message', async () => {
  const engine = await createComputeThread({ engine: 'reference' });
  const graph = negate(1);
  const nodes = graph.nodes.map((node) => ({ ...node, operator: 'Frobnicate' }));
  await assert.rejects(
    engine.compile({ ...graph, nodes }),
    (error) =>
      error instanceof InputError && error.name === 'InputError' && error.message.startsWith('Operator Frobnicate'),
  );
  await engine.close();
});

test('an engine that cannot be made rejects with its own error', async () => {
  const module = new URL('../../testing/no-such-engine.js', import.meta.url).href;
  await assert.rejects(createComputeThread({ engine: { module } }), /no-such-engine/);
});

async function crash(engine: Engine): Promise<Promise<unknown>[]> {
  const executable = await engine.compile(negate(2));
  const x = engine.upload(tensor('float32', [2], [1, 2]));
  const { y } = executable.run({ x });
  return [engine.take(defined(y, 'y')), engine.download(x), engine.settled(), engine.compile(negate(3))];
}

test('a thread that dies fails everything pending and everything later with RunError', async () => {
  const engine = await createComputeThread({ engine: crashing });
  const isCrash = (error: unknown): boolean =>
    error instanceof RunError && /compute thread failed: struck by lightning/.test(error.message);
  for (const pending of await crash(engine)) await assert.rejects(pending, isCrash);
  const value = engine.upload(tensor('float32', [2], [1, 2]));
  await assert.rejects(engine.download(value), isCrash);
  engine.release(value);
  await assert.rejects(engine.settled(), isCrash);
  await engine.close();
});

test('a thread that dies unseen is reported by close', async () => {
  const engine = await createComputeThread({ engine: crashing });
  const executable = await engine.compile(negate(2));
  executable.run({ x: engine.upload(tensor('float32', [2], [1, 2])) });
  await assert.rejects(engine.close(), RunError);
});

test('memory stays flat: outputs are freed when they are released, not when garbage is collected', async () => {
  const engine = await createComputeThread();
  const size = 2 ** 20;
  const executable = await engine.compile(negate(size));
  const x = engine.upload(wrap('float32', [size], new Float32Array(size)));
  const rounds = async (count: number): Promise<number> => {
    for (let round = 0; round < count; round++) {
      for (let run = 0; run < 4; run++) engine.release(defined(executable.run({ x })['y'], 'y'));
      await engine.settled();
    }
    return process.memoryUsage.rss();
  };
  const early = await rounds(5);
  const late = await rounds(100);
  assert.ok(late - early < 24 * 2 ** 20, `${(late - early) / 2 ** 20} MiB more after 400 runs of 4 MiB each`);
  await engine.close();
});
