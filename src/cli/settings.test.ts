// Settings from flags, file and defaults, and the message for each wrong value.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Command } from 'commander';
import { InputError } from '../errors.ts';
import { correctionIn } from '../runtime/run/settings.ts';
import { words } from '../testing/command.ts';
import { defaultDataSettings } from '../training/data/data-settings.ts';
import { addSettingFlags, flagName, givenFlags, resolveSettings, settingsDocument } from './settings.ts';

const needed = { model: 'net.onnx', data: 'mnist' };

/** The flags as the command line takes them apart. */
function parsed(...args: readonly string[]): Record<string, unknown> {
  return givenFlags(
    addSettingFlags(new Command().exitOverride())
      .parse([...args], { from: 'user' })
      .opts(),
  );
}

test('--accumulate: an update of N batches, each a micro-batch', () => {
  const { batch, microBatch, accumulate } = resolveSettings({ ...needed, batch: '8', accumulate: '4' }, {}, '');
  assert.deepEqual([batch, microBatch, accumulate], [32, 8, undefined]);
  const finer = resolveSettings({ ...needed, batch: '8', microBatch: '2', accumulate: '4' }, {}, '');
  assert.deepEqual([finer.batch, finer.microBatch], [32, 2]);
});

test('defaults', () => {
  assert.deepEqual(resolveSettings(needed, {}, ''), {
    ...defaultDataSettings,
    model: 'net.onnx',
    data: 'mnist',
    batch: 32,
    dropLast: false,
    optimizer: 'sgd',
    lr: 0.01,
    lrSchedule: 'constant',
    momentum: 0,
    nesterov: false,
    weightDecay: 0,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    loss: 'cross-entropy',
    inputShape: [],
    freeze: [],
    freezeAllBut: [],
    lora: [],
    modulesToSave: [],
    profile: 'quick',
    train: [],
    planner: 'best',
    compress: 'none',
    schedule: 'auto',
    useAll: false,
    workers: 0,
    remote: 0,
    host: '127.0.0.1',
    port: 0,
    insecure: false,
    seed: 0,
    shuffle: true,
    verticalSync: true,
    aggregate: 0,
    tensorboard: false,
    tangents: 1,
    perturb: 'weights',
    tangent: 'rademacher',
    tangentScale: [],
    state: [],
    engine: 'onnxruntime',
    device: 'cpu',
    threads: 1,
    replicateBatchNorm: false,
    strict: false,
    recompute: 'auto',
  });
});

test('lion has a moment of its own: beta2 is 0.99 unless it is given', () => {
  assert.equal(resolveSettings({ ...needed, optimizer: 'lion' }, {}, '').beta2, 0.99);
  assert.equal(resolveSettings({ ...needed, optimizer: 'lion' }, { beta2: 0.95 }, 'run.yaml').beta2, 0.95);
  const async = { ...needed, optimizer: 'lion', mode: 'async', workers: '2' };
  assert.equal(correctionIn(resolveSettings(async, {}, '')), 'none');
  resolveSettings({ ...async, stalenessCorrection: 'predict' }, {}, '');
  assert.throws(
    () => resolveSettings({ ...async, stalenessCorrection: 'nesterov' }, {}, ''),
    (error) => error instanceof InputError && /nesterov takes a gradient into a step whole/.test(error.message),
  );
});

test('flags arrive as numbers, switches and lists', () => {
  const flags = parsed(
    ...[...words('--model a --data b --micro-batch 8 --lr 1e-3 --momentum 0.9 --nesterov --no-shuffle')],
    ...['--freeze', 'stem.*', '--freeze', 'head.bias', '--eval-data', 'c', '--checkpoint-every', '7'],
    ...['--head-classes', '5', '--eval-every', '0', '--freeze-all-but', 'head.*'],
  );
  const settings = resolveSettings(flags, {}, '');
  assert.equal(settings.microBatch, 8);
  assert.equal(settings.lr, 0.001);
  assert.equal(settings.nesterov, true);
  assert.equal(settings.shuffle, false);
  assert.deepEqual(settings.freeze, ['stem.*', 'head.bias']);
  assert.equal(settings.evalData, 'c');
  assert.equal(settings.checkpointEvery, 7);
  assert.deepEqual([settings.headClasses, settings.evalEvery, settings.freezeAllBut], [5, 0, ['head.*']]);
});

test('what is not given as a flag comes from the file, then from the defaults', () => {
  const file = { batch: 64, lr: 0.5, shuffle: false, 'micro-batch': 16, 'weight-decay': '1e-4', momentum: null };
  const settings = resolveSettings(parsed('--model', 'a', '--data', 'b', '--lr', '0.25'), file, 'run.yaml');
  assert.equal(settings.lr, 0.25);
  assert.equal(settings.batch, 64);
  assert.equal(settings.microBatch, 16);
  assert.equal(settings.weightDecay, 0.0001);
  assert.equal(settings.shuffle, false);
  assert.equal(settings.momentum, 0);
});

test('the document of a run is a config file that gives the same settings', () => {
  const settings = resolveSettings(
    { ...needed, microBatch: '4', freeze: ['a.*'], shuffle: false, steps: '9', clipNorm: '0.5' },
    {},
    '',
  );
  const document = settingsDocument(settings);
  assert.equal(document['micro-batch'], 4);
  assert.equal(document['clip-norm'], 0.5);
  assert.equal(Object.hasOwn(document, 'epochs'), false);
  assert.deepEqual(resolveSettings({}, document, 'config.yaml'), settings);
});

test('the flag of a setting', () => {
  assert.equal(flagName('microBatch'), '--micro-batch');
  assert.equal(flagName('shuffle'), '--no-shuffle');
});

test('a wrong value is refused in one sentence that says where it stands', () => {
  const wrong: readonly (readonly [flags: Record<string, unknown>, file: Record<string, unknown>, says: string])[] = [
    [{ batch: '0' }, {}, '--batch 0 must be at least 1.'],
    [{ batch: '2.5' }, {}, '--batch 2.5 must be a whole number.'],
    [{ batch: '1e10' }, {}, '--batch 1e10 must be at most 1e9.'],
    [{ batch: 'all' }, {}, '--batch all must be a number.'],
    [{ lr: '' }, {}, '--lr "" must be a number.'],
    [{ lr: 'Infinity' }, {}, '--lr Infinity must be a number.'],
    [{ lr: '-1' }, {}, '--lr -1 must not be negative.'],
    [{ momentum: '1.5' }, {}, '--momentum 1.5 must be 0 to 1.'],
    [{ clipNorm: '0' }, {}, '--clip-norm 0 must be above 0.'],
    [{ epsilon: '0' }, {}, '--epsilon 0 must be above 0.'],
    [{ workers: '-1' }, {}, '--workers -1 must not be negative.'],
    [{ port: '70000' }, {}, '--port 70000 must be at most 65535.'],
    [{ optimizer: 'sdg' }, {}, '--optimizer sdg must be one of sgd, adam, adamw, lion.'],
    [{ loss: 'hinge' }, {}, '--loss hinge must be one of cross-entropy, focal, binary-cross-entropy, mse, l1, huber.'],
    [{ ignoreLabel: '1.5' }, {}, '--ignore-label 1.5 must be a whole number.'],
    [{}, { 'drop-last': 'yes' }, 'drop-last: "yes" in run.yaml must be true or false.'],
    [
      { loss: 'mse', ignoreLabel: '0' },
      {},
      '--ignore-label 0 does not go with --loss mse, whose targets are numbers: leave such samples out of the data.',
    ],
    [{ engine: 'gpu' }, {}, '--engine gpu must be one of onnxruntime, reference.'],
    [{ model: '' }, {}, '--model "" must not be empty.'],
    [{ epochs: '1', steps: '1' }, {}, '--epochs and --steps cannot both be given: choose one.'],
    [
      { batch: '16', microBatch: '5' },
      {},
      '--batch 16 is not a multiple of --micro-batch 5: choose a micro-batch that divides the batch.',
    ],
    [{ nesterov: true }, {}, '--nesterov needs --optimizer sgd and a --momentum above 0.'],
    [
      {},
      { 'learning-rate': 0.1 },
      'run.yaml has the unknown setting "learning-rate"; settings are named as the flags of asteroid train are.',
    ],
    [{}, { batch: 'many' }, 'batch: "many" in run.yaml must be a number.'],
    [{}, { batch: true }, 'batch: true in run.yaml must be a number.'],
    [{}, { lr: [0.1] }, 'lr: [0.1] in run.yaml must be a number.'],
    [{}, { nesterov: 1 }, 'nesterov: 1 in run.yaml must be true or false.'],
    [{}, { freeze: 'stem.*' }, 'freeze: "stem.*" in run.yaml must be a list.'],
    [{}, { lr: new Array(1000).fill(0) }, `lr: [${'0,'.repeat(38)}... in run.yaml must be a number.`],
    [
      {},
      { 'a\nb': 1 },
      'run.yaml has the unknown setting "a\\nb"; settings are named as the flags of asteroid train are.',
    ],
    [{}, { data: 7 }, 'data: 7 in run.yaml must be text.'],
  ];
  for (const [flags, file, message] of wrong) {
    const given = Object.hasOwn(file, 'data') ? { model: 'net.onnx' } : needed;
    assert.throws(() => resolveSettings({ ...given, ...flags }, file, 'run.yaml'), new InputError(message));
  }
});

test('strict runs whose rounds overlap: what goes by the stages of a plan is refused', () => {
  const strictStream = { ...needed, mode: 'async', strict: true, microBatch: '8', workers: '2' };
  const wrong: readonly (readonly [flags: Record<string, unknown>, says: string])[] = [
    [
      { ...strictStream, verticalSync: false },
      '--mode async --strict does not take --no-vertical-sync: how old the weights of a layer are would depend on ' +
        'its stage; leave one of them out.',
    ],
    [
      { ...strictStream, staleness: '2', aggregate: '1' },
      '--mode async --strict does not take --aggregate 1: which versions are averaged depends on the stages; leave ' +
        'one of them out.',
    ],
    [
      strictStream,
      '--mode async --strict needs --staleness N: weights as old as that are read whatever the plan, and else each ' +
        'plan has a staleness of its own.',
    ],
  ];
  for (const [flags, message] of wrong)
    assert.throws(() => resolveSettings(flags, {}, 'run.yaml'), new InputError(message));
  assert.equal(resolveSettings({ ...strictStream, staleness: '2' }, {}, '').staleness, 2);
});
