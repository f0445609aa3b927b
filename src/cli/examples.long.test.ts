// The examples as they stand in their READMEs, with fewer rounds. Each needs data of a package and is skipped, with the
// reason, where that is not installed.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { InferenceSession } from 'onnxruntime-node';
import { defined } from '../assert.ts';
import type { Plan } from '../cluster/cluster.ts';
import { processMiB } from '../cluster/memory.ts';
import { importModel } from '../graph/onnx/import.ts';
import { type CommandEnd, type CommandEvent, runCommand, temporaryFolder, words } from '../testing/command.ts';

const cwd = temporaryFolder();
const repository = folderOf('README.md');
const timeout = 240_000;
const fashion = '/usr/share/datasets/fashion-mnist';
const classifier = join(
  repository,
  'examples',
  'fine-tune',
  'node_modules',
  '@gutenye',
  'ocr-models',
  'assets',
  'ch_ppocr_mobile_v2.0_cls_infer.onnx',
);

/** The folder above this file that holds `name`. */
function folderOf(name: string, below: string = import.meta.dirname): string {
  if (existsSync(join(below, name))) return below;
  assert.notEqual(below, dirname(below), `${name} is nowhere above`);
  return folderOf(name, dirname(below));
}

/** The arguments of the README's command with this beginning, without `npx asteroid`. */
async function args(example: string, beginning: string): Promise<string[]> {
  const text = await readFile(join(repository, 'examples', example, 'README.md'), 'utf8');
  const line = text
    .replace(/\\\n\s*/g, '')
    .split('\n')
    .find((candidate) => candidate.startsWith(`npx asteroid ${beginning}`));
  return defined(line, `a line "npx asteroid ${beginning}" in the README of ${example}`).split(/\s+/).slice(2);
}

/** The arguments with other values of some flags; undefined leaves a flag out. */
function changed(all: readonly string[], values: Readonly<Record<string, string | undefined>>): string[] {
  const result: string[] = [];
  for (let index = 0; index < all.length; index++) {
    const word = all[index] as string;
    if (!Object.hasOwn(values, word)) result.push(word);
    else index++;
  }
  return [...result, ...Object.entries(values).flatMap(([flag, value]) => (value === undefined ? [] : [flag, value]))];
}

/** The JSON lines that a command printed. */
function events(stdout: string): CommandEvent[] {
  return stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as CommandEvent);
}

const noFashion = existsSync(fashion) ? false : `${fashion} is not there: install Debian's dataset-fashion-mnist`;

test('Fashion-MNIST: the example’s command learns, is tested while it does, and its curve is drawn', {
  timeout,
  skip: noFashion,
}, async () => {
  const train = changed(await args('fashion-mnist', 'train'), {
    '--epochs': undefined,
    '--steps': '60',
    '--eval-every': '30',
  });
  const end = await runCommand([...train, '--json'], { cwd });
  assert.equal(end.code, 0, end.stderr);
  const tests = events(end.stdout).filter(({ event }) => event === 'evaluated');
  assert.deepEqual(
    tests.map(({ round, sampleCount }) => [round, sampleCount]),
    [
      [30, 10_000],
      [60, 10_000],
    ],
  );
  assert.ok(Number(tests[1]?.['accuracy']) > 0.6, JSON.stringify(tests));
  const curve = await runCommand(await args('fashion-mnist', 'curve'), { cwd });
  assert.equal(curve.code, 0, curve.stderr);
  assert.match(curve.stdout, /^Loss {7}.*test, [\d.]+ at the end/);
  assert.match(await readFile(join(cwd, 'runs', 'fashion', 'curve.svg'), 'utf8'), /^<svg [\s\S]*<\/svg>\n$/);
});

const stamps = '/usr/share/tuxpaint/stamps';
const noStamps = existsSync(stamps) ? false : `${stamps} is not there: install Debian's tuxpaint-stamps-default`;

test('photographs: the example’s command learns from folders, and names a picture', {
  timeout,
  skip: noStamps,
}, async () => {
  await mkdir(join(cwd, 'photos'));
  for (const name of ['animals', 'food', 'plants', 'vehicles'])
    await symlink(join(stamps, name), join(cwd, 'photos', name));
  const train = changed(await args('photos', 'train'), { '--epochs': undefined, '--steps': '3', '--batch': '8' });
  const end = await runCommand([...train, '--json'], { cwd });
  assert.equal(end.code, 0, end.stderr);
  const predicted = await runCommand([...(await args('photos', 'predict')), '--json'], { cwd });
  assert.equal(predicted.code, 0, predicted.stderr);
  assert.match(predicted.stdout, /^\{"sample":"photos\/vehicles\/.*"label":"(animals|food|plants|vehicles)"/);
});

const noClassifier = existsSync(classifier)
  ? false
  : `${classifier} is not there: run npm install in examples/fine-tune`;

test('fine-tuning: the published classifier becomes better on handwriting, and takes a new head', {
  timeout,
  skip: noClassifier,
}, async () => {
  const dist = join(import.meta.dirname, '..');
  // The example's own script, run against the build under test.
  const script = await readFile(join(repository, 'examples', 'fine-tune', 'make-data.mjs'), 'utf8');
  const made = spawnSync(process.execPath, ['--input-type=module', '-', 'directions', 'data', '320', '100'], {
    cwd,
    input: script.replace('../../dist/node.js', join(dist, 'node.js')),
    encoding: 'utf8',
  });
  assert.equal(made.status, 0, made.stderr);
  const data = (part: string): string => `npy:data/${part}-strips.npy,data/${part}-directions.npy`;
  const before = await runCommand(['eval', '--model', classifier, '--data', data('test'), '--json'], { cwd });
  assert.equal(before.code, 0, before.stderr);
  const settings = words('--batch 16 --epochs 2 --optimizer adam --lr 0.001 --lr-schedule cosine');
  const source = ['--data', data('train'), '--eval-data', data('test'), '--eval-every', '0'];
  const train = ['train', '--model', classifier, ...source, '--json'];
  const tuned = await runCommand([...train, ...settings, '--out', 'tuned'], { cwd });
  assert.equal(tuned.code, 0, tuned.stderr);
  const [first, last] = [
    Number(JSON.parse(before.stdout).accuracy),
    Number(events(tuned.stdout).at(-1)?.['testAccuracy']),
  ];
  assert.ok(last >= first + 0.08, `${first} before, ${last} after`);

  const frozen = ['--head-classes', '10', '--freeze-all-but', 'fc_0.*', '--steps', '2', '--out', 'head'];
  const head = await runCommand([...train, '--batch', '16', ...frozen], { cwd });
  assert.equal(head.code, 0, head.stderr);
  const bytes = await readFile(join(cwd, 'head', 'model.onnx'));
  const [old, now] = [importModel(await readFile(classifier)), importModel(bytes)];
  assert.deepEqual([...now.graph.initializers.keys()], [...old.graph.initializers.keys()]);
  assert.deepEqual(now.proto.opsetImport, old.proto.opsetImport);
  assert.deepEqual(now.graph.initializers.get('fc_0.w_0')?.shape, [200, 10]);
  for (const name of [...old.graph.parameters, ...old.graph.buffers].filter(
    (candidate) => !candidate.startsWith('fc_0.'),
  ))
    assert.deepEqual(now.graph.initializers.get(name), old.graph.initializers.get(name), name);
  const session = await InferenceSession.create(bytes);
  assert.deepEqual([session.inputNames, session.outputNames], [['x'], ['softmax_0.tmp_0']]);
  await session.release();
});

test('long sequences: what backpropagation has no memory for is trained by forward gradients', {
  timeout,
}, async () => {
  const folder = temporaryFolder();
  const make = join(repository, 'examples', 'long-sequences', 'make.mjs');
  const made = spawnSync(process.execPath, [make, '.', '64', '64'], { cwd: folder, encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  const unrolled = await args('long-sequences', 'train --model unrolled.onnx');
  const refused = await runCommand([...unrolled, '--json'], { cwd: folder });
  assert.equal(refused.code, 2, refused.stderr);
  assert.match(refused.stderr, /device "worker-1" has 20 MiB and lacks \d+ MiB/);
  const small = { '--batch': '2048', '--epochs': '1', '--tangents': '2' };
  const end = await runCommand([...changed(await args('long-sequences', 'train --model cell.onnx'), small), '--json'], {
    cwd: folder,
  });
  assert.equal(end.code, 0, end.stderr);
  assert.equal(events(end.stdout).filter(({ event }) => event === 'round').length, 2);
  const tested = await runCommand([...(await args('long-sequences', 'eval')), '--json'], { cwd: folder });
  assert.equal(tested.code, 0, tested.stderr);
  assert.equal(events(tested.stdout).at(-1)?.['sampleCount'], 64 * 64);
});

test('continuous learning: three devices that are each too small teach a trained model new pictures', {
  timeout,
}, async () => {
  const folder = join(repository, 'examples', 'continuous-learning');
  const script = await readFile(join(folder, 'make-data.mjs'), 'utf8');
  const made = spawnSync(process.execPath, ['--input-type=module', '-', 'data'], {
    cwd,
    input: script
      .replace('../../dist/node.js', join(import.meta.dirname, '..', 'node.js'))
      .replaceAll('() => true', '(_, index) => index < 100'),
    encoding: 'utf8',
  });
  assert.equal(made.status, 0, made.stderr);
  const three = await readFile(join(folder, 'three.yaml'), 'utf8');
  await writeFile(join(cwd, 'three.yaml'), three);
  await writeFile(join(cwd, 'one.yaml'), three.replace(/.*worker-[23].*\n/g, ''));
  const example = (beginning: string, values: Readonly<Record<string, string | undefined>>): Promise<CommandEnd> =>
    args('continuous-learning', beginning).then((all) => runCommand([...changed(all, values), '--json'], { cwd }));
  const steps = { '--epochs': undefined, '--steps': '2' };

  const old = await example('train --model mobilenet-v2', { ...steps, '--eval-data': undefined });
  assert.equal(old.code, 0, old.stderr);
  const single = { ...steps, '--workers': '1', '--cluster': 'one.yaml', '--mode': 'sync' };
  const alone = await example('train --model runs/old', single);
  assert.equal(alone.code, 2);
  assert.match(alone.stderr, /fits nowhere .*: device "worker-1" has 120 MiB and lacks 68 MiB/);
  const taught = await example('train --model runs/old', steps);
  assert.equal(taught.code, 0, taught.stderr);
  const found = events(taught.stdout);
  const deployed = defined(
    found.find(({ event }) => event === 'deployment'),
    'a deployment',
  );
  const { schedule, stages, staleness, predicted } = deployed['plan'] as Plan;
  assert.deepEqual([schedule, stages.length, staleness], ['async', 3, [2, 2, 2]]);
  for (const mib of Object.values(predicted.peakMemoryMiB)) assert.ok(mib <= 120, `${mib} MiB`);
  const peaks = found.filter(({ event }) => event === 'statistics').map(({ peakMemoryMiB }) => Number(peakMemoryMiB));
  assert.equal(peaks.length, 3);
  for (const mib of peaks) assert.ok(mib <= 1.1 * (processMiB + 120) + 30, `a worker took ${mib} MiB`);
  assert.equal(found.find(({ event }) => event === 'evaluated')?.['sampleCount'], 100);
  const tested = await example('eval', {});
  assert.equal(tested.code, 0, tested.stderr);
  assert.equal(JSON.parse(tested.stdout).sampleCount, 100);
});
