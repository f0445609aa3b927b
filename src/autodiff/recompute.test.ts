import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../random.ts';
import {
  cheapestRecomputation,
  measured,
  type RecomputableNode,
  type Recomputation,
  type RecomputationProblem,
  recomputationFront,
  withinBudget,
} from './recompute.ts';

const node = (inputs: readonly string[], output: string, costMs: number): RecomputableNode => ({
  inputs,
  outputs: [output],
  costMs,
});

/** x ─conv─▶ c ─normalize─▶ b ─relu─▶ r, of which the backward pass reads x, c and r. */
const block: RecomputationProblem = {
  nodes: [node(['x', 'w'], 'c', 10), node(['c'], 'b', 1), node(['b'], 'r', 1)],
  bytes: new Map([
    ['x', 50],
    ['c', 100],
    ['b', 100],
    ['r', 100],
  ]),
  required: ['x', 'c', 'r'],
};

test('the front goes from keeping everything to recomputing everything, cheap values first', () => {
  const front = recomputationFront(block);
  assert.deepEqual(
    front.map(({ savedBytes, extraMs, saved, recompute }) => [
      savedBytes,
      extraMs,
      [...saved].join(''),
      [...recompute].join(''),
    ]),
    [
      [250, 0, 'xcr', ''],
      [150, 2, 'xc', 'br'],
      [50, 12, 'x', 'cbr'],
    ],
  );
  assert.equal(withinBudget(front, 250), front[0]);
  assert.equal(withinBudget(front, 249), front[1]);
  assert.equal(withinBudget(front, 49), undefined);
});

test('nodes that must not run again are kept, and no view is kept in addition to its value', () => {
  const problem = {
    ...block,
    nodes: block.nodes.map((each) =>
      each.outputs[0] === 'c' ? { ...each, costMs: Number.POSITIVE_INFINITY } : { ...each, costMs: 0 },
    ),
    bytes: new Map([...block.bytes, ['r', Number.POSITIVE_INFINITY]]),
  };
  const { saved, recompute } = cheapestRecomputation(problem, 1);
  assert.deepEqual(
    [[...saved], [...recompute]],
    [
      ['x', 'c'],
      ['b', 'r'],
    ],
  );
  assert.equal(recomputationFront(problem).length, 1);
});

test('equal layers are recomputed one by one, the first ones first', () => {
  const layers = Array.from({ length: 4 }, (_, index) => index);
  const problem: RecomputationProblem = {
    nodes: layers.flatMap((index) => [node([`x${index}`], `y${index}`, 5), node([`y${index}`], `x${index + 1}`, 1)]),
    bytes: new Map(
      layers.flatMap((index) => [[`x${index}`, 8] as const, [`y${index}`, 8] as const, [`x${index + 1}`, 8] as const]),
    ),
    required: layers.flatMap((index) => [`x${index}`, `y${index}`, `x${index + 1}`]),
  };
  const front = recomputationFront(problem);
  assert.deepEqual(
    front.slice(0, 5).map(({ extraMs, recompute }) => [extraMs, [...recompute].join(' ')]),
    [
      [0, ''],
      [1, 'x1'],
      [2, 'x1 x2'],
      [3, 'x1 x2 x3'],
      [4, 'x1 x2 x3 x4'],
    ],
  );
});

/** A random pass of a few nodes, some with two inputs or two outputs. */
function randomProblem(seed: number): RecomputationProblem {
  const random = createRandom(seed);
  const bytes = new Map([['v0', 1 + random.integer(20)]]);
  const nodes: RecomputableNode[] = [];
  const pick = (): string => `v${random.integer(bytes.size)}`;
  for (let index = 0; index < 2 + random.integer(8); index++) {
    const inputs = random.integer(2) === 0 ? [pick()] : [pick(), pick(), 'parameter'];
    const outputs = [`v${bytes.size}`];
    bytes.set(`v${bytes.size}`, random.integer(20));
    if (random.integer(5) === 0) {
      outputs.push(`v${bytes.size}`);
      bytes.set(`v${bytes.size}`, random.integer(5));
    }
    nodes.push({ inputs, outputs, costMs: random.integer(6) === 0 ? Number.POSITIVE_INFINITY : random.integer(12) });
  }
  return { nodes, bytes, required: [...bytes.keys()].filter(() => random.integer(2) === 0) };
}

/** Every choice of nodes to run again. */
function allChoices(problem: RecomputationProblem): Recomputation[] {
  const allowed = problem.nodes.filter(({ costMs }) => Number.isFinite(costMs));
  return Array.from({ length: 1 << allowed.length }, (_, set) =>
    measured(
      problem,
      allowed.filter((_, index) => ((set >> index) & 1) === 1),
    ),
  );
}

test('for every rate the choice is optimal, on random graphs', () => {
  for (let seed = 0; seed < 150; seed++) {
    const problem = randomProblem(seed);
    const choices = allChoices(problem);
    for (const rate of [0, 0.1, 0.5, 1, 2, 5, 30]) {
      const price = ({ savedBytes, extraMs }: Recomputation): number => savedBytes + rate * extraMs;
      const best = Math.min(...choices.map(price));
      const choice = cheapestRecomputation(problem, rate);
      assert.ok(Math.abs(price(choice) - best) < 1e-9, `seed ${seed}, rate ${rate}: ${price(choice)} for ${best}`);
    }
  }
});

test('the front has every corner of the convex hull of all choices; bytes fall as time grows', () => {
  let cornerCount = 0;
  for (let seed = 0; seed < 150; seed++) {
    const problem = randomProblem(seed);
    const choices = allChoices(problem);
    const front = recomputationFront(problem);
    front.slice(1).forEach((point, index) => {
      const before = front[index] as Recomputation;
      assert.ok(point.savedBytes < before.savedBytes && point.extraMs >= before.extraMs, `seed ${seed}`);
    });
    // Each corner is the only best choice for some rate; ties are within the tie-breaking term.
    for (let rate = 0.05; rate < 30; rate *= 1.3) {
      const price = ({ savedBytes, extraMs }: Recomputation): number => savedBytes + rate * extraMs;
      const least = Math.min(...choices.map(price));
      const found = Math.min(...front.map(price));
      assert.ok(found <= least * 1.002 + 1e-9, `seed ${seed}, rate ${rate}: ${found} for ${least}`);
      cornerCount++;
    }
  }
  assert.ok(cornerCount > 1000);
});
