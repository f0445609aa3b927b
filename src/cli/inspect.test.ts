// asteroid inspect for a person, and the flags that decide what is trained, by which statistics, and for which sizes.

import assert from 'node:assert/strict';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { int64s, type Tensor, tensor } from '../graph/tensor.ts';
import { temporaryFolder } from '../testing/command.ts';
import { startCommandHost } from '../testing/command-host.ts';
import { onnxModel } from '../testing/onnx-models.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';

const cwd = temporaryFolder();
const host = startCommandHost(cwd);
after(() => host.close());

const exported = (net: string, file: string): string => join(fixtureFolder('exports'), net, file);
const data = (net: string): string => `npy:${exported(net, 'X.npy')},${exported(net, 'Y.npy')}`;

async function output(...args: readonly string[]): Promise<string> {
  const { code, stdout, stderr } = await host.run({ args, cwd });
  assert.equal(code, 0, stderr);
  return stdout;
}

async function refused(...args: readonly string[]): Promise<string> {
  const { code, stderr } = await host.run({ args, cwd });
  assert.equal(code, 2, stderr);
  return stderr.trim();
}

const random = (...shape: readonly number[]): Tensor => {
  const count = shape.reduce((product, size) => product * size, 1);
  return tensor(
    'float32',
    shape,
    Array.from({ length: count }, (_, index) => Math.sin(index * index * 37.1) / 3),
  );
};

before(async () => {
  await mkdir(cwd, { recursive: true });
  const images = {
    opset: 17,
    inputs: [{ name: 'x', type: 'float32', shape: ['N', 3, 'H', 'W'] }],
    nodes: [
      { operator: 'Conv', inputs: ['x', 'k'], outputs: ['c'] },
      { operator: 'GlobalAveragePool', inputs: ['c'], outputs: ['p'] },
      { operator: 'Flatten', inputs: ['p'], outputs: ['f'] },
      { operator: 'Gemm', inputs: ['f', 'w'], outputs: ['y'] },
    ],
    outputs: ['y'],
    initializers: { k: random(4, 3, 3, 3), w: random(4, 2) },
  } as const;
  await writeFile(join(cwd, 'images.onnx'), onnxModel(images));
  // The axis of the samples is gone in between.
  const fixed = {
    opset: 17,
    inputs: [{ name: 'x', type: 'float32', shape: [1, 4] }],
    nodes: [
      { operator: 'Reshape', inputs: ['x', 'vector'], outputs: ['a'] },
      { operator: 'MatMul', inputs: ['a', 'w'], outputs: ['b'] },
      { operator: 'Reshape', inputs: ['b', 'row'], outputs: ['c'] },
      { operator: 'MatMul', inputs: ['c', 'v'], outputs: ['y'] },
    ],
    outputs: ['y'],
    initializers: { w: random(4, 6), v: random(6, 3), vector: int64s([4]), row: int64s([1, 6]) },
  } as const;
  await writeFile(join(cwd, 'fixed.onnx'), onnxModel(fixed));
  const heads = {
    opset: 17,
    inputs: [{ name: 'x', type: 'float32', shape: ['N', 4] }],
    nodes: [
      { operator: 'MatMul', inputs: ['x', 'body'], outputs: ['hidden'] },
      { operator: 'MatMul', inputs: ['hidden', 'v'], outputs: ['first'] },
      { operator: 'MatMul', inputs: ['hidden', 'w'], outputs: ['second'] },
    ],
    outputs: ['first', 'second'],
    initializers: { body: random(4, 6), v: random(6, 3), w: random(6, 5) },
  } as const;
  await writeFile(join(cwd, 'heads.onnx'), onnxModel(heads));
  const devices =
    'devices: [{ name: a, memoryMiB: 512, kind: jetson-nano }]\nlinks: { default: { bandwidthMbps: 100 } }\n';
  await writeFile(join(cwd, 'cluster.yaml'), devices);
});

test('inspect prints what a file holds within 80 columns', async () => {
  const text = await output('inspect', '--model', exported('constants', 'script.onnx'));
  for (const line of text.split('\n').filter((one) => !one.includes('.onnx')))
    assert.ok(line.length <= 80, `${line.length}: ${line}`);
  assert.match(text, /^Inputs {5}x {2}float \[1, 3, 8, 8\]$/m);
  assert.match(text, /^Trained {4}6 tensors, 485 elements$/m);
  assert.match(text, /^ +blur +\[8, 1, 3, 3\] +72\n +a guess: every channel has the same filter$/m);
});

test('a guess is listed at the start, unless a flag decides; --train trains what is taken for fixed', async () => {
  const flags = ['--data', data('constants'), '--batch', '8', '--steps', '1', '--json'];
  const model = ['train', '--model', exported('constants', 'training.onnx'), ...flags];
  const plain = await output(...model, '--out', 'plain');
  assert.match(plain, /fixed {4}positions \[16, 8\]: it holds ramps or sinusoids/);
  assert.match(plain, /fixed {4}blur \[8, 1, 3, 3\]: every channel has the same filter/);
  const decided = await output(...model, '--train', 'posi*', '--train', 'blur', '--out', 'decided');
  assert.doesNotMatch(decided, /positions|blur/);
  assert.notEqual(lastLoss(plain), lastLoss(decided));
  assert.equal(
    await refused(...model, '--train', 'position', '--out', 'none'),
    'asteroid: --train position matches no float tensor: ' +
      'the closest of the model’s names are positions, deviation, mean, mask.',
  );
});

/** The loss of the first round, and the test's after the update. */
function lastLoss(lines: string): unknown {
  return lines
    .split('\n')
    .filter((line) => line.includes('"loss"'))
    .at(-1);
}

test('--batch-norm: a note where an inference export left some unmerged, none where the flag says it', async () => {
  const flags = ['--data', data('unmerged'), '--batch', '8', '--steps', '1', '--json'];
  const model = ['train', '--model', exported('unmerged', 'script.onnx'), ...flags];
  assert.match(await output(...model, '--out', 'batch'), /1 batch normalization uses the statistics of each batch/);
  for (const mode of ['inference', 'training'])
    assert.doesNotMatch(await output(...model, '--batch-norm', mode, '--out', mode), /statistics of each batch/);
  assert.equal(
    await refused(...model, '--batch-norm', 'eval'),
    'asteroid: --batch-norm eval must be one of inference, training.',
  );
});

test('open sizes for plan and profile: --input-shape or --data', async () => {
  const plan = ['plan', '--model', 'images.onnx', '--cluster', 'cluster.yaml', '--batch', '4'];
  assert.match(
    await refused(...plan),
    /"H", whose size must be given .* with --input-shape x=N,3,H,W, a number for each, or --data\.$/,
  );
  assert.match(await output(...plan, '--input-shape', 'x=N,3,8,8', '--json'), /"batchSize":4/);
  assert.match(await output(...plan, '--data', data('fresh'), '--json'), /"batchSize":4/);
  const profile = ['profile', '--model', 'images.onnx', '--batch', '2', '--engine', 'reference', '--json'];
  assert.match(await output(...profile, '--input-shape', 'N,3,6,6'), /"inputBytes":432/);
  assert.match(await refused(...profile, '--input-shape', 'N,3,6'), /does not fit the model's input x/);
});

test('a model that cannot be freed from its batch size is planned with that one', async () => {
  const plan = ['plan', '--model', 'fixed.onnx', '--cluster', 'cluster.yaml', '--batch', '8', '--json'];
  assert.match(await output(...plan), /"microBatchSize":1/);
  assert.equal(
    await refused(...plan, '--micro-batch', '4'),
    'asteroid: Model fixed.onnx was exported for a batch of exactly 1: use --micro-batch 1 and a --batch that is a ' +
      'multiple of it, or export it with a dynamic batch axis.',
  );
});

test('of several outputs one is trained: what only the others read is fixed, and has no part in a plan', async () => {
  const trained = async (...flags: readonly string[]): Promise<unknown> => {
    const { tensors } = JSON.parse(await output('inspect', '--model', 'heads.onnx', '--json', ...flags)) as {
      readonly tensors: readonly { readonly name: string; readonly trained: boolean; readonly why: string }[];
    };
    assert.equal(tensors.find((tensor) => !tensor.trained)?.why, 'only outputs that are not trained read it');
    return tensors.filter((tensor) => tensor.trained).map(({ name }) => name);
  };
  assert.deepEqual(await trained(), ['body', 'v']);
  assert.deepEqual(await trained('--output', 'second'), ['body', 'w']);
  const profile = ['profile', '--model', 'heads.onnx', '--batch', '1', '--engine', 'reference', '--json'];
  assert.match(await output(...profile, '--model-output', 'second'), /"weightBytes":120/);
  assert.doesNotMatch(await output(...profile), /"weightBytes":120/);
  assert.equal(
    await refused(...profile, '--model-output', 'third'),
    'asteroid: --model-output third is not an output of the model: it has first, second.',
  );
});
