// The simulator agrees with the slow one (testing/slow-simulator.ts), which shares no code with it.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../cluster/cluster.ts';
import { plan } from '../planner/plan.ts';
import { plannerNames } from '../planner/planners.ts';
import { program } from '../schedule/generate.ts';
import {
  randomCluster,
  randomInstance,
  randomPlan,
  randomProfile,
  withRandomCompression,
} from '../testing/random-plans.ts';
import { slowRound } from '../testing/slow-simulator.ts';
import { simulate } from './simulate.ts';

test('the simulator equals the slow one exactly on 1000 random plans', () => {
  for (let seed = 1000; seed < 2000; seed++) {
    const plan = seed % 3 === 0 ? withRandomCompression(randomPlan(seed), seed) : randomPlan(seed);
    const cluster = randomCluster(seed, plan);
    const profile = randomProfile(seed, plan, cluster);
    const slow = slowRound(plan, profile, cluster);
    const fast = simulate(program(plan), plan, profile, cluster);
    assert.equal(fast.roundMs, slow.round, `seed ${seed}`);
    for (const [name, busy] of Object.entries(slow.busy))
      assert.equal(fast.devices[name]?.busyMs, busy, `seed ${seed}: busy time of ${name}`);
    assert.deepEqual(Object.keys(fast.links).sort(), Object.keys(slow.links).sort(), `seed ${seed}: links`);
    for (const [name, [bytes, busy]] of Object.entries(slow.links)) {
      assert.equal(fast.links[name]?.bytes, bytes, `seed ${seed}: bytes of ${name}`);
      assert.equal(fast.links[name]?.busyMs, busy, `seed ${seed}: time of ${name}`);
    }
  }
});

test('and on the plans of every planner for 60 problems with real-valued times, to a millionth', () => {
  for (let seed = 0; seed < 60; seed++) {
    const { profile, cluster } = randomInstance(seed, { deviceCount: 1 + (seed % 4), layerCount: 4 + (seed % 5) });
    for (const planner of plannerNames.filter((name) => name !== 'hetpipe' && name !== 'exhaustive')) {
      let found: Plan;
      try {
        found = plan({
          profile,
          cluster,
          batchSize: 24,
          microBatchSize: [2, 3, 4, 24][seed % 4] ?? 1,
          optimizerState: 0,
          planner,
        });
      } catch (error) {
        assert.match(String(error), /fits nowhere|does not look at memory/);
        continue;
      }
      const slow = slowRound(found, profile, cluster);
      const fastMs = found.predicted.roundMs;
      assert.ok(
        Math.abs(fastMs - slow.round) < 1e-6 * slow.round,
        `seed ${seed}, ${planner}: ${fastMs} ms, the slow one ${slow.round} ms`,
      );
    }
  }
});
