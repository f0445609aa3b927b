import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { Reserve } from './reserve.ts';

const predicted = { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} };
const from: Plan = {
  ...handPlan({ schedule: '1f1b', cuts: [1, 3], shares: [[4], [4], [4]], microBatchCount: 2 }, 4),
  predicted,
};
const devices = ['a', 'b', 'c'];
const planOf = (lost: string): Plan => ({ ...from, planner: `without ${lost}` });

/** A reserve for all but the last `missing` devices, and who was asked for. */
function filled(missing = 0): { readonly reserve: Reserve; readonly asked: string[] } {
  const reserve = new Reserve();
  const asked: string[] = [];
  for (let count = 0; count < devices.length - missing; count++) {
    const isNew = reserve.add(from, devices, (lost, others) => {
      asked.push(`${lost}: ${others}`);
      if (lost === 'b') throw new InputError('Without b nothing fits.');
      return planOf(lost);
    });
    assert.equal(isNew, true);
  }
  return { reserve, asked };
}

test('one plan at a time, the loss of the device with the most layers first, until each loss has its answer', () => {
  const { reserve, asked } = filled();
  assert.deepEqual(asked, ['b: a,c', 'a: b,c', 'c: a,b']);
  assert.equal(
    reserve.add(from, devices, () => assert.fail('all are known')),
    false,
  );
  assert.deepEqual(reserve.take(from, { lost: ['c'], devices: ['a', 'b'] }), planOf('c'));
  assert.throws(
    () => reserve.take(from, { lost: ['b'], devices: ['a', 'c'] }),
    new InputError('Without b nothing fits.'),
  );
});

test('an answer is given for exactly that layout, loss and rest, and only as long as it holds', () => {
  const { reserve } = filled(1);
  const other = { ...from };
  assert.equal(reserve.take(other, { lost: ['a'], devices: ['b', 'c'] }), undefined, 'another layout');
  assert.equal(reserve.take(from, { lost: ['a', 'b'], devices: ['c'] }), undefined, 'two losses');
  assert.equal(reserve.take(from, { lost: ['a'], devices: ['b', 'c', 'd'] }), undefined, 'a newcomer');
  assert.equal(reserve.take(from, { lost: ['c'], devices: ['a', 'b'] }), undefined, 'not made yet');
  assert.deepEqual(reserve.take(from, { lost: ['a'], devices: ['b', 'c'] }), planOf('a'));
  reserve.clear();
  assert.equal(reserve.take(from, { lost: ['a'], devices: ['b', 'c'] }), undefined);
  assert.equal(reserve.add(other, devices, planOf), true);
  assert.deepEqual(reserve.take(other, { lost: ['b'], devices: ['a', 'c'] }), planOf('b'));
  assert.equal(reserve.add(from, devices, planOf), true, 'of another layout: from the beginning');
  assert.equal(reserve.take(other, { lost: ['b'], devices: ['a', 'c'] }), undefined);
});

test('each plan is announced once, as long as it holds', () => {
  const { reserve } = filled();
  assert.deepEqual([reserve.announce(), reserve.announce(), reserve.announce()], [planOf('a'), planOf('c'), undefined]);
  const other = filled(1).reserve;
  other.clear();
  assert.equal(other.announce(), undefined);
});

test('a fault of the planner is not an answer', () => {
  const broken = (): never => {
    throw new TypeError('a mistake');
  };
  assert.throws(() => new Reserve().add(from, devices, broken), new TypeError('a mistake'));
});

test('with new knowledge each loss is planned again, and only plans new to the devices are announced', () => {
  const { reserve } = filled();
  assert.deepEqual(reserve.announce(), planOf('a'));
  reserve.outdate();
  assert.equal(reserve.take(from, { lost: ['a'], devices: ['b', 'c'] }), undefined);
  const asked: [string, Plan | undefined][] = [];
  const again = (plan: (lost: string) => Plan): boolean =>
    reserve.add(from, devices, (lost, _, announced) => {
      asked.push([lost, announced]);
      return plan(lost);
    });
  const faster = { ...planOf('a'), predicted: { ...predicted, roundMs: 2 } };
  for (let count = 0; count < 3; count++)
    assert.equal(
      again((lost) => (lost === 'a' ? faster : planOf(lost))),
      true,
    );
  assert.deepEqual(asked, [
    ['b', undefined],
    ['a', planOf('a')],
    ['c', undefined],
  ]);
  assert.deepEqual(reserve.take(from, { lost: ['a'], devices: ['b', 'c'] }), faster);
  assert.deepEqual([reserve.announce(), reserve.announce(), reserve.announce()], [planOf('b'), planOf('c'), undefined]);
  reserve.outdate();
  const moved: Plan = { ...planOf('a'), schedule: 'gpipe' };
  again(() => moved);
  assert.deepEqual([reserve.announce(), reserve.announce()], [moved, undefined]);
  reserve.clear();
  again(planOf);
  assert.deepEqual(asked.at(-1), ['b', undefined]);
});
