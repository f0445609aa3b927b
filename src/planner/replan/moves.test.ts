import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout } from '../../cluster/cluster.ts';
import { createRandom, permutation } from '../../random.ts';
import { randomPlan } from '../../testing/random-plans.ts';
import { backups, holdersAfter } from './backups.ts';
import { linkLoads, type Move, moves, transferTimeMs } from './moves.ts';
import { layerCountOf } from './survivors.ts';

/** A plan with stages given as first layer, end and devices. */
function layout(...stages: readonly (readonly [first: number, end: number, ...devices: string[]])[]): PlanLayout {
  return {
    ...{ planner: 'test', schedule: '1f1b', batchSize: 8, microBatchSize: 8, microBatchCount: 1 },
    stages: stages.map(([first, end, ...devices]) => ({
      ...{ layers: [first, end] as const, devices, inFlight: 1 },
      samples: devices.map((_, index) => (index === 0 ? 8 - devices.length + 1 : 1)),
    })),
  };
}

test('Fig. 9: the last stage, device D, is lost: A has its copy, and layers move between neighbours', () => {
  const before = layout([0, 4, 'A'], [4, 8, 'B', 'C'], [8, 12, 'D']);
  const copies = backups(before, { lastTo: 'first' });
  assert.deepEqual(
    [...copies],
    [
      [0, 'C'],
      [2, 'A'],
    ],
  );
  const holders = holdersAfter(before, ['D'], copies);
  assert.deepEqual([holders[0], holders[4], holders[8]], [['A', 'C'], ['B', 'C'], ['A']]);
  const target = layout([0, 6, 'A'], [6, 12, 'B', 'C']);
  // A needs 4 and 5, one from B and one from C; B and C need what D had.
  assert.deepEqual(moves({ holders, target }), [
    { layers: [4, 5], from: 'B', to: 'A' },
    { layers: [5, 6], from: 'C', to: 'A' },
    { layers: [8, 12], from: 'A', to: 'B' },
    { layers: [8, 12], from: 'A', to: 'C' },
  ]);
});

test('layers without a holder come from the checkpoint; own layers do not travel; ranges of a source merge', () => {
  const target = layout([0, 3, 'a'], [3, 6, 'b']);
  const holders = [['a'], [], [], ['a'], ['a'], ['b']];
  assert.deepEqual(moves({ holders, target }), [
    { layers: [1, 3], from: null, to: 'a' },
    { layers: [3, 5], from: 'a', to: 'b' },
  ]);
  assert.deepEqual(
    moves({
      holders: [
        ['x', 'a'],
        ['a', 'x'],
      ],
      target: layout([0, 2, 'b']),
    }).length,
    2,
    'x and a give one layer each',
  );
});

test('of equal sources the neighbour sends; the faster link sends more; a busy source sends less', () => {
  const target = layout([0, 2, 'a'], [2, 4, 'b'], [4, 6, 'c']);
  const one = [['a'], ['a'], ['b'], ['b'], ['c', 'x'], ['a', 'b', 'x']];
  assert.deepEqual(moves({ holders: one, target }), [{ layers: [5, 6], from: 'b', to: 'c' }]);
  const cluster: Cluster = {
    devices: ['a', 'b', 'c'].map((name) => ({ name, memoryMiB: 1 })),
    links: { default: { bandwidthMbps: 10 }, pairs: [{ between: ['a', 'c'], bandwidthMbps: 30 }] },
  };
  const eight = Array.from({ length: 8 }, () => ['a', 'b']);
  const whole = layout([0, 8, 'c']);
  assert.deepEqual(moves({ holders: eight, target: whole, cluster }), [
    { layers: [0, 6], from: 'a', to: 'c' },
    { layers: [6, 8], from: 'b', to: 'c' },
  ]);
  // b sends the first four to a, so that a sends all of the others.
  const busy = [['b'], ['b'], ['b'], ['b'], ['a', 'b'], ['a', 'b']];
  assert.deepEqual(moves({ holders: busy, target: layout([0, 4, 'a'], [4, 6, 'c']) }), [
    { layers: [0, 4], from: 'b', to: 'a' },
    { layers: [4, 6], from: 'a', to: 'c' },
  ]);
});

test('links carry their moves in parallel; a checkpoint comes from the holder of the data', () => {
  const bytes = (layer: number): number => 1000 * (layer + 1);
  const all: Move[] = [
    { layers: [0, 2], from: 'a', to: 'b' },
    { layers: [3, 4], from: 'a', to: 'b' },
    { layers: [0, 1], from: null, to: 'a' },
  ];
  const loads = linkLoads(all, bytes);
  assert.deepEqual(loads, [
    { from: 'a', to: 'b', bytes: 7000 },
    { from: null, to: 'a', bytes: 1000 },
  ]);
  const cluster: Cluster = {
    devices: ['a', 'b'].map((name) => ({ name, memoryMiB: 1 })),
    links: { default: { bandwidthMbps: 8, latencyMs: 2 } },
  };
  assert.equal(transferTimeMs(loads, cluster), 9);
  assert.equal(transferTimeMs(loads.slice(1), cluster), 3);
  assert.equal(transferTimeMs(loads.slice(1), { ...cluster, dataDevice: 'a' }), 0);
});

test('1000 random changes: each device gets each missing layer exactly once, from a holder', () => {
  for (let seed = 0; seed < 1000; seed++) {
    const random = createRandom(seed, 62);
    const target = randomPlan(seed, 5);
    const layerCount = layerCountOf(target);
    const names = [...target.stages.flatMap(({ devices }) => devices), 'idle', 'other'];
    const sets = Array.from({ length: 3 }, () => names.filter(() => random.uniform() < 0.3));
    const holders = Array.from({ length: layerCount }, () => sets[random.integer(3)] ?? []);
    const sizes = Array.from({ length: layerCount }, () => random.integer(5));
    const found = moves({ holders, target, bytes: (layer) => sizes[layer] ?? 0 });
    const got = new Map<string, number>();
    for (const [index, { layers, from, to }] of found.entries()) {
      assert.ok(layers[1] > layers[0], `seed ${seed}`);
      for (let layer = layers[0]; layer < layers[1]; layer++) {
        const key = `${to} ${layer}`;
        got.set(key, (got.get(key) ?? 0) + 1);
        const own = holders[layer] ?? [];
        assert.ok(
          from === null ? own.length === 0 : own.includes(from),
          `seed ${seed}: ${from} does not hold layer ${layer}`,
        );
        assert.ok(!own.includes(to), `seed ${seed}: ${to} holds layer ${layer}`);
      }
      const next = found[index + 1];
      assert.ok(
        next === undefined || next.from !== from || next.to !== to || next.layers[0] !== layers[1],
        `seed ${seed}: not merged`,
      );
    }
    const needed = target.stages.flatMap(({ layers, devices }) =>
      devices.flatMap((device) =>
        Array.from({ length: layers[1] - layers[0] }, (_, index) => layers[0] + index).flatMap((layer) =>
          holders[layer]?.includes(device) === true ? [] : [`${device} ${layer}`],
        ),
      ),
    );
    assert.deepEqual([...got.keys()].sort(), needed.sort(), `seed ${seed}`);
    assert.ok(
      [...got.values()].every((count) => count === 1),
      `seed ${seed}`,
    );
    assert.deepEqual(moves({ holders, target, bytes: (layer) => sizes[layer] ?? 0 }), found, `seed ${seed}`);
  }
});

test('sources that all hold a range share it evenly, to within a layer', () => {
  for (let seed = 0; seed < 200; seed++) {
    const random = createRandom(seed, 63);
    const sources = Array.from({ length: 2 + random.integer(4) }, (_, index) => `s${index}`);
    const sizes = Array.from({ length: 40 }, () => 1 + random.integer(9));
    const found = moves({
      holders: sizes.map(() => sources),
      target: layout([0, 40, 'x']),
      bytes: (layer) => sizes[layer] ?? 0,
    });
    const sent = linkLoads(found, (layer) => sizes[layer] ?? 0).map(({ bytes }) => bytes);
    const fair = sizes.reduce((sum, size) => sum + size, 0) / sources.length;
    assert.ok(
      sent.every((bytes) => Math.abs(bytes - fair) <= sources.length * 4.5),
      `seed ${seed}: ${sent} around ${fair}`,
    );
    assert.ok(found.length <= sources.length, `seed ${seed}: each gives one range`);
  }
});

/**
 * FTPipeHD's Algorithm 1 as published, for one worker: which layers it needs from which index of the new worker list.
 * Points are the ends of the workers' layers; indices count from 0, so the last is N − 1.
 */
function algorithm1(
  points: { readonly current: readonly number[]; readonly next: readonly number[] },
  failed: number,
  own: number,
): Map<number, number[]> {
  const { current, next } = points;
  const N = current.length;
  const index = own > failed ? own - 1 : own;
  const within = (ends: readonly number[], at: number): readonly [number, number] => [ends[at - 1] ?? 0, ends[at] ?? 0];
  const [startCurrent, endCurrent] = within(current, own);
  const [startNew, endNew] = within(next, index);
  const need = new Map<number, number[]>();
  for (let layer = startNew; layer < endNew; layer++) {
    if (layer >= startCurrent && layer < endCurrent) continue; // L_local
    let target = current.findIndex((end) => layer < end);
    if (target > failed) target--;
    else if (target === failed && failed === N - 1) target = 0;
    need.set(target, [...(need.get(target) ?? []), layer]);
  }
  return need;
}

function randomPoints(layerCount: number, partCount: number, random: ReturnType<typeof createRandom>): number[] {
  const inner = [...permutation(layerCount - 1, random)].slice(0, partCount - 1).map((cut) => cut + 1);
  return [...inner.sort((a, b) => a - b), layerCount];
}

function straight(ends: readonly number[], devices: readonly string[]): PlanLayout {
  return layout(...ends.map((end, index) => [ends[index - 1] ?? 0, end, devices[index] ?? ''] as const));
}

test("FTPipeHD's Algorithm 1 gives the same sources, for each worker that fails, in 300 random pipelines", () => {
  for (let seed = 0; seed < 300; seed++) {
    const random = createRandom(seed, 64);
    const N = 2 + random.integer(5);
    const layerCount = N + random.integer(20);
    const workers = Array.from({ length: N }, (_, index) => `w${index}`);
    const points = { current: randomPoints(layerCount, N, random), next: randomPoints(layerCount, N - 1, random) };
    const before = straight(points.current, workers);
    const copies = backups(before, { lastTo: 'first' });
    // The paper's central node is worker 0, which never fails; the chain's rule holds for it as well.
    for (let failed = 0; failed < N; failed++) {
      const alive = workers.filter((_, index) => index !== failed);
      // A worker that is alive serves its own layers, as in the paper; copies are for those of the failed one.
      const holders = holdersAfter(before, [workers[failed] ?? ''], copies).map((all, layer) => {
        const owner = workers[points.current.findIndex((end) => layer < end)] ?? '';
        return all.includes(owner) ? [owner] : all;
      });
      const expected = alive.flatMap((worker) =>
        [...algorithm1(points, failed, workers.indexOf(worker))].flatMap(([index, layers]) =>
          layers.map((layer) => `${layer} from ${alive[index]} to ${worker}`),
        ),
      );
      const found = moves({ holders, target: straight(points.next, alive) }).flatMap(({ layers, from, to }) =>
        Array.from({ length: layers[1] - layers[0] }, (_, index) => `${layers[0] + index} from ${from} to ${to}`),
      );
      // Where the algorithm lets a worker fetch from itself, it uses the copy that it keeps.
      assert.deepEqual(
        found.sort(),
        expected.filter((line) => line.split(' ')[2] !== line.split(' ')[4]).sort(),
        `seed ${seed}, worker ${failed} fails`,
      );
    }
  }
});

test('FTPipeHD, several failures: from the next worker if it is alive, else from the central node', () => {
  const workers = ['w0', 'w1', 'w2', 'w3', 'w4'];
  const before = straight([2, 4, 6, 8, 10], workers);
  // w1 and w2 fail: w2 had the copy of w1, w3 has that of w2, and w4 that of w3.
  const holders = holdersAfter(before, ['w1', 'w2'], backups(before, { lastTo: 'first' }));
  assert.deepEqual([holders[2], holders[4], holders[8]], [[], ['w3'], ['w4', 'w0']]);
  assert.deepEqual(moves({ holders, target: straight([3, 6, 10], ['w0', 'w3', 'w4']) }), [
    { layers: [2, 3], from: null, to: 'w0' },
    { layers: [3, 4], from: null, to: 'w3' },
  ]);
});
