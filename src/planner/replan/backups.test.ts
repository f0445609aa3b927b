import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { randomPlan } from '../../testing/random-plans.ts';
import { backups, holdersAfter } from './backups.ts';

function layout(...stages: readonly (readonly [devices: readonly string[], samples: readonly number[]])[]): PlanLayout {
  return {
    ...{ planner: 'test', schedule: '1f1b', batchSize: 4, microBatchSize: 4, microBatchCount: 1 },
    stages: stages.map(([devices, samples], index) => ({
      layers: [index, index + 1] as const,
      devices,
      samples,
      inFlight: 1,
    })),
  };
}

test('a single device backs up to the next stage, the last to the one before or, as in the paper, the first', () => {
  assert.deepEqual(
    [...backups(layout([['a'], [4]], [['b'], [4]], [['c'], [4]]), { lastTo: 'first' })],
    [
      [0, 'b'],
      [1, 'c'],
      [2, 'a'],
    ],
  );
  assert.deepEqual(
    [...backups(layout([['a'], [4]], [['b'], [4]]))],
    [
      [0, 'b'],
      [1, 'a'],
    ],
  );
  assert.deepEqual(
    [
      ...backups(
        layout(
          [
            ['a', 'b'],
            [2, 2],
          ],
          [['c'], [4]],
        ),
      ),
    ],
    [[1, 'a']],
  );
  assert.deepEqual(
    [...backups(layout([['a'], [4]], [['b'], [4]], [['c'], [4]]))],
    [
      [0, 'b'],
      [1, 'c'],
      [2, 'b'],
    ],
  );
  assert.deepEqual([...backups(layout([['a'], [4]]))], []);
  assert.deepEqual(
    [
      ...backups(
        layout([
          ['a', 'b'],
          [2, 2],
        ]),
      ),
    ],
    [],
  );
});

test('of several devices the one with the most spare memory keeps the copy, else the least loaded or the first', () => {
  const plan = layout(
    [['a'], [4]],
    [
      ['b', 'c', 'd'],
      [2, 1, 1],
    ],
  );
  assert.equal(backups(plan).get(0), 'c');
  const spare = new Map([
    ['b', 100],
    ['c', 50],
  ]);
  assert.equal(backups(plan, { spareBytes: (device) => spare.get(device) ?? 0 }).get(0), 'b');
});

test('after any one device is lost, every layer has a holder; the owners alone are not enough', () => {
  let orphanCount = 0;
  for (let seed = 0; seed < 500; seed++) {
    const plan = randomPlan(seed, 5);
    const devices = plan.stages.flatMap((stage) => stage.devices);
    for (const lost of devices) {
      if (devices.length === 1) continue;
      const holders = holdersAfter(plan, [lost]);
      assert.ok(
        holders.every((all) => all.length > 0 && !all.includes(lost)),
        `seed ${seed}: ${lost}`,
      );
      if (holdersAfter(plan, [lost], new Map()).some((all) => all.length === 0)) orphanCount++;
    }
  }
  assert.ok(orphanCount > 100, `${orphanCount}`);
});
