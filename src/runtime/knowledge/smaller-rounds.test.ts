import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { RoundResult } from '../protocol/messages.ts';
import { SmallerRounds } from './smaller-rounds.ts';

const whole = new Map([['a', { busyMs: 100, processMs: 120, linksMs: 20, reducingMs: 0 }]]);

/** A round in which a computed so long; its main thread takes what it takes. */
function round(computeMs: number, linksMs = 1): Readonly<Record<string, RoundResult>> {
  const busyMs = computeMs + 0.1;
  return { a: { busyMs, processMs: computeMs + linksMs, linksMs } as RoundResult };
}

test('rounds of few samples are judged by the first of their kind, of each number of samples apart', () => {
  const rounds = new SmallerRounds();
  const found = (count: number, computeMs: number, linksMs?: number) =>
    rounds.asWhole(count, round(computeMs, linksMs), () => whole)?.['a'];
  // The first three compile: they are not compared with.
  for (const ms of [90, 80, 70, 4, 5, 6, 5, 5, 5, 4, 6]) assert.equal(found(1, ms), undefined);
  assert.deepEqual(found(1, 5), { busyMs: 100, processMs: 120, linksMs: 20, reducingMs: 0 });
  assert.deepEqual(found(1, 15, 30), { busyMs: 300, processMs: 360, linksMs: 60, reducingMs: 0 });
  assert.equal(found(2, 15), undefined);
  rounds.begin();
  assert.equal(found(1, 5), undefined);
});

test('where a process says only what its engine computed, that counts; unknown devices are left out', () => {
  const rounds = new SmallerRounds();
  const results = (ms: number) => ({ a: { busyMs: ms } as RoundResult, b: { busyMs: ms } as RoundResult });
  const usual = new Map([['a', { busyMs: 10 }]]);
  for (let count = 0; count < 11; count++) rounds.asWhole(1, results(2), () => usual);
  assert.deepEqual(
    rounds.asWhole(1, results(8), () => usual),
    { a: { busyMs: 40 } },
  );
});
