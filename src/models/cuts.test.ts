// Whole models cut in two have the uncut model's gradients, wherever they are cut. Tests a few cuts of each; all with
// EVERY_CUT=1.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { differentiate, outputGradientName, type StageGraphs } from '../autodiff/differentiate.ts';
import type { Engine } from '../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../engine/node/onnxruntime-node.ts';
import { gradientName } from '../graph/gradient-name.ts';
import type { Graph } from '../graph/graph.ts';
import { layers } from '../graph/layers.ts';
import { importModel } from '../graph/onnx/import.ts';
import { type StageGraph, stageExtractor } from '../graph/stage.ts';
import { type Tensor, tensor } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { randomTensor } from '../testing/gradient-check.ts';
import { runOnEngine } from '../testing/onnxruntime-check.ts';
import { familyFixtures } from '../testing/pytorch-fixtures.ts';
import { buildModel } from './zoo.ts';

/** Two samples: batch normalization needs more than one. */
const batchSize = 2;
/**
 * Relative to the norm of a parameter's gradient. The same operators run on the same numbers; only fusion at the cut
 * differs.
 */
const tolerance = 1e-4;

let engine: Engine;

before(async () => {
  engine = await createOnnxRuntimeNodeEngine();
});

after(async () => {
  await engine.close();
});

const unet = (): Graph => {
  const fixture = familyFixtures().find(({ net }) => net === 'unet-transpose');
  assert.ok(fixture !== undefined, 'the U-Net is among the fixtures');
  return importModel(readFileSync(fixture.modelPath)).graph;
};

const models: Readonly<Record<string, () => Graph>> = {
  'ResNet-18': () => buildModel('resnet-18:input=32,classes=10', { seed: 1 }).graph,
  MobileNetV2: () => buildModel('mobilenet-v2:input=32,classes=10,dropout=0', { seed: 1 }).graph,
  ShuffleNetV2: () => buildModel('shufflenet-v2-x0.5:input=32,classes=10', { seed: 1 }).graph,
  'a U-Net': unet,
  'BERT-small': () => buildModel('bert-small:sequence=8,dropout=0', { seed: 1 }).graph,
};

type Values = Map<string, Tensor>;

async function run(graph: Graph, values: Values): Promise<void> {
  if (graph.outputs.length === 0) return;
  for (const [name, value] of await runOnEngine(engine, graph, values)) values.set(name, value);
}

function graphsOf(stage: StageGraph): StageGraphs {
  const names = (cuts: StageGraph['inputs']): string[] =>
    cuts.filter(({ differentiable }) => differentiable).map(({ name }) => name);
  const isLast = stage.outputs.every(({ differentiable }) => !differentiable) || stage.outputs.length === 1;
  return differentiate(stage, {
    inputs: names(stage.inputs),
    outputs: isLast ? stage.outputs.slice(0, 1).map(({ name }) => name) : names(stage.outputs),
  });
}

/**
 * The gradients of all parameters, through the stages in order and back. `values`: inputs, and the gradient of the
 * model's output.
 */
async function gradientsOf(stages: readonly StageGraph[], given: ReadonlyMap<string, Tensor>): Promise<Values> {
  const passes = stages.map((stage) => ({
    stage,
    graphs: graphsOf(stage),
    values: new Map(stage.graph.initializers) as Values,
  }));
  const travelling: Values = new Map(given);
  for (const { stage, graphs, values } of passes) {
    for (const { name } of stage.inputs) values.set(name, travelling.get(name) as Tensor);
    await run(graphs.forward, values);
    for (const { name } of stage.outputs) travelling.set(name, values.get(name) as Tensor);
  }
  const gradients: Values = new Map();
  for (const { stage, graphs, values } of passes.reverse()) {
    for (const { name } of stage.outputs) {
      const seed = travelling.get(outputGradientName(name));
      if (seed !== undefined) values.set(outputGradientName(name), seed);
    }
    await run(graphs.backward, values);
    for (const name of graphs.inputGradients)
      travelling.set(outputGradientName(name), values.get(gradientName(name)) as Tensor);
    for (const name of graphs.parameterGradients) gradients.set(name, values.get(gradientName(name)) as Tensor);
  }
  return gradients;
}

function norm(values: Float32Array): number {
  let sum = 0;
  for (const value of values) sum += value * value;
  return Math.sqrt(sum);
}

function checkGradients(found: Values, expected: Values, where: string): void {
  assert.deepEqual([...found.keys()].sort(), [...expected.keys()].sort(), where);
  const largest = Math.max(...[...expected.values()].map(({ data }) => norm(data as Float32Array)));
  for (const [name, value] of expected) {
    const [a, b] = [found.get(name)?.data as Float32Array, value.data as Float32Array];
    const difference = norm(a.map((element, index) => element - (b[index] as number)));
    // Gradients that cancel to zero (a bias before a normalization) are compared with the model's largest gradient.
    const scale = Math.max(norm(b), largest * 1e-4);
    assert.ok(
      difference <= tolerance * scale,
      `${where}: the gradient of ${name} differs by ${difference / scale} of its norm`,
    );
  }
}

for (const [model, build] of Object.entries(models)) {
  test(`${model} cut in two has the uncut model's gradients`, async () => {
    const sequence = layers(build());
    const count = sequence.layers.length;
    const extract = stageExtractor(sequence, batchSize);
    const whole = extract(0, count);
    const random = createRandom(4);
    const given = new Map<string, Tensor>();
    for (const { name, type, shape } of whole.graph.inputs) {
      const sizes = shape as readonly number[];
      const tokens = (): number[] =>
        Array.from({ length: sizes.reduce((a, b) => a * b, 1) }, () => random.integer(1000));
      given.set(
        name,
        type === 'int64' ? tensor('int64', sizes, tokens()) : randomTensor(random, { type, shape: sizes }),
      );
    }
    const output = whole.graph.outputs[0];
    assert.ok(output !== undefined, 'the model has an output');
    given.set(
      outputGradientName(output.name),
      randomTensor(random, { type: output.type, shape: output.shape as readonly number[] }),
    );
    const expected = await gradientsOf([whole], given);
    const every = process.env['EVERY_CUT'] === '1' ? 1 : Math.ceil(count / 2);
    for (let cut = 1; cut < count; cut += every) {
      checkGradients(
        await gradientsOf([extract(0, cut), extract(cut, count)], given),
        expected,
        `cut ${cut} of ${count}`,
      );
    }
  });
}
