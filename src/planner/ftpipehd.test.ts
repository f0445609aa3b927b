// FTPipeHD's equations by hand, and its dynamic program against every partition.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../random.ts';
import { everyCut } from '../testing/random-problems.ts';
import { capacitiesOf, type Partition, partitionOf } from './ftpipehd.ts';

test("capacities: measured time over the central node's for the same layers; its own is 1", () => {
  const capacities = capacitiesOf(
    [1, 2, 3, 4],
    [
      { layers: [0, 1], batchMs: 1.5 },
      { layers: [1, 3], batchMs: 10 },
      { layers: [3, 4], batchMs: 40 },
    ],
  );
  assert.deepEqual(capacities, [1, 2, 10]);
});

/** The slowest part of a partition, by eq. 4–7 as they are printed. */
function slowestMs({ centralMs, capacities, transferMs }: Partition, ends: readonly number[]): number {
  const parts = ends.map((end, index) => {
    const first = ends[index - 1] ?? 0;
    const ownMs = centralMs.slice(first, end).reduce((sum, ms) => sum + ms * (capacities[index] ?? 0), 0);
    return Math.max(ownMs, index === 0 ? 0 : 2 * transferMs(index, first));
  });
  return Math.max(...parts);
}

test('the partition has the least slowest part of all, on 100 random problems', () => {
  for (let seed = 0; seed < 100; seed++) {
    const random = createRandom(seed, 31);
    const layerCount = 3 + random.integer(6);
    const deviceCount = 1 + random.integer(Math.min(4, layerCount));
    const bytes = Array.from({ length: layerCount }, () => random.uniform());
    const problem: Partition = {
      centralMs: Array.from({ length: layerCount }, () => 0.1 + random.uniform()),
      capacities: Array.from({ length: deviceCount }, (_, index) => (index === 0 ? 1 : 0.3 + 9 * random.uniform())),
      transferMs: (_, cut) => bytes[cut - 1] ?? 0,
    };
    const least = Math.min(...[...everyCut(layerCount, deviceCount)].map((ends) => slowestMs(problem, ends)));
    const ours = slowestMs(problem, partitionOf(problem));
    assert.ok(Math.abs(ours - least) < 1e-9, `seed ${seed}: ${ours}, the least is ${least}`);
  }
});
