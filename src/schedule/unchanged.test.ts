// Programs of random plans, all schedules, held against a hash taken on 2026-11-28. Whoever changes it changes what
// runs, and says so in the commit.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { randomPlan, withRandomCompression } from '../testing/random-plans.ts';
import { program } from './generate.ts';

const known = 'a7fb5ed1743529ab37cdb95fd34d97fda12f738c45e0753df8654437fe21ef1c';

test('programs of 1,000 random plans of all schedules are the same JSON as ever', () => {
  const hash = createHash('sha256');
  for (let seed = 0; seed < 1000; seed++) {
    const plan = randomPlan(seed);
    const layerCount = plan.stages.at(-1)?.layers[1] ?? 0;
    const partlyFrozen = { ...plan, forwardOnlyLayers: seed % (layerCount + 1) };
    for (const variant of [plan, withRandomCompression(plan, seed), partlyFrozen]) {
      for (const feed of [true, false]) hash.update(JSON.stringify(program(variant, { feed })));
    }
  }
  assert.equal(hash.digest('hex'), known);
});
