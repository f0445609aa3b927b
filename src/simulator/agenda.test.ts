import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../random.ts';
import { Agenda } from './agenda.ts';

test('entries come by time, then early before late, then in the order of adding', () => {
  const agenda = new Agenda();
  agenda.add(1, 5, false);
  agenda.add(2, 3, true);
  agenda.add(3, 3, false);
  agenda.add(4, 5, false);
  agenda.add(5, 3, true);
  const order: number[] = [];
  for (let what = agenda.next(); what >= 0; what = agenda.next()) order.push(what);
  assert.deepEqual(order, [3, 2, 5, 1, 4]);
  assert.equal(agenda.timeMs, 5);
  assert.equal(agenda.next(), -1);
});

test('a thousand entries, added and taken in turn, come out as a sort would bring them', () => {
  const random = createRandom(7, 0);
  const agenda = new Agenda();
  const waiting: { what: number; timeMs: number; late: boolean }[] = [];
  for (let what = 0; what < 1000; what++) {
    const entry = { what, timeMs: random.integer(40), late: random.uniform() < 0.4 };
    waiting.push(entry);
    agenda.add(entry.what, entry.timeMs, entry.late);
    if (random.uniform() < 0.6 && what < 900) continue;
    waiting.sort((a, b) => a.timeMs - b.timeMs || Number(a.late) - Number(b.late) || a.what - b.what);
    const first = waiting.shift();
    assert.equal(agenda.next(), first?.what);
    assert.equal(agenda.timeMs, first?.timeMs);
  }
  waiting.sort((a, b) => a.timeMs - b.timeMs || Number(a.late) - Number(b.late) || a.what - b.what);
  for (const entry of waiting) assert.equal(agenda.next(), entry.what);
  assert.equal(agenda.next(), -1);
});
