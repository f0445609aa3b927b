// Devices that come and go, and how long they wait.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CoolDown } from './reconsider.ts';

test('each departure doubles the wait, up to five minutes; a device that has never left waits for nothing', () => {
  const coolDown = new CoolDown();
  const waitsS: number[] = [];
  for (let count = 1; count <= 9; count++) {
    coolDown.left('a', 0);
    waitsS.push(coolDown.remainingMs('a', 0) / 1000);
    assert.equal(coolDown.departureCount('a'), count);
  }
  assert.deepEqual(waitsS, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
  assert.equal(coolDown.remainingMs('b', 0), 0);
  assert.equal(coolDown.departureCount('b'), 0);
});

test('the wait begins with the departure, and is over at last', () => {
  const coolDown = new CoolDown();
  coolDown.left('a', 1000);
  assert.equal(coolDown.remainingMs('a', 3000), 3000);
  assert.equal(coolDown.remainingMs('a', 6000), 0);
  coolDown.left('a', 60_000);
  assert.equal(coolDown.remainingMs('a', 60_000), 10_000, 'however long it stayed');
});
