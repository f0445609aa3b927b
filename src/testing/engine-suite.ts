// The acceptance suite that every engine runs: what the rest of Asteroid may rely on. Values are compared with the
// operators' definitions.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { defined } from '../assert.ts';
import type { Engine, Translation, Value } from '../engine/engine.ts';
import { InputError, RunError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import { evaluateGraph } from '../graph/evaluate.ts';
import type { Graph } from '../graph/graph.ts';
import {
  type ElementType,
  elementTypes,
  int64s,
  scalar,
  type Tensor,
  tensor,
  tensorBytes,
  toNumbers,
  wrap,
} from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { randomGraph } from './random-graph.ts';

export interface EngineSuiteOptions {
  /** True where computing happens off the calling thread, which must then never wait for it. */
  readonly isThreaded: boolean;
}

const randomGraphCount = 60;

/** Registers the suite for the engines that `createEngine` makes. */
export function engineSuite(
  name: string,
  createEngine: () => Promise<Engine>,
  { isThreaded }: EngineSuiteOptions,
): void {
  const withEngine = async (use: (engine: Engine) => Promise<void>): Promise<void> => {
    const engine = await createEngine();
    try {
      await use(engine);
    } finally {
      await engine.close();
    }
  };
  describe(name, { timeout: 120_000 }, () => {
    describe('values', () => valueTests(createEngine));
    describe('order and failures', () => orderTests(withEngine));
    describe('ownership', () => ownershipTests(withEngine));
    describe('mistakes of the caller', () => mistakeTests(withEngine));
    describe('close', () => closeTests(createEngine));
    if (isThreaded) test('the calling thread never waits for a run', () => withEngine(callerIsFree));
  });
}

type WithEngine = (use: (engine: Engine) => Promise<void>) => Promise<void>;

/** y = x + step on a vector. */
function addGraph(step: number, size = 2): Graph {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [size]);
  emitter.append({
    operator: 'Add',
    domain: '',
    name: 'add',
    inputs: [x, emitter.scalarLike(x, step)],
    outputs: ['y'],
    attributes: {},
  });
  return emitter.build('add', ['y']);
}

/** picked = x[index]: fails where the index is out of range. */
function pickGraph(): Graph {
  const emitter = new Emitter();
  const inputs = [emitter.input('x', 'float32', [2]), emitter.input('index', 'int64', [1])];
  emitter.append({ operator: 'Gather', domain: '', name: 'pick', inputs, outputs: ['picked'], attributes: {} });
  return emitter.build('picking', ['picked']);
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

function valueTests(createEngine: () => Promise<Engine>): void {
  let engine: Engine;
  before(async () => {
    engine = await createEngine();
  });
  after(() => engine.close());

  test('a translation computes what the graph does, on another engine too', async (t) => {
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

  test('has a name', () => assert.match(engine.name, /\w/));

  test(`${randomGraphCount} random graphs have the values of the operators' definitions`, async () => {
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

  for (const type of elementTypes) {
    test(`${type} passes bit by bit: vector, scalar, no elements`, async () => {
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

  test('integers beyond the precision of a number survive', async () => {
    const value = wrap('int64', [2], new BigInt64Array([2n ** 62n + 1n, -(2n ** 62n) - 1n]));
    assert.deepEqual(await engine.take(engine.upload(copyOf(value))), value);
  });

  test('computed says when everything queued so far was done, not what came after, and passes over failures', async () => {
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
    const executable = await engine.compile(addGraph(1, 50_000));
    const before = engine.busyMs();
    const results = executable.run({ x: engine.upload(wrap('float32', [50_000], new Float32Array(50_000))) });
    await engine.take(defined(results['y'], 'y'));
    assert.ok(engine.busyMs() > before, `${engine.busyMs()} ms after ${before}`);
  });
}

function identityGraph(type: ElementType, shape: readonly number[]): Graph {
  const emitter = new Emitter();
  const target = emitter.int64s(shape);
  emitter.append({
    operator: 'Reshape',
    domain: '',
    name: 'same',
    inputs: [emitter.input('x', type, shape), target],
    outputs: ['y'],
    attributes: {},
  });
  return emitter.build('identity', ['y']);
}

/** A copy with a buffer of its own, for the engine to take. */
function copyOf(value: Tensor): Tensor {
  return { ...value, data: value.data.slice() };
}

function orderTests(withEngine: WithEngine): void {
  test('a chain is queued without one wait, each value released right after its use', () =>
    withEngine(async (engine) => {
      const increment = await engine.compile(addGraph(1));
      let value: Value = engine.upload(tensor('float32', [2], [0, 10]));
      for (let step = 0; step < 100; step++) {
        const { y } = increment.run({ x: value });
        engine.release(value);
        value = defined(y, 'y');
      }
      increment.release();
      assert.equal(engine.valueBytes(), 8);
      assert.deepEqual(toNumbers(await engine.take(value)), [100, 110]);
    }));

  test('only the wanted outputs are kept and counted', () =>
    withEngine(async (engine) => {
      const emitter = new Emitter();
      const x = emitter.input('x', 'float32', [4]);
      const [negative, sum] = [emitter.emit('Neg', [x]), emitter.emit('ReduceSum', [x])];
      const executable = await engine.compile(emitter.build('two', [negative, sum]));
      const input = engine.upload(tensor('float32', [4], [1, 2, 3, 4]));
      const results = executable.run({ x: input }, [sum]);
      assert.deepEqual(Object.keys(results), [sum]);
      assert.equal(engine.valueBytes(), 16 + 4);
      assert.deepEqual(toNumbers(await engine.take(defined(results[sum], sum))), [10]);
      assert.deepEqual(executable.run({ x: input }, []), {});
    }));

  test('a failed run fails its values, what is computed from them, and settled() once; others go on', () =>
    withEngine(async (engine) => {
      const [pick, increment] = [await engine.compile(pickGraph()), await engine.compile(addGraph(1))];
      const x = engine.upload(tensor('float32', [2], [5, 6]));
      const broken = pick.run({ x, index: engine.upload(int64s([7])) });
      const fine = increment.run({ x });
      const isAboutPick = (error: unknown): boolean =>
        error instanceof RunError && error.name === 'RunError' && /pick/.test(error.message);
      await assert.rejects(engine.download(defined(broken['picked'], 'picked')), isAboutPick);
      await assert.rejects(engine.take(defined(broken['picked'], 'picked')), isAboutPick);
      assert.deepEqual(toNumbers(await engine.take(defined(fine['y'], 'y'))), [6, 7]);
      await assert.rejects(engine.settled(), isAboutPick);
      await engine.settled();
      const again = pick.run({ x, index: engine.upload(int64s([1])) });
      assert.deepEqual(toNumbers(await engine.take(defined(again['picked'], 'picked'))), [6]);
    }));

  test('a failure travels through the runs that use its values', () =>
    withEngine(async (engine) => {
      const pick = await engine.compile(pickGraph());
      const emitter = new Emitter();
      const double = emitter.emit('Add', [emitter.input('x', 'float32', [1]), 'x']);
      const next = await engine.compile(emitter.build('next', [double]));
      const broken = pick.run({ x: engine.upload(tensor('float32', [2], [5, 6])), index: engine.upload(int64s([-9])) });
      const results = next.run({ x: defined(broken['picked'], 'picked') });
      await assert.rejects(engine.take(defined(results[double], double)), RunError);
      engine.release(defined(broken['picked'], 'picked'));
      await assert.rejects(engine.settled(), RunError);
    }));

  test('settled() waits for what is queued', () =>
    withEngine(async (engine) => {
      await engine.settled();
      const increment = await engine.compile(addGraph(1, 10_000));
      const x = engine.upload(wrap('float32', [10_000], new Float32Array(10_000)));
      for (let run = 0; run < 5; run++) increment.run({ x });
      assert.equal(engine.busyMs(), 0);
      await engine.settled();
      assert.ok(engine.busyMs() > 0);
    }));

  test('values and released values are counted in bytes, at the call', () =>
    withEngine(async (engine) => {
      const increment = await engine.compile(addGraph(1));
      assert.equal(engine.valueBytes(), 0);
      const x = engine.upload(tensor('float32', [2], [1, 2]));
      const labels = engine.upload(tensor('int64', [3], [1, 2, 3]));
      assert.equal(engine.valueBytes(), 8 + 24);
      const y = defined(increment.run({ x })['y'], 'y');
      assert.equal(engine.valueBytes(), 8 + 24 + 8);
      engine.release(labels);
      assert.equal(engine.valueBytes(), 8 + 8);
      const downloaded = engine.download(y);
      assert.equal(engine.valueBytes(), 8 + 8);
      const taken = engine.take(y);
      assert.equal(engine.valueBytes(), 8);
      assert.deepEqual(toNumbers(await downloaded), [2, 3]);
      assert.deepEqual(toNumbers(await taken), [2, 3]);
    }));
}

function ownershipTests(withEngine: WithEngine): void {
  test('outputs that are inputs, constants or reshaped are values of their own', () =>
    withEngine(async (engine) => {
      const emitter = new Emitter();
      const x = emitter.input('x', 'float32', [2]);
      const constant = emitter.constant(tensor('float32', [2], [7, 8]));
      const row = emitter.emit('Reshape', [x, emitter.int64s([1, 2])]);
      const same = emitter.emit('Reshape', [constant, emitter.int64s([2, 1])]);
      const graph = emitter.build('aliases', [x, constant, row, same]);
      const executable = await engine.compile(graph);
      const input = engine.upload(tensor('float32', [2], [1, 2]));
      for (let round = 0; round < 2; round++) {
        const results = executable.run({ x: input });
        assert.equal(engine.valueBytes(), 5 * 8);
        for (const [name, expected] of Object.entries({
          [x]: [1, 2],
          [constant]: [7, 8],
          [row]: [1, 2],
          [same]: [7, 8],
        })) {
          const { data } = await engine.take(defined(results[name], name));
          assert.deepEqual([...data], expected);
          (data as Float32Array).fill(-1);
        }
      }
      assert.deepEqual(toNumbers(await engine.take(input)), [1, 2]);
      assert.deepEqual(toNumbers(defined(graph.initializers.get(constant), 'the constant')), [7, 8]);
    }));

  test('a graph without nodes, and one without outputs', () =>
    withEngine(async (engine) => {
      const emitter = new Emitter();
      const x = emitter.input('x', 'float32', [2]);
      const through = await engine.compile(emitter.build('through', [x]));
      const nothing = await engine.compile(emitter.build('nothing', []));
      const input = engine.upload(tensor('float32', [2], [1, 2]));
      assert.deepEqual(nothing.run({ x: input }), {});
      assert.deepEqual(toNumbers(await engine.take(defined(through.run({ x: input })[x], x))), [1, 2]);
    }));

  test('values under names that the graph does not have are not looked at', () =>
    withEngine(async (engine) => {
      const increment = await engine.compile(addGraph(1));
      const [x, other] = [engine.upload(tensor('float32', [2], [1, 2])), engine.upload(scalar('float32', 9))];
      assert.deepEqual(toNumbers(await engine.take(defined(increment.run({ other, x })['y'], 'y'))), [2, 3]);
    }));

  test('values that are alive stay as they are, whatever is run, taken out and let go of meanwhile', () =>
    withEngine(async (engine) => {
      const increment = await engine.compile(addGraph(1));
      for (let seed = 0; seed < 20; seed++) {
        const random = createRandom(seed);
        const alive: { readonly value: Value; readonly expected: number[] }[] = [];
        const upload = (number: number): void => {
          alive.push({ value: engine.upload(tensor('float32', [2], [number, -number])), expected: [number, -number] });
        };
        upload(seed);
        const removed = (): (typeof alive)[number] =>
          defined(alive.splice(random.integer(alive.length), 1)[0], 'a value');
        const taken: Promise<void>[] = [];
        for (let step = 0; step < 60; step++) {
          const action = alive.length < 2 ? 0 : random.integer(5);
          if (action < 2) {
            const { value, expected } = defined(alive[random.integer(alive.length)], 'a value');
            alive.push({
              value: defined(increment.run({ x: value })['y'], 'y'),
              expected: expected.map((number) => number + 1),
            });
          } else if (action === 2) upload(100 * step);
          else if (action === 3) engine.release(removed().value);
          else {
            const { value, expected } = removed();
            const check = async (): Promise<void> =>
              assert.deepEqual(toNumbers(await engine.take(value)), expected, `seed ${seed}`);
            taken.push(check());
          }
          if (random.integer(10) === 0) await engine.settled();
        }
        await Promise.all(taken);
        for (const { value, expected } of alive)
          assert.deepEqual(toNumbers(await engine.take(value)), expected, `seed ${seed}`);
        if (seed % 5 === 4) engine.trim();
      }
    }));

  test('an output that replaces an input has its value, and the input ends', () =>
    withEngine(async (engine) => {
      const emitter = new Emitter();
      const [sum, more] = [emitter.input('sum', 'float32', [2, 3]), emitter.input('more', 'float32', [2, 3])];
      const rows = emitter.input('rows', 'int64', [3, 1]);
      const table = emitter.input('table', 'float32', [4, 2]);
      const added = emitter.emit('Add', [sum, more]);
      const reduction = { reduction: { type: 'string', value: 'add' } } as const;
      const scattered = emitter.emit(
        'ScatterND',
        [table, rows, emitter.input('updates', 'float32', [3, 2])],
        reduction,
      );
      const twice = emitter.emit('Add', [more, more]);
      const executable = await engine.compile(emitter.build('summing', [added, scattered, twice]));
      const upload = (shape: readonly number[], values: readonly number[]): Value =>
        engine.upload(tensor('float32', shape, values));
      const given = {
        more: upload([2, 3], [1, 2, 3, 4, 5, 6]),
        rows: engine.upload({ ...int64s([0, 3, 0]), shape: [3, 1] }),
        updates: upload([3, 2], [1, 2, 10, 20, 100, 200]),
      };
      let [sums, tables] = [upload([2, 3], [10, 20, 30, 40, 50, 60]), upload([4, 2], [0, 0, 1, 1, 2, 2, 3, 3])];
      for (let run = 0; run < 3; run++) {
        const before = [sums, tables];
        const results = executable.run({ ...given, sum: sums, table: tables }, undefined, {
          [added]: 'sum',
          [scattered]: 'table',
        });
        for (const value of before) assert.throws(() => engine.release(value), /was released/);
        [sums, tables] = [defined(results[added], added), defined(results[scattered], scattered)];
        assert.deepEqual(toNumbers(await engine.take(defined(results[twice], twice))), [2, 4, 6, 8, 10, 12]);
      }
      assert.equal(engine.valueBytes(), 4 * (6 + 6 + 6 + 8) + 8 * 3);
      assert.deepEqual(toNumbers(await engine.take(sums)), [13, 26, 39, 52, 65, 78]);
      assert.deepEqual(toNumbers(await engine.take(tables)), [303, 606, 1, 1, 2, 2, 33, 63]);
      const all = { ...given, sum: given.more, table: upload([4, 2], new Array<number>(8).fill(0)) };
      assert.throws(() => executable.run(all, undefined, { nothing: 'sum' }), /the run has not both/);
      assert.throws(() => executable.run(all, undefined, { [scattered]: 'sum' }), /of another type or shape/);
    }));

  test('download copies, take moves', () =>
    withEngine(async (engine) => {
      const value = engine.upload(tensor('float32', [2], [1, 2]));
      const first = await engine.download(value);
      (first.data as Float32Array).fill(9);
      assert.deepEqual(toNumbers(await engine.download(value)), [1, 2]);
      assert.deepEqual(toNumbers(await engine.take(value)), [1, 2]);
      await assert.rejects(engine.take(value), /was released/);
    }));

  test('an upload takes nothing else along: a view of a larger buffer is copied', () =>
    withEngine(async (engine) => {
      const whole = new Float32Array([1, 2, 3, 4]);
      const value = engine.upload(wrap('float32', [2], whole.subarray(1, 3)));
      await engine.settled();
      assert.deepEqual([...whole], [1, 2, 3, 4]);
      engine.release(value);
      await engine.settled();
      assert.deepEqual([...whole], [1, 2, 3, 4]);
    }));

  test('the graph stays the caller’s: its constants may be views, and are neither moved nor changed', () =>
    withEngine(async (engine) => {
      const file = new Float32Array([0, 3, 4, 0]);
      const emitter = new Emitter();
      const x = emitter.input('x', 'float32', [2]);
      const sum = emitter.emit('Add', [x, emitter.initializer('offset', wrap('float32', [2], file.subarray(1, 3)))]);
      const executable = await engine.compile(emitter.build('views', [sum]));
      const results = executable.run({ x: engine.upload(tensor('float32', [2], [10, 20])) });
      assert.deepEqual(toNumbers(await engine.take(defined(results[sum], sum))), [13, 24]);
      assert.deepEqual([...file], [0, 3, 4, 0]);
    }));
}

function mistakeTests(withEngine: WithEngine): void {
  test('compile refuses an operator that it does not know, as the user’s error, and names it', () =>
    withEngine(async (engine) => {
      const graph = addGraph(1);
      const nodes = graph.nodes.map((node) => ({ ...node, operator: 'Frobnicate' }));
      await assert.rejects(
        engine.compile({ ...graph, nodes }),
        (error) => error instanceof InputError && /Frobnicate/.test(error.message),
      );
    }));

  test('a second release, a released value, a missing name, a wrong shape or type throw at the call', () =>
    withEngine(async (engine) => {
      const increment = await engine.compile(addGraph(1));
      const x = engine.upload(tensor('float32', [2], [1, 2]));
      assert.throws(() => increment.run({}), /input "x" is missing/);
      assert.throws(
        () => increment.run({ x: engine.upload(tensor('float32', [3], [1, 2, 3])) }),
        /input "x" is float32 \[2\], not float32 \[3\]/,
      );
      assert.throws(() => increment.run({ x: engine.upload(tensor('int32', [2], [1, 2])) }), /not int32 \[2\]/);
      assert.throws(() => increment.run({ x }, ['z']), /no output "z"/);
      engine.release(x);
      assert.throws(() => engine.release(x), /was released/);
      assert.throws(() => increment.run({ x }), /was released/);
      await assert.rejects(engine.download(x), /was released/);
      increment.release();
      assert.throws(() => increment.release(), /was released/);
      assert.throws(() => increment.run({ x: engine.upload(tensor('float32', [2], [1, 2])) }), /was released/);
      assert.throws(() => engine.upload({ type: 'float32', shape: [2], data: new Float32Array(0) }), /with 0 elements/);
    }));

  test('a graph with a symbolic shape is refused', () =>
    withEngine(async (engine) => {
      const graph = addGraph(1);
      const inputs = graph.inputs.map((input) => ({ ...input, shape: ['N'] }));
      await assert.rejects(engine.compile({ ...graph, inputs }), /static/);
    }));
}

function closeTests(createEngine: () => Promise<Engine>): void {
  test('finishes what is queued; what was taken stays readable', async () => {
    const engine = await createEngine();
    const size = 2 ** 18;
    const executable = await engine.compile(addGraph(3, size));
    const results = executable.run({ x: engine.upload(wrap('float32', [size], new Float32Array(size))) });
    const taking = engine.take(defined(results['y'], 'y'));
    engine.upload(tensor('float32', [1], [1]));
    await engine.close();
    assert.equal(engine.valueBytes(), 0);
    const { data } = await taking;
    assert.ok((data as Float32Array).every((element) => element === 3));
  });

  test('closing twice is closing once; other calls are refused', async () => {
    const engine = await createEngine();
    const value = engine.upload(tensor('float32', [1], [1]));
    assert.equal(engine.close(), engine.close());
    await engine.close();
    assert.throws(() => engine.upload(tensor('float32', [1], [1])), /closed/);
    await assert.rejects(engine.download(value), /closed|released/);
    await assert.rejects(engine.compile(addGraph(1)), /closed/);
    await assert.rejects(engine.settled(), /closed/);
  });

  test('reports a failure that nobody has seen, once everything is freed', async () => {
    const engine = await createEngine();
    const pick = await engine.compile(pickGraph());
    pick.run({ x: engine.upload(tensor('float32', [2], [5, 6])), index: engine.upload(int64s([7])) });
    await assert.rejects(engine.close(), RunError);
    assert.equal(engine.valueBytes(), 0);
  });
}

/**
 * While a run of at least `leastMs` computes, this thread's timers go on firing: the longest pause is far shorter than
 * the run.
 */
async function callerIsFree(engine: Engine): Promise<void> {
  const leastMs = 250;
  for (let depth = 16; ; ) {
    const emitter = new Emitter();
    const weights = emitter.input('weights', 'float32', [128, 128]);
    let value = weights;
    for (let index = 0; index < depth; index++)
      value = emitter.emit('Tanh', [emitter.emit('MatMul', [value, weights])]);
    const executable = await engine.compile(emitter.build('deep', [value]));
    const data = Float32Array.from({ length: 128 * 128 }, (_, index) => Math.sin(index));
    const input = engine.upload(wrap('float32', [128, 128], data));
    await engine.settled();
    const pause = longestPause();
    const startMs = performance.now();
    const results = executable.run({ weights: input });
    const returnedMs = performance.now() - startMs;
    await engine.take(defined(results[value], value));
    const [runMs, pauseMs] = [performance.now() - startMs, pause.stop()];
    if (runMs < leastMs) {
      depth = Math.ceil((depth * 1.5 * leastMs) / runMs);
      continue;
    }
    assert.ok(returnedMs < runMs / 10, `the call took ${returnedMs} ms of ${runMs}`);
    assert.ok(pauseMs < runMs / 2, `no timer fired for ${pauseMs} ms of a run of ${runMs}`);
    return;
  }
}

/** Watches the time between turns of this thread's event loop. */
function longestPause(): { stop(): number } {
  let longest = 0;
  let last = performance.now();
  const look = (): void => {
    const now = performance.now();
    longest = Math.max(longest, now - last);
    last = now;
  };
  const timer = setInterval(look, 1);
  return {
    stop: () => {
      clearInterval(timer);
      look();
      return longest;
    },
  };
}
