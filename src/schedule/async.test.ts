// The schedule async: the tick of FTPipeHD's Fig. 2, with several micro-batches a round, and with replicated stages,
// whose rounds are reduced while the next is computed; and which versions of the weights its rounds read.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';
import { createRandom } from '../random.ts';
import { checkProgram } from './check.ts';
import { program } from './generate.ts';
import { leastStaleness, stalenessOf, weightVersionCount, withStaleness } from './staleness.ts';
import { programText } from './text.ts';

/** Stages of one layer; one of n devices is named by a letter and numbers. Shares are equal, as far as they can be. */
function planOf(groupSizes: readonly number[], microBatchCount: number, inFlight?: readonly number[]): PlanLayout {
  const microBatchSize = 4;
  return {
    planner: 'test',
    schedule: 'async',
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages: groupSizes.map((size, stage) => ({
      layers: [stage, stage + 1],
      devices: Array.from({ length: size }, (_, index) => 'abcdef'[stage] + (size === 1 ? '' : `${index}`)),
      samples: Array.from({ length: size }, (_, index) => Math.floor((4 + index) / size)),
      inFlight: inFlight?.[stage] ?? groupSizes.length - stage,
    })),
  };
}

const ticks: readonly (readonly [title: string, plan: PlanLayout, lines: readonly string[]])[] = [
  ['three stages, one micro-batch', planOf([1, 1, 1], 1), ['a: F0+2 B0 U', 'b: F0+1 B0 U', 'c: F0 B0 U']],
  [
    'three stages, four micro-batches',
    planOf([1, 1, 1], 4),
    ['a: F2 B0 F3 B1 F0+1 B2 F1+1 B3 U', 'b: F1 B0 F2 B1 F3 B2 F0+1 B3 U', 'c: F0 B0 F1 B1 F2 B2 F3 B3 U'],
  ],
  [
    'three stages, two micro-batches: the first stage is a whole round ahead',
    planOf([1, 1, 1], 2),
    ['a: F0+1 B0 F1+1 B1 U', 'b: F1 B0 F0+1 B1 U', 'c: F0 B0 F1 B1 U'],
  ],
  [
    'a replicated stage updates just before what reads the update',
    planOf([2, 1], 4),
    [
      'a0: F1 B0 F2 B1 F3 B2 U-1 F0+1 B3 R[0,1)',
      'a1: F1 B0 F2 B1 F3 B2 U-1 F0+1 B3 R[0,1)',
      'b:  F0 B0 F1 B1 F2 B2 F3 B3 U',
    ],
  ],
  [
    'a replicated stage whose weights lag more than it needs has a tick for its AllReduce',
    planOf([1, 2], 1),
    ['a:  F0+1 B0 U', 'b0: F0 B0 U-1 R[1,2)', 'b1: F0 B0 U-1 R[1,2)'],
  ],
  [
    'a replicated first stage with one micro-batch has nothing to do meanwhile',
    planOf([2, 1], 1),
    ['a0: F0+1 B0 R[0,1) U', 'a1: F0+1 B0 R[0,1) U', 'b:  F0 B0 U'],
  ],
  ['more in flight than stages', planOf([1, 1], 2, [4, 1]), ['a: F1+1 B0 F0+2 B1 U', 'b: F0 B0 F1 B1 U']],
];

for (const [title, plan, lines] of ticks)
  test(title, () => {
    const tick = program(plan);
    assert.equal(programText(tick), lines.join('\n'));
    checkProgram(tick, plan);
  });

test('600 random plans pass the check: any stages, groups, micro-batches, in flight and staleness', () => {
  for (let seed = 0; seed < 600; seed++) {
    const random = createRandom(seed, 0xa5);
    const sizes = Array.from({ length: 1 + random.integer(4) }, () => 1 + random.integer(3));
    let least = 0;
    const inFlight = sizes.map(() => {
      least += 1 + (random.uniform() < 0.2 ? random.integer(3) : 0);
      return least;
    });
    const bare = planOf(sizes, 1 + random.integer(8), inFlight.reverse());
    const needed = leastStaleness(bare);
    const wish = [{}, { verticalSync: false }, { staleness: (needed[0] ?? 0) + random.integer(3) }];
    const plan = withStaleness(bare, wish[random.integer(3)] ?? {});
    const tick = program(plan);
    assert.doesNotThrow(() => checkProgram(tick, plan), `seed ${seed}`);
  }
});

test('staleness is ⌈(P − 1) / M⌉ with vertical sync and ⌈(P − 1 − p) / M⌉ without', () => {
  assert.deepEqual(stalenessOf(planOf([1, 1, 1, 1], 1)), [3, 3, 3, 3]);
  assert.deepEqual(stalenessOf(planOf([1, 1, 1, 1], 2)), [2, 2, 2, 2]);
  assert.deepEqual(stalenessOf(planOf([1, 1, 1, 1], 3)), [1, 1, 1, 1]);
  assert.deepEqual(withStaleness(planOf([1, 1, 1, 1], 2), { verticalSync: false }).staleness, [2, 1, 1, 0]);
  assert.deepEqual(withStaleness(planOf([1, 1], 1), { staleness: 2 }).staleness, [2, 2]);
  assert.deepEqual(stalenessOf(planOf([1], 1)), [0]);
  assert.deepEqual(stalenessOf({ ...planOf([1, 1], 1), schedule: '1f1b' }), [0, 0]);
  assert.equal(weightVersionCount(planOf([1, 1, 1], 1), 2), 3);
});

const refused: readonly (readonly [title: string, () => unknown, message: string])[] = [
  [
    'less than the plan needs, asked for',
    () => withStaleness(planOf([1, 1, 1], 1), { staleness: 1 }),
    '--staleness 1 is less than the 2 that the plan needs (stages: 3, micro-batches a round: 1); give 2 or more, or ' +
      'more micro-batches.',
  ],
  [
    'less than the plan needs, in a plan',
    () => program({ ...planOf([1, 1, 1], 1), staleness: [2, 0, 0] }),
    'The plan has staleness 0 in stage 1, whose forward passes lead by 1; raise it to at least 1.',
  ],
  [
    'staleness where rounds do not overlap',
    () => program({ ...planOf([1, 1], 1), schedule: 'gpipe', staleness: [1, 1] }),
    'The plan has staleness 1 in stage 0, but rounds of its schedule "gpipe" do not overlap; leave staleness out, or ' +
      'take schedule "async".',
  ],
];

for (const [title, make, message] of refused)
  test(`refused: ${title}`, () =>
    assert.throws(make, (error: unknown) => error instanceof InputError && error.message === message));
