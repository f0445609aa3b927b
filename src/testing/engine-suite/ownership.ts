// The acceptance suite of engines: whom values belong to.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import type { Value } from '../../engine/engine.ts';
import { Emitter } from '../../graph/emitter.ts';
import { int64s, scalar, tensor, toNumbers, wrap } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { addGraph, type WithEngine } from './graphs.ts';

/** Registers the tests. */
export function ownershipTests(withEngine: WithEngine): void {
  aliasTests(withEngine);
  livenessTests(withEngine);
  replacementTests(withEngine);
  copyTests(withEngine);
}

/** Outputs that no node computes, and inputs that no node reads. */
function aliasTests(withEngine: WithEngine): void {
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
}

/** What is alive keeps its elements. */
function livenessTests(withEngine: WithEngine): void {
  test('values that are alive stay as they are, with anything run, taken out and released meanwhile', () =>
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
}

/** Outputs in the memory of inputs. */
function replacementTests(withEngine: WithEngine): void {
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
}

/** What is copied, what is moved, and what stays the caller’s. */
function copyTests(withEngine: WithEngine): void {
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
