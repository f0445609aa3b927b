import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import { config, Drive, gathered, plan, result } from '../../testing/machine-drive.ts';
import { step } from './machine.ts';

/** Layers 0 and 1 on one device, layer 2 on the other. */
const twoStages = (first: string, second: string): Plan => ({
  ...plan,
  stages: [
    { layers: [0, 2], devices: [first], samples: [4], inFlight: 2 },
    { layers: [2, 3], devices: [second], samples: [4], inFlight: 1 },
  ],
});

/** Three devices in their first rounds, none of which is prepared before the test says so. */
function inFlight(window: number): Drive {
  const drive = new Drive({ ...config, window, replicateEvery: 0, endRound: 9, checkpointEvery: 6 });
  drive.answerOf = (_device, _message, honest) => (honest.kind === 'prepared' ? undefined : honest);
  drive.planFor = (devices) => (devices.length === 3 ? plan : twoStages(devices[0] ?? '', devices[1] ?? ''));
  gathered(drive);
  drive.log.length = 0;
  return drive;
}

/** A device prepares a round. Returns what the machine did then. */
function prepare(drive: Drive, device: string, round: number): readonly string[] {
  const before = drive.log.length;
  drive.input({ kind: 'answer', device, answer: { kind: 'prepared', result: result(round, device) } });
  return drive.log.slice(before);
}

/** The round that is waited for, the last that is granted, and who has prepared which rounds. */
function flight({ state }: Drive): readonly unknown[] {
  const prepared = Object.entries(state.prepared).map(
    ([round, results]) => `${round} ${Object.keys(results).join('')}`,
  );
  return [state.round, state.grantedRound, state.waitingFor.join(''), prepared.join(', ')];
}

const granted = ['round→a', 'round→b', 'round→c'];
const committed = ['commit→a', 'commit→b', 'commit→c'];

test('with a window of 1, one round is granted ahead, and none may be prepared before the present one commits', () => {
  const drive = inFlight(1);
  assert.deepEqual(flight(drive), [0, 1, 'abc', '']);
  assert.deepEqual(prepare(drive, 'a', 0), []);
  assert.deepEqual(flight(drive), [0, 1, 'bc', '0 a']);
  assert.equal(
    prepare(drive, 'a', 1)[0],
    'dismiss a: it answered "prepared" while training, which the protocol does not allow',
  );
});

test('with a window of 2, two rounds are granted ahead, and one may be prepared before the present one commits', () => {
  const drive = inFlight(2);
  assert.deepEqual(flight(drive), [0, 2, 'abc', '']);
  for (const [device, round] of [
    ['a', 0],
    ['a', 1],
    ['b', 0],
    ['b', 1],
  ] as const)
    assert.deepEqual(prepare(drive, device, round), []);
  assert.deepEqual(flight(drive), [0, 2, 'c', '0 ab, 1 ab']);
  assert.deepEqual(prepare(drive, 'c', 0), [...committed, 'committed 0 loss 2', ...granted, 'feed 3']);
  assert.deepEqual(flight(drive), [1, 3, 'c', '1 ab']);
  assert.deepEqual(prepare(drive, 'b', 2), []);
  assert.deepEqual(prepare(drive, 'c', 1), [...committed, 'committed 1 loss 1', ...granted, 'feed 4']);
  assert.deepEqual(flight(drive), [2, 4, 'ac', '2 b']);
});

test('with a window of 3 the granted rounds end at a pause; all of them commit before the checkpoint', () => {
  const drive = inFlight(3);
  assert.deepEqual(flight(drive), [0, 3, 'abc', '']);
  for (const round of [0, 1, 2]) for (const device of ['a', 'b']) prepare(drive, device, round);
  assert.deepEqual(flight(drive), [0, 3, 'c', '0 ab, 1 ab, 2 ab']);
  assert.deepEqual(prepare(drive, 'c', 0), [...committed, 'committed 0 loss 2', ...granted, 'feed 4']);
  assert.deepEqual(prepare(drive, 'c', 1), [...committed, 'committed 1 loss 1', ...granted, 'feed 5']);
  // Round 6 is fed, and granted only after the checkpoint.
  assert.deepEqual(prepare(drive, 'c', 2), [...committed, 'committed 2 loss 0', 'feed 6']);
  assert.deepEqual(flight(drive), [3, 5, 'abc', '']);
  for (const round of [3, 4, 5]) for (const device of ['a', 'b']) prepare(drive, device, round);
  assert.deepEqual(prepare(drive, 'c', 3), [...committed, 'committed 3 loss -1']);
  assert.deepEqual(prepare(drive, 'c', 4), [...committed, 'committed 4 loss -2']);
  const last = prepare(drive, 'c', 5);
  assert.deepEqual(last.slice(0, 8), [
    ...committed,
    'committed 5 loss -3',
    'snapshot→a with state',
    'snapshot→b',
    'snapshot→c with state',
    'write-checkpoint 6',
  ]);
  assert.deepEqual(last.slice(8), [...granted, ...granted, 'feed 7', ...granted, 'feed 8']);
  assert.deepEqual(flight(drive), [6, 8, 'abc', '']);
});

test('rounds are prepared in order, and no more of them than the window allows', () => {
  const skipped = inFlight(2);
  assert.equal(prepare(skipped, 'a', 1)[0], 'dismiss a: it prepared round 1 instead of 0');
  const beyond = inFlight(2);
  for (const round of [0, 1]) prepare(beyond, 'a', round);
  assert.equal(
    prepare(beyond, 'a', 2)[0],
    'dismiss a: it answered "prepared" while training, which the protocol does not allow',
  );
});

test('a device lost with two rounds in flight: the others resume at the oldest that has not committed', () => {
  const drive = inFlight(2);
  for (const device of ['a', 'b', 'c']) prepare(drive, device, 0);
  for (const round of [1, 2]) prepare(drive, 'a', round);
  prepare(drive, 'b', 1);
  assert.deepEqual(flight(drive), [1, 3, 'c', '1 ab, 2 a']);
  const before = drive.log.length;
  drive.input({ kind: 'left', device: 'b', reason: 'gone' });
  assert.deepEqual(
    drive.log.slice(before).filter((line) => /^(changing|deploy|feed)/.test(line)),
    ['changing to 1 from devices, 0 again: b left in round 1 (gone)', 'deploy 1', 'feed 1', 'feed 2', 'feed 3'],
  );
  assert.deepEqual(flight(drive), [1, 3, 'ac', '']);
  for (const round of [1, 2]) prepare(drive, 'a', round);
  assert.deepEqual(prepare(drive, 'c', 1).slice(-6), [
    'commit→a',
    'commit→c',
    'committed 1 loss 1',
    'round→a',
    'round→c',
    'feed 4',
  ]);
});

test('a stop or a better layout waits for all rounds that were granted', () => {
  const drive = inFlight(2);
  drive.input({ kind: 'stop' });
  for (const round of [0, 1]) {
    for (const device of ['a', 'b', 'c']) prepare(drive, device, round);
    assert.deepEqual(flight(drive), [round + 1, 2, 'abc', '']);
  }
  for (const device of ['a', 'b']) prepare(drive, device, 2);
  assert.deepEqual(prepare(drive, 'c', 2).slice(3, 8), [
    'committed 2 loss 0',
    'snapshot→a with state',
    'snapshot→b',
    'snapshot→c with state',
    'write-checkpoint 3',
  ]);
  assert.equal(drive.log.at(-1), 'finish 3 stopped');
});

test('a factor of the learning rate holds from the first round that nobody has begun on', () => {
  const fixed = { ...config, learningRate: () => 0.5, replicateEvery: 0, endRound: 9, checkpointEvery: 6 };
  const drive = new Drive(fixed);
  drive.answerOf = (_device, _message, honest) => (honest.kind === 'prepared' ? undefined : honest);
  gathered(drive);
  assert.equal(drive.state.grantedRound, 1);
  drive.input({ kind: 'learning-rate-scaled', factor: 3 });
  drive.input({ kind: 'learning-rate-scaled', factor: 2 });
  assert.deepEqual(drive.state.rateFactors, [{ round: 2, factor: 2 }]);
  /** The rates of rounds that a device may begin, and of those that commit, when the last device prepares a round. */
  const rates = (round: number): readonly (readonly [string, number, number])[] => {
    prepare(drive, 'a', round);
    prepare(drive, 'b', round);
    const answer = { kind: 'prepared', result: result(round, 'c') } as const;
    const [, effects] = step(fixed, drive.state, { kind: 'answer', device: 'c', answer });
    prepare(drive, 'c', round);
    return effects.flatMap((effect): readonly (readonly [string, number, number])[] => {
      if (effect.kind === 'committed') return [['committed', effect.round, effect.learningRate]];
      const begins = effect.kind === 'send' && effect.message === 'round' && effect.device === 'a';
      return begins ? [['begins', effect.control.round, effect.control.learningRate]] : [];
    });
  };
  assert.deepEqual(rates(0).toSorted(), [
    ['begins', 2, 1],
    ['committed', 0, 0.5],
  ]);
  assert.deepEqual(rates(1).toSorted(), [
    ['begins', 3, 1],
    ['committed', 1, 0.5],
  ]);
  assert.deepEqual(rates(2).toSorted(), [
    ['begins', 4, 1],
    ['committed', 2, 1],
  ]);
});
