// Requests that share rounds: who waits for whom, how long, and what becomes of those that are too many or go away.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Clock } from '../../clock.ts';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import { InferenceRounds } from './inference-rounds.ts';
import { type BatcherOptions, Overloaded, RequestBatcher } from './request-batcher.ts';

/** A clock that the test moves. */
function createClock(): Clock & { advance(ms: number): void } {
  let nowMs = 0;
  const timers = new Set<{ readonly atMs: number; readonly callback: () => void }>();
  return {
    now: () => nowMs,
    after(delayMs, callback) {
      const timer = { atMs: nowMs + delayMs, callback };
      timers.add(timer);
      return () => void timers.delete(timer);
    },
    advance(ms) {
      nowMs += ms;
      for (const timer of timers) if (timer.atMs <= nowMs && timers.delete(timer)) timer.callback();
    },
  };
}

/** A pipeline whose rounds end when the test says so, each giving what it was given. */
function pipeline(more: Partial<BatcherOptions> = {}) {
  const clock = createClock();
  const rounds = new InferenceRounds();
  const sizes: number[] = [];
  let seen = 0;
  rounds.begin((count) => {
    for (; seen < count; seen++) sizes.push(rounds.batch(seen).inputs[0]?.shape[0] ?? 0);
  });
  const batcher = new RequestBatcher({
    ...{ rounds, clock, batchSize: 4, roundLimit: 2, queueLimit: 10, maxLatencyMs: 100 },
    ...more,
  });
  let ended = 0;
  const end = (): void => {
    const round = ended++;
    rounds.results(round, rounds.batch(round).inputs);
  };
  const ask = (...values: number[]): Promise<number[]> =>
    batcher
      .infer([tensor('float32', [values.length], values)])
      .then(([y]) => Array.from((y as Tensor).data as Float32Array));
  return { clock, batcher, sizes, end, ask };
}

/** Lets promises that are due run. */
const settled = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

test('an idle pipeline takes a request at once; while it works, requests wait for each other', async () => {
  const { sizes, end, ask, batcher, clock } = pipeline();
  const first = ask(1);
  const others = [ask(2), ask(3, 4)];
  assert.deepEqual([sizes, batcher.queuedCount], [[1], 3]);
  const last = ask(5);
  assert.deepEqual(sizes, [1, 4], 'a full round does not wait');
  const late = ask(6);
  end();
  end();
  assert.deepEqual(await first, [1]);
  assert.deepEqual(await Promise.all([...others, last]), [[2], [3, 4], [5]]);
  await settled();
  assert.deepEqual(sizes, [1, 4, 1], 'with the pipeline idle again, nothing is waited for');
  end();
  assert.deepEqual(await late, [6]);
  assert.equal(clock.now(), 0);
});

test('a request waits no longer than its latency allows', async () => {
  const { clock, sizes, end, ask } = pipeline();
  const first = ask(1);
  const second = ask(2);
  clock.advance(49);
  assert.deepEqual(sizes, [1]);
  clock.advance(1);
  assert.deepEqual(sizes, [1, 1], 'half of 100 ms, with a pipeline that has taken no time yet');
  end();
  end();
  assert.deepEqual(await Promise.all([first, second]), [[1], [2]]);
});

test('a request of more samples than a round goes through several, and comes out whole', async () => {
  const { sizes, end, ask } = pipeline();
  const answer = ask(1, 2, 3, 4, 5, 6, 7);
  await settled();
  assert.deepEqual(sizes, [4, 4], 'three samples are filled up to four');
  end();
  end();
  assert.deepEqual(await answer, [1, 2, 3, 4, 5, 6, 7]);
});

test('what does not fit the queue is refused, and what is given up leaves it', async () => {
  const { batcher, end, ask } = pipeline({ roundLimit: 1 });
  const first = ask(0);
  const giveUp = new AbortController();
  const given = batcher.infer([tensor('float32', [6], [1, 2, 3, 4, 5, 6])], giveUp.signal);
  await assert.rejects(ask(1, 2, 3, 4, 5), Overloaded);
  giveUp.abort();
  await assert.rejects(given, /given up/);
  assert.equal(batcher.queuedCount, 0);
  end();
  assert.deepEqual(await first, [0]);
});

test('the end of the run is the end of every request', async () => {
  const rounds = new InferenceRounds();
  const options = { rounds, clock: createClock(), batchSize: 4, roundLimit: 1, queueLimit: 10, maxLatencyMs: 100 };
  const batcher = new RequestBatcher(options);
  const asked = [1, 2].map((value) => batcher.infer([tensor('float32', [1], [value])]));
  rounds.fail(new Error('all devices left'));
  for (const request of asked) await assert.rejects(request, /all devices left/);
});
