import assert from 'node:assert/strict';
import { test } from 'node:test';
import { arrangeForMemory, executionOrder } from '../engine/execution-order.ts';
import { loweringOf } from '../engine/lowering.ts';
import { runMemory } from '../engine/onnxruntime-memory.ts';
import { InputError } from '../errors.ts';
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph, Node } from '../graph/graph.ts';
import { fanInUniform, ones } from '../graph/initialization.ts';
import { type LayerSequence, layers } from '../graph/layers.ts';
import { extractStage, type StageGraph } from '../graph/stage.ts';
import { instantiate, type StaticGraph } from '../graph/static.ts';
import { elementCount, type Tensor, tensor, toNumbers, type ValueType } from '../graph/tensor.ts';
import { buildModel } from '../models/zoo.ts';
import { createRandom } from '../random.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import { assertClose, inDoublePrecision, randomTensor } from '../testing/gradient-check.ts';
import { randomGraphCase } from '../testing/random-graph-cases.ts';
import { attentionNet, depthwiseNet, residualNet } from '../testing/small-nets.ts';
import { checkTangents, runTangents } from '../testing/tangent-check.ts';
import {
  batchNormNet,
  dropoutNet,
  regressionNet,
  sequenceFirstNet,
  residualNet as trainedResidualNet,
  transformerNet,
} from '../testing/training-subjects.ts';
import { differentiate } from './differentiate.ts';
import { replaceDropouts } from './dropout.ts';
import { tangentGraph, tangentName } from './forward-mode.ts';

const names = (values: readonly { readonly name: string }[]): readonly string[] => values.map(({ name }) => name);
const operatorsOf = (graph: Graph): readonly string[] => graph.nodes.map(({ operator }) => operator);

/** x [N, 3] → Gemm(first) → Relu → Gemm(second) … → y; each but the last with a Relu behind it. */
function perceptron(...widths: readonly number[]): Graph {
  const builder = new GraphBuilder('mlp');
  let x = builder.input('x', 'float32', ['N', 3]);
  widths.forEach((width, index) => {
    if (index > 0) x = builder.relu(x);
    x = builder.linear(x, { name: `layer${index}`, outFeatures: width, bias: false });
  });
  return builder.build([x]);
}

/** Random values for a graph's inputs: uniform, and whole numbers below 5 for integers. */
function feedsFor({ graph, types }: StaticGraph, seed: number): Map<string, Tensor> {
  const random = createRandom(seed);
  return new Map(
    graph.inputs.map(({ name }) => {
      const value = types.get(name) as ValueType;
      if (value.type.startsWith('float')) return [name, randomTensor(random, value)];
      const count = elementCount(value.shape);
      return [
        name,
        tensor(
          value.type,
          value.shape,
          Array.from({ length: count }, () => random.integer(5)),
        ),
      ];
    }),
  );
}

test('the first stage: parameters have tangents, the data do not', () => {
  const found = tangentGraph(instantiate(perceptron(4, 2), 5), { inputs: [] });
  assert.deepEqual(found.tangentInputs, []);
  assert.deepEqual(found.tangentParameters, ['layer0.weight', 'layer1.weight']);
  assert.deepEqual(found.tangentOutputs, ['Gemm_2']);
  assert.deepEqual(found.withoutTangent, []);
  assert.deepEqual(names(found.graph.inputs), [
    'x',
    'layer0.weight',
    'layer1.weight',
    'tangent(layer0.weight)',
    'tangent(layer1.weight)',
  ]);
  assert.deepEqual(names(found.graph.outputs), ['Gemm_2', 'tangent(Gemm_2)']);
  assert.deepEqual(operatorsOf(found.graph), [
    'Gemm',
    'Relu',
    'Gemm',
    'Cast',
    'Cast',
    'Gemm',
    'Reshape',
    'Mul',
    'Gemm',
    'Add',
    'Gemm',
  ]);
});

test('a later stage: its input has a tangent as well', () => {
  const found = tangentGraph(instantiate(perceptron(4), 5), { inputs: ['x'] });
  assert.deepEqual(found.tangentInputs, ['x']);
  assert.deepEqual(names(found.graph.inputs), ['x', 'layer0.weight', 'tangent(x)', 'tangent(layer0.weight)']);
  assert.deepEqual(operatorsOf(found.graph), ['Gemm', 'Reshape', 'Gemm', 'Add', 'Gemm']);
});

test('frozen layers cost nothing: they are computed as in the forward pass', () => {
  const stage = instantiate(perceptron(4, 4, 2), 5);
  const last = tangentGraph(stage, { inputs: [], parameters: ['layer2.weight'] });
  assert.deepEqual(operatorsOf(last.graph), ['Gemm', 'Relu', 'Gemm', 'Relu', 'Gemm', 'Gemm']);
  assert.deepEqual(names(last.graph.inputs).slice(4), ['tangent(layer2.weight)']);
  const none = tangentGraph(stage, { inputs: [], parameters: [] });
  assert.deepEqual(operatorsOf(none.graph), operatorsOf(stage.graph));
  assert.deepEqual(none.withoutTangent, names(stage.graph.outputs));
  assert.deepEqual(names(none.graph.outputs), names(stage.graph.outputs));
});

test('a tangent that reaches no output is not an input', () => {
  const builder = new GraphBuilder('cut');
  const x = builder.input('x', 'float32', ['N', 2]);
  const floor = builder.node('Floor', [builder.mul(x, builder.parameter('w', [2], ones))]);
  const y = builder.mul(floor, builder.parameter('v', [2], ones));
  const found = tangentGraph(instantiate(builder.build([y, floor]), 1), { inputs: ['x'] });
  assert.deepEqual([found.tangentInputs, found.tangentParameters], [[], ['v']]);
  assert.deepEqual([found.tangentOutputs, found.withoutTangent], [[y], [floor]]);
});

test('an input that is also an output passes on its tangent, and an output may appear twice', () => {
  const builder = new GraphBuilder('skip');
  const x = builder.input('x', 'float32', ['N', 2]);
  const y = builder.node('Identity', [x]);
  const stage = instantiate(builder.build([x, y]), 1, { simplify: false });
  const found = tangentGraph(stage, { inputs: ['x'] });
  const defined = [...names(found.graph.inputs), ...found.graph.nodes.flatMap(({ outputs }) => outputs)];
  assert.equal(new Set(defined).size, defined.length, `a name twice: ${defined}`);
  const value = tensor('float32', [1, 2], [3, 4]);
  const tangents = runTangents(found, new Map([['x', value]]), new Map([['x', tensor('float32', [1, 2], [10, 20])]]));
  assert.deepEqual(toNumbers(tangents.get(x) as Tensor), [10, 20]);
  assert.deepEqual(toNumbers(tangents.get(y) as Tensor), [10, 20]);
});

test('only the requested outputs have tangents', () => {
  const builder = new GraphBuilder('two');
  const x = builder.input('x', 'float32', ['N', 2]);
  const outputs = [builder.tanh(x), builder.sigmoid(x)];
  const found = tangentGraph(instantiate(builder.build(outputs), 1), { inputs: ['x'], outputs: outputs.slice(1) });
  assert.deepEqual(names(found.graph.outputs), [...outputs, `tangent(${outputs[1]})`]);
  assert.deepEqual(operatorsOf(found.graph), ['Tanh', 'Sigmoid', 'Sub', 'Mul', 'Mul', 'Sum']);
});

test('running statistics are updated as in the forward pass of training, and have no tangent', () => {
  const stage = instantiate(inDoublePrecision(batchNormNet().graph), 4);
  const [forward, found] = [differentiate(stage, { inputs: [] }), tangentGraph(stage, { inputs: [] })];
  assert.deepEqual(
    found.bufferUpdates.map(({ buffer }) => buffer),
    forward.bufferUpdates.map(({ buffer }) => buffer),
  );
  assert.equal(found.bufferUpdates.length, 6);
  const values = new Map([...stage.graph.initializers, ...feedsFor(stage, 1)]);
  const random = createRandom(2);
  for (const name of found.tangentParameters)
    values.set(tangentName(name), randomTensor(random, stage.types.get(name) as ValueType));
  const [expected, results] = [evaluateGraph(forward.forward, values), evaluateGraph(found.graph, values)];
  found.bufferUpdates.forEach(({ output }, index) => {
    assert.deepEqual(results.get(output), expected.get(forward.bufferUpdates[index]?.output as string));
  });
});

test('dropout masks are inputs, the same as for reverse mode', () => {
  const stage = instantiate(dropoutNet().graph, 2);
  const [forward, found] = [differentiate(stage, { inputs: [] }), tangentGraph(stage, { inputs: [] })];
  assert.equal(found.dropouts.length, 3);
  assert.deepEqual(found.dropouts, forward.dropouts);
  assert.deepEqual(names(found.graph.inputs).slice(0, forward.forward.inputs.length), names(forward.forward.inputs));
});

test('equal expressions are computed once', () => {
  const builder = new GraphBuilder('twice');
  const x = builder.input('x', 'float32', ['N', 3]);
  const total = builder.add(builder.node('Sin', [x]), builder.node('Sin', [x]));
  const found = tangentGraph(instantiate(builder.build([total]), 2, { simplify: false }), { inputs: ['x'] });
  assert.deepEqual(operatorsOf(found.graph), ['Sin', 'Sin', 'Add', 'Cos', 'Mul', 'Add', 'Sum']);
});

/**
 * The nodes in the order in which ONNX Runtime runs them. `isFused` marks nodes that it fuses with others and puts at
 * the end of its list.
 */
function inOrder(graph: Graph, isFused: (node: Node) => boolean): readonly Node[] {
  const { nodes } = arrangeForMemory(graph);
  const list = [...nodes.filter((node) => !isFused(node)), ...nodes.filter(isFused)];
  return executionOrder({ nodes: list }).map((index) => list[index] as Node);
}

/** The largest number of values alive at a time: computed and still to be read. */
function mostAlive(graph: Graph, isFused: (node: Node) => boolean): number {
  const nodes = inOrder(graph, isFused);
  const last = new Map<string, number>();
  nodes.forEach((node, index) => {
    for (const input of node.inputs) last.set(input, index);
  });
  const alive = new Set<string>();
  let most = 0;
  nodes.forEach((node, index) => {
    for (const output of node.outputs) alive.add(output);
    most = Math.max(most, alive.size);
    for (const value of [...alive]) if ((last.get(value) ?? nodes.length) <= index) alive.delete(value);
  });
  return most;
}

/**
 * A chain of blocks that multiply by a gate, add a shortcut and normalize; weights are transposed by nodes, as
 * exporters write them.
 */
function blocks(depth: number): Graph {
  const builder = new GraphBuilder('blocks');
  let x = builder.input('x', 'float32', ['N', 4]);
  for (let index = 0; index < depth; index++) {
    const weight = (name: string): string =>
      builder.transpose(builder.parameter(`${name}${index}`, [4, 4], fanInUniform(4)), [1, 0]);
    const hidden = builder.relu(builder.matMul(builder.layerNorm(x, { name: `norm${index}` }), weight('w')));
    x = builder.add(x, builder.mul(hidden, builder.sigmoid(builder.matMul(hidden, weight('v')))));
  }
  return builder.build([x]);
}

test('memory does not grow with depth, and work grows in proportion to depth', () => {
  const never = (): boolean => false;
  // products, and the forward pass, where it ends with them or has transposed weights
  const often = ({ name, operator }: Node): boolean =>
    operator !== 'Transpose' &&
    (name.startsWith('grad.') ? ['Gemm', 'MatMul'].includes(operator) : operator !== 'Gemm');
  for (const { build, valueCounts, nodeCount } of [
    { build: (depth: number) => perceptron(...new Array<number>(depth).fill(3)), valueCounts: [4, 4], nodeCount: 9 },
    { build: blocks, valueCounts: [8, 8], nodeCount: 44 },
  ]) {
    const graphs = [8, 64].map((depth) => tangentGraph(instantiate(build(depth), 2), { inputs: ['x'] }).graph);
    for (const graph of graphs)
      assert.deepEqual(
        [never, often].map((isFused) => mostAlive(graph, isFused)),
        valueCounts,
      );
    const [shallow = 0, deep = 0] = graphs.map(({ nodes }) => nodes.length);
    assert.equal((deep - shallow) / (64 - 8), nodeCount);
  }
});

for (const [lowered, options] of [
  ['in plain forms', {}],
  ['lowered', loweringOf({ blockSize: 16 })],
] as const) {
  test(`MobileNetV2 ${lowered} runs with tangents in a third of the memory of forward and backward`, () => {
    const stage = instantiate(buildModel('mobilenet-v2:input=32,classes=10', { initialize: false }).graph, 32);
    const reverse = differentiate(stage, { inputs: [], ...options });
    const saved = reverse.saved.reduce((sum, { bytes }) => sum + bytes, 0);
    const bytesOf = (graph: Graph): number => runMemory(graph, 16).runBytes;
    assert.ok(3 * bytesOf(tangentGraph(stage, { inputs: [], ...options }).graph) < saved + bytesOf(reverse.backward));
  });
}

test('an operator without a rule is refused by name only if a tangent has to pass it', () => {
  const foreign: Node = {
    operator: 'Mystery',
    domain: 'org.example',
    name: 'm1',
    inputs: ['h'],
    outputs: ['y'],
    attributes: {},
  };
  const product: Node = { operator: 'Mul', domain: '', name: 'p', inputs: ['x', 'w'], outputs: ['h'], attributes: {} };
  const value = { type: 'float32', shape: [2] } as const;
  const graph: Graph = {
    name: 'foreign',
    inputs: [{ name: 'x', ...value }],
    outputs: [{ name: 'y', ...value }],
    initializers: new Map([['w', tensor('float32', [2], [1, 1])]]),
    parameters: ['w'],
    buffers: [],
    nodes: [product, foreign],
  };
  const stage = { graph, types: new Map(['x', 'w', 'h', 'y'].map((name) => [name, value])) };
  assert.throws(
    () => tangentGraph(stage, { inputs: [] }),
    (error: unknown) => {
      assert.ok(error instanceof InputError);
      assert.match(error.message, /"m1".*org\.example\.Mystery/);
      return true;
    },
  );
  assert.deepEqual(tangentGraph(stage, { inputs: [], parameters: [] }).withoutTangent, ['y']);
});

test('ties share the tangent evenly and kinks have derivative 0, as in reverse mode', () => {
  const tangentOf = (write: (builder: GraphBuilder, x: string) => string, values: readonly number[]): number[] => {
    const builder = new GraphBuilder('kink');
    const x = builder.input('x', 'float32', [values.length]);
    const y = write(builder, x);
    const found = tangentGraph(instantiate(builder.build([y]), 1), { inputs: ['x'] });
    const value = tensor('float32', [values.length], values);
    const direction = tensor(
      'float32',
      [values.length],
      values.map((_, index) => index + 1),
    );
    return toNumbers(runTangents(found, new Map([['x', value]]), new Map([['x', direction]])).get(y) as Tensor);
  };
  assert.deepEqual(
    tangentOf((builder, x) => builder.relu(x), [-1, 0, 2]),
    [0, 0, 3],
  );
  assert.deepEqual(
    tangentOf((builder, x) => builder.relu6(x), [0, 3, 6, 7]),
    [0, 2, 0, 0],
  );
  assert.deepEqual(
    tangentOf((builder, x) => builder.node('Max', [x, builder.scalarLike(x, 1)]), [0, 1, 2]),
    [0, 1, 3],
  );
  assert.deepEqual(
    tangentOf((builder, x) => builder.node('ReduceMax', [x]), [3, 1, 3]),
    [2],
  );
});

for (const [graph, inputs] of [
  [residualNet(), ['x']],
  [attentionNet(), []],
  [depthwiseNet(), ['x']],
  [batchNormNet().graph, ['x']],
  [dropoutNet().graph, ['x']],
  [sequenceFirstNet().graph, ['x']],
  [regressionNet().graph, ['x']],
  [trainedResidualNet().graph, ['x']],
  [transformerNet().graph, []],
] as const) {
  test(`tangents of net ${graph.name} (${graph.nodes.length} nodes) agree with differences and gradients`, () => {
    const { stage } = replaceDropouts(instantiate(inDoublePrecision(graph), 2));
    checkTangents({ stage, feeds: feedsFor(stage, 7), inputs }, createRandom(8));
  });
}

/** The tangents of the outputs along the directions, stage by stage; each passes on its outputs and their tangents. */
function throughStages(
  stages: readonly StageGraph[],
  feeds: ReadonlyMap<string, Tensor>,
  directions: ReadonlyMap<string, Tensor>,
): ReadonlyMap<string, Tensor> {
  let values = new Map(feeds);
  let moving: ReadonlyMap<string, Tensor> = new Map();
  for (const stage of stages) {
    const { graph, inputs, outputs } = stage;
    const found = tangentGraph(stage, {
      inputs: inputs.filter(({ name }) => moving.has(name)).map(({ name }) => name),
      outputs: outputs.filter(({ differentiable }) => differentiable).map(({ name }) => name),
    });
    const known = new Map([...graph.initializers, ...values]);
    moving = runTangents(found, known, new Map([...directions, ...moving]));
    values = new Map([...feeds, ...evaluateGraph(graph, known)]);
  }
  return moving;
}

for (const net of [trainedResidualNet(), transformerNet(), batchNormNet()]) {
  test(`the tangents of the net ${net.graph.name} cut anywhere are those of the whole`, () => {
    const sequence: LayerSequence = layers(inDoublePrecision(net.graph));
    const count = sequence.layers.length;
    const whole = extractStage(sequence, 0, count, 2);
    const feeds = feedsFor(replaceDropouts(whole).stage, 3);
    const random = createRandom(4);
    const directions = new Map(
      whole.graph.parameters.map((name) => [name, randomTensor(random, whole.types.get(name) as ValueType)] as const),
    );
    const masked = (stage: StageGraph): StageGraph => ({ ...stage, ...replaceDropouts(stage).stage });
    const expected = throughStages([masked(whole)], feeds, directions);
    for (let cut = 1; cut < count; cut++) {
      const stages = [extractStage(sequence, 0, cut, 2), extractStage(sequence, cut, count, 2)].map(masked);
      const found = throughStages(stages, feeds, directions);
      assert.deepEqual([...found.keys()], [...expected.keys()]);
      for (const [name, value] of expected)
        assertClose(
          found.get(name)?.data as Float64Array,
          value.data as Float64Array,
          `"${name}" cut before layer ${cut}`,
          1e-12,
        );
    }
  });
}

test('a weight that is used twice contributes twice', () => {
  const builder = new GraphBuilder('tied');
  const x = builder.input('x', 'float32', ['N', 3]);
  const w = builder.parameter('w', [3, 3], fanInUniform(3));
  const once = builder.tanh(builder.matMul(x, w));
  const stage = instantiate(
    inDoublePrecision(
      builder.build([builder.matMul(builder.tanh(builder.matMul(once, w)), builder.transpose(w, [1, 0]))]),
    ),
    2,
  );
  checkTangents({ stage, feeds: feedsFor(stage, 1), inputs: ['x'] }, createRandom(2));
});

test('the tangents of random graphs agree with central differences and with their gradients', () => {
  let checkedCount = 0;
  for (let seed = 1000; seed < 1120; seed++) {
    const graphCase = randomGraphCase(seed);
    if (graphCase === undefined) continue;
    checkedCount++;
    try {
      checkTangents(graphCase, createRandom(seed, 1));
    } catch (error) {
      throw new Error(`random graph ${seed}`, { cause: error });
    }
  }
  assert.ok(checkedCount > 80);
});
