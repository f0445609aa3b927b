import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, DeviceTimes, Plan, Profile } from '../../cluster/cluster.ts';
import { createRandom } from '../../random.ts';
import { program } from '../../schedule/generate.ts';
import { simulate } from '../../simulator/simulate.ts';
import { type DeviceRound, leastSquares, refreshProfile } from './estimator.ts';

const layer = (name: string): Profile['layers'][number] => ({
  name,
  outputBytes: 4,
  weightBytes: 4,
  savedBytes: 4,
  flops: 1,
});
const profile: Profile = {
  model: 'two layers',
  inputBytes: 4,
  labelBytes: 4,
  layers: [layer('one'), layer('two')],
  batchSizes: [1],
  devices: { board: { forwardMs: [[1, 2]], backwardMs: [[3, 4]] } },
};
const cluster: Cluster = {
  devices: ['a', 'b'].map((name) => ({ name, kind: 'board', memoryMiB: 100 })),
  links: { default: { bandwidthMbps: 1000 } },
};
/** a computes 5 · (1 + 3) = 20 ms a round, b 5 · (2 + 4) = 30. */
const plan: Plan = {
  planner: 'hand',
  schedule: '1f1b',
  batchSize: 5,
  microBatchSize: 1,
  microBatchCount: 5,
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [1], inFlight: 3 },
    { layers: [1, 2], devices: ['b'], samples: [1], inFlight: 1 },
  ],
  predicted: { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} },
};

const many = (count: number, value: number): number[] => new Array<number>(count).fill(value);
/** Rounds in which devices computed for so long. */
const busy = (all: Readonly<Record<string, readonly number[]>>): Readonly<Record<string, readonly DeviceRound[]>> =>
  Object.fromEntries(Object.entries(all).map(([device, values]) => [device, values.map((busyMs) => ({ busyMs }))]));

test('a device at a quarter of its speed is noticed after three quarters of its rounds; only its times change', () => {
  const rounds = (slowCount: number): readonly number[] => [...many(16 - slowCount, 20), ...many(slowCount, 80)];
  assert.deepEqual(refreshProfile(profile, plan, cluster, busy({ a: rounds(11), b: many(16, 30) })), {
    profile,
    factors: {},
  });
  const { profile: found, factors } = refreshProfile(profile, plan, cluster, busy({ a: rounds(13), b: many(16, 30) }));
  assert.deepEqual(factors, { a: 4 });
  assert.deepEqual(found.devices, {
    board: profile.devices['board'],
    a: { forwardMs: [[4, 8]], backwardMs: [[12, 16]] },
  });
  // With the profile refreshed, the same rounds are as expected; when the device recovers, that is seen, too.
  assert.deepEqual(refreshProfile(found, plan, cluster, busy({ a: rounds(13) })).factors, {});
  assert.deepEqual(refreshProfile(found, plan, cluster, busy({ a: many(8, 20) })).factors, { a: 0.25 });
});

test('a profile that is corrected by a tenth predicts the rounds with it', () => {
  const rounds = { a: [21.6, 22, 22, 22.4, 22, 30], b: [27, 26.9, 27, 27.1, 20, 27] };
  const { profile: found, factors } = refreshProfile(profile, plan, cluster, busy(rounds));
  assert.deepEqual(factors, { a: 1.1, b: 0.9 });
  const { devices } = simulate(program(plan), plan, found, cluster, { events: false });
  for (const [device, ms] of [
    ['a', 22],
    ['b', 27],
  ] as const)
    assert.ok(Math.abs((devices[device]?.busyMs ?? 0) / ms - 1) < 1e-6, device);
  // Rounds like these say nothing new then, nor do some that are a little otherwise.
  for (const more of [rounds, { a: many(8, 23), b: many(8, 25.8) }])
    assert.equal(refreshProfile(found, plan, cluster, busy(more)).profile, found);
});

/** 20 ms of computing, 20 of bytes on each device. */
const costly: Profile = {
  ...profile,
  devices: { board: { forwardMs: [[1, 2]], backwardMs: [[3, 4]], handlingMsPerMiB: 2 ** 19 } },
};

test('what bytes cost may be paid while a device waits, or slow its computing: neither is drift', () => {
  // 8 bytes a micro-batch and device, forward and backward: 20 ms a round.
  const factors = (a: number): Readonly<Record<string, number>> =>
    refreshProfile(costly, plan, cluster, busy({ a: many(8, a) })).factors;
  for (const ms of [19.2, 20, 40, 41.8]) assert.deepEqual(factors(ms), {}, `${ms} ms`);
  assert.deepEqual(factors(60), { a: 1.5 });
  assert.deepEqual(factors(10), { a: 0.5 });
});

test('what the whole process did says what computing and bytes take together, each as much longer', () => {
  const rounds = (count: number, processMs: number): DeviceRound[] =>
    many(count, processMs).map((ms) => ({ busyMs: 20, processMs: ms }));
  const factors = (a: readonly DeviceRound[]): Readonly<Record<string, number>> =>
    refreshProfile(costly, plan, cluster, { a }).factors;
  assert.deepEqual(factors(rounds(8, 40)), {});
  assert.deepEqual(factors(rounds(8, 30)), { a: 0.75 });
  assert.deepEqual(factors(rounds(8, 60)), { a: 1.5 });
  assert.deepEqual(factors([...rounds(8, 60), { busyMs: 20 }]), {}, 'one that does not tell it');
  const { profile: found } = refreshProfile(costly, plan, cluster, { a: rounds(8, 60) });
  const { busyMs = 0, handlingMs = 0 } =
    simulate(program(plan), plan, found, cluster, { events: false }).devices['a'] ?? {};
  assert.ok(Math.abs(busyMs - 60) < 1e-6 && Math.abs(handlingMs - 30) < 1e-6);
  const small = refreshProfile(costly, plan, cluster, { a: rounds(8, 41) }, 0).factors;
  assert.deepEqual(small, { a: 1.025 }, 'without patience');
});

/**
 * Of device a after rounds in which its process, and of that its links, took so long: how much longer it computes,
 * computing and links in the simulator, a pass.
 */
function afterRounds(of: Profile, processMs: number, linksMs: number): readonly number[] {
  const a = many(8, processMs).map((ms) => ({ busyMs: 20, processMs: ms, linksMs }));
  const { profile: found, factors } = refreshProfile(of, plan, cluster, { a });
  const { busyMs = 0, handlingMs = 0 } =
    simulate(program(plan), plan, found, cluster, { events: false }).devices['a'] ?? {};
  const { passMs = 0 } = found.devices['a'] ?? found.devices['board'] ?? {};
  return [factors['a'] ?? 1, busyMs - handlingMs, handlingMs, passMs].map((value) => Math.round(value * 1e6) / 1e6);
}

test('the main thread is corrected apart from the engine; what it does more is shared by bytes and passes', () => {
  const found = (processMs: number, linksMs: number): readonly number[] => afterRounds(costly, processMs, linksMs);
  assert.deepEqual(found(40, 20), [1, 20, 20, 0]);
  assert.deepEqual(found(25, 5), [1, 20, 5, 0], 'bytes cost a quarter');
  assert.deepEqual(found(35, 5), [1.5, 30, 5, 0], 'and computing half as much again');
  // Five micro-batches, two passes each.
  assert.deepEqual(found(60, 40), [1, 20, 40, 0.819672], 'passes, half a millisecond each or not, and bytes');
  assert.deepEqual(found(90, 40), [2.5, 50, 40, 0.819672], 'and the engine, too');
  assert.deepEqual(found(39.2, 18.5), [1, 20, 20, 0], 'no more than rounds differ');
});

test('what passes cost is corrected with the bytes, and found where nothing was known of either', () => {
  const { board } = costly.devices as { readonly board: DeviceTimes };
  const withPasses: Profile = { ...costly, devices: { board: { ...board, passMs: 1 } } };
  assert.deepEqual(afterRounds(withPasses, 50, 30), [1, 20, 30, 1]);
  assert.deepEqual(afterRounds(withPasses, 35, 15), [1, 20, 15, 0.385246]);
  assert.deepEqual(afterRounds(withPasses, 60, 40), [1, 20, 40, 1.409836]);
  assert.deepEqual(afterRounds(profile, 50, 30), [1, 20, 30, 3]);
});

test('frames and passes cost as many times as much or as little; the data’s holder has what it hands out', () => {
  const { board } = costly.devices as { readonly board: DeviceTimes };
  const times = (frameMs: number, passMs: number): Profile => ({
    ...costly,
    devices: { board: { ...board, frameMs, passMs } },
  });
  /** Of a: links in the simulator, a frame, and a pass. */
  const after = (linksMs: number, at: Cluster = cluster): readonly number[] => {
    const a = many(8, 20 + linksMs).map((processMs) => ({ busyMs: 20, processMs, linksMs }));
    const { profile: found } = refreshProfile(times(1, 0.5), plan, at, { a });
    const { handlingMs = 0 } = simulate(program(plan), plan, found, at, { events: false }).devices['a'] ?? {};
    const { frameMs = Number.NaN, passMs = Number.NaN } = found.devices['a'] ?? board;
    return [handlingMs, frameMs, passMs].map((value) => Math.round(value * 1e6) / 1e6);
  };
  // Five micro-batches: an input, an activation and a gradient each, two passes: 15 and 5 ms, beside 20 of bytes.
  assert.deepEqual(after(80), [80, 2.470588, 1.235294], '40 ms more than predicted');
  assert.deepEqual(after(20), [20, 0.264706, 0.132353], 'half of all, more of what is less certain');
  // The holder hands five labels to b: 20 frames and their bytes, which the rounds report.
  const held: Cluster = { ...cluster, dataDevice: 'a' };
  const { handlingMs: known = 0 } =
    simulate(program(plan), plan, times(1, 0.5), held, { events: false }).devices['a'] ?? {};
  const [told = 0, frameMs = 0, passMs = 0] = after(known + 50, held);
  assert.ok(
    Math.abs(told - known - 50) < 1e-5 && Math.abs(frameMs - 2 * passMs) < 1e-5 && frameMs > 2,
    `${told} ${frameMs} ${passMs}`,
  );
});

test('what an AllReduce costs the processors is of its bytes and of passes, and of no other bytes', () => {
  const group: Plan = { ...plan, stages: [{ layers: [0, 2], devices: ['a', 'b'], samples: [1, 0], inFlight: 1 }] };
  // 2(2 − 1)/2 of 8 bytes sent, and as many received; 5 micro-batches of 10 ms.
  const { board } = costly.devices as { readonly board: DeviceTimes };
  const one = { busyMs: 50, processMs: 52, linksMs: 2 };
  const { profile: found, factors } = refreshProfile(costly, group, cluster, { a: many(8, 0).map(() => one) });
  assert.deepEqual(factors, { a: 1 });
  const {
    busyMs,
    handlingMs,
    reducingMs = 0,
  } = simulate(program(group), group, found, cluster, { events: false }).devices['a'] ?? {};
  assert.deepEqual([busyMs, handlingMs], [50, undefined]);
  assert.ok(Math.abs(reducingMs - 2) < 1e-6, `${reducingMs} of 8 ms before`);
  const { profile: more } = refreshProfile(costly, group, cluster, {
    a: many(8, 0).map(() => ({ ...one, processMs: 66, linksMs: 16 })),
  });
  const { handlingMsPerMiB, reducingMsPerMiB = 0, passMs = 0 } = more.devices['a'] ?? board;
  assert.equal(handlingMsPerMiB, 2 ** 19);
  // 8 ± 4 ms of its bytes, and ten passes of 0 ± 0.5.
  assert.ok(Math.abs((8 * reducingMsPerMiB) / 2 ** 19 + 10 * passMs - 16) < 1e-6 && passMs > 0.48 && passMs < 0.49);
});

test('where it is known what an AllReduce cost, the rest is of bytes between stages and of passes', () => {
  const group: Plan = {
    ...plan,
    stages: [
      { layers: [0, 1], devices: ['a', 'c'], samples: [1, 0], inFlight: 3 },
      { layers: [1, 2], devices: ['b'], samples: [1], inFlight: 1 },
    ],
  };
  const { board } = costly.devices as { readonly board: DeviceTimes };
  const heavy: Profile = { ...costly, layers: costly.layers.map((one) => ({ ...one, weightBytes: 40 })) };
  const three: Cluster = { ...cluster, devices: [...cluster.devices, { name: 'c', kind: 'board', memoryMiB: 100 }] };
  /**
   * Of a: bytes and passes together, and the AllReduce, as the simulator has them; what a pass costs. 20 ms of
   * computing and of bytes, 40 or 4 of the AllReduce are predicted.
   */
  const after = (linksMs: number, reducingMs?: number, of = heavy): readonly number[] => {
    const one = { busyMs: 20, processMs: 20 + linksMs, linksMs, ...(reducingMs === undefined ? {} : { reducingMs }) };
    const { profile: found } = refreshProfile(of, group, three, { a: many(8, 0).map(() => one) });
    const told = simulate(program(group), group, found, three, { events: false }).devices['a'];
    const { passMs = 0 } = found.devices['a'] ?? {};
    return [told?.handlingMs ?? 0, told?.reducingMs ?? 0, passMs].map((value) => Math.round(value * 1e6) / 1e6);
  };
  assert.deepEqual(after(60, 40), [20, 40, 0], 'as predicted');
  assert.deepEqual(after(30, 10), [20, 10, 0], 'its bytes cost a quarter, those between stages what they did');
  assert.deepEqual(after(60, 20), [40, 20, 0.819672], 'bytes and ten passes cost the other 20 ms');
  assert.deepEqual(after(50, 40), [10, 40, 0], 'bytes between stages cost half');
  assert.deepEqual(after(62, 42), [20, 40, 0], 'no more than rounds differ');
  assert.deepEqual(after(58), [20, 40, 0], 'unknown, and together no more than rounds differ');
  assert.deepEqual(after(30), [17.522936, 12.477064, 0], 'unknown: most of what is largest and least certain');
  assert.deepEqual(after(24, 12, costly), [20, 4, 0], 'a small one says nothing of the bytes');
  assert.deepEqual(after(12, 12, costly), [9.2, 2.8, 0]);
  const known: Profile = { ...heavy, devices: { board: { ...board, reducingMsPerMiB: 2 ** 18 } } };
  assert.deepEqual(after(60, 40, known), [20, 40, 0], 'twice what was measured of AllReduces');
});

test('jitter of a fifth, a quarter of the rounds slow or fast, and fewer than five rounds do not count', () => {
  for (let seed = 0; seed < 100; seed++) {
    const random = createRandom(seed, 5);
    const a = Array.from(
      { length: 16 },
      (_, round) => 20 * (round % 4 === 1 ? (seed % 2 === 0 ? 10 : 0.1) : 0.85 + 0.35 * random.uniform()),
    );
    const { factors } = refreshProfile(
      profile,
      plan,
      cluster,
      busy({ a, b: [300, 300, 300, 300], stranger: [1, 1, 1, 1, 1] }),
    );
    for (const [device, factor] of Object.entries(factors))
      assert.ok(device === 'a' && factor > 0.85 && factor < 1.2, `seed ${seed}`);
  }
});

test('parts move to a measured sum in proportion to their variance, and never below zero', () => {
  const parts = [
    { ms: 10, spreadMs: 2 },
    { ms: 20, spreadMs: 4 },
  ];
  assert.deepEqual(leastSquares(parts, 40), [12, 28]);
  assert.deepEqual(leastSquares(parts, 25), [9, 16]);
  assert.deepEqual(leastSquares(parts, 5), [5, 0], 'what one cannot give is of the other');
  assert.deepEqual(leastSquares(parts, 0), [0, 0]);
  assert.deepEqual(leastSquares([{ ms: 3, spreadMs: 0 }], 5), [3], 'what is certain stays');
});

test('rounds of two layouts in turn tell apart what rounds of one cannot', () => {
  const wide = 256 * 2 ** 10;
  const layers = profile.layers.map((one) => ({ ...one, outputBytes: wide, weightBytes: 4e6 }));
  const board: DeviceTimes = { forwardMs: [[1, 2]], backwardMs: [[3, 4]], handlingMsPerMiB: 4, reducingMsPerMiB: 6 };
  const measured: Profile = { ...profile, layers, devices: { board: { ...board, passMs: 0.5, frameMs: 0.65 } } };
  const truth = { handlingMsPerMiB: 7, reducingMsPerMiB: 4, passMs: 0.9, frameMs: 1.17 };
  const world: Profile = { ...measured, devices: { board: { ...board, ...truth } } };
  const cuts = [1, 4].map((microBatchSize): Plan => {
    const stages = plan.stages.map((stage) => ({ ...stage, samples: [microBatchSize] }));
    return { ...plan, microBatchSize, batchSize: 5 * microBatchSize, stages };
  });
  const group: Plan = { ...plan, stages: [{ layers: [0, 2], devices: ['a', 'b'], samples: [1, 0], inFlight: 1 }] };
  for (const seed of [1, 2, 3]) {
    const random = createRandom(seed, 9);
    const noisy = (ms: number): number => ms * (1 + 0.02 * (random.uniform() - 0.5));
    let known = measured;
    for (let look = 0; look < 60; look++) {
      const layout = [...cuts, group][look % 3] as Plan;
      const { devices } = simulate(program(layout), layout, world, cluster, { events: false });
      const { busyMs = 0, handlingMs = 0, reducingMs = 0 } = devices['a'] ?? {};
      const rounds = many(9, 0).map(() => {
        const [computeMs, linksMs] = [noisy(busyMs - handlingMs), noisy(handlingMs + reducingMs)];
        return { busyMs: computeMs, processMs: computeMs + linksMs, linksMs };
      });
      known = refreshProfile(known, layout, cluster, { a: rounds }, 0).profile;
    }
    for (const [field, value] of Object.entries(truth)) {
      const found = known.devices['a']?.[field as keyof typeof truth] ?? 0;
      assert.ok(Math.abs(found / value - 1) < 0.1, `seed ${seed}: ${field} ${found}, planted ${value}`);
    }
    // A layout without AllReduces says nothing of them.
    const { a: before } = known.devices;
    const rounds = many(9, 0).map(() => ({ busyMs: 20, processMs: 120, linksMs: 100 }));
    const { a: after } = refreshProfile(known, cuts[0] as Plan, cluster, { a: rounds }).profile.devices;
    assert.equal(after?.reducingMsPerMiB, before?.reducingMsPerMiB);
  }
});
