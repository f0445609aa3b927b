// asteroid infer as it is typed: outputs of stock ONNX Runtime on the whole model, whatever the plan and wherever the
// samples come from.

import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { before, test } from 'node:test';
import * as runtime from 'onnxruntime-node';
import { layers } from '../graph/layers.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import { inferenceMode } from '../graph/onnx/modes.ts';
import { type Tensor, tensor } from '../graph/tensor.ts';
import { buildModel } from '../models/zoo.ts';
import { createRandom } from '../random.ts';
import { inflate } from '../storage/node/inflate.ts';
import { type CommandEnd, runCommand, temporaryFolder } from '../testing/command.ts';
import { writeExternalModel } from '../testing/external-model.ts';
import { readNpy, writeNpy } from '../training/data/npy.ts';
import { readNpz } from '../training/data/npz.ts';

const cwd = temporaryFolder();
const at = (name: string): string => join(cwd, name);
const options = { timeout: 120_000 };

const sampleCount = 21;
const random = createRandom(3);
const pixels = Float32Array.from({ length: sampleCount * 784 }, () => random.uniform());
const wanted: number[] = [];

before(async () => {
  const graph = inferenceMode(buildModel('digits', { seed: 4 }).graph);
  const model = exportGraph(graph);
  await writeFile(at('digits.onnx'), model);
  writeExternalModel(at('outside.onnx'), graph);
  await writeFile(at('x.npy'), writeNpy(tensor('float32', [sampleCount, 1, 28, 28], [...pixels])));
  const session = await runtime.InferenceSession.create(model);
  const name = session.inputNames[0] as string;
  const feeds = { [name]: new runtime.Tensor('float32', pixels, [sampleCount, 1, 28, 28]) };
  const { data } = Object.values(await session.run(feeds))[0] as runtime.Tensor;
  wanted.push(...(data as Float32Array));
  await session.release();
});

function assertWanted(found: Tensor, what: string): void {
  assert.deepEqual(found.shape, [sampleCount, 10], what);
  const scale = Math.max(...wanted.map(Math.abs));
  const difference = Math.max(...wanted.map((value, index) => Math.abs(Number(found.data[index]) - value)));
  assert.ok(difference <= 1e-5 * scale, `${what}: ${difference} of ${scale}`);
}

async function infer(args: readonly string[], through: readonly string[] = []): Promise<CommandEnd> {
  const end = await runCommand(['infer', '--model', 'digits.onnx', ...args], { cwd, through });
  assert.equal(end.code, 0, end.stderr);
  return end;
}

test('three workers give what ONNX Runtime gives, in an npz and in order', options, async () => {
  const { stdout } = await infer([
    '--data',
    'npy:x.npy',
    '-o',
    'y.npz',
    '--workers',
    '3',
    '--micro-batch',
    '2',
    '--json',
  ]);
  const lines = stdout.trim().split('\n');
  const done = JSON.parse(lines.at(-1) ?? '') as Record<string, unknown>;
  assert.deepEqual([done['event'], done['sampleCount'], done['accuracy']], ['done', sampleCount, null]);
  const arrays = readNpz({ name: 'y.npz', bytes: await readFile(at('y.npz')) }, inflate);
  assert.equal(arrays.size, 1);
  assertWanted([...arrays.values()][0] as Tensor, 'y.npz');
});

test('from stdin to stdout nothing but the array is written; weights are outside the model', options, async () => {
  await infer(
    ['--model', 'outside.onnx', '--data', '-', '-o', '-', '--batch', '5', '--micro-batch', '5'],
    ['sh', '-c', 'cat x.npy | "$@" > y.npy', 'sh'],
  );
  assertWanted(readNpy({ name: 'y.npy', bytes: await readFile(at('y.npy')) }), 'y.npy');
});

test('two outputs, one of them from the middle of the model, in one npz', options, async () => {
  const graph = inferenceMode(buildModel('digits', { seed: 4 }).graph);
  const middle = layers(graph).layers[0]?.outputs[0] ?? assert.fail('a layer');
  const { name, type, shape } = middle;
  const bytes = exportGraph({ ...graph, outputs: [...graph.outputs, { name, type, shape }] });
  await writeFile(at('two.onnx'), bytes);
  const session = await runtime.InferenceSession.create(bytes);
  const feeds = { [session.inputNames[0] as string]: new runtime.Tensor('float32', pixels, [sampleCount, 1, 28, 28]) };
  const found = (await session.run(feeds))[name]?.data as Float32Array;
  await session.release();
  const outputs = ['--output', graph.outputs[0]?.name ?? '', '--output', name];
  await infer(['--model', 'two.onnx', ...outputs, '--data', 'npy:x.npy', '-o', 'two.npz', '--workers', '3', '--json']);
  const arrays = readNpz({ name: 'two.npz', bytes: await readFile(at('two.npz')) }, inflate);
  assert.deepEqual([...arrays.keys()], [graph.outputs[0]?.name, name]);
  assertWanted([...arrays.values()][0] as Tensor, 'the first of two');
  const own = arrays.get(name) ?? assert.fail(name);
  assert.deepEqual(own.shape, [sampleCount, ...shape.slice(1)]);
  for (const [index, value] of found.entries())
    assert.ok(Math.abs(Number(own.data[index]) - value) <= 1e-5, `element ${index}`);
});

test('a plan with replicas and unequal shares; labels give an accuracy', options, async () => {
  const layerCount = layers(inferenceMode(buildModel('digits').graph)).layers.length;
  const plan = {
    ...{ planner: 'by hand', schedule: 'inference', batchSize: 12, microBatchSize: 6, microBatchCount: 2 },
    stages: [
      { layers: [0, 2], devices: ['worker-1', 'worker-2'], samples: [4, 2], inFlight: 2 },
      { layers: [2, layerCount], devices: ['worker-3'], samples: [6], inFlight: 2 },
    ],
  };
  await writeFile(at('plan.json'), JSON.stringify(plan));
  const best = Array.from({ length: sampleCount }, (_, sample) => {
    const own = wanted.slice(10 * sample, 10 * sample + 10);
    return own.indexOf(Math.max(...own));
  });
  // A third is labelled wrong.
  const labels = best.map((label, sample) => (sample % 3 === 0 ? (label + 1) % 10 : label));
  await writeFile(at('labels.npy'), writeNpy(tensor('int64', [sampleCount], labels)));
  const { stdout } = await infer([
    ...['--data', 'npy:x.npy,labels.npy', '-o', 'z.npy', '--workers', '3', '--plan', 'plan.json', '--json'],
  ]);
  const done = JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as Record<string, unknown>;
  assert.equal(done['accuracy'], 14 / 21);
  assertWanted(readNpy({ name: 'z.npy', bytes: await readFile(at('z.npy')) }), 'z.npy');
});
