import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';
import { simulate } from '../simulator/simulate.ts';
import { randomPlan } from '../testing/random-plans.ts';
import { checkProgram } from './check.ts';
import { layoutOf, program } from './generate.ts';
import { bucketsOf, effectiveInFlight, paceOf } from './pace.ts';
import type { Program } from './program.ts';
import { scheduleOf, schedules } from './schedules.ts';
import { instructionText, programText } from './text.ts';

/** A plan with one device a stage (a, b, c, …), two layers each, two samples a micro-batch. */
function straightPlan(schedule: string, stageCount: number, microBatchCount: number): PlanLayout {
  const stages = Array.from({ length: stageCount }, (_, stage) => ({
    layers: [2 * stage, 2 * stage + 2] as const,
    devices: [String.fromCharCode(97 + stage)],
    samples: [2],
    inFlight: scheduleOf(schedule).inFlight(stage, stageCount, microBatchCount),
  }));
  return { planner: 'test', schedule, batchSize: 2 * microBatchCount, microBatchSize: 2, microBatchCount, stages };
}

const drawn: Readonly<Record<string, readonly [letter: string, ticks: number]>> = {
  forward: ['F', 1],
  backward: ['B', 2],
  'backward-input': ['I', 1],
  'backward-weight': ['W', 1],
};

/**
 * Draws a program with forwards and half backwards of one tick, whole ones of two, and transfers that take no time; one
 * line a device.
 */
function drawTimeline(of: Program): string[] {
  const states = of.devices.map((device) => ({ device, row: '', position: 0, freeAt: 0 }));
  const sent = new Set<string>();
  const key = (step: { payload: string; microBatch: number }, from: string, to: string): string =>
    `${step.payload} ${step.microBatch} ${from} ${to}`;
  const exchange = (state: (typeof states)[number]): void => {
    for (
      let step = state.device.instructions[state.position];
      step !== undefined;
      step = state.device.instructions[state.position]
    ) {
      if (step.kind in drawn) return;
      if (step.kind === 'receive' && step.from !== null && !sent.has(key(step, step.from, state.device.device))) return;
      if (step.kind === 'send') sent.add(key(step, state.device.device, step.to));
      state.position++;
    }
  };
  for (let tick = 0; tick < 100; tick++) {
    const free = states.filter((state) => state.freeAt <= tick);
    for (const state of [...free, ...free]) exchange(state);
    for (const state of free) {
      const step = state.device.instructions[state.position];
      const [letter = '', length = 0] = drawn[step?.kind ?? ''] ?? [];
      if (step === undefined || !('microBatch' in step) || length === 0) continue;
      state.row = `${state.row.padEnd(3 * tick, ' . ')}${` ${letter}${step.microBatch}`.repeat(length)}`;
      state.freeAt = tick + length;
      state.position++;
    }
  }
  return states.map(({ device, row }) => `${device.device} |${row}`);
}

test('stages of layers that are not trained only run forward, and the first one behind them sends nothing back', () => {
  // Layers 0 to 4 of 6: the first stage whole, the second one in part.
  const plan: PlanLayout = { ...straightPlan('1f1b', 3, 3), forwardOnlyLayers: 2 };
  assert.deepEqual(drawTimeline(program(plan)), [
    'a | F0 F1 F2',
    'b | .  F0 F1 F2 .  B0 B0 .  B1 B1 .  B2 B2',
    'c | .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2',
  ]);
  const kinds = (device: number): string[] =>
    (program(plan).devices[device]?.instructions ?? []).map(
      (step) => `${step.kind}${'payload' in step ? ` ${step.payload}` : ''}`,
    );
  assert.deepEqual(new Set(kinds(0)), new Set(['receive input', 'forward', 'send activation', 'update']));
  assert.ok(kinds(1).includes('receive gradient') && !kinds(1).includes('send gradient'));
  assert.ok(kinds(2).includes('send gradient'));
  assert.equal(effectiveInFlight(plan, 0), 3);
  // A cut inside of the untrained layers carries no gradient; a stage that has a trained layer at its end computes one.
  const inside = program({ ...plan, forwardOnlyLayers: 3 }).devices.map(
    ({ instructions }) => instructions.filter(({ kind }) => kind === 'backward').length,
  );
  assert.deepEqual(inside, [0, 3, 3]);
  for (const forwardOnlyLayers of [0, 1, 2, 3, 4, 5])
    checkProgram(program({ ...plan, forwardOnlyLayers }), { ...plan, forwardOnlyLayers });
  assert.throws(
    () => checkProgram(program({ ...plan, forwardOnlyLayers: 0 }), plan),
    /"a" \(stage 0\) has nothing to train but runs the backward of micro-batch 0/,
  );
  const grouped: PlanLayout = {
    ...plan,
    stages: plan.stages.map((stage, index) =>
      index === 0 ? { ...stage, devices: ['a', 'x'], samples: [1, 1] } : stage,
    ),
  };
  checkProgram(program(grouped), grouped);
  assert.equal(
    program(grouped).devices[0]?.instructions.some(({ kind }) => kind === 'all-reduce'),
    false,
  );
});

test('the simulated world runs untrained stages ahead, and nothing comes back to them', () => {
  const plan: PlanLayout = { ...straightPlan('1f1b', 3, 8), forwardOnlyLayers: 2 };
  const layer = { outputBytes: 1000, weightBytes: 0, savedBytes: 0, flops: 0 };
  const profile: Profile = {
    model: 'six',
    inputBytes: 1000,
    labelBytes: 8,
    layers: Array.from({ length: 6 }, (_, index) => ({ ...layer, name: `l${index}` })),
    batchSizes: [2],
    devices: { any: { forwardMs: [[1, 1, 1, 1, 1, 1]], backwardMs: [[0, 0, 2, 2, 2, 2]] } },
  };
  const devices = ['a', 'b', 'c', 'data'].map((name) => ({ name, kind: 'any', memoryMiB: 64 }));
  const cluster: Cluster = { devices, links: { default: { bandwidthMbps: 1000 } }, dataDevice: 'data' };
  const { links, devices: simulated } = simulate(program(plan), plan, profile, cluster);
  assert.equal(simulated['a']?.busyMs, 8 * 2);
  assert.deepEqual(Object.keys(links).sort(), ['a->b', 'b->c', 'c->b', 'data->a', 'data->c']);
});

test('1f1b, two stages, four micro-batches: K = 3, 1', () => {
  assert.deepEqual(drawTimeline(program(straightPlan('1f1b', 2, 4))), [
    'a | F0 F1 F2 .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3',
    'b | .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3',
  ]);
});

test('gpipe, two stages, four micro-batches', () => {
  assert.deepEqual(drawTimeline(program(straightPlan('gpipe', 2, 4))), [
    'a | F0 F1 F2 F3 .  .  .  B0 B0 B1 B1 B2 B2 B3 B3',
    'b | .  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3',
  ]);
});

test('1f1b, three stages, four micro-batches: K = 4 (5 capped by M), 3, 1', () => {
  assert.deepEqual(drawTimeline(program(straightPlan('1f1b', 3, 4))), [
    'a | F0 F1 F2 F3 .  .  .  B0 B0 .  B1 B1 .  B2 B2 .  B3 B3',
    'b | .  F0 F1 F2 .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3',
    'c | .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3',
  ]);
});

test('gpipe, three stages, four micro-batches', () => {
  assert.deepEqual(drawTimeline(program(straightPlan('gpipe', 3, 4))), [
    'a | F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 B1 B1 B2 B2 B3 B3',
    'b | .  F0 F1 F2 F3 .  .  .  B0 B0 B1 B1 B2 B2 B3 B3',
    'c | .  .  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3',
  ]);
});

test('zb-h1, 3 stages, 6 micro-batches: all keep 5, weight gradients are 4 late at the end, shorter than 1f1b', () => {
  assert.deepEqual(drawTimeline(program(straightPlan('zb-h1', 3, 6))), [
    'a | F0 F1 F2 F3 F4 B0 B0 F5 B1 B1 B2 B2 B3 B3 B4 B4 B5 B5',
    'b | .  F0 F1 F2 I0 F3 I1 F4 I2 W0 F5 I3 W1 I4 W2 I5 W3 W4 W5',
    'c | .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 W0 F5 I5 W1 W2 W3 W4 W5',
  ]);
  assert.deepEqual(drawTimeline(program(straightPlan('1f1b', 3, 6))), [
    'a | F0 F1 F2 F3 F4 .  .  B0 B0 F5 B1 B1 .  B2 B2 .  B3 B3 .  B4 B4 .  B5 B5',
    'b | .  F0 F1 F2 .  B0 B0 F3 B1 B1 F4 B2 B2 F5 B3 B3 .  B4 B4 .  B5 B5',
    'c | .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 F4 B4 B4 F5 B5 B5',
  ]);
});

test('zb-h1 with less memory puts off less: K = 3, 2 and 1 of three stages', () => {
  const plan = straightPlan('zb-h1', 3, 4);
  const tight = { ...plan, stages: plan.stages.map((stage, index) => ({ ...stage, inFlight: 3 - index })) };
  assert.deepEqual(
    [0, 1, 2].map((stage) => paceOf(tight, stage)),
    [
      { ahead: 3, delay: undefined },
      { ahead: 2, delay: 0 },
      { ahead: 1, delay: 0 },
    ],
  );
  checkProgram(program(tight), tight);
  // Nothing is trained before the second stage: it owes no gradient and does not split.
  assert.deepEqual(paceOf({ ...plan, forwardOnlyLayers: 2 }, 1), { ahead: 3, delay: undefined });
});

test('schedules that overlap reduce the last weight gradients in buckets, the deepest layers first', () => {
  const two: PlanLayout = {
    planner: 'test',
    schedule: '1f1b-overlap',
    batchSize: 4,
    microBatchSize: 2,
    microBatchCount: 2,
    stages: [
      { layers: [0, 1], devices: ['a'], samples: [2], inFlight: 2 },
      { layers: [1, 9], devices: ['b', 'c', 'spare'], samples: [1, 1, 0], inFlight: 1, buckets: [3, 8] },
    ],
  };
  const lines = (plan: PlanLayout): string[] => {
    const of = program(plan, { feed: false });
    checkProgram(of, plan);
    return programText(of, { transfers: true }).split('\n');
  };
  const spare = 'spare: R[8,9) R[3,8) R[1,3) U';
  assert.deepEqual(lines(two), [
    'a:     F0 !A0[0,1)→b !A0[1,2)→c F1 !A1[0,1)→b !A1[1,2)→c ?G0[0,1)←b ?G0[1,2)←c B0 ?G1[0,1)←b ?G1[1,2)←c B1 U',
    'b:     ?A0←a F0 B0 !G0→a ?A1←a F1 B1[8,9) R[8,9) B1[3,8) R[3,8) B1[1,3) !G1→a R[1,3) U',
    'c:     ?A0←a F0 B0 !G0→a ?A1←a F1 B1[8,9) R[8,9) B1[3,8) R[3,8) B1[1,3) !G1→a R[1,3) U',
    spare,
  ]);
  assert.deepEqual(lines({ ...two, schedule: 'zb-h1-overlap' }).slice(1), [
    'b:     ?A0←a F0 I0 !G0→a W0 ?A1←a F1 I1 !G1→a W1[8,9) R[8,9) W1[3,8) R[3,8) W1[1,3) R[1,3) U',
    'c:     ?A0←a F0 I0 !G0→a W0 ?A1←a F1 I1 !G1→a W1[8,9) R[8,9) W1[3,8) R[3,8) W1[1,3) R[1,3) U',
    spare,
  ]);
  const [, group] = two.stages;
  assert.ok(group);
  const { buckets: _, ...even } = group;
  assert.deepEqual(bucketsOf({ ...two, stages: [even] }, 0), [
    [7, 9],
    [5, 7],
    [3, 5],
    [1, 3],
  ]);
});

test('one stage with K = 1 alternates; with K = M it runs all forwards first', () => {
  const order = (ahead: number): string =>
    schedules['1f1b']
      .passes(3, { ahead, delay: undefined })
      .map((pass) => instructionText(pass))
      .join(' ');
  assert.equal(order(1), 'F0 B0 F1 B1 F2 B2');
  assert.equal(order(2), 'F0 F1 B0 F2 B1 B2');
  assert.equal(order(9), 'F0 F1 F2 B0 B1 B2');
});

const shares: PlanLayout = {
  planner: 'test',
  schedule: '1f1b',
  batchSize: 4,
  microBatchSize: 4,
  microBatchCount: 1,
  stages: [
    { layers: [0, 1], devices: ['a', 'b'], samples: [1, 3], inFlight: 1 },
    { layers: [1, 3], devices: ['c', 'd', 'spare'], samples: [2, 2, 0], inFlight: 1 },
  ],
};

test('between unequal shares the overlap travels, and a device without samples only reduces and updates', () => {
  assert.deepEqual(programText(program(shares), { transfers: true }).split('\n'), [
    'a:     ?X0 F0 !A0→c ?G0←c B0 R U',
    'b:     ?X0 F0 !A0[1,2)→c !A0[2,4)→d ?G0[1,2)←c ?G0[2,4)←d B0 R U',
    'c:     ?Y0 ?A0[0,1)←a ?A0[1,2)←b F0 B0 !G0[0,1)→a !G0[1,2)→b R U',
    'd:     ?Y0 ?A0←b F0 B0 !G0→b R U',
    'spare: R U',
  ]);
  assert.deepEqual(
    program(shares).devices.map((device) => device.samples),
    [
      [0, 1],
      [1, 4],
      [0, 2],
      [2, 4],
      [4, 4],
    ],
  );
});

test('without a feed nobody waits for inputs or labels', () => {
  const kinds = program(shares, { feed: false }).devices.flatMap((device) =>
    device.instructions.filter((step) => step.kind === 'receive' && step.from === null),
  );
  assert.deepEqual(kinds, []);
});

test('K_p is 2(P − p) − 1 for 1f1b and M for gpipe, at most M', () => {
  assert.deepEqual(
    [0, 1, 2].map((stage) => scheduleOf('1f1b').inFlight(stage, 3, 100)),
    [5, 3, 1],
  );
  assert.deepEqual(
    [0, 1, 2].map((stage) => scheduleOf('1f1b').inFlight(stage, 3, 4)),
    [4, 3, 1],
  );
  assert.deepEqual(
    [0, 1].map((stage) => scheduleOf('gpipe').inFlight(stage, 2, 7)),
    [7, 7],
  );
  const plan = straightPlan('1f1b', 2, 4);
  assert.equal(effectiveInFlight({ ...plan, schedule: 'gpipe' }, 1), 4, 'gpipe always keeps all');
});

test('an unknown schedule and an inFlight that grows are refused in one sentence', () => {
  assert.throws(
    () => program({ ...shares, schedule: 'zigzag' }),
    new InputError(
      'There is no schedule "zigzag"; use one of 1f1b, gpipe, zb-h1, 1f1b-overlap, zb-h1-overlap, async, ' +
        'forward-gradient, inference.',
    ),
  );
  const plan = straightPlan('1f1b', 2, 4);
  const stages = plan.stages.map((stage, index) => ({ ...stage, inFlight: index + 1 }));
  assert.throws(
    () => program({ ...plan, stages }),
    new InputError(
      'Stage 1 of the plan has inFlight 2, more than the 1 of stage 0, and both would wait for ever; lower it ' +
        'to 1, or raise the other to 2.',
    ),
  );
});

test('the queue before a slow device is bounded: at most K_p micro-batches are ahead of what comes back', () => {
  for (let seed = 0; seed < 300; seed++) {
    const plan = randomPlan(seed);
    for (const device of program(plan).devices) {
      const limit = effectiveInFlight(plan, device.stage);
      const unanswered = new Map<string, number>();
      for (const step of device.instructions) {
        if (step.kind === 'send' && step.payload === 'activation') {
          const count = (unanswered.get(step.to) ?? 0) + 1;
          unanswered.set(step.to, count);
          assert.ok(
            count <= limit,
            `seed ${seed}: ${device.device} has sent ${count} micro-batches to ${step.to}, K_p is ${limit}`,
          );
        }
        if (step.kind === 'receive' && step.payload === 'gradient' && step.from !== null)
          unanswered.set(step.from, (unanswered.get(step.from) ?? 0) - 1);
      }
      // By the end of the round everything has been answered: the next one begins with nothing on its way.
      assert.ok(
        [...unanswered.values()].every((count) => count === 0),
        `seed ${seed}: ${device.device}`,
      );
    }
  }
});

test('a round of any smaller number of samples is sound: each sample forward and backward once in each stage', () => {
  for (let seed = 0; seed < 300; seed++) {
    const plan = randomPlan(seed);
    const batchSize = plan.microBatchSize * plan.microBatchCount;
    const sampleCount = 1 + ((seed * 7919) % batchSize);
    const layout = layoutOf({ ...plan, batchSize }, sampleCount);
    const made = program(layout);
    checkProgram(made, layout);
    const lastSize = made.lastMicroBatchSize ?? plan.microBatchSize;
    for (let stage = 0; stage < plan.stages.length; stage++) {
      const counts = new Array<number>(sampleCount).fill(0);
      for (const { samples, instructions } of made.devices.filter((device) => device.stage === stage))
        for (const step of instructions) {
          if (step.kind !== 'forward') continue;
          const end = step.microBatch === made.microBatchCount - 1 ? Math.min(samples[1], lastSize) : samples[1];
          for (let sample = samples[0]; sample < end; sample++)
            counts[step.microBatch * plan.microBatchSize + sample] =
              (counts[step.microBatch * plan.microBatchSize + sample] ?? 0) + 1;
        }
      assert.ok(
        counts.length === sampleCount && counts.every((count) => count === 1),
        `seed ${seed}, ${sampleCount} of ${batchSize}, stage ${stage}: ${counts.join()}`,
      );
    }
  }
});

test('a device without samples of the last micro-batch takes no part in it, and only reduces and updates', () => {
  const plan: PlanLayout = {
    planner: 'by hand',
    schedule: '1f1b',
    batchSize: 8,
    microBatchSize: 4,
    microBatchCount: 2,
    stages: [
      { layers: [0, 1], devices: ['a', 'b'], samples: [3, 1], inFlight: 2 },
      { layers: [1, 2], devices: ['c'], samples: [4], inFlight: 1 },
    ],
  };
  const layout = layoutOf(plan, 6);
  const made = program(layout);
  checkProgram(made, layout);
  assert.equal(made.lastMicroBatchSize, 2);
  const texts = made.devices.map(({ samples, instructions }) =>
    instructions.filter(({ kind }) => kind !== 'receive').map((step) => instructionText(step, samples)),
  );
  assert.deepEqual(
    texts.map((text) => text.length),
    [8, 5, 8],
  );
  const sent = made.devices.map(({ instructions }) =>
    instructions.flatMap((step) =>
      step.kind === 'send' ? [[step.microBatch, step.to, ...step.samples].join(' ')] : [],
    ),
  );
  assert.deepEqual(sent, [['0 c 0 3', '1 c 0 2'], ['0 c 3 4'], ['0 a 0 3', '0 b 3 4', '1 a 0 2']]);
  const spoilt = { ...made, lastMicroBatchSize: 3 };
  assert.throws(() => checkProgram(spoilt, layout), /3 samples in its last micro-batch and the plan 2/);
  const claimed = { ...layout, batchSize: 7 };
  assert.throws(() => checkProgram(made, claimed), /2 samples in its last micro-batch and the plan 3/);
  assert.equal(program(layoutOf(plan, 4)).lastMicroBatchSize, undefined);
});
