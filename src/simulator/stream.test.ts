// Streams of ticks: the period is exact, and the slow simulator's, which runs rounds until they repeat themselves.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../cluster/cluster.ts';
import { createRandom } from '../random.ts';
import { checkProgram } from '../schedule/check.ts';
import { program } from '../schedule/generate.ts';
import { randomCluster, randomPlan, randomProfile, withRandomCompression } from '../testing/random-plans.ts';
import { slowPeriodMs } from '../testing/slow-stream.ts';
import { simulate } from './simulate.ts';

/** A random plan as a stream, with as few micro-batches in flight as can be, or more. */
function randomStream(seed: number): PlanLayout {
  const random = createRandom(seed, 21);
  const plan = seed % 3 === 0 ? withRandomCompression(randomPlan(seed), seed) : randomPlan(seed);
  const more = random.uniform() < 0.5 ? 0 : random.integer(4);
  const stages = plan.stages.map(({ buckets: _, ...stage }, index) => ({
    ...stage,
    inFlight: plan.stages.length - index + (index === 0 ? more : Math.min(more, random.integer(3))),
  }));
  let least = Number.POSITIVE_INFINITY;
  const falling = stages.map((stage) => {
    least = Math.min(least, stage.inFlight);
    return { ...stage, inFlight: least };
  });
  return { ...plan, schedule: 'async', stages: falling };
}

test('the period equals the slow simulator’s exactly on random plans', () => {
  let unsettledCount = 0;
  for (let seed = 3000; seed < 3200; seed++) {
    const plan = randomStream(seed);
    const cluster = randomCluster(seed, plan);
    const profile = randomProfile(seed, plan, cluster);
    const slowMs = slowPeriodMs(plan, profile, cluster);
    const tick = program(plan);
    checkProgram(tick, plan);
    console.log(seed);
    const { roundMs } = simulate(tick, plan, profile, cluster);
    if (slowMs === undefined) unsettledCount++;
    else assert.equal(roundMs, slowMs, `seed ${seed}`);
  }
  console.log(unsettledCount);
});
