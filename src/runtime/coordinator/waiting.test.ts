// A run that all devices have left waits for others, those included that were just about to join. Found by the
// rehearsal (src/rehearsal/).

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import { plan as planOfThree, config as threeDevices } from '../../testing/machine-drive.ts';
import { initialState, step } from './machine.ts';
import type { MachineConfig, MachineEffect, MachineInput, MachineState } from './machine-types.ts';

const config: MachineConfig = {
  ...threeDevices,
  workerCount: 1,
  endRound: 4,
  batchSizesToProfile: [1],
  planGiven: true,
  waitForDevices: true,
};

const plan = (device: string): Plan => ({
  ...planOfThree,
  stages: [{ layers: [0, 1], devices: [device], samples: [4], inFlight: 1 }],
});

/** Takes the machine through the inputs; returns where it is, and what the last input led to. */
function after(inputs: readonly MachineInput[]): {
  readonly state: MachineState;
  readonly effects: readonly MachineEffect[];
} {
  let state = initialState(config);
  let effects: readonly MachineEffect[] = [];
  for (const input of inputs) [state, effects] = step(config, state, input);
  return { state, effects };
}

const toTraining: readonly MachineInput[] = [
  { kind: 'joined', device: 'a' },
  { kind: 'answer', device: 'a', answer: { kind: 'ready', listenUrl: 'ws://a' } },
  { kind: 'answer', device: 'a', answer: { kind: 'connected' } },
  { kind: 'planned', plan: plan('a'), copyEvery: 1 },
  { kind: 'answer', device: 'a', answer: { kind: 'deployed' } },
];

test('a newcomer that is ready after the last device has left gets the work', () => {
  const inputs: readonly MachineInput[] = [
    ...toTraining,
    { kind: 'joined', device: 'b' },
    { kind: 'answer', device: 'b', answer: { kind: 'ready', listenUrl: 'ws://b' } },
    { kind: 'left', device: 'a', reason: 'gone' },
  ];
  assert.equal(after(inputs).state.phase, 'waiting');
  const { state, effects } = after([...inputs, { kind: 'answer', device: 'b', answer: { kind: 'connected' } }]);
  assert.equal(state.phase, 'planning');
  assert.deepEqual(
    effects.flatMap((effect) => (effect.kind === 'plan' ? effect.devices : [])),
    ['b'],
  );
});

test('a newcomer that was to wait for the first layout gets the model when nobody is left to make one', () => {
  const { state, effects } = after([
    ...toTraining.slice(0, 2),
    { kind: 'joined', device: 'b' },
    { kind: 'left', device: 'a', reason: 'gone' },
  ]);
  assert.equal(state.phase, 'waiting');
  assert.deepEqual(
    effects.flatMap((effect) => (effect.kind === 'send-model' ? [effect.device] : [])),
    ['b'],
  );
});

test('newcomers that are on their way when another device ends the waiting are not asked to begin again', () => {
  const { state, effects } = after([
    ...toTraining,
    { kind: 'joined', device: 'b' },
    { kind: 'answer', device: 'b', answer: { kind: 'ready', listenUrl: 'ws://b' } },
    { kind: 'left', device: 'a', reason: 'gone' },
    { kind: 'joined', device: 'c' },
  ]);
  assert.equal(state.phase, 'preparing');
  assert.deepEqual(
    effects.flatMap((effect) => (effect.kind === 'send-model' ? [effect.device] : [])),
    ['c'],
  );
  const [next] = step(config, state, { kind: 'answer', device: 'b', answer: { kind: 'connected' } });
  assert.deepEqual(
    next.members.map(({ name, joining }) => [name, joining]),
    [
      ['c', undefined],
      ['b', undefined],
    ],
  );
});

const cooling: MachineInput = { kind: 'joined', device: 'b', isCooling: true };

function sent(effects: readonly MachineEffect[]): readonly string[] {
  return effects.flatMap((effect) =>
    'device' in effect ? [`${effect.kind === 'send' ? effect.message : effect.kind} ${effect.device}`] : [],
  );
}

test('a device that cools down gets nothing until it has stayed for a while; until then it may leave freely', () => {
  const inputs = [...toTraining, cooling];
  assert.deepEqual(sent(after(inputs).effects), []);
  assert.deepEqual(sent(after([...inputs, { kind: 'cooled', device: 'b' }]).effects), ['send-model b']);
  const { state, effects } = after([...inputs, { kind: 'left', device: 'b', reason: 'gone' }]);
  assert.deepEqual([state.phase, sent(effects)], ['training', []]);
  assert.deepEqual(sent(after([...inputs, { kind: 'answer', device: 'b', answer: { kind: 'leaving' } }]).effects), [
    'dismiss b',
  ]);
});

test('a device that cools down is needed when nobody else is left; that it has cooled down means nothing then', () => {
  const inputs: readonly MachineInput[] = [...toTraining, cooling, { kind: 'left', device: 'a', reason: 'gone' }];
  assert.deepEqual(sent(after(inputs).effects), ['send-model b']);
  assert.deepEqual(sent(after([...inputs, { kind: 'cooled', device: 'b' }]).effects), []);
});

test('cooled down before there is a first layout, it waits for that like others that come early', () => {
  const { state, effects } = after([...toTraining.slice(0, 2), cooling, { kind: 'cooled', device: 'b' }]);
  assert.deepEqual(sent(effects), []);
  assert.equal(state.members.at(-1)?.joining, 'queued');
});
