// Normalizations of values far from zero keep their digits: gradients of one step against PyTorch's in float64, on each
// form of a pass, with PyTorch's own float32 error as the measure. The nets are those of
// test/fixtures/pytorch/digits/make_digits.py.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { defined } from '../assert.ts';
import { differentiate, outputGradientName } from '../autodiff/differentiate.ts';
import { gradientName } from '../graph/gradient-name.ts';
import { importModel } from '../graph/onnx/import.ts';
import { trainingMode } from '../graph/onnx/modes.ts';
import { instantiate } from '../graph/static.ts';
import { elementCount, type Tensor } from '../graph/tensor.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';
import { runGraph } from '../testing/run-graph.ts';
import type { Engine } from './engine.ts';
import { loweringOf } from './lowering.ts';
import { createOnnxRuntimeNodeEngine } from './node/onnxruntime-node.ts';
import { createReferenceEngine } from './reference.ts';

interface Case {
  readonly x: readonly number[];
  readonly labels: readonly number[];
  /** `error`: PyTorch's in float32, relative (2-norm). */
  readonly gradients: readonly { readonly name: string; readonly shape: readonly number[]; readonly error: number }[];
  /** Running statistics after the step. */
  readonly buffers: readonly { readonly name: string; readonly shape: readonly number[] }[];
}

const folder = join(fixtureFolder('pytorch'), 'digits');
const { cases } = JSON.parse(readFileSync(join(folder, 'cases.json'), 'utf8')) as { cases: Record<string, Case> };

/** How many times PyTorch's float32 error is accepted. */
const factor = 4;

const engines = new Map<'onnxruntime' | 'reference', Engine>();

before(async () => {
  engines.set('onnxruntime', await createOnnxRuntimeNodeEngine());
  engines.set('reference', createReferenceEngine());
});

after(async () => {
  for (const engine of engines.values()) await engine.close();
});

/** The file of a case: its input, and the exact values by name. */
function readCase(name: string): { readonly x: Tensor; readonly exact: ReadonlyMap<string, Float64Array> } {
  const { x: shape, gradients, buffers } = defined(cases[name], name);
  const bytes = new Uint8Array(readFileSync(join(folder, `${name}.bin`)));
  const take = (at: number, length: number): ArrayBuffer => bytes.slice(at, at + length).buffer;
  let at = 4 * elementCount(shape);
  const x: Tensor = { type: 'float32', shape, data: new Float32Array(take(0, at)) };
  const exact = new Map<string, Float64Array>();
  for (const entry of [...gradients, ...buffers]) {
    const length = 8 * elementCount(entry.shape);
    exact.set(entry.name, new Float64Array(take(at, length)));
    at += length;
  }
  return { x, exact };
}

/** Softmax minus one-hot, over the number of samples: the gradient of the mean cross-entropy. */
function lossGradient({ shape, data }: Tensor, labels: readonly number[]): Tensor {
  const [samples = 1, classes = 1] = shape;
  const gradient = labels.flatMap((label, sample) => {
    const logits = Array.from((data as Float32Array).subarray(sample * classes, (sample + 1) * classes));
    const largest = Math.max(...logits);
    const powers = logits.map((logit) => Math.exp(logit - largest));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((power, index) => (power / sum - (index === label ? 1 : 0)) / samples);
  });
  return { type: 'float32', shape, data: Float32Array.from(gradient) };
}

/** One step: gradients and new running statistics by the names of parameters and buffers. */
async function stepOf(name: string, engine: Engine, isLowered: boolean): Promise<ReadonlyMap<string, Tensor>> {
  const { graph } = importModel(new Uint8Array(readFileSync(join(folder, `${name}.onnx`))));
  const stage = instantiate(trainingMode(graph), defined(cases[name], name).x[0] as number);
  const graphs = differentiate(stage, { inputs: [], ...(isLowered ? loweringOf(engine) : {}) });
  const values: Record<string, Tensor> = Object.fromEntries(stage.graph.initializers);
  values['x'] = readCase(name).x;
  Object.assign(values, await runGraph(engine, graphs.forward, values));
  values[outputGradientName('y')] = lossGradient(defined(values['y'], 'y'), defined(cases[name], name).labels);
  const found = await runGraph(engine, graphs.backward, values);
  return new Map([
    ...graphs.parameterGradients.map((key) => [key, defined(found[gradientName(key)], key)] as const),
    ...graphs.bufferUpdates.map(({ buffer, output }) => [buffer, defined(values[output], output)] as const),
  ]);
}

function norm(values: ArrayLike<number>): number {
  return Math.hypot(...Array.from(values));
}

/** |found − exact| / |exact| */
function relativeError(found: Tensor, exact: Float64Array): number {
  const data = found.data as Float32Array;
  return norm(exact.map((value, index) => (data[index] as number) - value)) / norm(exact);
}

for (const [form, engine, isLowered] of [
  ['lowered to blocks', 'onnxruntime', true],
  ['plain', 'onnxruntime', false],
  ['on the reference engine', 'reference', false],
] as const) {
  for (const [name, { gradients, buffers }] of Object.entries(cases)) {
    test(`${name}, ${form}: gradients are as near as PyTorch's, and running statistics are PyTorch's`, async () => {
      const found = await stepOf(name, defined(engines.get(engine), engine), isLowered);
      const { exact } = readCase(name);
      const largest = Math.max(...gradients.map((entry) => norm(defined(exact.get(entry.name), entry.name))));
      // a bias in front of a batch normalization has no gradient but rounding errors
      const counted = gradients.filter((entry) => norm(exact.get(entry.name) as Float64Array) > 1e-8 * largest);
      const errorOf = (key: string): number =>
        relativeError(defined(found.get(key), key), exact.get(key) as Float64Array);
      const theirs = Math.max(...counted.map(({ error }) => error));
      for (const entry of counted) {
        const ours = errorOf(entry.name);
        assert.ok(ours <= factor * theirs, `${entry.name}: ${ours}, PyTorch's worst parameter is ${theirs} off`);
      }
      for (const { name: buffer } of buffers) {
        const tolerance = 1e-6 * (1 + Number(name.split('-')[1]));
        assert.ok(errorOf(buffer) <= tolerance, `${buffer} is ${errorOf(buffer)} off`);
      }
    });
  }
}
