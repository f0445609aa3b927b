// The acceptance suite that every engine runs: what the rest of Asteroid may rely on. Values are compared with the
// operators' definitions.

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { defined } from '../assert.ts';
import type { Engine, Value } from '../engine/engine.ts';
import { InputError, RunError } from '../errors.ts';
import { Emitter } from '../graph/emitter.ts';
import { int64s, tensor, toNumbers, wrap } from '../graph/tensor.ts';
import { addGraph, pickGraph, type WithEngine } from './engine-suite/graphs.ts';
import { ownershipTests } from './engine-suite/ownership.ts';
import { valueTests } from './engine-suite/values.ts';

export interface EngineSuiteOptions {
  /** True where computing happens off the calling thread, which must then never wait for it. */
  readonly isThreaded: boolean;
}

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
    describe('order and failures', () => {
      orderTests(withEngine);
      accountTests(withEngine);
    });
    describe('ownership', () => ownershipTests(withEngine));
    describe('mistakes of the caller', () => mistakeTests(withEngine));
    describe('close', () => closeTests(createEngine));
    if (isThreaded) test('the calling thread never waits for a run', () => withEngine(callerIsFree));
  });
}

/** Registers the tests of what is queued and of what fails. */
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
}

/** Registers the tests of waiting and of counted bytes. */
function accountTests(withEngine: WithEngine): void {
  test('settled() waits for what is queued', () =>
    withEngine(async (engine) => {
      await engine.settled();
      const before = engine.busyMs();
      const increment = await engine.compile(addGraph(1, 10_000));
      const x = engine.upload(wrap('float32', [10_000], new Float32Array(10_000)));
      for (let run = 0; run < 5; run++) increment.run({ x });
      assert.equal(engine.busyMs(), before);
      await engine.settled();
      assert.ok(engine.busyMs() > before);
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
