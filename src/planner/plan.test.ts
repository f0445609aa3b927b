import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import { checkTogether, parsePlan } from '../cluster/validate.ts';
import { createRandom } from '../random.ts';
import { checkProgram } from '../schedule/check.ts';
import { program } from '../schedule/generate.ts';
import { scheduleOf, schedules } from '../schedule/schedules.ts';
import { simulate } from '../simulator/simulate.ts';
import { randomCluster, randomInstance, randomPlan, randomProfile } from '../testing/random-plans.ts';
import { withFrozenPrefix } from '../testing/random-problems.ts';
import { lowerBoundMs, roundBounds } from './bounds.ts';
import { type PlanInput, plan } from './plan.ts';
import { plannerNames } from './planners.ts';
import { createProblem } from './problem.ts';

const mib = 1024 * 1024;

/** Four equal layers; a board takes 1 ms forward and 2 ms backward a sample for each, a fast device half of that. */
const profile: Profile = {
  model: 'four',
  inputBytes: 1000,
  labelBytes: 4,
  layers: Array.from({ length: 4 }, (_, layer) => ({
    name: `l${layer}`,
    outputBytes: 100,
    weightBytes: mib,
    savedBytes: mib,
    flops: 1,
  })),
  batchSizes: [1, 8],
  devices: {
    board: {
      forwardMs: [
        [1, 1, 1, 1],
        [8, 8, 8, 8],
      ],
      backwardMs: [
        [2, 2, 2, 2],
        [16, 16, 16, 16],
      ],
    },
    fast: {
      forwardMs: [
        [0.5, 0.5, 0.5, 0.5],
        [4, 4, 4, 4],
      ],
      backwardMs: [
        [1, 1, 1, 1],
        [8, 8, 8, 8],
      ],
    },
  },
};

const cluster: Cluster = {
  devices: [
    { name: 'a', kind: 'board', memoryMiB: 100 },
    { name: 'b', kind: 'fast', memoryMiB: 100 },
    { name: 'c', kind: 'board', memoryMiB: 100 },
  ],
  links: { default: { bandwidthMbps: 1000 } },
};

const input: PlanInput = { profile, cluster, batchSize: 32, microBatchSize: 4, optimizerState: 0 };

/** "[0,2) b 4 | [2,4) a 2 c 2". */
function layout({ stages }: Plan): string {
  return stages
    .map(
      (stage) =>
        `[${stage.layers.join(',')}) ` +
        stage.devices.map((name, index) => `${name} ${stage.samples[index]}`).join(' '),
    )
    .join(' | ');
}

test('single: the fastest device that fits', () => {
  assert.equal(layout(plan({ ...input, planner: 'single' })), '[0,4) b 4');
  const small: Cluster = {
    ...cluster,
    devices: cluster.devices.map((device) => (device.name === 'b' ? { ...device, memoryMiB: 20 } : device)),
  };
  assert.equal(layout(plan({ ...input, cluster: small, planner: 'single' })), '[0,4) a 4');
});

test('dp: all devices, shares by speed', () => {
  assert.equal(layout(plan({ ...input, planner: 'dp' })), '[0,4) a 1 b 2 c 1');
});

test("straight: one device a stage in the cluster's order, cut by speed", () => {
  assert.equal(layout(plan({ ...input, planner: 'straight' })), '[0,1) a 4 | [1,3) b 4 | [3,4) c 4');
});

test('asteroid: with slow links for weights and fast ones for activations, a pipeline in the order of memory', () => {
  const slow: Cluster = {
    ...cluster,
    links: { default: { bandwidthMbps: 10 } },
    devices: cluster.devices.map((device, index) => ({ ...device, memoryMiB: 100 - index })),
  };
  const found = plan({ ...input, cluster: slow });
  assert.equal(layout(found), '[0,1) a 4 | [1,3) b 4 | [3,4) c 4');
  assert.deepEqual(
    found.stages.map((stage) => stage.inFlight),
    [5, 3, 1],
  );
  assert.equal(found.planner, 'asteroid');
  assert.equal(found.schedule, '1f1b');
  assert.equal(found.microBatchCount, 8);
});

test("the prediction is the simulator's for the devices of the plan, and above the bound", () => {
  const found = plan({ ...input, planner: 'dp', optimizerState: 1 });
  const world = simulate(program(found), found, profile, cluster, { optimizerState: 1 });
  assert.equal(found.predicted.roundMs, world.roundMs);
  assert.equal(found.predicted.samplesPerS, world.samplesPerS);
  assert.deepEqual(found.predicted.peakMemoryMiB, { a: 12 + 4, b: 12 + 8, c: 12 + 4 });
  // 32 samples of 12 ms on a board; the three devices together equal four boards.
  assert.ok(Math.abs((found.predicted.lowerBoundMs ?? 0) - 96) < 1e-6);
  assert.deepEqual(parsePlan(JSON.stringify(found)), found);
});

test('without a micro-batch size, the divisors of the batch are tried', () => {
  const { microBatchSize: _, ...open } = input;
  const found = plan({ ...open, planner: 'straight' });
  const every = [1, 2, 4, 8, 16, 32].map(
    (microBatchSize) => plan({ ...open, microBatchSize, planner: 'straight' }).predicted.roundMs,
  );
  assert.equal(found.predicted.roundMs, Math.min(...every));
  assert.equal(found.microBatchSize, 1);
});

test('a layer that depends on the whole batch is never replicated unless allowed', () => {
  const normalized: Profile = {
    ...profile,
    layers: profile.layers.map((layer, index) => (index === 1 ? { ...layer, batchDependent: true } : layer)),
  };
  const fast: PlanInput = { ...input, cluster: { ...cluster, links: { default: { bandwidthMbps: 1e6 } } } };
  assert.equal(layout(plan(fast)), '[0,4) a 1 b 2 c 1');
  const found = plan({ ...fast, profile: normalized });
  for (const stage of found.stages)
    assert.ok(stage.layers[0] > 1 || stage.layers[1] < 2 || stage.devices.length === 1, layout(found));
  assert.equal(layout(plan({ ...fast, profile: normalized, replicateBatchDependent: true })), '[0,4) a 1 b 2 c 1');
  assert.throws(() => plan({ ...input, profile: normalized, planner: 'dp' }), {
    name: 'InputError',
    message:
      'Planner "dp" replicates every layer, but the result of layer "l1" depends on the whole batch; use ' +
      'another planner, such as asteroid, or allow it with replicateBatchDependent (--replicate-batch-norm).',
  });
});

test('a frozen prefix: no backward pass, no gradients at its cuts, and the plan says so', () => {
  // Two layers of one device each; a cut of 12,500 bytes a sample takes 1 ms at 100 Mbps.
  const layers = profile.layers.map((layer, index) => ({
    ...layer,
    outputBytes: 12_500,
    ...(index < 2 ? { frozenBytes: layer.weightBytes } : {}),
  }));
  const pair: Cluster = {
    devices: [cluster.devices[0], cluster.devices[2]].flatMap((device) => device ?? []),
    links: { default: { bandwidthMbps: 100 } },
  };
  const pins = [
    { layer: 0, device: 'a' },
    { layer: 1, device: 'a' },
    { layer: 2, device: 'c' },
  ];
  for (const planner of ['best', 'asteroid', 'straight']) {
    const found = plan({
      ...input,
      profile: { ...profile, layers },
      cluster: pair,
      batchSize: 4,
      microBatchSize: 1,
      planner,
      pins,
    });
    assert.equal(found.forwardOnlyLayers, 2, planner);
    assert.equal(layout(found), '[0,2) a 1 | [2,4) c 1', planner);
    // a: four forwards of 2 ms; c: starts after 2 ms and the link's 1 ms, then four times 2 ms forward and 4 ms
    // backward.
    assert.equal(found.predicted.roundMs, 2 + 1 + 4 * 6, planner);
    // a keeps the weights of two layers only; c weights and gradients, and one sample of its two layers.
    assert.deepEqual(found.predicted.peakMemoryMiB, { a: 2, c: 4 + 2 }, planner);
    const world = simulate(program(found), found, { ...profile, layers }, pair);
    assert.equal(world.roundMs, found.predicted.roundMs);
    assert.equal(world.devices['a']?.peakMemoryMiB, 2);
    assert.equal(world.links['c->a'], undefined);
  }
  const unfrozen = plan({ ...input, cluster: pair, batchSize: 4, microBatchSize: 1, pins });
  assert.equal('forwardOnlyLayers' in unfrozen, false);
});

test('frozen layers behind a trained one are no prefix, nor are leading layers without weights', () => {
  const change = (index: number, fields: object): Profile => ({
    ...profile,
    layers: profile.layers.map((layer, at) => (at === index ? { ...layer, ...fields } : layer)),
  });
  assert.equal('forwardOnlyLayers' in plan({ ...input, profile: change(1, { frozenBytes: mib }) }), false);
  assert.equal('forwardOnlyLayers' in plan({ ...input, profile: change(0, { weightBytes: 0 }) }), false);
  assert.equal('forwardOnlyLayers' in plan({ ...input, profile: change(0, { frozenBytes: mib / 2 }) }), false);
  assert.equal(plan({ ...input, profile: change(0, { frozenBytes: mib }) }).forwardOnlyLayers, 1);
});

const wrong: readonly (readonly [change: Partial<PlanInput>, sentence: string])[] = [
  [
    { planner: 'magic' },
    'There is no planner "magic"; use one of best, asteroid, single, dp, straight, gpipe, pipedream, dapple, ' +
      'hetpipe, pipeedge, ftpipehd, exhaustive.',
  ],
  [{ schedule: 'zigzag' }, `There is no schedule "zigzag"; use one of ${Object.keys(schedules).join(', ')}.`],
  [{ batchSize: 0 }, 'The batch size is 0; give a whole number of 1 or more.'],
  [
    { batchSize: 32, microBatchSize: 5 },
    'The batch of 32 samples cannot be cut into micro-batches of 5; give a divisor of it, such as 4.',
  ],
  [{ microBatchSize: -1 }, 'The micro-batch size is -1; give a whole number of 1 or more.'],
  [
    { cluster: { ...cluster, links: { default: { bandwidthMbps: -100 } } } },
    'cluster: links.default.bandwidthMbps is -100; give a number above 0 (megabits a second).',
  ],
  [
    { cluster: { ...cluster, devices: [...cluster.devices, { name: 'd', kind: 'phone', memoryMiB: 1 }] } },
    'The profile of "four" has no times for device "d" (kind "phone"); ' +
      "profile it, or give it one of the profile's kinds (board, fast).",
  ],
];

for (const [change, sentence] of wrong) {
  test(`refused: ${sentence}`, () =>
    assert.throws(() => plan({ ...input, ...change }), { name: 'InputError', message: sentence }));
}

function withMemory(memoryMiB: number): Cluster {
  return { ...cluster, devices: cluster.devices.map((device) => ({ ...device, memoryMiB })) };
}

test('if nothing fits: which device lacks how much, and a smaller micro-batch if that would do', () => {
  // The weights take 8 MiB twice, a sample 4 MiB: 24 MiB hold one device's micro-batch of 4, 12 MiB one of 1.
  assert.throws(() => plan({ ...input, cluster: withMemory(12), planner: 'single' }), {
    name: 'InputError',
    message:
      'Model "four" fits nowhere (planner single, micro-batches of 4): device "a" has 12 MiB and lacks 12 MiB; ' +
      'use micro-batches of 1, or raise its memoryMiB to 24.',
  });
  // Adam: four times the weights; stages of 1, 1 and 2 layers keep 5, 3 and 1 samples: 9, 7 and 10 MiB.
  const { microBatchSize: _, ...open } = input;
  assert.throws(() => plan({ ...open, cluster: withMemory(2), planner: 'straight', optimizerState: 2 }), {
    name: 'InputError',
    message:
      'Model "four" fits nowhere (planner straight, micro-batches of 1): device "a" has 2 MiB and lacks 8 MiB; ' +
      'give every device at least 10 MiB.',
  });
});

/** Planners whose refusal says what would make the model fit. */
const lookingAtMemory = ['best', 'asteroid', 'single', 'dp', 'straight'];
/** Planners whose plans are Programs and that accept problems of any size. */
const pipelinePlanners = plannerNames.filter((name) => name !== 'hetpipe' && name !== 'exhaustive');

test('following the advice of the error helps: 200 random problems that do not fit', () => {
  let refusedCount = 0;
  for (let seed = 0; refusedCount < 200; seed++) {
    const random = createRandom(seed, 7);
    const { profile: of, cluster: roomy } = randomInstance(seed, {
      deviceCount: 1 + random.integer(4),
      layerCount: 1 + random.integer(7),
    });
    const poor: Cluster = {
      ...roomy,
      devices: roomy.devices.map((device) => ({
        ...device,
        memoryMiB: device.memoryMiB * (0.05 + 0.3 * random.uniform()),
      })),
    };
    const planner = lookingAtMemory[random.integer(lookingAtMemory.length)] as string;
    const question: PlanInput = {
      profile: of,
      cluster: poor,
      batchSize: 16,
      microBatchSize: 2 ** random.integer(5),
      optimizerState: 1,
      planner,
    };
    let message = '';
    try {
      plan(question);
      continue;
    } catch (error) {
      message = (error as Error).message;
    }
    refusedCount++;
    const advice =
      /device "(\w+)" has .* MiB; (?:use .* of (\d+), or )?(?:raise its .* to (\d+)|give every .* (\d+) MiB)\.$/.exec(
        message,
      );
    assert.ok(advice !== null, `seed ${seed}: ${message}`);
    const [, name, smaller, own, all] = advice;
    const devices = poor.devices.map((device) => {
      if (all !== undefined) return { ...device, memoryMiB: Math.max(device.memoryMiB, Number(all)) };
      return device.name === name ? { ...device, memoryMiB: Number(own) } : device;
    });
    assert.ok(plan({ ...question, cluster: { ...poor, devices } }).stages.length > 0, `seed ${seed}: ${message}`);
    if (smaller !== undefined)
      assert.ok(plan({ ...question, microBatchSize: Number(smaller) }).stages.length > 0, `seed ${seed}: ${message}`);
  }
});

test("every planner's plan is sound: within memory, its program passes the check, never below the bound", () => {
  for (let seed = 0; seed < 150; seed++) {
    const random = createRandom(seed, 8);
    const { profile: of, cluster: on } = randomInstance(seed, {
      deviceCount: 1 + random.integer(4),
      layerCount: 1 + random.integer(8),
    });
    const dependent: Profile =
      seed % 3 > 0
        ? seed % 3 === 1
          ? withFrozenPrefix(seed, of)
          : of
        : {
            ...of,
            layers: of.layers.map((layer, index) => (index % 2 === 0 ? { ...layer, batchDependent: true } : layer)),
          };
    for (const planner of pipelinePlanners) {
      let found: Plan;
      try {
        found = plan({
          profile: dependent,
          cluster: on,
          batchSize: 12,
          optimizerState: 1,
          planner,
          schedule: seed % 2 === 0 ? '1f1b' : 'gpipe',
        });
      } catch (error) {
        assert.match(
          String(error),
          /^InputError: (Model "random" fits nowhere|Planner "dp" replicates|Planner "\w+" does not look at memory)/,
          `seed ${seed}, ${planner}`,
        );
        continue;
      }
      parsePlan(found);
      checkTogether(found, dependent, on);
      checkProgram(program(found), found);
      for (const device of on.devices) {
        const used = found.predicted.peakMemoryMiB[device.name] ?? 0;
        assert.ok(
          used <= device.memoryMiB * (1 + 1e-12),
          `seed ${seed}, ${planner}: ${device.name} needs ${used} of ${device.memoryMiB} MiB`,
        );
      }
      assert.ok(found.predicted.roundMs >= (found.predicted.lowerBoundMs ?? 0), `seed ${seed}, ${planner}`);
      assert.ok(
        found.stages.every((stage) => stage.samples.every((share) => share > 0)),
        `seed ${seed}, ${planner}: a device without samples`,
      );
    }
  }
});

test('no plan beats the bound of its micro-batch size: 1000 random plans', () => {
  for (let seed = 0; seed < 1000; seed++) {
    const some = randomPlan(seed);
    const on = randomCluster(seed, some);
    const of = randomProfile(seed, some, on);
    const { batchSize, microBatchSize, schedule } = some;
    const bound = lowerBoundMs(
      createProblem({
        profile: of,
        cluster: on,
        schedule: scheduleOf(schedule),
        batchSize,
        microBatchSize,
        optimizerState: 0,
        replicateBatchDependent: false,
      }),
    );
    const { roundMs } = simulate(program(some), some, of, on, { events: false });
    assert.ok(bound > 0 && bound <= roundMs, `seed ${seed}: bound ${bound} ms, simulated ${roundMs} ms`);
  }
});

test('no straight pipeline beats the straight bound, which is above the general bound: 1000 random plans', () => {
  let higherCount = 0;
  for (let seed = 0; seed < 1000; seed++) {
    const some = randomPlan(seed);
    const on = randomCluster(seed, some);
    const of = randomProfile(seed, some, on);
    const { microBatchSize, microBatchCount } = some;
    const stages = some.stages.map((stage) => ({
      ...stage,
      devices: stage.devices.slice(0, 1),
      samples: [microBatchSize],
    }));
    for (const schedule of ['gpipe', '1f1b', '1f1b-overlap']) {
      const straight = {
        ...some,
        schedule,
        stages: stages.map((stage, p) => ({ ...stage, inFlight: Math.min(microBatchCount, stages.length - p) })),
      };
      const problem = {
        ...{ profile: of, cluster: on, schedule: scheduleOf(schedule), microBatchSize, optimizerState: 0 as const },
        replicateBatchDependent: false,
      };
      const { anyMs, straightMs } = roundBounds(createProblem({ ...problem, batchSize: some.batchSize }));
      const { roundMs } = simulate(program(straight), straight, of, on, { events: false });
      assert.ok(
        straightMs >= anyMs && straightMs <= roundMs * (1 + 1e-9),
        `seed ${seed}, ${schedule}: bound ${straightMs} ms, simulated ${roundMs} ms`,
      );
      if (straightMs > 1.01 * anyMs) higherCount++;
    }
  }
  assert.ok(higherCount > 1000, `${higherCount} of 3000 are higher`);
});

test('213 layers, five devices, every micro-batch size of a batch of 2048: well under a second when idle', () => {
  const { profile: of, cluster: on } = randomInstance(1, { deviceCount: 5, layerCount: 213 });
  const start = performance.now();
  const found = plan({ profile: of, cluster: on, batchSize: 2048, optimizerState: 1 });
  const elapsedMs = performance.now() - start;
  assert.equal(found.stages.at(-1)?.layers[1], 213);
  assert.ok(elapsedMs < 10000, `${elapsedMs} ms: ten times what it should take`);
});
