// Every family against torchvision's or transformers' model with the same weights, on ONNX Runtime: logits in
// evaluation mode; in training mode with batch statistics logits, loss, running means and gradients.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { differentiate, outputGradientName } from '../autodiff/differentiate.ts';
import { createOnnxRuntimeNodeEngine } from '../engine/node/onnxruntime-node.ts';
import { gradientName } from '../graph/gradient-name.ts';
import type { Graph } from '../graph/graph.ts';
import { inferenceMode } from '../graph/onnx/modes.ts';
import { instantiate } from '../graph/static.ts';
import { elementCount, type Tensor, tensor, toNumbers, wrap } from '../graph/tensor.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import { inDoublePrecision } from '../testing/gradient-check.ts';
import { runOnEngine } from '../testing/onnxruntime-check.ts';
import { type ExpectedTraining, uniform, type ZooCase, zooCase, zooCaseNames } from '../testing/zoo-cases.ts';

type Gradients = NonNullable<ExpectedTraining['gradients']>;

/** Relative to the largest logit, and to the norm of each gradient. */
const tolerance = 1e-4;
/** In float64; the fixture has seven digits. */
const exactTolerance = 1e-6;
/**
 * Nets without kinks (ReLU, max pool). In others, rounding that moves a value across a kink changes gradients by some
 * 0.3%.
 */
const smooth = /^(bert|vit|efficientnet|fc-s:activation=tanh)/;

const engine = await createOnnxRuntimeNodeEngine();
after(() => engine.close());

for (const name of zooCaseNames) {
  test(`${name}: PyTorch's logits; in training mode its loss, statistics and gradients, too`, async () => {
    const item = zooCase(name);
    const { graph, input, evaluation, parameterCount } = item;
    const counted = graph.parameters.reduce(
      (sum, parameter) => sum + elementCount((graph.initializers.get(parameter) as Tensor).shape),
      0,
    );
    assert.equal(counted, parameterCount);
    const { graph: model } = instantiate(inferenceMode(graph), input.shape[0] as number);
    const results = await runOnEngine(engine, withParametersAsInputs(model), values(model, input));
    checkLogits(results.get(logitsName(model)), evaluation, tolerance);
    const run: Run = (part, known) => runOnEngine(engine, part, known);
    if (item.training !== undefined)
      await checkTraining(item, item.training, run, [tolerance, smooth.test(name) ? tolerance : 0.02]);
  });
}

test("mobilenet-v2, reduced: PyTorch's gradients in float64 by the reference", async () => {
  const item = zooCase('mobilenet-v2, reduced');
  const double = ({ shape, data }: Tensor): Tensor => wrap('float64', shape, Float64Array.from(data as Float32Array));
  const exact = { ...item, graph: inDoublePrecision(item.graph), input: double(item.input) };
  await checkTraining(exact, item.training as ExpectedTraining, async (part, known) => evaluateGraph(part, known), [
    exactTolerance,
    exactTolerance,
  ]);
});

type Run = (graph: Graph, values: ReadonlyMap<string, Tensor>) => Promise<ReadonlyMap<string, Tensor>>;

async function checkTraining(
  { graph, input, labels }: ZooCase,
  expected: ExpectedTraining,
  run: Run,
  [allowed, allowedOfGradients]: readonly [number, number],
): Promise<void> {
  const stage = instantiate(graph, input.shape[0] as number);
  const { forward, backward, bufferUpdates } = differentiate(stage, { inputs: [] });
  const known = values(stage.graph, input);
  for (const [name, value] of await run(forward, known)) known.set(name, value);
  const output = logitsName(graph);
  const logits = known.get(output) as Tensor;
  checkLogits(logits, expected.logits, allowed);
  const means = bufferUpdates.filter(({ buffer }) => buffer.endsWith('.running_mean'));
  assert.deepEqual(means.map(({ buffer }) => buffer).sort(), Object.keys(expected.runningMeanSums).sort());
  for (const { buffer, output: updated } of means) {
    const mean = toNumbers(known.get(updated) as Tensor);
    const scale = mean.reduce((sum, x) => sum + Math.abs(x), 0);
    const sum = mean.reduce((total, x) => total + x, 0);
    assert.ok(
      Math.abs(sum - (expected.runningMeanSums[buffer] as number)) <= allowed * scale,
      `${buffer} sums to ${sum}`,
    );
  }
  const { loss, gradient } = crossEntropy(logits, labels);
  assert.ok(
    Math.abs(loss - expected.loss) <= allowed * expected.loss,
    `the loss is ${loss}, PyTorch's ${expected.loss}`,
  );
  if (expected.gradients === undefined) return;
  known.set(outputGradientName(output), gradient);
  checkGradients(await run(backward, known), graph, expected.gradients, allowedOfGradients);
}

function checkGradients(
  found: ReadonlyMap<string, Tensor>,
  { parameters }: Graph,
  expected: Gradients,
  allowedRatio: number,
): void {
  assert.deepEqual([...parameters].sort(), Object.keys(expected).sort());
  // Some gradients are zero except for rounding (of biases before a normalization): compare these on the scale of all.
  const largest = Math.max(...Object.values(expected).map(([norm]) => norm));
  for (const name of parameters) {
    const [norm, product] = expected[name] as readonly [number, number];
    const moments = momentsOf(found.get(gradientName(name)) as Tensor, uniform(`direction ${name}`));
    const allowed = allowedRatio * Math.max(norm, 1e-3 * largest);
    const what = `the gradient of ${name} has`;
    assert.ok(Math.abs(moments.norm - norm) <= allowed, `${what} the norm ${moments.norm}, PyTorch's ${norm}`);
    assert.ok(
      Math.abs(moments.product - product) <= allowed,
      `${what} the product ${moments.product}, PyTorch's ${product}`,
    );
  }
}

function momentsOf({ data }: Tensor, direction: (index: number) => number): { norm: number; product: number } {
  let [squares, product] = [0, 0];
  for (let index = 0; index < data.length; index++) {
    const x = data[index] as number;
    squares += x * x;
    product += x * direction(index);
  }
  return { norm: Math.sqrt(squares), product };
}

/**
 * Weights as inputs instead of constants of the session, as in training; a session with 25 MB of constants takes twice
 * as long.
 */
function withParametersAsInputs(graph: Graph): Graph {
  const changing = [...graph.parameters, ...graph.buffers];
  const initializers = new Map([...graph.initializers].filter(([name]) => !changing.includes(name)));
  const inputs = changing.map((name) => {
    const { type, shape } = graph.initializers.get(name) as Tensor;
    return { name, type, shape };
  });
  return { ...graph, inputs: [...graph.inputs, ...inputs], initializers, parameters: [], buffers: [] };
}

function values(graph: Graph, input: Tensor): Map<string, Tensor> {
  return new Map([...graph.initializers, [graph.inputs[0]?.name ?? '', input]]);
}

function logitsName(graph: Graph): string {
  return graph.outputs[0]?.name ?? '';
}

function checkLogits(found: Tensor | undefined, expected: readonly number[], allowed: number): void {
  const numbers = found === undefined ? [] : toNumbers(found);
  assert.equal(numbers.length, expected.length);
  const scale = Math.max(...expected.map(Math.abs));
  expected.forEach((value, index) => {
    const difference = Math.abs((numbers[index] as number) - value);
    assert.ok(difference <= allowed * scale, `logit ${index} is ${numbers[index]}, PyTorch's ${value}`);
  });
}

/** Mean cross-entropy of logits [N, classes], and its gradient (softmax − one-hot) / N. */
function crossEntropy({ type, shape, data }: Tensor, labels: readonly number[]): { loss: number; gradient: Tensor } {
  const [rows = 0, columns = 0] = shape;
  const gradient: number[] = [];
  let loss = 0;
  for (let row = 0; row < rows; row++) {
    const scores = Array.from((data as Float32Array).subarray(row * columns, (row + 1) * columns));
    const highest = Math.max(...scores);
    const exponentials = scores.map((score) => Math.exp(score - highest));
    const total = exponentials.reduce((sum, x) => sum + x, 0);
    const label = labels[row] as number;
    loss -= ((scores[label] as number) - highest - Math.log(total)) / rows;
    gradient.push(...exponentials.map((x, column) => (x / total - (column === label ? 1 : 0)) / rows));
  }
  return { loss, gradient: tensor(type, shape, gradient) };
}
