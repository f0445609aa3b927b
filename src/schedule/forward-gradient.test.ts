// The schedule forward-gradient: the tick of AsyncFGD's Fig. 1, rounds that follow each other, groups without an
// AllReduce, frozen leading stages; and what the check finds.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';
import { createRandom } from '../random.ts';
import { checkProgram } from './check.ts';
import { layoutOf, program } from './generate.ts';
import type { Program } from './program.ts';
import { stalenessOf, weightVersionCount, withStaleness } from './staleness.ts';
import { programText } from './text.ts';

/** Stages of one layer, of devices with these shares of a micro-batch. */
function planOf(shares: readonly (readonly number[])[], more: Partial<PlanLayout> = {}): PlanLayout {
  const microBatchSize = (shares[0] ?? []).reduce((sum, share) => sum + share, 0);
  const { microBatchCount = 1 } = more;
  return {
    planner: 'test',
    schedule: 'forward-gradient',
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages: shares.map((samples, stage) => ({
      layers: [stage, stage + 1],
      devices: samples.map((_, index) => 'abcdef'[stage] + (samples.length === 1 ? '' : `${index}`)),
      samples,
      inFlight: 1,
    })),
    ...more,
  };
}

const ticks: readonly (readonly [title: string, plan: PlanLayout, lines: readonly string[]])[] = [
  ['three stages: P − 1 − p rounds ahead', planOf([[4], [4], [4]]), ['a: T0+2 U', 'b: T0+1 U', 'c: T0 U']],
  [
    'two micro-batches, rounds that follow each other',
    planOf([[4], [4]], { microBatchCount: 2, staleness: [0, 0] }),
    ['a: T0 T1 U', 'b: T0 T1 U'],
  ],
  ['a group reduces nothing', planOf([[3, 1], [4]]), ['a0: T0+1 U', 'a1: T0+1 U', 'b:  T0 U']],
  ['a frozen stage runs forward', planOf([[4], [4]], { forwardOnlyLayers: 1 }), ['a: F0+1 U', 'b: T0 U']],
];

for (const [title, plan, lines] of ticks)
  test(title, () => {
    const tick = program(plan);
    assert.equal(programText(tick), lines.join('\n'));
    checkProgram(tick, plan);
  });

test('derivatives go from every device of the last stage to all that train, tangents along with activations', () => {
  const tick = program(planOf([[4], [4], [3, 1]], { forwardOnlyLayers: 1, tangentCount: 2, staleness: [0, 0, 0] }));
  const received = (name: string): readonly unknown[] =>
    (tick.devices.find(({ device }) => device === name)?.instructions ?? []).flatMap((step) =>
      step.kind === 'receive' && step.payload === 'derivative' ? [[step.from, step.tangents]] : [],
    );
  assert.deepEqual(received('a'), []);
  assert.deepEqual(received('b'), [
    ['c0', 2],
    ['c1', 2],
  ]);
  assert.deepEqual(received('c0'), [['c1', 2]]);
  const tangents = (name: string, kind: 'send' | 'receive'): readonly unknown[] =>
    (tick.devices.find(({ device }) => device === name)?.instructions ?? []).flatMap((step) =>
      step.kind === kind && step.payload === 'activation' ? [step.tangents] : [],
    );
  assert.deepEqual([tangents('a', 'send'), tangents('b', 'receive')], [[undefined], [undefined]]);
  assert.deepEqual([tangents('b', 'send'), tangents('c0', 'receive')], [[2, 2], [2]]);
});

test('300 random plans pass the check: any stages, shares, micro-batches, frozen layers and staleness', () => {
  for (let seed = 0; seed < 300; seed++) {
    const random = createRandom(seed, 0xfd);
    const shares = Array.from({ length: 1 + random.integer(4) }, () => {
      const first = random.integer(5);
      return random.uniform() < 0.5 ? [4] : [first, 4 - first];
    });
    let least = 0;
    const isStream = random.uniform() < 0.7;
    const staleness = shares.map(() => (least += isStream ? random.integer(3) : 0)).reverse();
    const whole = planOf(shares, {
      microBatchCount: 1 + random.integer(4),
      ...(isStream && random.uniform() < 0.5 ? {} : { staleness }),
      forwardOnlyLayers: random.integer(shares.length),
    });
    const plan = layoutOf(whole, whole.batchSize - (isStream ? 0 : random.integer(4)));
    assert.doesNotThrow(() => checkProgram(program(plan), plan), `seed ${seed}`);
  }
});

test('the check finds a derivative that is lost, doubled or late', () => {
  const plan = planOf([[4], [4]], { staleness: [0, 0] });
  const tick = program(plan);
  const changed = (name: string, change: (texts: Program['devices'][number]['instructions']) => unknown): Program => ({
    ...tick,
    devices: tick.devices.map((device) =>
      device.device === name
        ? { ...device, instructions: change(device.instructions) as typeof device.instructions }
        : device,
    ),
  });
  const isDerivative = (step: Program['devices'][number]['instructions'][number]): boolean =>
    'payload' in step && step.payload === 'derivative';
  assert.throws(
    () =>
      checkProgram(
        changed('a', (steps) => steps.filter((step) => !isDerivative(step))),
        plan,
      ),
    /"a" \(stage 0\) updates without the derivatives of micro-batch 0 from "b"/,
  );
  assert.throws(
    () =>
      checkProgram(
        changed('a', (steps) => steps.flatMap((step) => (isDerivative(step) ? [step, step] : [step]))),
        plan,
      ),
    /"a" \(stage 0\) waits for the derivatives of micro-batch 0 from "b" twice/,
  );
  assert.throws(
    () =>
      checkProgram(
        changed('b', (steps) => steps.filter((step) => !isDerivative(step))),
        plan,
      ),
    /is awaited but never sent/,
  );
});

test('staleness is P − 1 − p, or 0; weights are kept in one version', () => {
  const plan = planOf([[4], [4], [4]]);
  assert.deepEqual(stalenessOf(plan), [2, 1, 0]);
  assert.deepEqual(withStaleness(plan, { staleness: 0 }).staleness, [0, 0, 0]);
  assert.deepEqual(withStaleness(plan, {}).staleness, [2, 1, 0]);
  assert.equal(weightVersionCount(plan, 0), 1);
  assert.throws(
    () => withStaleness(plan, { staleness: 3 }),
    new InputError(
      '--staleness 3 is not for forward gradients: give 0, for rounds that follow each other, or leave it out.',
    ),
  );
  assert.throws(
    () => program({ ...plan, staleness: [0, 1, 0] }),
    new InputError(
      'The plan has staleness 1 in stage 1, more than the 0 of stage 0, whose activations would come too late; ' +
        'lower it to 0, or raise the other to 1.',
    ),
  );
});
