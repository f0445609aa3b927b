// The schedule that only infers: forwards, and the last stage's outputs to whoever has the data.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { handPlan } from '../testing/hand-plans.ts';
import { checkProgram } from './check.ts';
import { layoutOf, program } from './generate.ts';
import type { Instruction, Program } from './program.ts';
import { programText } from './text.ts';

const plan = handPlan({ schedule: 'inference', cuts: [2], shares: [[3], [2, 1]], microBatchCount: 2 }, 4);

test('a round is forwards; nobody updates, and the last stage gives its outputs', () => {
  const whole = program(plan);
  checkProgram(whole, plan);
  assert.equal(
    programText(whole, { transfers: true }),
    [
      'a: ?X0 F0 !A0[0,2)→b !A0[2,3)→c ?X1 F1 !A1[0,2)→b !A1[2,3)→c',
      'b: ?A0←a F0 =0 ?A1←a F1 =1',
      'c: ?A0←a F0 =0 ?A1←a F1 =1',
    ].join('\n'),
  );
});

test('in a smaller round a device without samples of the last micro-batch gives nothing of it', () => {
  const smaller = layoutOf(plan, 5);
  const rest = program(smaller);
  checkProgram(rest, smaller);
  assert.deepEqual(
    rest.devices.map(({ instructions }) => instructions.filter(({ kind }) => kind === 'result').length),
    [0, 2, 1],
  );
});

const spoilt: readonly (readonly [string, (steps: readonly Instruction[]) => readonly Instruction[], RegExp])[] = [
  ['lost', (steps) => steps.filter(({ kind }) => kind !== 'result'), /never gives the result of micro-batch 0/],
  ['given twice', (steps) => [...steps, ...steps.filter(({ kind }) => kind === 'result')], /micro-batch 0 twice/],
  [
    'given early',
    (steps) => [...steps.filter(({ kind }) => kind === 'result'), ...steps.filter(({ kind }) => kind !== 'result')],
    /before it is computed/,
  ],
  ['of a round that updates', (steps) => [...steps, { kind: 'update' }], /has an update where nothing is trained/],
];
for (const [name, spoil, message] of spoilt)
  test(`the check refuses results that are ${name}`, () => {
    const whole = program(plan);
    const devices = whole.devices.map((device) =>
      device.device === 'b' ? { ...device, instructions: spoil(device.instructions) } : device,
    );
    const wrong: Program = { ...whole, devices };
    assert.throws(() => checkProgram(wrong, plan), message);
  });

test('outputs that a stage in the middle gives are refused', () => {
  const whole = program(plan);
  const given: Instruction = { kind: 'result', microBatch: 0, samples: [0, 3] };
  const devices = whole.devices.map((device) =>
    device.device === 'a' ? { ...device, instructions: [...device.instructions, given] } : device,
  );
  assert.throws(
    () => checkProgram({ ...whole, devices }, plan),
    /gives the result of micro-batch 0, which nobody wants/,
  );
});
