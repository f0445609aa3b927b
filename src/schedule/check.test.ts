import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { PlanLayout } from '../cluster/cluster.ts';
import { randomPlan } from '../testing/random-plans.ts';
import { checkProgram } from './check.ts';
import { program } from './generate.ts';
import type { DeviceProgram, Instruction, Program } from './program.ts';

const seeds = fc.integer({ min: 0, max: 2 ** 30 });

test('every generated program passes, with and without a feed', () => {
  fc.assert(
    fc.property(seeds, fc.boolean(), (seed, feed) => {
      const plan = randomPlan(seed);
      checkProgram(program(plan, { feed }), plan);
    }),
    { seed: 1, numRuns: 1000 },
  );
});

/** The program with the instructions of one device replaced. */
function withInstructions(of: Program, index: number, instructions: readonly Instruction[]): Program {
  return {
    ...of,
    devices: of.devices.map((device, place) => (place === index ? { ...device, instructions } : device)),
  };
}

test('a program that lost any instruction is caught, and one that has any twice', () => {
  fc.assert(
    fc.property(seeds, seeds, fc.boolean(), (seed, choice, twice) => {
      const plan = randomPlan(seed);
      const whole = program(plan);
      const index = choice % whole.devices.length;
      const { instructions } = whole.devices[index] as DeviceProgram;
      const position = Math.floor(choice / whole.devices.length) % instructions.length;
      const copies = twice ? instructions.slice(position, position + 1) : [];
      const changed = twice
        ? [...instructions.slice(0, position), ...copies, ...instructions.slice(position)]
        : instructions.filter((_, place) => place !== position);
      assert.throws(() => checkProgram(withInstructions(whole, index, changed), plan), /Asteroid made a mistake/);
    }),
    { seed: 2, numRuns: 1000 },
  );
});

test('a receive after the computation that needs it, and a send before the one that makes it, are caught', () => {
  fc.assert(
    fc.property(seeds, seeds, (seed, choice) => {
      const plan = randomPlan(seed);
      const whole = program(plan);
      const index = choice % whole.devices.length;
      const instructions = [...(whole.devices[index] as DeviceProgram).instructions];
      const computing = instructions.flatMap((step, position) =>
        step.kind === 'forward' || step.kind === 'backward' ? [position] : [],
      );
      const position = computing[choice % Math.max(1, computing.length)] ?? -1;
      const [before, step, after] = [instructions[position - 1], instructions[position], instructions[position + 1]];
      if (before?.kind === 'receive') instructions.splice(position - 1, 2, step as Instruction, before);
      else if (after?.kind === 'send') instructions.splice(position, 2, after, step as Instruction);
      else return;
      assert.throws(() => checkProgram(withInstructions(whole, index, instructions), plan), /Asteroid made a mistake/);
    }),
    { seed: 3, numRuns: 500 },
  );
});

const plan: PlanLayout = {
  planner: 'test',
  schedule: '1f1b',
  batchSize: 8,
  microBatchSize: 4,
  microBatchCount: 2,
  stages: [
    { layers: [0, 1], devices: ['a', 'b'], samples: [2, 2], inFlight: 2 },
    { layers: [1, 3], devices: ['c'], samples: [4], inFlight: 1 },
  ],
};

/** Device `index` of the plan's program, its instructions changed by `change`. */
function changed(index: number, change: (instructions: readonly Instruction[]) => readonly Instruction[]): Program {
  const whole = program(plan);
  return withInstructions(whole, index, change((whole.devices[index] as DeviceProgram).instructions));
}

const mistakes: readonly (readonly [title: string, broken: Program, message: RegExp])[] = [
  [
    'too many in flight',
    changed(2, (steps) => [
      ...steps.filter((step) => step.kind === 'receive' && step.payload !== 'gradient'),
      ...steps.filter((step) => step.kind === 'forward'),
      ...steps.filter((step) => step.kind !== 'forward' && step.kind !== 'receive'),
    ]),
    /"c" \(stage 1\) keeps 2 micro-batches in flight, 1 allowed, at the forward of micro-batch 1/,
  ],
  [
    'a lost send',
    changed(0, (steps) => steps.filter((step) => !(step.kind === 'send' && step.microBatch === 1))),
    /"a" \(stage 0\) does not send the activation of micro-batch 1 exactly once/,
  ],
  [
    'samples that the sender does not own',
    changed(2, (steps) =>
      steps.map((step) =>
        step.kind === 'receive' && step.from === 'a' ? { ...step, samples: [0, 3] as const } : step,
      ),
    ),
    /"c" \(stage 1\) exchanges activation from "a" for samples \[0, 3\), which one end does not own/,
  ],
  [
    'a piece for another stage',
    changed(0, (steps) => steps.map((step) => (step.kind === 'send' ? { ...step, to: 'b' } : step))),
    /"a" \(stage 0\) exchanges activation to "b", which is not in stage 1/,
  ],
  [
    'a group that lacks a member',
    changed(1, (steps) => steps.map((step) => (step.kind === 'all-reduce' ? { ...step, group: ['b'] } : step))),
    /"b" \(stage 0\) reduces over another group than its stage/,
  ],
  [
    'an update before the end',
    changed(2, (steps) => [{ kind: 'update' }, ...steps]),
    /"c" \(stage 1\) has an update before its end/,
  ],
  [
    'a missing device',
    { ...program(plan), devices: program(plan).devices.slice(1) },
    /stage 0 has other devices than the plan/,
  ],
  [
    'overlapping shares',
    {
      ...program(plan),
      devices: program(plan).devices.map((device) =>
        device.device === 'b' ? { ...device, samples: [1, 4] as const } : device,
      ),
    },
    /the samples of stage 0 do not cover a micro-batch exactly once/,
  ],
  [
    'other layers',
    {
      ...program(plan),
      devices: program(plan).devices.map((device) =>
        device.device === 'c' ? { ...device, layers: [2, 3] as const } : device,
      ),
    },
    /"c" \(stage 1\) holds layers \[2, 3\) and its stage \[1, 3\)/,
  ],
];

/** The same of a plan whose schedule splits and overlaps. */
const bucketed: PlanLayout = {
  ...plan,
  schedule: 'zb-h1-overlap',
  stages: [
    { layers: [0, 1], devices: ['c'], samples: [4], inFlight: 2 },
    { layers: [1, 5], devices: ['a', 'b'], samples: [2, 2], inFlight: 2 },
  ],
};

/** The bucketed program with the instructions of its device `index` changed. */
function rebucketed(index: number, change: (steps: Instruction[]) => readonly Instruction[]): Program {
  const whole = program(bucketed);
  return withInstructions(whole, index, change([...(whole.devices[index] as DeviceProgram).instructions]));
}

const isReduction = (step: Instruction, first: number): boolean =>
  step.kind === 'all-reduce' && step.layers?.[0] === first;
const isPiece = (step: Instruction, first: number): boolean =>
  step.kind === 'backward-weight' && step.layers?.[0] === first;

const bucketMistakes: readonly (readonly [title: string, broken: Program, message: RegExp])[] = [
  [
    'a bucket reduced before its gradients are final',
    rebucketed(1, (steps) => {
      const [reduction] = steps.splice(
        steps.findIndex((step) => isReduction(step, 3)),
        1,
      );
      return steps.flatMap((step) => (isPiece(step, 3) ? [reduction as Instruction, step] : [step]));
    }),
    /"a" \(stage 1\) reduces the gradients of layers \[3, 4\) before they are final/,
  ],
  [
    'a bucket that nobody reduces',
    rebucketed(1, (steps) => steps.filter((step) => !isReduction(step, 2))),
    /"a" \(stage 1\) does not reduce the gradients of each layer exactly once/,
  ],
  [
    'buckets reduced in another order than the others do',
    rebucketed(1, (steps) => {
      const moved = steps.filter((step) => isReduction(step, 4));
      const rest = steps.filter((step) => !isReduction(step, 4));
      return rest.flatMap((step) => (isReduction(step, 1) ? [step, ...moved] : [step]));
    }),
    /"b" \(stage 1\) reduces other layers than "a" \(stage 1\), or in another order/,
  ],
  [
    'a piece of a pass that is left out',
    rebucketed(1, (steps) => steps.filter((step) => !isPiece(step, 3))),
    /"a" \(stage 1\) runs layers \[2, 3\) of the backward-weight of micro-batch 1, not those below 4/,
  ],
  [
    'weight gradients out of order',
    rebucketed(1, (steps) => {
      const first = steps.filter((step) => step.kind === 'backward-weight' && step.microBatch === 0);
      const rest = steps.filter((step) => !first.includes(step));
      return [...rest.slice(0, -1), ...first, ...rest.slice(-1)];
    }),
    /"a" \(stage 1\) adds the weight gradients of micro-batch 1 out of order/,
  ],
  [
    'a weight gradient before its input gradient',
    rebucketed(1, (steps) => {
      const first = steps.filter((step) => step.kind === 'backward-weight' && step.microBatch === 0);
      return steps.flatMap((step) =>
        first.includes(step) ? [] : step.kind === 'backward-input' && step.microBatch === 0 ? [...first, step] : [step],
      );
    }),
    /"a" \(stage 1\) runs the backward-weight of micro-batch 0 before its backward-input/,
  ],
];

for (const [title, broken, message] of bucketMistakes) {
  test(`caught and named: ${title}`, () => {
    checkProgram(program(bucketed), bucketed);
    assert.throws(() => checkProgram(broken, bucketed), message);
  });
}

for (const [title, broken, message] of mistakes) {
  test(`caught and named: ${title}`, () => assert.throws(() => checkProgram(broken, plan), message));
}

test('a cycle of waits is caught although every piece has its partner', () => {
  // The second stage wants both forwards before its first backward, the first stage wants the first gradient before its
  // second forward.
  const stages = [
    { layers: [0, 1] as const, devices: ['a'], samples: [1], inFlight: 1 },
    { layers: [1, 2] as const, devices: ['b'], samples: [1], inFlight: 2 },
  ];
  const impossible: PlanLayout = {
    planner: 'test',
    schedule: '1f1b',
    batchSize: 2,
    microBatchSize: 1,
    microBatchCount: 2,
    stages,
  };
  const early = program({ ...impossible, stages: stages.map((stage) => ({ ...stage, inFlight: 1 })) }, { feed: false });
  const late = program({ ...impossible, schedule: 'gpipe' }, { feed: false });
  const mixed: Program = { ...early, devices: [early.devices[0] as DeviceProgram, late.devices[1] as DeviceProgram] };
  assert.throws(
    () => checkProgram(mixed, impossible),
    /"a" \(stage 0\) waits for ever at \?G0←b: the program has a cycle of waits/,
  );
});

test('a backward in two halves passes', () => {
  const split = (steps: readonly Instruction[]): Instruction[] => {
    const result: Instruction[] = [];
    for (const [position, step] of steps.entries()) {
      result.push(step.kind === 'backward' ? { kind: 'backward-input', microBatch: step.microBatch } : step);
      const next = steps[position + 1];
      const owed = step.kind === 'backward' || step.kind === 'send' ? step.microBatch : -1;
      const backward = step.kind === 'backward' || (step.kind === 'send' && step.payload === 'gradient');
      if (backward && !(next?.kind === 'send' && next.payload === 'gradient'))
        result.push({ kind: 'backward-weight', microBatch: owed });
    }
    return result;
  };
  const whole = program(plan);
  checkProgram(
    { ...whole, devices: whole.devices.map((device) => ({ ...device, instructions: split(device.instructions) })) },
    plan,
  );
});
