// Commands of a training run by hand: train from a config file, eval, export and verify, as they are typed.

import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { InferenceSession, Tensor as OrtTensor } from 'onnxruntime-node';
import { defined } from '../assert.ts';
import { tensor } from '../graph/tensor.ts';
import { jsonLines, runCommand, temporaryFolder, words } from '../testing/command.ts';
import { type HostedEnd, startCommandHost } from '../testing/command-host.ts';
import { onnxModel } from '../testing/onnx-models.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';
import { readNpy, writeNpy } from '../training/data/npy.ts';

const cwd = temporaryFolder();
const at = (name: string): string => join(cwd, name);
const fixture = join(fixtureFolder('pytorch'), 'mlp');
const model = join(fixture, 'opset17-dynamic.onnx');
const data = `npy:${join(fixture, 'X.npy')},${join(fixture, 'Y.npy')}`;
const timeout = 120_000;

const host = startCommandHost(cwd);
after(() => host.close());

async function run(...args: readonly string[]): Promise<HostedEnd> {
  const end = await host.run({ args, cwd });
  assert.equal(end.code, 0, end.stderr);
  return end;
}

async function json<T>(...args: readonly string[]): Promise<T> {
  return JSON.parse((await run(...args, '--json')).stdout) as T;
}

test('train from a config file; eval and export of its run; stock ONNX Runtime finds the same loss', {
  timeout,
}, async () => {
  await writeFile(
    at('run.yaml'),
    `model: ${model}\ndata: "${data}"\neval-data: "${data}"\nbatch: 16\nepochs: 2\nlr: 0.1\nmomentum: ` +
      '0.9\nshuffle: false\n',
  );
  const end = await run('train', '--config', 'run.yaml', '--lr', '0.05', '--out', 'run', '--json');
  const events = end.stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  assert.equal(events.filter(({ event }) => event === 'round').length, 12);
  assert.match(await readFile(at('run/config.yaml'), 'utf8'), /^lr: 0\.05$/m);
  const done = defined(events.at(-1), 'the last event');
  const trained = await json<{ accuracy: number; loss: number; sampleCount: number }>(
    'eval',
    '--model',
    'run/model.onnx',
    '--data',
    data,
  );
  assert.deepEqual([trained.accuracy, trained.loss], [done['testAccuracy'], done['testLoss']]);
  const stock = await stockLoss(await readFile(at('run/model.onnx')));
  assert.ok(Math.abs(trained.loss - stock.loss) < 1e-5 * stock.loss, `${trained.loss} and ${stock.loss}`);
  assert.equal(trained.accuracy, stock.accuracy);
  assert.equal(trained.sampleCount, 96);
  assert.deepEqual(
    await json('eval', '--run', 'run', '--data', data, '--engine', 'reference').then(round6),
    round6(trained),
  );
  const { stdout } = await run('eval', '--run', 'run', '--data', data);
  assert.equal(
    stdout,
    `Accuracy   ${(trained.accuracy * 100).toFixed(2)} %\nLoss       ${trained.loss.toFixed(6)}\nSamples    96\n`,
  );
  const exported = await json<{ file: string; round: number }>('export', '--run', 'run', '-o', 'exported.onnx');
  assert.deepEqual([exported.file, exported.round], ['exported.onnx', 12]);
  assert.deepEqual(await readFile(at('exported.onnx')), await readFile(at('run/model.onnx')));
});

/** The engines round in their own ways. */
function round6(result: { readonly [name: string]: unknown } | unknown): Record<string, number> {
  const { accuracy, loss, sampleCount } = result as Record<string, number>;
  return Object.fromEntries(
    Object.entries({ accuracy, loss, sampleCount }).map(([name, value]) => [name, Number(value?.toPrecision(5))]),
  );
}

async function stockLoss(bytes: Uint8Array): Promise<{ loss: number; accuracy: number }> {
  const inputs = readNpy({ name: 'X', bytes: await readFile(join(fixture, 'X.npy')) });
  const labels = readNpy({ name: 'Y', bytes: await readFile(join(fixture, 'Y.npy')) });
  const session = await InferenceSession.create(bytes);
  const feeds = {
    [defined(session.inputNames[0], 'an input')]: new OrtTensor('float32', inputs.data as Float32Array, inputs.shape),
  };
  const output = defined(Object.values(await session.run(feeds))[0], 'the output');
  await session.release();
  const [count, classCount] = output.dims as [number, number];
  let [loss, correct] = [0, 0];
  for (let sample = 0; sample < count; sample++) {
    const logits = [...(output.data as Float32Array).slice(sample * classCount, (sample + 1) * classCount)];
    const label = Number(labels.data[sample]);
    const most = Math.max(...logits);
    loss +=
      most +
      Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0)) -
      defined(logits[label], 'a logit');
    if (logits.indexOf(most) === label) correct++;
  }
  return { loss: loss / count, accuracy: correct / count };
}

test('mean squared error has no accuracy, anywhere', async () => {
  const weights = tensor('float32', [2, 1], [0.5, -0.5]);
  const nodes = [{ operator: 'MatMul', inputs: ['x', 'w'], outputs: ['y'] }];
  await writeFile(
    at('line.onnx'),
    onnxModel({
      opset: 17,
      inputs: [{ name: 'x', type: 'float32', shape: ['N', 2] }],
      nodes,
      outputs: ['y'],
      initializers: { w: weights },
    }),
  );
  await writeFile(at('lx.npy'), writeNpy(tensor('float32', [4, 2], [1, 0, 0, 1, 1, 1, 0, 0])));
  await writeFile(at('ly.npy'), writeNpy(tensor('float32', [4, 1], [1, 0, 1, 0])));
  const { stdout } = await run(
    ...['train', '--model', 'line.onnx', '--data', 'npy:lx.npy,ly.npy', '--eval-data', 'npy:lx.npy,ly.npy'],
    ...['--loss', 'mse', '--batch', '4', '--steps', '2', '--out', 'line'],
  );
  assert.doesNotMatch(stdout, /accuracy/);
  const [first] = await jsonLines(at('line/metrics.jsonl'));
  // Errors −0.5, −0.5, −1, 0: squares 0.25, 0.25, 1, 0.
  assert.ok(Math.abs(Number(first?.['loss']) - 0.375) < 1e-6);
  assert.equal(first?.['accuracy'], null);
  const tested = await run('eval', '--model', 'line/model.onnx', '--data', 'npy:lx.npy,ly.npy', '--loss', 'mse');
  assert.match(tested.stdout, /^Loss {7}0\.\d+\nSamples {4}4\n$/);
});

test('verify: a pipeline and data parallelism over three workers equal one device; nothing equals within 1e-12', {
  timeout,
}, async () => {
  const flags = [
    'verify',
    '--model',
    model,
    '--data',
    data,
    ...words('--batch 16 --steps 5 --lr 0.1 --momentum 0.9 --workers 3'),
  ];
  const stages = [{ layers: [0, 3], devices: ['one', 'two', 'three'], samples: [7, 5, 4], inFlight: 1 }];
  await writeFile(
    at('replicas.json'),
    JSON.stringify({ schedule: '1f1b', batchSize: 16, microBatchSize: 16, microBatchCount: 1, stages }),
  );
  const { stdout } = await run(...flags, '--planner', 'straight', '--micro-batch', '4');
  const lines = stdout.trimEnd().split('\n');
  assert.equal(
    lines.filter((line) => /^(?:Losses)? {4,}\d {2}\d\.\d{9} {3}\d\.\d{9} {3,}\d\.\de[+-]\d+$/.test(line)).length,
    5,
    stdout,
  );
  assert.match(
    defined(lines.at(-2), 'a line'),
    /^Weights {4}after the last round (do not differ|differ by at most \d\.\de-\d+ \(.+\))$/,
  );
  assert.match(defined(lines.at(-1), 'a line'), /^Equal {6}within 0\.00001: 3 devices trained as one does$/);
  const parallel = lastEvent(await run(...flags, '--planner', 'dp', '--json'));
  assert.equal(parallel['equal'], true);
  assert.equal((parallel['losses'] as unknown[]).length, 5);
  const strict = await runCommand([...flags, '--plan', 'replicas.json', '--tolerance', '1e-12', '--json'], { cwd });
  assert.equal(strict.code, 1);
  assert.equal(strict.stderr, '');
  const { equal, lossDifference, weightDifference } = lastEvent(strict);
  assert.equal(equal, false);
  assert.ok(Number(lossDifference) <= 1e-5 && Number(weightDifference) <= 1e-5);
});

test('verify --mode async: two workers whose rounds overlap equal one device with late gradients', {
  timeout,
}, async () => {
  const { stdout } = await run(
    ...['verify', '--model', model, '--data', data, '--mode', 'async', '--planner', 'straight'],
    ...words('--batch 16 --steps 6 --lr 0.1 --momentum 0.9 --workers 2'),
  );
  assert.match(stdout, /^Stream {5}from round 0 on rounds overlap, with weights that lag behind by 1 round/m);
  assert.match(
    stdout,
    /^Equal {6}within 0\.00001: 2 devices trained as one does with gradients that are 1 round late$/m,
  );
  const losses = [...stdout.matchAll(/^(?:Losses)? {4,}\d {2}(\d\.\d{9}) {3}(\d\.\d{9}) {3,}\d\.\de[+-]\d+$/gm)];
  assert.equal(losses.length, 6, stdout);
  // Both of the first rounds read version 0: one device without delay would not.
  assert.ok(
    losses.every(([, over, single]) => Math.abs(Number(over) - Number(single)) <= 1e-5),
    stdout,
  );
});

function lastEvent({ stdout }: HostedEnd): Record<string, unknown> {
  return JSON.parse(defined(stdout.trimEnd().split('\n').at(-1), 'a line')) as Record<string, unknown>;
}

test('a recurrent cell: verified, profiled and planned with its states', { timeout }, async () => {
  const folder = fixtureFolder('forward-gradient');
  const cell = ['--model', join(folder, 'cell.onnx'), '--state', 'h1_next=h1', '--state', 'h2_next=h2'];
  const steps = ['--data', `npy:${join(folder, 'XS.npy')},${join(folder, 'YS.npy')}`];
  const mode = ['--mode', 'forward-gradient', '--batch', '20'];
  const verified = await run('verify', ...cell, ...steps, ...mode, '--workers', '2', '--steps', '4', '--json');
  const last = defined(verified.stdout.trimEnd().split('\n').at(-1), 'the last event');
  const found = JSON.parse(last) as { equal: boolean; losses: readonly unknown[] };
  assert.deepEqual([found.equal, found.losses.length], [true, 4]);
  const devices = ['this-device', 'other'].map((name) => ({ name, kind: 'this-device', memoryMiB: 500 }));
  await writeFile(at('two.json'), JSON.stringify({ devices, links: { default: { bandwidthMbps: 1000 } } }));
  await run('profile', ...cell, ...steps, '--tangents', '1', '--batch', '4', '-o', 'cell.json');
  const given = [...mode, '--micro-batch', '4', '--cluster', 'two.json'];
  const { plan } = await json<{ plan: { stages: readonly { layers: readonly number[] }[] } }>(
    ...['plan', '--profile', 'cell.json', ...given, '-o', 'cell-plan.json'],
  );
  assert.equal(plan.stages.at(-1)?.layers[1], 5);
  const { roundMs } = await json<{ roundMs: number }>(
    ...['simulate', '--profile', 'cell.json', '--cluster', 'two.json', '--plan', 'cell-plan.json'],
  );
  assert.ok(roundMs > 0);
  await run('train', ...cell, ...steps, ...mode, '--plan', 'cell-plan.json', '--workers', '2', '--steps', '2');
});
