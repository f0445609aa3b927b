// An asynchronous tick by the production's executor equals the oracle of uniform staleness; with a planted mistake in
// what backward passes read, it does not.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { rehearseStream } from './stream.ts';

test('two stages, one round behind: losses and state are those of one device with stale gradients', async () => {
  for (const seed of [1, 2, 3, 4, 5]) {
    const { violations, valuesLeft } = await rehearseStream({ seed, roundCount: 8 });
    assert.deepEqual(violations, [], `seed ${seed}`);
    assert.equal(valuesLeft, 0);
  }
});

test('found: backward with live weights', async () => {
  for (const seed of [1, 2, 3, 4, 5]) {
    const { violations } = await rehearseStream({ seed, roundCount: 8, isLive: true });
    assert.match(violations.join('\n'), /the loss of round \d+ is \d+, not \d+|layer\d\S* is \d+ of round 8, not the/);
  }
});
