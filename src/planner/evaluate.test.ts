import assert from 'node:assert/strict';
import { test } from 'node:test';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { randomInstance } from '../testing/random-plans.ts';
import { randomLayouts, randomProblem, withFrozenPrefix } from '../testing/random-problems.ts';
import { Evaluator } from './evaluate.ts';
import { layoutPlan } from './problem.ts';

test('the evaluator says what the simulator says, to the last bit, or a bound where two kinds of messages share a link: 1000 random pipelines, a third with frozen layers', () => {
  let exactCount = 0;
  for (let seed = 0; seed < 1000; seed++) {
    const instance = randomInstance(seed, { deviceCount: 1 + (seed % 7), layerCount: 1 + (seed % 11) });
    const { cluster } = instance;
    const profile = seed % 3 === 0 ? withFrozenPrefix(seed, instance.profile) : instance.profile;
    const problem = randomProblem(seed, profile, cluster);
    const layouts = randomLayouts(seed, problem);
    const plan = layoutPlan(problem, 'random', layouts);
    const { roundMs } = simulate(program(plan), plan, profile, cluster, { events: false });
    const evaluator = new Evaluator(problem);
    const ours = evaluator.roundMs(layouts);
    if (evaluator.isExact) {
      exactCount++;
      assert.equal(ours, roundMs, `seed ${seed}`);
    } else assert.ok(ours <= roundMs, `seed ${seed}: the bound ${ours} ms is above the simulated ${roundMs} ms`);
    assert.equal(evaluator.roundMs(layouts, ours * (1 + 1e-9)), ours);
    assert.equal(evaluator.roundMs(layouts, ours / 2), Number.POSITIVE_INFINITY);
  }
  assert.ok(exactCount > 600 && exactCount < 1000, `${exactCount} exact: both cases should be met`);
});
