import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom } from '../random.ts';
import { allocate } from './allocation.ts';

const unlimited = (count: number, samples: number): number[] => Array.from({ length: count }, () => samples);

test('shares follow capacity: three times as fast, three times as many', () => {
  assert.deepEqual(
    allocate({
      samples: 8,
      limits: unlimited(2, 8),
      timeMs: (device, samples) => (device === 0 ? 3 * samples : samples),
    })?.samples,
    [2, 6],
  );
});

test('samples that exceed a memory go to the other devices, by capacity', () => {
  const timeMs = (device: number, samples: number): number => samples / (device + 1);
  assert.deepEqual(
    allocate({ samples: 12, limits: [12, 12, 2], timeMs })?.samples,
    [3, 7, 2],
    '6 of 3 are one too many for d2: 10 left for 1 : 2, moved until 3 and 3.5 ms',
  );
  assert.deepEqual(allocate({ samples: 12, limits: [0, 12, 0], timeMs })?.samples, [0, 12, 0]);
  assert.deepEqual(allocate({ samples: 12, limits: [4, 4, 4], timeMs })?.samples, [4, 4, 4]);
});

test('no allocation if the memories together are too small', () => {
  assert.equal(allocate({ samples: 12, limits: [4, 4, 3], timeMs: (_, samples) => samples }), undefined);
});

test('a straggler offloads samples while that makes the slowest device faster', () => {
  // By capacity at B = 10 (20 and 30 ms) 6 : 4, which takes 16 and 12 ms; 5 : 5 takes 15 and 15; 4 : 6 would take 14
  // and 18.
  const timeMs = (device: number, samples: number): number =>
    samples === 0 ? 0 : device === 0 ? 10 + samples : 3 * samples;
  assert.deepEqual(allocate({ samples: 10, limits: unlimited(2, 10), timeMs }), { samples: [5, 5], highest: [6, 6] });
});

test('a straggler can lose all samples', () => {
  const timeMs = (device: number, samples: number): number => (samples === 0 ? 0 : device === 0 ? 100 : samples);
  assert.deepEqual(allocate({ samples: 16, limits: unlimited(2, 16), timeMs })?.samples, [0, 16]);
  assert.deepEqual(
    allocate({
      samples: 4,
      limits: unlimited(2, 4),
      timeMs: (device, samples) => (samples === 0 ? 0 : device === 0 ? 1000 : samples),
    })?.samples,
    [0, 4],
  );
});

test('devices that take no time cause no division by zero', () => {
  assert.deepEqual(allocate({ samples: 5, limits: unlimited(2, 5), timeMs: () => 0 })?.samples, [3, 2]);
});

/** The least possible time of the slowest device, found by trying every allocation. */
function bestMs(
  samples: number,
  limits: readonly number[],
  timeMs: (device: number, samples: number) => number,
  device = 0,
): number {
  if (device === limits.length - 1)
    return samples <= (limits[device] ?? 0) ? timeMs(device, samples) : Number.POSITIVE_INFINITY;
  let best = Number.POSITIVE_INFINITY;
  for (let share = 0; share <= Math.min(samples, limits[device] ?? 0); share++)
    best = Math.min(best, Math.max(timeMs(device, share), bestMs(samples - share, limits, timeMs, device + 1)));
  return best;
}

test("1000 random groups: all samples, within memory, and how near eq. 7's optimum", () => {
  let [excess, optimal, count] = [0, 0, 0];
  for (let seed = 0; seed < 1000; seed++) {
    const random = createRandom(seed, 5);
    const devices = 2 + random.integer(3);
    const samples = 1 + random.integer(16);
    const limits = Array.from({ length: devices }, () =>
      random.uniform() < 0.3 ? random.integer(samples + 1) : samples,
    );
    const model = limits.map(() => ({ setUp: 5 * random.uniform(), slope: 0.2 + random.uniform() }));
    const timeMs = (device: number, share: number): number =>
      share === 0 ? 0 : (model[device]?.setUp ?? 0) + (model[device]?.slope ?? 0) * share;
    const allocation = allocate({ samples, limits, timeMs });
    assert.equal(allocation === undefined, limits.reduce((sum, limit) => sum + limit, 0) < samples, `seed ${seed}`);
    if (allocation === undefined) continue;
    assert.equal(
      allocation.samples.reduce((sum, share) => sum + share, 0),
      samples,
      `seed ${seed}`,
    );
    for (const [device, share] of allocation.samples.entries()) {
      assert.ok(
        share >= 0 && share <= (limits[device] ?? 0) && share <= (allocation.highest[device] ?? 0),
        `seed ${seed}: device ${device} has ${share}`,
      );
    }
    const slowest = Math.max(...allocation.samples.map((share, device) => timeMs(device, share)));
    const best = bestMs(samples, limits, timeMs);
    assert.ok(slowest >= best - 1e-9, `seed ${seed}`);
    excess += slowest / best - 1;
    if (slowest <= best + 1e-9) optimal++;
    count++;
  }
  // Algorithm 1 was optimal in 80% of the groups, and its slowest device 5.9% slower on average. It stops at the first
  // move that does not help; with a fixed cost for each participating device, leaving one out takes several moves.
  assert.ok(excess / count < 0.065, `mean excess ${excess / count}`);
  assert.ok(optimal / count > 0.78, `optimal in ${optimal / count}`);
});
