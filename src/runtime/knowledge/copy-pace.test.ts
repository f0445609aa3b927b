import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../../random.ts';
import { CopyPace } from './copy-pace.ts';

interface World {
  readonly baseMs: number;
  /** By how much each round with a copy under way is longer. */
  readonly copyMs: number;
  /** For how many rounds a copy is. */
  readonly copyRounds: number;
  /** Rounds vary by this part. */
  readonly noise: number;
  readonly leastEvery: number;
}

/**
 * Trains as the coordinator does; the rounds between copies, and the time beyond that of rounds without copies, of the
 * last half.
 */
function train(
  { baseMs, copyMs, copyRounds, noise, leastEvery }: World,
  roundCount = 2000,
): { every: number; cost: number } {
  const random = createRandom(7);
  let nowMs = 0;
  const pace = new CopyPace({ now: () => nowMs, after: () => () => {} });
  let every = Math.max(2, leastEvery);
  pace.begin(leastEvery, every);
  let [due, left, extraMs] = [0, 0, 0];
  for (let round = 0; round < roundCount; round++) {
    const isCopying = left > 0;
    nowMs += baseMs * (1 + noise * (2 * random.uniform() - 1)) + (isCopying ? copyMs : 0);
    if (isCopying) left--;
    if (round >= roundCount / 2 && isCopying) extraMs += copyMs;
    if (left === 0 && round >= due) [left, due] = [copyRounds, round + every];
    every = pace.committed(left > 0) ?? every;
  }
  return { every, cost: extraMs / ((roundCount / 2) * baseMs) };
}

const usual: World = { baseMs: 1000, copyMs: 60, copyRounds: 1, noise: 0.05, leastEvery: 1 };

test('copies that slow rounds down are made as often as they cost 3 %', () => {
  assert.deepEqual(train({ ...usual, noise: 0 }), { every: 2, cost: 0.03 });
  assert.deepEqual(train({ ...usual, noise: 0, copyMs: 100 }).every, 4);
  for (const copyMs of [60, 150, 400, 1000]) {
    const { cost } = train({ ...usual, copyMs });
    assert.ok(cost > 0.015 && cost < 0.04, `${copyMs} ms: ${cost}`);
  }
});

test('copies that cost nothing are made as often as links allow', () => {
  // Now and then some rounds go without, to compare.
  assert.ok(train({ ...usual, noise: 0, copyMs: 0 }).every <= 2);
  assert.equal(train({ ...usual, noise: 0, copyMs: 0, leastEvery: 5 }).every, 5);
});

test('copies that take several rounds, or all the time, are made more rarely', () => {
  for (const copyRounds of [3, 8]) {
    const { cost, every } = train({ ...usual, copyMs: 100, copyRounds }, 8000);
    assert.ok(every > copyRounds, `${copyRounds} rounds: every ${every}`);
    assert.ok(cost > 0.01 && cost < 0.045, `${copyRounds} rounds: ${cost}`);
  }
});
