// Inputs that come in an order which nobody planned for. Each was found by the rehearsal (src/rehearsal/).

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import { plan as planOfThree, config as threeDevices } from '../../testing/machine-drive.ts';
import type { Phase } from '../protocol/events.ts';
import { initialState, step } from './machine.ts';
import type { Answer, MachineConfig, MachineEffect, MachineInput, MachineState } from './machine-types.ts';

const config: MachineConfig = {
  ...threeDevices,
  workerCount: 2,
  endRound: 4,
  checkpointEvery: 1,
  batchSizesToProfile: [1],
  planGiven: true,
};

const plan: Plan = {
  ...planOfThree,
  stages: [
    { layers: [0, 1], devices: ['a'], samples: [4], inFlight: 2 },
    { layers: [1, 2], devices: ['b'], samples: [4], inFlight: 1 },
  ],
};

/** The machine, one input after the other; plans are given as soon as they are asked for. */
class Drive {
  state: MachineState = initialState(config);
  /** What the last input led to. */
  effects: readonly MachineEffect[] = [];

  input(input: MachineInput): void {
    const [state, effects] = step(config, this.state, input);
    this.state = state;
    this.effects = effects;
    if (effects.some(({ kind }) => kind === 'plan')) {
      const [planned, more] = step(config, this.state, { kind: 'planned', copyEvery: 1, plan });
      this.state = planned;
      this.effects = [...effects, ...more];
    }
  }

  answer(device: string, answer: Answer): void {
    this.input({ kind: 'answer', device, answer });
  }

  both(answer: Answer): void {
    for (const device of ['a', 'b']) this.answer(device, answer);
  }

  /** The states to be written after the last input, by round. */
  get written(): readonly number[] {
    return this.effects.flatMap((effect) => (effect.kind === 'write-checkpoint' ? [effect.round] : []));
  }
}

function deploying(): Drive {
  const drive = new Drive();
  for (const device of ['a', 'b']) drive.input({ kind: 'joined', device });
  drive.both({ kind: 'ready', listenUrl: 'ws://x' });
  drive.both({ kind: 'connected' });
  assert.equal(drive.state.phase, 'deploying' satisfies Phase);
  return drive;
}

const prepared = (round: number): Answer => ({
  kind: 'prepared',
  result: { round, lossSum: 1, correctCount: 0, squaredNorm: 0, finite: true, roundMs: 1, busyMs: 1 },
});
const lostPeer = (peer: string): Answer => ({ kind: 'lost-peer', peer, reason: 'reset' }) as Answer;

test('a link that breaks while a layout is being established is made again once the suspected device answers', () => {
  const drive = deploying();
  drive.answer('a', lostPeer('b'));
  drive.both({ kind: 'deployed' });
  assert.equal(drive.state.phase, 'training');
  drive.answer('b', { kind: 'alive' });
  assert.equal(drive.state.phase, 'deploying');
});

test('a checkpoint that is written while another snapshot of its round comes in does not end that snapshot', () => {
  const drive = deploying();
  drive.both({ kind: 'deployed' });
  drive.both(prepared(0));
  assert.equal(drive.state.phase, 'snapshotting');
  drive.both({ kind: 'snapshot-end', round: 1 });
  assert.deepEqual(drive.written, [1]);
  // Before it is written, a link breaks: both return to round 1, and are asked again for what they have.
  drive.answer('a', lostPeer('b'));
  drive.answer('b', { kind: 'alive' });
  drive.both({ kind: 'deployed' });
  assert.equal(drive.state.phase, 'snapshotting');
  drive.answer('a', { kind: 'snapshot-end', round: 1 });
  drive.input({ kind: 'checkpointed', round: 1 });
  assert.deepEqual([drive.state.phase, drive.state.waitingFor], ['snapshotting', ['b']]);
  drive.answer('b', { kind: 'snapshot-end', round: 1 });
  assert.deepEqual(drive.written, []);
  assert.deepEqual([drive.state.phase, drive.state.round], ['training', 1]);
});
