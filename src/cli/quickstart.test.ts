// The first five minutes: `asteroid quickstart` trains over three processes to 97 % and more in under two minutes, and
// what it leaves can be used elsewhere.

import assert from 'node:assert/strict';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { parse as parseYaml } from 'yaml';
import { defined } from '../assert.ts';
import { parseCluster, parsePlan, parseProfile } from '../cluster/validate.ts';
import { loadDataset } from '../storage/node/datasets.ts';
import { type CommandEnd, jsonLines, runCommand, temporaryFolder } from '../testing/command.ts';
import { gather } from '../training/data/dataset.ts';

const cwd = temporaryFolder();
const roundCount = 425;
let end: CommandEnd;
let tookMs = 0;
let result: {
  readonly testAccuracy: number;
  readonly workerCount: number;
  readonly trainSeconds: number;
  readonly runFolder: string;
};

const inRun = (name: string): string => join(cwd, result.runFolder, name);
const text = (name: string): Promise<string> => readFile(inRun(name), 'utf8');

before(async () => {
  const startMs = performance.now();
  end = await runCommand(['quickstart', '--json'], { cwd, environment: { ASTEROID_CACHE: join(cwd, '.cache') } });
  tookMs = performance.now() - startMs;
  assert.equal(end.code, 0, end.stderr);
  result = JSON.parse(defined(end.stdout.trimEnd().split('\n').at(-1), 'a line'));
});

test('the last line says how well it went: three workers, 97 % and more, under two minutes', () => {
  assert.deepEqual(Object.keys(result), ['testAccuracy', 'workerCount', 'trainSeconds', 'runFolder']);
  assert.ok(result.testAccuracy >= 0.97, `accuracy ${result.testAccuracy}`);
  assert.equal(result.workerCount, 3);
  assert.ok(result.trainSeconds > 0 && result.trainSeconds * 1000 < tookMs);
  assert.ok(tookMs < 120_000, `took ${tookMs} ms`);
  assert.match(result.runFolder, /^runs\/\d{4}-\d\d-\d\d-1$/);
});

test('stdout is JSON lines only, stderr is empty', () => {
  const events = end.stdout
    .trimEnd()
    .split('\n')
    .map((line) => (JSON.parse(line) as { event?: string }).event);
  assert.equal(events.filter((event) => event === 'round').length, roundCount);
  for (const kind of [
    'joined',
    'profiled',
    'cluster',
    'plan',
    'training',
    'checkpoint',
    'statistics',
    'evaluated',
    'done',
  ]) {
    assert.ok(events.includes(kind), `there is no event "${kind}"`);
  }
  assert.equal(end.stderr, '');
});

test('the run folder holds what its documents promise', async () => {
  const names = [
    'checkpoints',
    'cluster.json',
    'config.yaml',
    'evaluation.json',
    'events.jsonl',
    'metrics.jsonl',
    'model.onnx',
    'plan.json',
    'profile.json',
    'report.html',
    'trace.json',
  ];
  assert.deepEqual((await readdir(join(cwd, result.runFolder))).sort(), names);
  assert.equal((parseYaml(await text('config.yaml')) as { model: string }).model, 'digits');
  assert.equal(parseCluster(await text('cluster.json')).devices.length, 3);
  assert.equal(parseProfile(await text('profile.json')).layers.length, 6);
  assert.equal(parsePlan(await text('plan.json')).batchSize, 100);
  assert.ok((JSON.parse(await text('trace.json')) as { traceEvents: unknown[] }).traceEvents.length > 100);
  const metrics = await jsonLines(inRun('metrics.jsonl'));
  assert.deepEqual(
    metrics.map(({ round }) => round),
    Array.from({ length: roundCount }, (_, round) => round),
  );
  for (const { loss, samplesPerS } of metrics) assert.ok(Number.isFinite(loss) && Number(samplesPerS) > 0);
  assert.equal((await readdir(inRun('checkpoints'))).length, 6);
  assert.doesNotMatch(await text('events.jsonl'), /joinCode/, 'no secret is written down');
});

test('stock ONNX Runtime opens model.onnx and finds the same accuracy on digits it did not train on', async () => {
  const { test: digits } = await loadDataset('mnist');
  const dataset = defined(digits, 'the test digits');
  const { inputs, labels } = gather(
    dataset,
    Uint32Array.from({ length: dataset.sampleCount }, (_, index) => index),
  );
  const images = defined(inputs[0], 'the images');
  const session = await InferenceSession.create(inRun('model.onnx'));
  const feeds = {
    [defined(session.inputNames[0], 'an input')]: new OrtTensor('float32', images.data as Float32Array, images.shape),
  };
  const { data } = defined(Object.values(await session.run(feeds))[0], 'the output');
  await session.release();
  let correct = 0;
  labels.data.forEach((label, sample) => {
    const logits = (data as Float32Array).slice(sample * 10, sample * 10 + 10);
    if (logits.indexOf(Math.max(...logits)) === Number(label)) correct++;
  });
  assert.equal(dataset.sampleCount, 1500);
  // The order of sums may turn a tie.
  assert.ok(Math.abs(correct / 1500 - result.testAccuracy) <= 1 / 1500, `${correct / 1500} and ${result.testAccuracy}`);
});
