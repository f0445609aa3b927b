import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, DeviceTimes, Plan, Profile } from '../cluster/cluster.ts';
import { createRandom } from '../random.ts';
import { schedules } from '../schedule/schedules.ts';
import { randomInstance } from '../testing/random-plans.ts';
import { everyPipeline } from './exhaustive.ts';
import { straightPartition } from './partition.ts';
import { pipeedge } from './pipeedge.ts';
import { type PlanInput, plan } from './plan.ts';
import { createProblem, type Problem, type StageLayout } from './problem.ts';
import { finish } from './steps.ts';

test('straightPartition minimises the slowest part, against every way to cut, 200 random cases', () => {
  for (let seed = 0; seed < 200; seed++) {
    const random = createRandom(seed, 41);
    const deviceCount = 1 + random.integer(4);
    const layerCount = deviceCount + random.integer(5);
    const work = Array.from({ length: layerCount }, () => 1 + random.integer(9));
    const speeds = Array.from({ length: deviceCount }, () => 1 + random.integer(3));
    const cross = Array.from({ length: layerCount }, () => random.integer(8));
    const stageMs = (index: number, first: number, end: number): number =>
      work.slice(first, end).reduce((sum, ms) => sum + ms, 0) * (speeds[index] ?? 1);
    const crossMs = (index: number, cut: number): number => (cross[cut] ?? 0) * index;
    const slowest = (ends: readonly number[]): number =>
      Math.max(
        ...ends.map((end, index) =>
          Math.max(stageMs(index, ends[index - 1] ?? 0, end), index === 0 ? 0 : crossMs(index, ends[index - 1] ?? 0)),
        ),
      );
    let best = Number.POSITIVE_INFINITY;
    const cut = (ends: readonly number[]): void => {
      const [last, left] = [ends.at(-1) ?? 0, deviceCount - ends.length];
      if (left === 0) best = last === layerCount ? Math.min(best, slowest(ends)) : best;
      else for (let end = last + 1; end <= layerCount; end++) cut([...ends, end]);
    };
    cut([]);
    const found = straightPartition(layerCount, deviceCount, { stageMs, crossMs });
    assert.equal(slowest(found), best, `seed ${seed}: ${found}`);
  }
});

/** PipeEdge's objective (eq. 2 and 3): the time of the slowest part, computing or sending. */
function slowestPartMs(
  { table, profile, classes, devices, microBatchSize: B }: Problem,
  layouts: readonly StageLayout[],
): number {
  const parts = layouts.map(({ layers: [first, end], devices: [place = 0] }, index) => {
    const times = classes[devices[place]?.classIndex ?? 0];
    const size = profile.batchSizes.indexOf(B);
    const ms = [times?.forward[size], times?.backward[size]].reduce(
      (sum, row) => sum + (row?.[end] ?? 0) - (row?.[first] ?? 0),
      0,
    );
    const next = layouts[index + 1]?.devices[0];
    return Math.max(
      ms,
      next === undefined ? 0 : table.occupancyMs(place, next, B * (profile.layers[end - 1]?.outputBytes ?? 0)),
    );
  });
  return Math.max(...parts);
}

test('pipeedge: the optimum of its objective over all orders and subsets of devices, 60 random problems', () => {
  for (let seed = 0; seed < 60; seed++) {
    const random = createRandom(seed, 42);
    const { profile, cluster: uneven } = randomInstance(seed, {
      deviceCount: 1 + random.integer(4),
      layerCount: 1 + random.integer(6),
    });
    const cluster: Cluster =
      seed % 2 === 0
        ? uneven
        : {
            devices: uneven.devices.map((device) => ({ ...device, memoryMiB: 1e4 })),
            links: { default: uneven.links.default },
          };
    const roomy = { ...cluster, devices: cluster.devices.map((device) => ({ ...device, memoryMiB: 1e5 })) };
    const input = {
      schedule: '1f1b',
      batchSize: 16,
      microBatchSize: 4,
      optimizerState: 0,
      replicateBatchDependent: false,
    } as const;
    const problem = createProblem({
      ...input,
      schedule: schedules['1f1b'],
      profile,
      cluster: seed % 2 === 0 ? roomy : cluster,
    });
    let best = Number.POSITIVE_INFINITY;
    for (const layouts of everyPipeline(problem)) {
      if (layouts.every(({ devices }) => devices.length === 1)) best = Math.min(best, slowestPartMs(problem, layouts));
    }
    const found = slowestPartMs(problem, finish(pipeedge()(problem)));
    assert.ok(Math.abs(found - best) <= 1e-6 * best, `seed ${seed}: ${found} ms, the optimum ${best} ms`);
  }
});

/** A board's times for one sample of four layers; device kind `slow` takes three times as long. */
const profile: Profile = {
  model: 'four',
  inputBytes: 0,
  labelBytes: 0,
  layers: Array.from({ length: 4 }, (_, layer) => ({
    name: `l${layer}`,
    outputBytes: 125,
    weightBytes: 12500,
    savedBytes: 1,
    flops: 1,
  })),
  batchSizes: [1],
  devices: {
    board: { forwardMs: [[1, 1, 1, 1]], backwardMs: [[2, 2, 2, 2]] },
    slow: { forwardMs: [[3, 3, 3, 3]], backwardMs: [[6, 6, 6, 6]] },
  },
};

function clusterOf(kinds: readonly string[], bandwidthMbps = 1000): Cluster {
  return {
    devices: kinds.map((kind, index) => ({ name: `${kind[0]}${index}`, kind, memoryMiB: 1000 })),
    links: { default: { bandwidthMbps } },
  };
}

function picture({ stages }: Plan): string {
  return stages
    .map(
      ({ layers, devices, samples }) =>
        `[${layers.join(',')}) ${devices.map((name, index) => `${name} ${samples[index]}`).join(' ')}`,
    )
    .join(' | ');
}

const input: PlanInput = {
  profile,
  cluster: clusterOf(['board', 'slow']),
  batchSize: 16,
  microBatchSize: 2,
  optimizerState: 0,
};

test("gpipe: evenly by each device's own time, regardless of bytes; its own schedule by default", () => {
  const found = plan({ ...input, planner: 'gpipe', cluster: clusterOf(['board', 'slow'], 0.001) });
  assert.equal(picture(found), '[0,3) b0 2 | [3,4) s1 2');
  assert.equal(found.schedule, 'gpipe');
  assert.equal(plan({ ...input, planner: 'gpipe', schedule: '1f1b' }).schedule, '1f1b');
});

test('pipedream: devices count as equal, and every micro-batch pays for the weights', () => {
  // Layers take 12 ms for a micro-batch. At 10 Mbps, reducing all weights takes 80 ms, and one micro-batch crosses a
  // border in 0.4 ms.
  assert.equal(
    picture(plan({ ...input, planner: 'pipedream', cluster: clusterOf(['board', 'slow'], 10) })),
    '[0,2) b0 2 | [2,4) s1 2',
  );
  // At 10 Gbps a border costs 0.0004 ms and weights 0.08 ms: data parallelism and a pipeline both take 24 ms; the first
  // one found is kept.
  assert.match(
    picture(plan({ ...input, planner: 'pipedream', cluster: clusterOf(['board', 'board'], 10000) })),
    /^\[0,[24]\)/,
  );
});

test('dapple equals asteroid on equal devices without memory limits, data holder and transfer CPU: 30 problems', () => {
  for (let seed = 0; seed < 30; seed++) {
    const random = createRandom(seed, 43);
    const { profile: of, cluster } = randomInstance(seed, {
      deviceCount: 1 + random.integer(5),
      layerCount: 1 + random.integer(8),
    });
    const alike: Cluster = {
      devices: cluster.devices.map(({ name }) => ({ name, kind: 'fast', memoryMiB: 1e6 })),
      links: { default: cluster.links.default },
    };
    const { handlingMsPerMiB: _, frameMs: __, ...fast } = of.devices['fast'] as DeviceTimes;
    const question = {
      profile: { ...of, devices: { fast } },
      cluster: alike,
      batchSize: 32,
      microBatchSize: 4,
      optimizerState: 0,
    } as const;
    const [dapple, asteroid] = [plan({ ...question, planner: 'dapple' }), plan({ ...question, planner: 'asteroid' })];
    const ms = asteroid.predicted.roundMs;
    assert.ok(
      Math.abs(dapple.predicted.roundMs - ms) <= 1e-6 * ms,
      `seed ${seed}: ${picture(dapple)}, ${picture(asteroid)}`,
    );
  }
});

test("ftpipehd: central node's times by capacity, all devices in order, communication counted twice", () => {
  assert.equal(picture(plan({ ...input, planner: 'ftpipehd' })), '[0,3) b0 2 | [3,4) s1 2');
  // 125 bytes a sample, but 50 times that after the third layer: 2 · 2 · 50 kbit at 1 Mbps take 200 ms.
  const wide = {
    ...profile,
    layers: profile.layers.map((layer, index) => (index === 2 ? { ...layer, outputBytes: 6250 } : layer)),
  };
  assert.equal(
    picture(plan({ ...input, profile: wide, cluster: clusterOf(['board', 'slow'], 1), planner: 'ftpipehd' })),
    '[0,2) b0 2 | [2,4) s1 2',
  );
});

test('hetpipe: virtual workers share the micro-batches by speed and exchange all weights with the server', () => {
  const found = plan({ ...input, planner: 'hetpipe', cluster: clusterOf(['board', 'board']) });
  // Eight micro-batches of 24 ms: four on each worker; 50 kB of weights to the server and back at 1 Gbps: 0.8 ms.
  assert.deepEqual(
    found.virtualWorkers?.map(({ microBatchCount }) => microBatchCount),
    [4, 4],
  );
  assert.equal(found.schedule, 'hetpipe');
  assert.ok(Math.abs(found.predicted.roundMs - (4 * 24 + 0.8)) < 1e-6, String(found.predicted.roundMs));
  const unequal = plan({ ...input, planner: 'hetpipe', cluster: clusterOf(['board', 'slow']) });
  assert.deepEqual(
    unequal.virtualWorkers?.map(({ microBatchCount }) => microBatchCount),
    [6, 2],
  );
  // If the exchange takes too long, a single pipeline is better.
  const slow = plan({ ...input, planner: 'hetpipe', cluster: clusterOf(['board', 'board'], 1) });
  assert.equal(slow.virtualWorkers?.length, 1);
});

test('planners that ignore memory say so when their plan does not fit', () => {
  const tight: Cluster = {
    devices: [
      { name: 'b', kind: 'board', memoryMiB: 0.06 },
      { name: 's', kind: 'slow', memoryMiB: 1 },
    ],
    links: { default: { bandwidthMbps: 1000 } },
  };
  assert.throws(() => plan({ ...input, planner: 'gpipe', cluster: tight }), {
    name: 'InputError',
    message:
      'Planner "gpipe" does not look at memory, and its plan for model "four" does not fit (micro-batches of ' +
      '2): device "b" has 0 MiB and lacks 1 MiB; use planner best, or raise its memoryMiB to 1.',
  });
  assert.ok(plan({ ...input, planner: 'best', cluster: tight }).stages.length > 0);
});
