import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bytesInMiB } from '../../cluster/memory.ts';
import { createRandom, type Random } from '../../random.ts';
import { scheduleOf, schedules } from '../../schedule/schedules.ts';
import { randomInstance } from '../../testing/random-plans.ts';
import { everyCut } from '../../testing/random-problems.ts';
import { createProblem, type Problem } from '../problem.ts';
import { type CutCosts, chooseCuts, cutCosts, type Group } from './cuts.ts';

/**
 * A random problem, sometimes with tight memory, with some layers that may not be replicated, and groups of one or two
 * devices.
 */
function randomGroups(seed: number): {
  readonly problem: Problem;
  readonly groups: readonly Group[];
  readonly random: Random;
} {
  const random = createRandom(seed, 66);
  const [deviceCount, layerCount] = [3 + random.integer(3), 4 + random.integer(5)];
  const { profile, cluster } = randomInstance(seed, { deviceCount, layerCount });
  const layers = profile.layers.map((layer) => ({ ...layer, batchDependent: random.uniform() < 0.1 }));
  const problem = createProblem({
    ...{ profile: { ...profile, layers }, cluster, schedule: schedules['1f1b'], batchSize: 32, microBatchSize: 8 },
    ...{ optimizerState: 1, replicateBatchDependent: random.uniform() < 0.5 },
  });
  const sizes = [1 + random.integer(2), 1 + random.integer(2)];
  const groups = [...sizes, 1].flatMap((size, index): Group[] => {
    const start = sizes.slice(0, index).reduce((sum, own) => sum + own, 0);
    const devices = problem.devices.slice(start, start + size);
    const missingBytes = layers.map(({ weightBytes }) => (random.uniform() < 0.5 ? 0 : weightBytes));
    return devices.length === 0
      ? []
      : [{ devices, inFlight: scheduleOf('1f1b').inFlight(index, sizes.length + 1, 4), missingBytes }];
  });
  return { problem, groups, random };
}

function bottleneck(ends: readonly number[], { stageMs, crossMs }: CutCosts, crossings: number): number {
  return Math.max(
    ...ends.map((end, group) =>
      Math.max(stageMs(group, ends[group - 1] ?? 0, end), crossings * crossMs(group, ends[group - 1] ?? 0)),
    ),
  );
}

function movedBytes(ends: readonly number[], costs: CutCosts): number {
  return ends.reduce((sum, end, group) => sum + costs.movedBytes(group, ends[group - 1] ?? 0, end), 0);
}

test('500 random groups against every cut: the least bytes within the slack of the best bottleneck', () => {
  let [foundCount, emptyCount, cheaperCount] = [0, 0, 0];
  for (let seed = 0; seed < 500; seed++) {
    const { problem, groups, random } = randomGroups(seed);
    const layerCount = problem.profile.layers.length;
    const costs = cutCosts(problem, groups);
    const crossings = random.uniform() < 0.5 ? 1 : 2;
    const all = [...everyCut(layerCount, groups.length)].map((ends) => ({
      ms: bottleneck(ends, costs, crossings),
      bytes: movedBytes(ends, costs),
    }));
    const best = Math.min(...all.map(({ ms }) => ms));
    const chosen = chooseCuts(layerCount, groups.length, costs, { crossings, slacks: [0.01, 0.3] });
    if (!Number.isFinite(best)) {
      assert.deepEqual(chosen, [], `seed ${seed}`);
      emptyCount++;
      continue;
    }
    assert.equal(chosen.length, 2, `seed ${seed}`);
    for (const [index, slack] of [0.01, 0.3].entries()) {
      const ends = chosen[index] ?? [];
      assert.ok(
        ends.every((end, group) => end > (ends[group - 1] ?? 0)) && ends.at(-1) === layerCount,
        `seed ${seed}: ${ends}`,
      );
      const ms = bottleneck(ends, costs, crossings);
      assert.ok(ms <= best * (1 + slack) * 1.005, `seed ${seed}: ${ms} ms, the best cut ${best} ms`);
      const leastBytes = Math.min(...all.filter((cut) => cut.ms <= best * (1 + slack)).map(({ bytes }) => bytes));
      assert.ok(
        movedBytes(ends, costs) <= leastBytes,
        `seed ${seed}: ${movedBytes(ends, costs)} bytes, ${leastBytes} would do`,
      );
    }
    if (movedBytes(chosen[1] ?? [], costs) < movedBytes(chosen[0] ?? [], costs)) cheaperCount++;
    foundCount++;
  }
  assert.ok(
    foundCount > 200 && emptyCount > 10 && cheaperCount > 50,
    `${foundCount} found, ${emptyCount} empty, ${cheaperCount} cheaper`,
  );
});

test('a stage fits exactly if eq. 3 says so, by hand', () => {
  let [fitting, overfull] = [0, 0];
  for (let seed = 0; seed < 100; seed++) {
    const { problem, groups } = randomGroups(seed);
    const { profile, microBatchSize, replicateBatchDependent } = problem;
    const costs = cutCosts(problem, groups);
    for (const [group, { devices, inFlight: ahead }] of groups.entries()) {
      for (const [first, end] of [
        [0, 2],
        [1, 4],
        [0, profile.layers.length],
      ] as const) {
        const range = profile.layers.slice(first, end);
        const weights = range.reduce((sum, layer) => sum + layer.weightBytes, 0);
        const saved = range.reduce((sum, layer) => sum + layer.savedBytes, 0);
        // Weights, gradients and momentum; K_p micro-batches of activations.
        const most = devices.map(({ place }) => {
          const free = (problem.cluster.devices[place]?.memoryMiB ?? 0) * bytesInMiB - 3 * weights;
          return Math.min(microBatchSize, Math.max(0, Math.floor(free / (ahead * saved))));
        });
        const mayShare =
          devices.length > 1 && (replicateBatchDependent || range.every((layer) => layer.batchDependent !== true));
        const held = mayShare ? most.reduce((sum, share) => sum + share, 0) : Math.max(...most);
        assert.equal(
          Number.isFinite(costs.stageMs(group, first, end)),
          held >= microBatchSize,
          `seed ${seed}, group ${group}, layers ${first}–${end}`,
        );
        if (held >= microBatchSize) fitting++;
        else overfull++;
      }
    }
  }
  assert.ok(fitting > 100 && overfull > 100, `${fitting} fit, ${overfull} do not`);
});
