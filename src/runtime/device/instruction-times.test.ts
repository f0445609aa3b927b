// Times of computing are the engine's, whenever it was queued and whenever its end was heard of.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InstructionTimes } from './instruction-times.ts';

/** Times on a clock that is set by hand, in a round that began at 100. */
function start() {
  let nowMs = 100;
  const times = new InstructionTimes({ now: () => nowMs, after: () => () => {} }, 100);
  const at = (ms: number): void => {
    nowMs = 100 + ms;
  };
  /** An engine's answer, and how to give it. */
  const answer = (): { readonly computed: Promise<number>; give(agoMs: number): Promise<void> } => {
    let resolve = (_: number): void => {};
    const computed = new Promise<number>((set) => {
      resolve = set;
    });
    return {
      computed,
      async give(agoMs) {
        resolve(agoMs);
        await new Promise(setImmediate);
      },
    };
  };
  return { times, at, answer };
}

test('computing begins once queued and all before it ended, and ends when the engine says', async () => {
  const { times, at, answer } = start();
  const [first, second, third] = [answer(), answer(), answer()];
  at(1);
  times.queued(0, times.now(), first.computed);
  at(2);
  times.queued(1, times.now(), second.computed);
  at(12);
  await first.give(1); // heard of 1 ms late
  at(30);
  await second.give(0);
  at(40);
  times.queued(2, times.now(), third.computed);
  at(45);
  await third.give(0);
  assert.deepEqual(await times.all(), [
    { instruction: 0, startMs: 1, endMs: 11 },
    { instruction: 1, startMs: 11, endMs: 30 },
    { instruction: 2, startMs: 40, endMs: 45 },
  ]);
});

test('no computing ends before it began, and all times stand in the order of their ends', async () => {
  const { times, at, answer } = start();
  const computing = answer();
  at(5);
  times.queued(1, times.now(), computing.computed);
  times.done(0, 2);
  at(6);
  await computing.give(3); // before it was queued: the clocks differ a little
  assert.deepEqual(await times.all(), [
    { instruction: 0, startMs: 2, endMs: 5 },
    { instruction: 1, startMs: 5, endMs: 5 },
  ]);
});

test('an engine that was closed before its answer rejects', async () => {
  const { times } = start();
  times.queued(0, 0, Promise.reject(new Error('closed')));
  await assert.rejects(times.all(), /closed/);
});
