// The acceptance suite of engines: the values of graphs, of every element type, and the time that runs take.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { defined } from '../../assert.ts';
import type { Engine, Translation } from '../../engine/engine.ts';
import { evaluateGraph } from '../../graph/evaluate.ts';
import type { Graph } from '../../graph/graph.ts';
import { elementTypes, type Tensor, tensor, tensorBytes, toNumbers, wrap } from '../../graph/tensor.ts';
import { type Noise, writeNoise } from '../../noise.ts';
import { randomGraph } from '../random-graph.ts';
import { addGraph, copyOf, identityGraph } from './graphs.ts';

const randomGraphCount = 60;

/** Registers the tests, which share one engine. */
export function valueTests(createEngine: () => Promise<Engine>): void {
  let engine: Engine;
  before(async () => {
    engine = await createEngine();
  });
  after(() => engine.close());

  graphTests(() => engine, createEngine);
  elementTests(() => engine);
  timeTests(() => engine);
}

/** Random graphs, and their translations. */
function graphTests(engineOf: () => Engine, createEngine: () => Promise<Engine>): void {
  test('a translation computes what the graph does, on another engine too', async (t) => {
    const engine = engineOf();
    if (engine.translate === undefined) return t.skip('this engine runs graphs as they are');
    const other = await createEngine();
    for (let seed = 0; seed < 10; seed++) {
      const { graph, inputs } = randomGraph(seed);
      const translation: Translation = structuredClone(await engine.translate(graph));
      const expected = await computed(engine, graph, inputs);
      assert.deepEqual(await computed(engine, translation, inputs), expected, `seed ${seed}`);
      assert.deepEqual(await computed(other, translation, inputs), expected, `seed ${seed}`);
    }
    await other.close();
  });

  test('has a name', () => assert.match(engineOf().name, /\w/));

  test(`${randomGraphCount} random graphs have the values of the operators' definitions`, async () => {
    const engine = engineOf();
    for (let seed = 0; seed < randomGraphCount; seed++) {
      const { graph, inputs } = randomGraph(seed);
      const expected = evaluateGraph(graph, inputs);
      const executable = await engine.compile(graph);
      assert.deepEqual(executable.inputs, [...inputs.keys()]);
      assert.deepEqual(executable.outputs, [...expected.keys()]);
      const feeds = Object.fromEntries(Array.from(inputs, ([key, value]) => [key, engine.upload(copyOf(value))]));
      const results = executable.run(feeds);
      for (const [key, value] of expected)
        assertClose(await engine.take(defined(results[key], key)), value, `seed ${seed}, ${key}`);
      for (const [key, value] of inputs)
        assert.deepEqual(await engine.take(defined(feeds[key], key)), value, `seed ${seed}: input ${key} changed`);
      executable.release();
    }
    assert.equal(engine.valueBytes(), 0);
  });
}

/** Every element type, and the limits of its values. */
function elementTests(engineOf: () => Engine): void {
  for (const type of elementTypes) {
    test(`${type} passes bit by bit: vector, scalar, no elements`, async () => {
      const engine = engineOf();
      for (const shape of [[3], [], [0, 2], [2, 0]]) {
        const values = shape.length === 0 ? [1] : shape[0] === 3 ? [1, 0, 1] : [];
        const value = tensor(type, shape, values);
        assert.deepEqual(await engine.take(engine.upload(copyOf(value))), value);
        const executable = await engine.compile(identityGraph(type, shape));
        const results = executable.run({ x: engine.upload(copyOf(value)) });
        assert.deepEqual(await engine.take(defined(results['y'], 'y')), value);
        executable.release();
      }
    });
  }

  test('float values keep every bit: infinities, NaN, negative zero, the smallest and the largest', async () => {
    const engine = engineOf();
    const values = [
      Number.POSITIVE_INFINITY,
      Number.NEGATIVE_INFINITY,
      Number.NaN,
      -0,
      2 ** -149,
      3.4028234663852886e38,
    ];
    const value = tensor('float32', [6], values);
    const executable = await engine.compile(identityGraph('float32', [6]));
    const taken = await engine.take(defined(executable.run({ x: engine.upload(copyOf(value)) })['y'], 'y'));
    assert.deepEqual(tensorBytes(taken), tensorBytes(value));
  });

  test('noise is drawn where the engine computes, in the order of the calls', async () => {
    const engine = engineOf();
    const part = { name: 'w', offset: 1, count: 4, scale: 2, tangent: 0 };
    const noise: Noise = { kind: 'rademacher', seed: 3, round: 1, parts: [part] };
    const expected = new Float32Array(6);
    writeNoise(expected, noise);
    const executable = await engine.compile(identityGraph('float32', [2, 3]));
    for (let time = 0; time < 2; time++) {
      const drawn = engine.draw([2, 3], noise);
      const results = executable.run({ x: drawn });
      engine.release(drawn);
      assert.deepEqual((await engine.take(defined(results['y'], 'y'))).data, expected);
    }
    executable.release();
  });

  test('integers beyond the precision of a number survive', async () => {
    const engine = engineOf();
    const value = wrap('int64', [2], new BigInt64Array([2n ** 62n + 1n, -(2n ** 62n) - 1n]));
    assert.deepEqual(await engine.take(engine.upload(copyOf(value))), value);
  });
}

/** When runs are done and how long they took. */
function timeTests(engineOf: () => Engine): void {
  test('computed reports when all that was queued is done, not what came later, and ignores failures', async () => {
    const engine = engineOf();
    const executable = await engine.compile(addGraph(1, 50_000));
    const run = (): Promise<number> => {
      const results = executable.run({ x: engine.upload(wrap('float32', [50_000], new Float32Array(50_000))) });
      engine.release(defined(results['y'], 'y'));
      return engine.computed().then((agoMs) => performance.now() - agoMs);
    };
    const startMs = performance.now();
    const moments = await Promise.all([run(), run(), run()]);
    const endMs = performance.now();
    assert.deepEqual(
      moments.toSorted((a, b) => a - b),
      moments,
    );
    assert.ok(
      startMs < (moments[0] as number) && (moments[2] as number) <= endMs,
      `${moments} within ${startMs}–${endMs}`,
    );
    executable.release();
  });

  test('busyMs counts the time of runs', async () => {
    const engine = engineOf();
    const executable = await engine.compile(addGraph(1, 50_000));
    const before = engine.busyMs();
    const results = executable.run({ x: engine.upload(wrap('float32', [50_000], new Float32Array(50_000))) });
    await engine.take(defined(results['y'], 'y'));
    assert.ok(engine.busyMs() > before, `${engine.busyMs()} ms after ${before}`);
  });
}

function assertClose(actual: Tensor, expected: Tensor, what: string): void {
  assert.equal(actual.type, expected.type, what);
  assert.deepEqual(actual.shape, expected.shape, what);
  const [values, wanted] = [toNumbers(actual), toNumbers(expected)];
  for (const [index, value] of values.entries()) {
    const target = wanted[index] as number;
    const isClose = Object.is(value, target) || Math.abs(value - target) <= 1e-4 * Math.max(1, Math.abs(target));
    assert.ok(isClose, `${what}, element ${index}: ${value} instead of ${target}`);
  }
}

/** All outputs of one run; nothing stays in the engine. */
async function computed(
  engine: Engine,
  source: Graph | Translation,
  inputs: ReadonlyMap<string, Tensor>,
): Promise<readonly unknown[]> {
  const executable = await engine.compile(source);
  const values = Object.fromEntries(Array.from(inputs, ([name, value]) => [name, engine.upload(copyOf(value))]));
  const outputs = executable.run(values);
  const results = await Promise.all(
    Object.entries(outputs).map(async ([name, value]) => [name, await engine.take(value)]),
  );
  for (const value of Object.values(values)) engine.release(value);
  executable.release();
  return results;
}
