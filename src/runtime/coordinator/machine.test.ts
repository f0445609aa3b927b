import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Plan } from '../../cluster/cluster.ts';
import { config, Drive, gathered, plan, result } from '../../testing/machine-drive.ts';
import { relayout } from './changes.ts';
import type { MachineInput, MachineState } from './machine-types.ts';

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

/** Holds back the answer of a device to a round, from the first of them on. */
function stuck(drive: Drive, device: string): Drive {
  drive.answerOf = (name, message, honest) =>
    (message === 'round' || message === 'commit') && name === device ? undefined : honest;
  return drive;
}

const twoStages = (first: readonly string[], second: readonly string[]): Plan => ({
  ...plan,
  stages: [
    { layers: [0, 2], devices: first, samples: first.length === 2 ? [2, 2] : [4], inFlight: 2 },
    { layers: [2, 3], devices: second, samples: second.length === 2 ? [2, 2] : [4], inFlight: 1 },
  ],
});

test('a replica leaves during training: the others continue with the present round, and only its share moves', () => {
  const drive = gathered(stuck(new Drive(config), 'b'));
  drive.answerOf = (_device, _message, honest) => honest;
  drive.planFor = () => twoStages(['a'], ['c']);
  drive.input({ kind: 'left', device: 'b', reason: 'connection reset' });
  const after = drive.log.slice(drive.log.lastIndexOf('-- planning'));
  assert.deepEqual(after.slice(0, 7), [
    '-- planning',
    'plan',
    '-- deploying',
    'changing to 0 from devices, 0 again: b left in round 0 (connection reset)',
    'deploy 0',
    '-- training',
    'changed',
  ]);
  assert.deepEqual(
    drive.log.filter((line) => /^(committed|write|finish)/.test(line)),
    [
      ...[0, 1].map((round) => `committed ${round} loss ${2 - round}`),
      'write-checkpoint 2',
      'committed 2 loss 0',
      'committed 3 loss -1',
    ].concat('write-checkpoint 4', 'committed 4 loss -2', 'write-checkpoint 5', 'finish 5'),
  );
});

test('a stage lost whole comes from its copy; rounds since are computed again, but reported once', () => {
  const drive = new Drive({ ...config, endRound: 8, checkpointEvery: 100 });
  // c prepares rounds 0 to 3, and never 4. Its copy is on a, as it was after round 2.
  drive.answerOf = (device, message, honest) => {
    if (message === 'round' && device === 'c' && honest.kind === 'prepared' && honest.result.round === 4)
      return undefined;
    return honest;
  };
  gathered(drive);
  drive.input({ kind: 'answer', device: 'a', answer: { kind: 'replicated', round: 0, layers: [2, 3] } });
  assert.equal(drive.state.round, 4);
  assert.deepEqual(drive.state.waitingFor, ['c']);
  drive.answerOf = (_device, _message, honest) => honest;
  drive.planFor = () => twoStages(['a'], ['b']);
  drive.input({ kind: 'left', device: 'c', reason: 'gone' });
  assert.ok(drive.log.includes('changing to 0 from devices, 4 again: c left in round 4 (gone)'), drive.log.join('\n'));
  assert.ok(drive.log.includes('deploy 0 a→b[2,3]'), drive.log.join('\n'));
  assert.deepEqual(
    drive.log.filter((line) => /^(committed|repeated|finish)/.test(line)),
    [
      ...['committed 0 loss 2', 'committed 1 loss 1', 'committed 2 loss 0', 'committed 3 loss -1'],
      ...['repeated 0', 'repeated 1', 'repeated 2', 'repeated 3'],
      ...[4, 5, 6, 7].map((round) => `committed ${round} loss 0`),
      'finish 8',
    ],
  );
});

test('a layout that moves nothing releases its source at once; what no device has comes from the checkpoint', () => {
  const drive = new Drive({ ...config, replicateEvery: 0, endRound: 6, checkpointEvery: 100 });
  const alone = (device: string): Plan => ({
    ...plan,
    stages: [{ layers: [0, 3], devices: [device], samples: [4], inFlight: 1 }],
  });
  // a, b and c all hold the model; then two stages, whose round 2 nobody finishes.
  drive.planFor = () => ({
    ...plan,
    stages: [{ layers: [0, 3], devices: ['a', 'b', 'c'], samples: [2, 1, 1], inFlight: 1 }],
  });
  drive.answerOf = (_device, _message, honest) =>
    honest.kind === 'prepared' && honest.result.round === 2 ? undefined : honest;
  gathered(drive);
  assert.equal(drive.state.round, 2);
  const releases = (): number => drive.log.filter((line) => line.startsWith('release')).length;
  const before = releases();
  drive.planFor = (devices) => (devices.includes('a') ? twoStages(['a'], ['b']) : alone('b'));
  drive.input({ kind: 'left', device: 'c', reason: 'gone' });
  // Nothing travels: all that a and b need is theirs.
  assert.ok(drive.log.includes('deploy 2'), drive.log.join('\n'));
  assert.deepEqual([drive.state.isSettled, releases()], [true, before + 2]);

  drive.planFor = () => alone('b');
  drive.input({ kind: 'left', device: 'a', reason: 'gone too' });
  assert.ok(
    drive.log.includes('changing to 0 from checkpoint, 2 again: a left in round 2 (gone too)'),
    drive.log.join('\n'),
  );
});

test('a drained device provides its state until the next round has committed; until then it can be lost', () => {
  const start = (): Drive => {
    const drive = new Drive({ ...config, replicateEvery: 0, endRound: 9, checkpointEvery: 100 });
    drive.planFor = () => twoStages(['a'], ['c']);
    drive.answerOf = (_device, _message, honest) =>
      honest.kind === 'prepared' && honest.result.round === 1 ? undefined : honest;
    gathered(drive);
    drive.input({
      kind: 'proposed',
      plan: twoStages(['a'], ['b']),
      change: { cause: 'c leaves', lost: [], drained: 'c' },
      copyEvery: 1,
    });
    drive.answerOf = (_device, _message, honest) =>
      honest.kind === 'prepared' && honest.result.round === 3 ? undefined : honest;
    for (const device of ['a', 'c'])
      drive.input({ kind: 'answer', device, answer: { kind: 'prepared', result: result(1, device) } });
    return drive;
  };
  const drive = start();
  assert.ok(drive.log.includes('deploy 3 c→b[2,3]'), drive.log.join('\n'));
  const dismissed = 'dismiss c: the device was drained';
  assert.deepEqual(
    [drive.state.phase, drive.state.isSettled, drive.log.includes(dismissed)],
    ['training', false, false],
  );
  for (const device of ['a', 'b'])
    drive.input({ kind: 'answer', device, answer: { kind: 'prepared', result: result(3, device) } });
  assert.ok(drive.log.indexOf('commit→b') < drive.log.indexOf(dismissed));
  assert.deepEqual([drive.state.isSettled, drive.state.drained], [true, undefined]);

  const other = start();
  other.planFor = () => twoStages(['a'], ['b']);
  other.input({ kind: 'left', device: 'c', reason: 'gone' });
  assert.ok(
    other.log.includes('changing to 0 from checkpoint, 3 again: c left in round 3 (gone)'),
    other.log.join('\n'),
  );
});

test('without a copy everything comes from the last checkpoint; a loss on the way starts the recovery again', () => {
  const drive = new Drive({ ...config, replicateEvery: 0 });
  drive.answerOf = (device, message, honest) =>
    message === 'round' && device === 'c' && honest.kind === 'prepared' && honest.result.round === 3
      ? undefined
      : honest;
  gathered(drive);
  assert.equal(drive.state.round, 3);
  drive.answerOf = (_device, message, honest) => (message === 'deploy' ? undefined : honest);
  drive.planFor = (devices) =>
    devices.includes('b')
      ? twoStages(['a'], ['b'])
      : { ...twoStages(['a'], ['a']), stages: [{ layers: [0, 3], devices: ['a'], samples: [4], inFlight: 1 }] };
  drive.input({ kind: 'left', device: 'c', reason: 'gone' });
  assert.ok(
    drive.log.includes('changing to 2 from checkpoint, 1 again: c left in round 3 (gone)'),
    drive.log.join('\n'),
  );
  assert.ok(drive.log.includes('deploy 2 null→a[0,2] null→b[2,3]'));
  drive.answerOf = (_device, _message, honest) => honest;
  drive.input({ kind: 'left', device: 'b', reason: 'gone too' });
  assert.ok(drive.log.includes('deploy 2 null→a[0,3]'), drive.log.join('\n'));
  assert.deepEqual(
    drive.log.filter((line) => /^(repeated|finish)/.test(line)),
    ['repeated 2', 'finish 5'],
  );
});

test('where rounds overlap, nobody returns behind the checkpoint; elsewhere a copy before it is nearer', () => {
  const state: MachineState = {
    ...new Drive(config).state,
    ...{ phase: 'planning', round: 5, recordedRound: 5, checkpointRound: 4 },
    members: ['a', 'b'].map((name) => ({ name, listenUrl: '' })),
    holdings: [
      { device: 'a', layers: [0, 2], round: 0 },
      { device: 'b', layers: [2, 3], round: 0 },
    ],
    change: { cause: 'c left', lost: ['c'] },
  };
  const returned = (schedule: Plan['schedule']): readonly unknown[] => {
    const [{ round }, effects] = relayout(config, state, { ...twoStages(['a'], ['b']), schedule });
    return [round, ...effects.flatMap((effect) => (effect.kind === 'changing' ? [effect.source] : []))];
  };
  assert.deepEqual(returned('async'), [4, 'checkpoint']);
  assert.deepEqual(returned('forward-gradient'), [4, 'checkpoint']);
  assert.deepEqual(returned('1f1b'), [0, 'devices']);
});

test('the last device that leaves ends the run with one sentence', () => {
  const drive = gathered(stuck(new Drive(config), 'b'));
  drive.answerOf = () => undefined;
  drive.planFor = (devices) => ({
    ...plan,
    stages: [{ layers: [0, 3], devices: devices.slice(0, 1), samples: [4], inFlight: 1 }],
  });
  for (const device of ['b', 'a', 'c']) drive.input({ kind: 'left', device, reason: 'gone' });
  assert.equal(drive.log.at(-1), 'fail: c left while deploying (gone)');
  assert.equal(drive.state.phase, 'ended');
});

test('a link breaks between live devices: all links are made again; if it keeps breaking, one device goes', () => {
  const drive = gathered(stuck(new Drive(config), 'b'));
  drive.planFor = (devices) => (devices.includes('c') ? plan : twoStages(['a'], ['b']));
  for (let count = 1; count <= 4; count++) {
    drive.input({
      kind: 'answer',
      device: 'a',
      answer: { kind: 'lost-peer', peer: 'c', reason: 'reset', isFault: false },
    });
    assert.equal(drive.log.at(-1), 'probe→c');
    drive.input({ kind: 'answer', device: 'c', answer: { kind: 'alive' } });
    assert.equal(drive.log.filter((line) => line.startsWith('changing')).length, count);
  }
  assert.ok(drive.log.includes('dismiss c: its link to a broke 4 times (reset)'), drive.log.join('\n'));
  assert.ok(drive.log.includes('changing to 0 from devices, 0 again: the link between a and c broke (reset)'));
});

test('a late device gets the model, links and a profile; then a better plan is taken between two rounds', () => {
  const drive = gathered(stuck(new Drive(config), 'b'));
  drive.input({ kind: 'joined', device: 'd' });
  assert.deepEqual(drive.log.filter((line) => line.endsWith('d') || line === 'consider').slice(-3), [
    'profile→d',
    'profiled',
    'consider',
  ]);
  const better = {
    ...plan,
    stages: [
      plan.stages[0] as Plan['stages'][0],
      { layers: [2, 3], devices: ['c', 'd'], samples: [2, 2], inFlight: 1 } as const,
    ],
  };
  drive.input({ kind: 'proposed', plan: better, change: { cause: 'd joined', lost: [] }, copyEvery: 1 });
  // Rounds 0 and 1 were granted; they commit before.
  drive.answerOf = (_device, _message, honest) => honest;
  drive.input({ kind: 'answer', device: 'b', answer: { kind: 'prepared', result: result(0, 'b') } });
  drive.input({ kind: 'answer', device: 'b', answer: { kind: 'prepared', result: result(1, 'b') } });
  assert.ok(drive.log.includes('changing to 2 from devices, 0 again: d joined'), drive.log.join('\n'));
  assert.ok(drive.log.includes('deploy 2 c→d[2,3]'));
  assert.equal(drive.log.at(-1), 'finish 5');
});

test('a device that leaves while gathering is simply missed; one that comes early waits until the others train', () => {
  const drive = new Drive({ ...config, workerCount: 2 });
  drive.answerOf = () => undefined;
  drive.input({ kind: 'joined', device: 'a' });
  drive.input({ kind: 'left', device: 'a', reason: 'gone' });
  drive.input({ kind: 'joined', device: 'b' });
  assert.equal(drive.state.phase, 'gathering');
  drive.input({ kind: 'joined', device: 'c' });
  assert.equal(drive.state.phase, 'preparing');
  drive.input({ kind: 'joined', device: 'd' });
  assert.equal(drive.log.includes('send-model→d'), false);
  assert.equal(drive.state.members.at(-1)?.joining, 'queued');
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
  // The state before it is fetched first: in the same layout, from which devices return to it.
  const end = drive.log.slice(drive.log.findIndex((line) => line.startsWith('committed 0')) + 1);
  const [deployed, written] = ['deploy', 'write-checkpoint'].map((what) =>
    end.findIndex((line) => line.startsWith(what)),
  );
  assert.ok(deployed !== undefined && written !== undefined && deployed >= 0 && written > deployed, end.join('\n'));
});

test('an answer out of turn, for another round, or twice removes the device; before training it ends the run', () => {
  const early = new Drive(config);
  early.answerOf = () => undefined;
  gathered(early);
  early.input({ kind: 'answer', device: 'a', answer: { kind: 'connected' } });
  assert.match(early.log.at(-1) ?? '', /fail: a cannot go on: it answered "connected" while preparing/);

  const wrongRound = new Drive(config);
  wrongRound.planFor = (devices) => (devices.length === 3 ? plan : twoStages(['a'], ['c']));
  wrongRound.answerOf = (device, _message, honest) =>
    device === 'b' && honest.kind === 'prepared'
      ? { kind: 'prepared', result: { ...honest.result, round: 7 } }
      : honest;
  gathered(wrongRound);
  assert.ok(wrongRound.log.includes('dismiss b: it prepared round 7 instead of 0'), wrongRound.log.join('\n'));
  assert.equal(wrongRound.log.at(-1), 'finish 5');

  const twice = new Drive(config);
  twice.answerOf = (_device, message, honest) => (message === 'model' ? undefined : honest);
  gathered(twice);
  const ready: MachineInput = { kind: 'answer', device: 'a', answer: { kind: 'ready', listenUrl: 'ws://a' } };
  twice.input(ready);
  twice.input(ready);
  assert.match(twice.log.at(-1) ?? '', /fail: a cannot go on: it answered "ready" while preparing/);
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

test('a device that the plan leaves out stays as a spare', () => {
  const drive = new Drive({ ...config, workerCount: 4 });
  for (const device of ['a', 'b', 'c', 'd']) drive.input({ kind: 'joined', device });
  assert.equal(drive.log.includes('round→d'), false);
  assert.deepEqual(drive.log.slice(-5), ['end→a', 'end→b', 'end→c', 'end→d', 'finish 5']);
});
