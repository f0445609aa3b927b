import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import type { RoundResult } from '../messages.ts';
import { initialState, step } from './machine.ts';
import type { Answer, MachineConfig, MachineEffect, MachineInput, MachineState } from './machine-types.ts';

const config: MachineConfig = {
  workerCount: 3,
  firstRound: 0,
  endRound: 5,
  checkpointEvery: 2,
  batchSize: 8,
  batchSizesToProfile: [1, 8],
  planGiven: false,
  learningRate: (round) => 0.1 / (round + 1),
  gradientScale: () => 1,
};

const plan: Plan = {
  planner: 'manual',
  schedule: '1f1b',
  batchSize: 8,
  microBatchSize: 4,
  microBatchCount: 2,
  stages: [
    { layers: [0, 2], devices: ['a', 'b'], samples: [2, 2], inFlight: 2 },
    { layers: [2, 3], devices: ['c'], samples: [4], inFlight: 1 },
  ],
  predicted: { roundMs: 1, samplesPerS: 8000, peakMemoryMiB: {} },
};

/** Drives the machine with workers that answer at once; effects are written as one line each. */
class Drive {
  state: MachineState;
  readonly log: string[] = [];
  readonly #config: MachineConfig;
  readonly #ahead = new Map<string, number>();
  /** Replaces the honest answer to an effect; undefined: no answer. */
  answerOf: (device: string, message: string, honest: Answer) => Answer | undefined = (_device, _message, honest) => honest;

  constructor(machineConfig: MachineConfig) {
    this.#config = machineConfig;
    this.state = initialState(machineConfig);
  }

  input(input: MachineInput): void {
    const [next, effects] = step(this.#config, this.state, input);
    this.state = next;
    for (const effect of effects) this.#log(effect);
    for (const effect of effects) this.#react(effect);
  }

  #log(effect: MachineEffect): void {
    switch (effect.kind) {
      case 'send':
        this.log.push(
          `${effect.message}→${effect.device}${effect.message === 'snapshot' && effect.control.withState ? ' with state' : ''}`,
        );
        break;
      case 'committed':
        this.log.push(`committed ${effect.round} loss ${effect.loss}`);
        break;
      case 'feed':
      case 'write-checkpoint':
        this.log.push(`${effect.kind} ${effect.round}`);
        break;
      case 'finish':
        this.log.push(`finish ${effect.round}${effect.stopped ? ' stopped' : ''}`);
        break;
      case 'fail':
        this.log.push(`fail: ${effect.message}`);
        break;
      case 'phase':
        this.log.push(`-- ${effect.phase}`);
        break;
      default:
        this.log.push(effect.kind);
    }
  }

  #react(effect: MachineEffect): void {
    const answer = (device: string, message: string, honest: Answer): void => {
      const given = this.answerOf(device, message, honest);
      if (given !== undefined) this.input({ kind: 'answer', device, answer: given });
    };
    if (effect.kind === 'send-model') answer(effect.device, 'model', { kind: 'ready', listenUrl: `ws://${effect.device}` });
    else if (effect.kind === 'send-peers') answer(effect.device, 'connect', { kind: 'connected' });
    else if (effect.kind === 'plan') this.input({ kind: 'planned', plan });
    else if (effect.kind === 'write-checkpoint') this.input({ kind: 'checkpointed', round: effect.round });
    else if (effect.kind === 'deploy') for (const device of ['a', 'b', 'c']) answer(device, 'deploy', { kind: 'deployed' });
    else if (effect.kind === 'send') {
      const { device, message } = effect;
      if (message === 'measure') answer(device, message, { kind: 'measured', links: [] });
      if (message === 'profile') {
        answer(device, message, { kind: 'profiled', profile: { layers: [], times: { forwardMs: [], backwardMs: [] }, cached: false } });
      }
      // A round that is granted ahead is prepared when the one before has committed.
      if (message === 'round') {
        if (effect.control.round > this.state.round) this.#ahead.set(device, effect.control.round);
        else answer(device, message, { kind: 'prepared', result: result(effect.control.round, device) });
      }
      const ahead = this.#ahead.get(device);
      if (message === 'commit' && ahead === effect.control.round + 1) {
        this.#ahead.delete(device);
        answer(device, 'round', { kind: 'prepared', result: result(ahead, device) });
      }
      if (message === 'snapshot') answer(device, message, { kind: 'snapshot-end', round: effect.control.round });
    }
  }
}

function result(round: number, device: string): RoundResult {
  return { round, lossSum: device === 'c' ? 16 - round * 8 : 0, correctCount: 0, squaredNorm: 1, finite: true, roundMs: 1, busyMs: 1 };
}

function gathered(drive: Drive): Drive {
  for (const device of ['a', 'b', 'c']) drive.input({ kind: 'joined', device });
  return drive;
}

test('a whole run: every step waits for all, rounds commit in order, checkpoints fall on their rounds', () => {
  const drive = gathered(new Drive(config));
  assert.deepEqual(
    drive.log.filter((line) => line.startsWith('--')),
    ['-- preparing', '-- connecting', '-- measuring', '-- profiling', '-- planning', '-- deploying', '-- training'],
  );
  assert.deepEqual(
    drive.log.filter((line) => line.startsWith('measure')),
    ['measure→a', 'measure→b'],
  );
  assert.deepEqual(
    drive.log.filter((line) => /^(committed|write|finish)/.test(line)),
    [
      'committed 0 loss 2',
      'committed 1 loss 1',
      'write-checkpoint 2',
      'committed 2 loss 0',
      'committed 3 loss -1',
      'write-checkpoint 4',
      'committed 4 loss -2',
      'write-checkpoint 5',
      'finish 5',
    ],
  );
  assert.deepEqual(
    drive.log.filter((line) => line.startsWith('feed')),
    ['feed 0', 'feed 1', 'feed 2', 'feed 3', 'feed 4'],
  );
  assert.equal(drive.log.filter((line) => line.startsWith('commit→')).length, 15);
  assert.deepEqual(drive.log.filter((line) => line.startsWith('snapshot')).slice(0, 3), [
    'snapshot→a with state',
    'snapshot→b',
    'snapshot→c with state',
  ]);
});

test('a round commits only when every device has prepared', () => {
  const drive = new Drive(config);
  drive.answerOf = (device, message, honest) => (message === 'round' && device === 'b' ? undefined : honest);
  gathered(drive);
  assert.equal(drive.state.phase, 'training');
  assert.deepEqual(drive.state.waitingFor, ['b']);
  assert.equal(
    drive.log.some((line) => line.startsWith('commit')),
    false,
  );
  drive.answerOf = (_device, _message, honest) => honest;
  drive.input({ kind: 'answer', device: 'b', answer: { kind: 'prepared', result: result(0, 'b') } });
  assert.equal(drive.log.at(-1), 'finish 5');
});

test('a device that leaves during training ends the run with one sentence and releases the others', () => {
  const drive = new Drive(config);
  drive.answerOf = (device, message, honest) => (message === 'round' && device === 'b' ? undefined : honest);
  gathered(drive);
  drive.input({ kind: 'left', device: 'b', reason: 'connection reset' });
  assert.deepEqual(drive.log.slice(-3), ['end→a', 'end→c', 'fail: b left in round 0 (connection reset)']);
  drive.input({ kind: 'answer', device: 'a', answer: { kind: 'prepared', result: result(0, 'a') } });
  assert.equal(drive.log.at(-1), 'fail: b left in round 0 (connection reset)');
});

test('a device that leaves while gathering is simply missed, and a fourth one is told that all are there', () => {
  const drive = new Drive({ ...config, workerCount: 2 });
  drive.answerOf = () => undefined;
  drive.input({ kind: 'joined', device: 'a' });
  drive.input({ kind: 'left', device: 'a', reason: 'gone' });
  drive.input({ kind: 'joined', device: 'b' });
  assert.equal(drive.state.phase, 'gathering');
  drive.input({ kind: 'joined', device: 'c' });
  assert.equal(drive.state.phase, 'preparing');
  drive.input({ kind: 'joined', device: 'd' });
  assert.equal(drive.log.at(-1), 'end→d');
  assert.equal(drive.state.phase, 'preparing');
});

test('a number that is not finite never commits', () => {
  const drive = new Drive(config);
  drive.answerOf = (device, _message, honest) =>
    honest.kind === 'prepared' && honest.result.round === 1 && device === 'c'
      ? { kind: 'prepared', result: { ...honest.result, finite: false } }
      : honest;
  gathered(drive);
  assert.match(drive.log.at(-1) ?? '', /^fail: the loss or a gradient of round 1 is not a finite number/);
  assert.equal(drive.log.filter((line) => line.startsWith('committed')).length, 1);
});

test('an answer out of turn, of another round, or given twice ends the run', () => {
  const early = new Drive(config);
  early.answerOf = () => undefined;
  gathered(early);
  early.input({ kind: 'answer', device: 'a', answer: { kind: 'connected' } });
  assert.match(early.log.at(-1) ?? '', /fail: a answered "connected" while preparing/);

  const wrongRound = new Drive(config);
  wrongRound.answerOf = (_device, _message, honest) =>
    honest.kind === 'prepared' ? { kind: 'prepared', result: { ...honest.result, round: 7 } } : honest;
  gathered(wrongRound);
  assert.match(wrongRound.log.at(-1) ?? '', /fail: a prepared round 7 instead of 0/);

  const twice = new Drive(config);
  twice.answerOf = (_device, message, honest) => (message === 'model' ? undefined : honest);
  gathered(twice);
  const ready: MachineInput = { kind: 'answer', device: 'a', answer: { kind: 'ready', listenUrl: 'ws://a' } };
  twice.input(ready);
  twice.input(ready);
  assert.match(twice.log.at(-1) ?? '', /fail: a answered "ready" while preparing/);
});

test('a stop during training commits the round in progress, writes a checkpoint and releases all', () => {
  const drive = new Drive(config);
  drive.answerOf = (device, message, honest) => (message === 'round' && device === 'b' ? undefined : honest);
  gathered(drive);
  drive.input({ kind: 'stop' });
  drive.answerOf = (_device, _message, honest) => honest;
  drive.input({ kind: 'answer', device: 'b', answer: { kind: 'prepared', result: result(0, 'b') } });
  // Round 1 was granted already.
  assert.deepEqual(
    drive.log.filter((line) => /^(committed|write|finish)/.test(line)),
    ['committed 0 loss 2', 'committed 1 loss 1', 'write-checkpoint 2', 'finish 2 stopped'],
  );
});

test('a stop before training ends at once', () => {
  const drive = new Drive(config);
  drive.answerOf = () => undefined;
  gathered(drive);
  drive.input({ kind: 'stop' });
  assert.equal(drive.log.at(-1), 'finish 0 stopped');
  assert.equal(drive.state.phase, 'ended');
});

test('a plan that leaves a device out releases it', () => {
  const drive = new Drive(config);
  drive.answerOf = (_device, message, honest) => (message === 'deploy' ? undefined : honest);
  gathered(drive);
  const spare: MachineState = { ...drive.state, phase: 'planning', members: [...drive.state.members, { name: 'd', listenUrl: '' }] };
  const [next, effects] = step(config, spare, { kind: 'planned', plan });
  assert.deepEqual(
    next.members.map(({ name }) => name),
    ['a', 'b', 'c'],
  );
  assert.deepEqual(
    effects.flatMap((effect) => (effect.kind === 'send' ? [`${effect.message}→${effect.device}`] : [])),
    ['end→d'],
  );
});
