import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../assert.ts';
import { Emitter } from '../graph/emitter.ts';
import { type Tensor, tensor, toNumbers } from '../graph/tensor.ts';
import type { Engine, Value } from './engine.ts';
import { createQueuedEngine } from './queued.ts';

interface Bench {
  readonly engine: Engine;
  /** The buffers that kernels got, in turn. */
  readonly taken: ArrayBuffer[];
  /** y = x + 1 on two elements; with x[0] = 99 it fails, a buffer in hand. `isReplaced`: y takes x's place. */
  increment(x: Value, isReplaced?: boolean): Value;
}

/** An engine whose only kernel adds 1, into buffers that it is given. */
async function bench(): Promise<Bench> {
  const taken: ArrayBuffer[] = [];
  const engine = createQueuedEngine({
    name: 'adds 1',
    writesInPlace: true,
    compile: async () => ({
      async run([x], [y], buffers) {
        const from = defined(x, 'x').data as Float32Array;
        const buffer = buffers.take(from.byteLength, defined(y, 'y'));
        taken.push(buffer);
        if (from[0] === 99) throw new Error('99 is too much');
        const data = new Float32Array(buffer);
        for (const [index, value] of from.entries()) data[index] = value + 1;
        return [{ type: 'float32', shape: [2], data }];
      },
      release: async () => {},
    }),
  });
  const emitter = new Emitter();
  const y = emitter.emit('Neg', [emitter.input('x', 'float32', [2])]);
  const executable = await engine.compile(emitter.build('increment', [y]));
  return {
    engine,
    taken,
    increment: (x, isReplaced) =>
      defined(executable.run({ x }, undefined, isReplaced === true ? { [y]: 'x' } : {})[y], y),
  };
}

const pair = (a: number, b: number): Tensor => tensor('float32', [2], [a, b]);

test('a buffer is written again when its value is released, after all runs that read it', async () => {
  const { engine, taken, increment } = await bench();
  const x = engine.upload(pair(1, 2));
  const a = increment(x);
  const b = increment(a);
  engine.release(a); // behind the run that makes b, in front of the one that makes c
  const c = increment(b);
  await engine.settled();
  assert.equal(taken.length, 3);
  assert.equal(new Set(taken).size, 2);
  assert.equal(taken[2], taken[0]);
  assert.deepEqual(await Promise.all([x, b, c].map(async (value) => toNumbers(await engine.download(value)))), [
    [1, 2],
    [3, 4],
    [4, 5],
  ]);
  await engine.close();
});

test('an uploaded buffer is written again too; one that was taken out never is', async () => {
  const { engine, taken, increment } = await bench();
  const uploaded = pair(1, 2);
  const x = engine.upload(uploaded);
  const a = increment(x);
  engine.release(x);
  const out = await engine.take(increment(a));
  assert.equal(taken[1], uploaded.data.buffer);
  engine.release(increment(a));
  await engine.settled();
  assert.ok(taken[2] !== out.data.buffer && taken[2] !== taken[0]);
  assert.deepEqual(toNumbers(out), [3, 4]);
  await engine.close();
});

test('what replaces an input is written over it, and nothing else is', async () => {
  const { engine, taken, increment } = await bench();
  const uploaded = pair(1, 2);
  const x = engine.upload(uploaded);
  const kept = increment(x);
  const y = increment(increment(x, true), true);
  assert.throws(() => increment(x), /was released/);
  await engine.settled();
  assert.equal(taken[1], uploaded.data.buffer);
  assert.equal(taken[2], uploaded.data.buffer);
  assert.deepEqual(toNumbers(await engine.download(kept)), [2, 3]);
  assert.equal(engine.valueBytes(), 16);
  assert.deepEqual(toNumbers(await engine.take(y)), [3, 4]);
  const whole = Float32Array.of(1, 2, 3, 4);
  const view = increment(engine.upload({ type: 'float32', shape: [2], data: whole.subarray(2) }), true);
  assert.deepEqual(toNumbers(await engine.take(view)), [4, 5]);
  assert.deepEqual([...whole], [1, 2, 3, 4], 'a view of a larger buffer is left alone');
  await engine.close();
});

test('a run that fails over what it replaces leaves the buffer to others', async () => {
  const { engine, taken, increment } = await bench();
  const others = engine.upload(pair(1, 2)); // at the peak there are two
  const failed = increment(engine.upload(pair(99, 0)), true);
  await assert.rejects(engine.take(failed), /99 is too much/);
  await engine.settled().catch(() => {});
  engine.release(increment(others));
  await engine.settled();
  assert.equal(taken[1], taken[0]);
  await engine.close();
});

test('a view of a larger buffer is left alone', async () => {
  const { engine, taken, increment } = await bench();
  const whole = Float32Array.of(1, 2, 3, 4);
  const x = engine.upload({ type: 'float32', shape: [2], data: whole.subarray(1, 3) });
  engine.release(increment(x));
  engine.release(x);
  for (let run = 0; run < 3; run++) engine.release(increment(engine.upload(pair(run, run))));
  await engine.settled();
  assert.ok(!taken.includes(whole.buffer));
  assert.deepEqual([...whole], [1, 2, 3, 4]);
  await engine.close();
});

test('what a failed run was given is free again', async () => {
  const { engine, taken, increment } = await bench();
  const tooMuch = engine.upload(pair(99, 0));
  const failed = increment(tooMuch);
  await assert.rejects(engine.take(failed), /99 is too much/);
  await engine.take(tooMuch);
  const x = engine.upload(pair(1, 2));
  assert.deepEqual(toNumbers(await engine.take(increment(x))), [2, 3]);
  assert.equal(taken[1], taken[0]);
  await engine.close();
});

test('trim lets go of what is free', async () => {
  const { engine, taken, increment } = await bench();
  const x = engine.upload(pair(1, 2));
  engine.release(increment(x));
  await engine.settled();
  engine.trim();
  await engine.settled();
  assert.equal(defined(taken[0], 'the first').byteLength, 0); // its memory is gone
  engine.release(increment(x));
  await engine.settled();
  assert.notEqual(taken[1], taken[0]);
  await engine.close();
});
