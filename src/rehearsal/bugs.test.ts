// The rehearsal is tested by mistakes: each that is built in must be found within a few seeds.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { seededBugs } from './bugs.ts';
import { scenarioIn } from './modes.ts';
import { rehearse } from './rehearse.ts';

const mostSeeds = 500;

for (const [name, { make, faults, modes = 'sync' }] of Object.entries(seededBugs)) {
  test(`found: ${name}`, async (context) => {
    for (let seed = 0; seed < mostSeeds; seed++) {
      const scenario = scenarioIn(modes, seed, faults);
      const { violations } = await rehearse(scenario, { bug: make() });
      if (violations.length === 0) continue;
      assert.deepEqual((await rehearse(scenario)).violations, [], `seed ${seed} without the mistake`);
      context.diagnostic(`seed ${seed}: ${violations[0]?.split('\n')[0]}`);
      return;
    }
    assert.fail(`${mostSeeds} seeds did not show it`);
  });
}
