import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, DeviceTimes, PlanLayout, Profile } from '../cluster/cluster.ts';
import { checkTogether } from '../cluster/validate.ts';
import { program } from '../schedule/generate.ts';
import { isOverlapped, type Program } from '../schedule/program.ts';
import { randomCluster, randomPlan, randomProfile } from '../testing/random-plans.ts';
import { createSimulator, simulate } from './simulate.ts';
import type { Simulation } from './simulation.ts';

const mib = 1024 * 1024;

/**
 * Three layers on two kinds of board; one sample costs 1 + 2 ms in layer 0, and so on; 1000 bytes take 1 ms at 8 Mbps.
 */
const profile: Profile = {
  model: 'three',
  inputBytes: 500,
  labelBytes: 0,
  layers: [
    { name: 'l0', outputBytes: 1000, weightBytes: mib, savedBytes: mib, flops: 1 },
    { name: 'l1', outputBytes: 2000, weightBytes: 2 * mib, savedBytes: 3 * mib, flops: 1 },
    { name: 'l2', outputBytes: 10, weightBytes: 4 * mib, savedBytes: 5 * mib, flops: 1 },
  ],
  batchSizes: [1, 2],
  devices: {
    board: {
      forwardMs: [
        [1, 2, 3],
        [2, 4, 6],
      ],
      backwardMs: [
        [2, 4, 6],
        [4, 8, 12],
      ],
    },
  },
};

const devices = ['a', 'b', 'c'].map((name) => ({ name, kind: 'board', memoryMiB: 100 }));

function run(plan: Omit<PlanLayout, 'planner'>, cluster: Cluster, of: Profile = profile): Simulation {
  const whole: PlanLayout = { planner: 'test', ...plan };
  checkTogether(whole, of, cluster);
  return simulate(program(whole), whole, of, cluster);
}

test('one device alternates forward and backward and waits for nothing', () => {
  const stages = [{ layers: [0, 3] as const, devices: ['a'], samples: [2], inFlight: 1 }];
  const result = run(
    { schedule: '1f1b', batchSize: 4, microBatchSize: 2, microBatchCount: 2, stages },
    { devices, links: { default: { bandwidthMbps: 8 } } },
  );
  // F 12, B 24, twice.
  assert.deepEqual(result.events, [
    { device: 'a', kind: 'forward', stage: 0, microBatch: 0, startMs: 0, endMs: 12 },
    { device: 'a', kind: 'backward', stage: 0, microBatch: 0, startMs: 12, endMs: 36 },
    { device: 'a', kind: 'forward', stage: 0, microBatch: 1, startMs: 36, endMs: 48 },
    { device: 'a', kind: 'backward', stage: 0, microBatch: 1, startMs: 48, endMs: 72 },
  ]);
  assert.equal(result.roundMs, 72);
  assert.equal(result.samplesPerS, (4 / 72) * 1000);
  assert.deepEqual(result.links, {});
  assert.deepEqual(result.devices, {
    a: { busyMs: 72, idleFraction: 0, peakMemoryMiB: 2 * 7 + 9 * 2 },
    b: { busyMs: 0, idleFraction: 1, peakMemoryMiB: 0 },
    c: { busyMs: 0, idleFraction: 1, peakMemoryMiB: 0 },
  });
});

test('a device that the plan leaves out needs no times in the profile', () => {
  const stranger: Cluster = {
    devices: [...devices, { name: 'stranger', memoryMiB: 1 }],
    links: { default: { bandwidthMbps: 8 } },
  };
  const layout = {
    schedule: '1f1b',
    batchSize: 1,
    microBatchSize: 1,
    microBatchCount: 1,
    stages: [{ layers: [0, 3] as const, devices: ['a'], samples: [1], inFlight: 1 }],
  };
  assert.deepEqual(run(layout, stranger).devices['stranger'], { busyMs: 0, idleFraction: 1, peakMemoryMiB: 0 });
});

test('two stages: activations and gradients cross the link, one latency later, while devices compute', () => {
  const stages = [
    { layers: [0, 1] as const, devices: ['a'], samples: [1], inFlight: 2 },
    { layers: [1, 3] as const, devices: ['b'], samples: [1], inFlight: 1 },
  ];
  const cluster: Cluster = { devices, links: { default: { bandwidthMbps: 8, latencyMs: 0.5 } } };
  const result = run({ schedule: '1f1b', batchSize: 2, microBatchSize: 1, microBatchCount: 2, stages }, cluster);
  //  a    | F0 0-1, F1 1-2                          B0 18-20      B1 33-35
  //  a->b | 1-2, 2-3
  //  b    |     F0 2.5-7.5, B0 7.5-17.5 wait: F = 2+3, B = 4+6; F1 17.5-22.5, B1 22.5-32.5
  //  b->a | 17.5-18.5 (there 19), 32.5-33.5 (there 34)
  const lines = result.events.map(
    ({ device, kind, payload, microBatch, startMs, endMs }) =>
      `${device} ${payload ?? kind} ${microBatch} ${startMs}-${endMs}`,
  );
  assert.deepEqual(lines, [
    'a forward 0 0-1',
    'a forward 1 1-2',
    'a activation 0 1-2',
    'a activation 1 2-3',
    'b forward 0 2.5-7.5',
    'b backward 0 7.5-17.5',
    'b gradient 0 17.5-18.5',
    'b forward 1 17.5-22.5',
    'a backward 0 19-21',
    'b backward 1 22.5-32.5',
    'b gradient 1 32.5-33.5',
    'a backward 1 34-36',
  ]);
  assert.equal(result.roundMs, 36);
  assert.deepEqual(result.links, { 'a->b': { bytes: 2000, busyMs: 2 }, 'b->a': { bytes: 2000, busyMs: 2 } });
  assert.deepEqual(result.devices.a, { busyMs: 6, idleFraction: 1 - 6 / 36, peakMemoryMiB: 2 * 1 + 2 * 1 });
  assert.deepEqual(result.devices.b, { busyMs: 30, idleFraction: 1 - 30 / 36, peakMemoryMiB: 2 * 6 + 8 });
});

test('who waits pays for bytes meanwhile; who does not, before the next pass', () => {
  const stages = [
    { layers: [0, 1] as const, devices: ['a'], samples: [1], inFlight: 2 },
    { layers: [1, 3] as const, devices: ['b'], samples: [1], inFlight: 1 },
  ];
  const cluster: Cluster = { devices, links: { default: { bandwidthMbps: 8, latencyMs: 0.5 } } };
  // A piece of 1000 bytes costs either end 0.5 ms.
  const costly: Profile = {
    ...profile,
    devices: { board: { ...(profile.devices['board'] as DeviceTimes), handlingMsPerMiB: mib / 2000 } },
  };
  const result = run(
    { schedule: '1f1b', batchSize: 2, microBatchSize: 1, microBatchCount: 2, stages },
    cluster,
    costly,
  );
  const lines = result.events.map(
    ({ device, kind, payload, microBatch, startMs, endMs }) =>
      `${device} ${payload ?? kind} ${microBatch} ${startMs}-${endMs}`,
  );
  assert.deepEqual(lines, [
    'a forward 0 0-1',
    'a activation 0 1-2',
    'a forward 1 1.5-2.5', // what micro-batch 0 cost to send
    'a activation 1 2.5-3.5',
    'b forward 0 2.5-7.5', // paid while it waited
    'b backward 0 7.5-17.5',
    'b gradient 0 17.5-18.5',
    'b forward 1 18.5-23.5', // a gradient sent, an activation received
    'a backward 0 19-21', // as soon as it has come
    'b backward 1 23.5-33.5',
    'b gradient 1 33.5-34.5',
    'a backward 1 35-37',
  ]);
  assert.equal(result.roundMs, 37);
  const { a, b } = result.devices;
  assert.deepEqual([a?.busyMs, a?.handlingMs, b?.busyMs, b?.handlingMs], [8, 2, 32, 2]);
});

test('the data device feeds K micro-batches at once and the next after a backward; labels follow the same rule', () => {
  const stages = [{ layers: [0, 3] as const, devices: ['a'], samples: [1], inFlight: 1 }];
  const cluster: Cluster = { devices, dataDevice: 'c', links: { default: { bandwidthMbps: 8, latencyMs: 1 } } };
  const result = run({ schedule: '1f1b', batchSize: 2, microBatchSize: 1, microBatchCount: 2, stages }, cluster, {
    ...profile,
    labelBytes: 250,
  });
  // Input 0.5 ms, then label 0.25 ms on the same link, one latency later both are there at 1.75; F = 6, B = 12.
  const lines = result.events.map(
    ({ device, kind, payload, microBatch, startMs, endMs }) =>
      `${device} ${payload ?? kind} ${microBatch} ${startMs}-${endMs}`,
  );
  assert.deepEqual(lines, [
    'c input 0 0-0.5',
    'c label 0 0.5-0.75',
    'a forward 0 1.75-7.75',
    'a backward 0 7.75-19.75',
    'c input 1 19.75-20.25',
    'c label 1 20.25-20.5',
    'a forward 1 21.5-27.5',
    'a backward 1 27.5-39.5',
  ]);
  assert.deepEqual(result.links, { 'c->a': { bytes: 1500, busyMs: 1.5 } });
});

test('the data device computes its own pieces without waiting', () => {
  const stages = [{ layers: [0, 3] as const, devices: ['a'], samples: [1], inFlight: 1 }];
  const cluster: Cluster = { devices, dataDevice: 'a', links: { default: { bandwidthMbps: 8, latencyMs: 1 } } };
  assert.equal(
    run({ schedule: '1f1b', batchSize: 2, microBatchSize: 1, microBatchCount: 2, stages }, cluster).roundMs,
    36,
  );
});

test('a group reduces when its last member is done: eq. 5 over the slowest pair, plus 2(|G| − 1) latencies', () => {
  const stages = [{ layers: [0, 3] as const, devices: ['a', 'b', 'c'], samples: [2, 1, 0], inFlight: 1 }];
  const pairs = [{ between: ['c', 'b'] as const, bandwidthMbps: 4, latencyMs: 2 }];
  const cluster: Cluster = { devices, links: { default: { bandwidthMbps: 8, latencyMs: 1 }, pairs } };
  const timed: Profile = {
    ...profile,
    devices: {
      board: { ...(profile.devices.board as { forwardMs: number[][]; backwardMs: number[][] }), updateMs: [1, 1, 2] },
    },
  };
  const result = run({ schedule: '1f1b', batchSize: 3, microBatchSize: 3, microBatchCount: 1, stages }, cluster, timed);
  // a is done at 36, b at 18, c at once; 2·2/3 · 7 MiB at 4 Mbps = 500 bytes a millisecond; 4 latencies of 2 ms; the
  // update takes 4.
  const reduceMs = ((4 / 3) * 7 * mib) / 500 + 8;
  assert.ok(Math.abs(result.roundMs - (36 + reduceMs + 4)) < 1e-6, `${result.roundMs}`);
  assert.deepEqual(
    result.events
      .filter((event) => event.kind === 'all-reduce')
      .map(({ device, startMs }) => [device, startMs])
      .sort(),
    [
      ['a', 36],
      ['b', 36],
      ['c', 36],
    ],
  );
  assert.equal(result.devices.c?.peakMemoryMiB, 14, 'weights and gradients only');
});

test('a last stage takes a step’s time if each backward follows its forward at once, else that of two passes', () => {
  const board = { forwardMs: [[1, 1, 1]], backwardMs: [[2, 2, 2]], stepMs: [[1, 2, 1.5]] };
  const timed: Profile = { ...profile, devices: { board } };
  const cluster: Cluster = { devices, links: { default: { bandwidthMbps: 1e9 } } };
  const time = (schedule: string, cut: number): number[] => {
    const stages = [
      { layers: [0, cut] as const, devices: ['a'], samples: [1], inFlight: 3 },
      { layers: [cut, 3] as const, devices: ['b'], samples: [1], inFlight: 1 },
    ].filter(({ layers: [first, end] }) => first < end);
    const result = run({ schedule, batchSize: 2, microBatchSize: 1, microBatchCount: 2, stages }, cluster, timed);
    return ['a', 'b'].map((device) => result.devices[device]?.busyMs ?? 0);
  };
  // The profile is of one sample of the three layers (planner.md, rule 1), by two micro-batches.
  const one = profile.batchSizes[0] as number;
  assert.deepEqual(time('1f1b', 2), [(2 * 6) / one, (2 * 1.5) / one]);
  assert.deepEqual(time('1f1b', 1), [(2 * 3) / one, (2 * 3.5) / one]);
  assert.deepEqual(time('gpipe', 1), [(2 * 3) / one, (2 * 6) / one]);
  assert.deepEqual(time('zb-h1', 1), [(2 * 3) / one, (2 * 6) / one]);
});

test('labels and activations share a link in the order in which they became ready', () => {
  // a holds the data and runs stage 0; b runs the last stage and shares the link a->b with the labels.
  const stages = [
    { layers: [0, 1] as const, devices: ['a'], samples: [1], inFlight: 2 },
    { layers: [1, 3] as const, devices: ['b'], samples: [1], inFlight: 2 },
  ];
  const cluster: Cluster = { devices, dataDevice: 'a', links: { default: { bandwidthMbps: 8 } } };
  const result = run({ schedule: 'gpipe', batchSize: 3, microBatchSize: 1, microBatchCount: 3, stages }, cluster, {
    ...profile,
    labelBytes: 1000,
  });
  const onLink = result.events
    .filter((event) => event.kind === 'transfer' && event.device === 'a')
    .map(({ payload, microBatch, startMs }) => `${payload} ${microBatch} at ${startMs}`);
  // All labels are ready at 0, one millisecond each; the activations at 1, 2 and 3 queue behind those that were ready
  // before them.
  assert.deepEqual(onLink, [
    'label 0 at 0',
    'label 1 at 1',
    'label 2 at 2',
    'activation 0 at 3',
    'activation 1 at 4',
    'activation 2 at 5',
  ]);
});

test('pieces that are ready together leave by micro-batch, then input before label', () => {
  const stages = [{ layers: [0, 3] as const, devices: ['a'], samples: [1], inFlight: 2 }];
  const cluster: Cluster = { devices, dataDevice: 'c', links: { default: { bandwidthMbps: 8 } } };
  const result = run({ schedule: 'gpipe', batchSize: 2, microBatchSize: 1, microBatchCount: 2, stages }, cluster, {
    ...profile,
    labelBytes: 250,
  });
  const onLink = result.events
    .filter((event) => event.kind === 'transfer')
    .map(({ payload, microBatch, startMs }) => `${payload} ${microBatch} at ${startMs}`);
  assert.deepEqual(onLink, ['input 0 at 0', 'label 0 at 0.5', 'input 1 at 0.75', 'label 1 at 1.25']);
});

test('a program that waits for ever is reported, not silently ended', () => {
  const stages = [
    { layers: [0, 1] as const, devices: ['a'], samples: [1], inFlight: 1 },
    { layers: [1, 3] as const, devices: ['b'], samples: [1], inFlight: 1 },
  ];
  const plan: PlanLayout = {
    planner: 'test',
    schedule: '1f1b',
    batchSize: 1,
    microBatchSize: 1,
    microBatchCount: 1,
    stages,
  };
  const whole = program(plan);
  const broken: Program = {
    ...whole,
    devices: whole.devices.map((device) => ({
      ...device,
      instructions: device.instructions.filter((step) => step.kind !== 'send'),
    })),
  };
  assert.throws(
    () => simulate(broken, plan, profile, { devices, links: { default: { bandwidthMbps: 8 } } }),
    /"a" waits for ever at \?G0←b/,
  );
});

test('300 random rounds: each sample passes once, no device does two things at once, bytes and times add up', () => {
  for (let seed = 0; seed < 300; seed++) {
    const plan = randomPlan(seed);
    const cluster = randomCluster(seed, plan);
    const of = randomProfile(seed, plan, cluster);
    const { events, devices: used, links, roundMs } = simulate(program(plan), plan, of, cluster);
    const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
    for (const [stage, { devices: group, samples }] of plan.stages.entries()) {
      for (const [place, device] of group.entries()) {
        const split = plan.schedule.startsWith('zb-h1') && stage > 0;
        for (const kind of split
          ? (['forward', 'backward-input', 'backward-weight'] as const)
          : (['forward', 'backward'] as const)) {
          const computed = events.filter(
            (event) => event.device === device && event.kind === kind && event.stage === stage,
          );
          const expected =
            samples[place] === 0 ? [] : Array.from({ length: plan.microBatchCount }, (_, microBatch) => microBatch);
          // Of a pass in pieces, the last begins at the stage's first layer.
          const passes = computed.filter(
            ({ layers }) => layers === undefined || layers[0] === plan.stages[stage]?.layers[0],
          );
          assert.deepEqual(
            passes.map((event) => event.microBatch),
            expected,
            `seed ${seed}: ${kind} on ${device}`,
          );
        }
      }
    }
    for (const [name, device] of Object.entries(used)) {
      const overlapped = events.filter((event) => event.device === name && isOverlapped(event));
      for (const [index, event] of overlapped.entries())
        assert.ok(
          event.startMs >= (overlapped[index - 1]?.endMs ?? 0),
          `seed ${seed}: ${name} reduces two buckets at once`,
        );
      const own = events.filter((event) => event.device === name && event.kind !== 'transfer' && !isOverlapped(event));
      for (const [index, event] of own.entries())
        assert.ok(event.startMs >= (own[index - 1]?.endMs ?? 0), `seed ${seed}: ${name} does two things at once`);
      assert.equal(
        device.busyMs - (device.handlingMs ?? 0),
        sum(own.filter((event) => event.kind !== 'all-reduce').map((event) => event.endMs - event.startMs)),
        `seed ${seed}: busy time of ${name}`,
      );
      assert.ok(device.busyMs <= roundMs, `seed ${seed}: ${name} has no time for what its bytes cost`);
      assert.ok((own.at(-1)?.endMs ?? 0) <= roundMs);
    }
    for (const [name, link] of Object.entries(links)) {
      const own = events.filter((event) => event.kind === 'transfer' && `${event.device}->${event.to}` === name);
      for (const [index, event] of own.entries())
        assert.ok(event.startMs >= (own[index - 1]?.endMs ?? 0), `seed ${seed}: ${name} carries two at once`);
      assert.equal(link.bytes, sum(own.map((event) => event.bytes ?? 0)), `seed ${seed}: bytes of ${name}`);
    }
    const crossing = sum(
      plan.stages.slice(1).map((stage) => 2 * plan.batchSize * (of.layers[stage.layers[0] - 1]?.outputBytes ?? 0)),
    );
    const pipelined = events.filter((event) => event.payload === 'activation' || event.payload === 'gradient');
    assert.equal(
      sum(pipelined.map((event) => event.bytes ?? 0)),
      crossing,
      `seed ${seed}: every sample crosses every border twice`,
    );
  }
});

test('buckets are reduced one after the other during the backward pass, and the update waits for all of them', () => {
  // Layers of 1, 2 and 3 ms backward a sample and 1000, 2000 and 4000 bytes: 1, 2 and 4 ms at 8 Mbps between two
  // devices.
  const threeLayers: Profile = {
    model: 'three',
    inputBytes: 0,
    labelBytes: 0,
    layers: [1000, 2000, 4000].map((weightBytes, index) => ({
      name: `l${index}`,
      outputBytes: 0,
      weightBytes,
      savedBytes: 0,
      flops: 0,
    })),
    batchSizes: [1],
    devices: {
      board: { forwardMs: [[1, 1, 1]], backwardMs: [[1, 2, 3]], backwardInputMs: [[0.5, 1, 2]], updateMs: [1, 1, 1] },
    },
  };
  const pair: Cluster = {
    devices: ['a', 'b', 'c'].map((name) => ({ name, kind: 'board', memoryMiB: 64 })),
    links: { default: { bandwidthMbps: 8 } },
  };
  const group = { layers: [0, 3] as const, devices: ['a', 'b'], samples: [2, 1], inFlight: 1, buckets: [1, 2] };
  const plan: PlanLayout = {
    planner: 'test',
    schedule: '1f1b-overlap',
    batchSize: 3,
    microBatchSize: 3,
    microBatchCount: 1,
    stages: [group],
  };
  const { events, roundMs } = simulate(program(plan), plan, threeLayers, pair);
  const times = (device: string): string[] =>
    events
      .filter((event) => event.device === device)
      .map(
        ({ kind, layers, startMs, endMs }) =>
          `${kind}${layers === undefined ? '' : ` [${layers.join(', ')})`} ${startMs} to ${endMs}`,
      );
  // a: 6 ms forward, then layers 2, 1, 0 in 6, 4 and 2 ms; b half of that, so that each bucket waits for a and for the
  // one before.
  assert.deepEqual(times('a'), [
    'forward 0 to 6',
    'backward [2, 3) 6 to 12',
    'all-reduce [2, 3) 12 to 16',
    'backward [1, 2) 12 to 16',
    'all-reduce [1, 2) 16 to 18',
    'backward [0, 1) 16 to 18',
    'all-reduce [0, 1) 18 to 19',
    'update 19 to 22',
  ]);
  assert.equal(roundMs, 22);
  const plain = { ...plan, schedule: '1f1b' };
  assert.equal(
    simulate(program(plain), plain, threeLayers, pair).roundMs,
    18 + 7 + 3,
    'after the backward pass all 7 ms are in the open',
  );
});

test('energy is power over computing time, where the cluster gives the power', () => {
  const stages = [{ layers: [0, 3] as const, devices: ['a'], samples: [2], inFlight: 1 }];
  const cluster: Cluster = {
    devices: [
      { name: 'a', kind: 'board', memoryMiB: 100, powerW: 10 },
      { name: 'b', kind: 'board', memoryMiB: 100, powerW: 5 },
      { name: 'c', kind: 'board', memoryMiB: 100 },
    ],
    links: { default: { bandwidthMbps: 8 } },
  };
  const result = run({ schedule: '1f1b', batchSize: 4, microBatchSize: 2, microBatchCount: 2, stages }, cluster);
  assert.deepEqual(
    Object.values(result.devices).map((device) => device.energyJ),
    [0.72, 0, undefined],
    '10 W for 72 ms',
  );
});

test('one simulator for many plans gives what simulate() gives', () => {
  const cluster: Cluster = { devices, links: { default: { bandwidthMbps: 8 } } };
  const simulator = createSimulator(profile, cluster);
  for (const samples of [1, 2]) {
    const stages = [{ layers: [0, 3] as const, devices: ['a'], samples: [samples], inFlight: 1 }];
    const plan: PlanLayout = {
      planner: 'test',
      schedule: '1f1b',
      batchSize: 2 * samples,
      microBatchSize: samples,
      microBatchCount: 2,
      stages,
    };
    assert.deepEqual(simulator(program(plan), plan), simulate(program(plan), plan, profile, cluster));
  }
});

test('a million instructions take less than two seconds', () => {
  const stageCount = 8;
  const microBatchCount = 22_000;
  const stages = Array.from({ length: stageCount }, (_, stage) => ({
    layers: [stage, stage + 1] as const,
    devices: [`d${stage}`],
    samples: [4],
    inFlight: 2 * (stageCount - stage) - 1,
  }));
  const many: PlanLayout = {
    planner: 'test',
    schedule: '1f1b',
    batchSize: 4 * microBatchCount,
    microBatchSize: 4,
    microBatchCount,
    stages,
  };
  const times = [Array.from({ length: stageCount }, (_, layer) => 3 + (layer % 3))];
  const deep: Profile = {
    ...profile,
    layers: stages.map((_, layer) => ({
      name: `l${layer}`,
      outputBytes: 4000,
      weightBytes: 0,
      savedBytes: 0,
      flops: 1,
    })),
    devices: { board: { forwardMs: times, backwardMs: times } },
    batchSizes: [4],
  };
  const cluster: Cluster = {
    devices: stages.map((_, index) => ({ name: `d${index}`, kind: 'board', memoryMiB: 100 })),
    links: { default: { bandwidthMbps: 100, latencyMs: 0.5 } },
  };
  const whole = program(many);
  const instructionCount = whole.devices.reduce((sum, device) => sum + device.instructions.length, 0);
  assert.ok(instructionCount > 1_000_000, `${instructionCount}`);
  // CPU time of this process: other work on the machine does not count.
  const before = process.cpuUsage();
  simulate(whole, many, deep, cluster, { events: false });
  const { user, system } = process.cpuUsage(before);
  assert.ok(user + system < 2_000_000, `${(user + system) / 1000} ms`);
});
