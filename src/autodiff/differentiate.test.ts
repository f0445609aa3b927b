import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InputError } from '../errors.ts';
import { GraphBuilder } from '../graph/builder.ts';
import { gradientName } from '../graph/gradient-name.ts';
import { float, type Graph, int, type Node } from '../graph/graph.ts';
import { fanInUniform, ones, zeros } from '../graph/initialization.ts';
import { instantiate } from '../graph/static.ts';
import { type Tensor, tensor, toNumbers } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import { assertClose, checkGraph, inDoublePrecision, randomTensor, runBackward } from '../testing/gradient-check.ts';
import { randomGraphCase } from '../testing/random-graph-cases.ts';
import { attentionNet, depthwiseNet, residualNet } from '../testing/small-nets.ts';
import { differentiate, outputGradientName } from './differentiate.ts';

const names = (values: readonly { readonly name: string }[]): readonly string[] => values.map(({ name }) => name);
const operatorsOf = (graph: Graph): readonly string[] => graph.nodes.map(({ operator }) => operator);

/** x [N, 3] → Gemm(w1, b1) → Relu → Gemm(w2) → y [N, 2] */
function perceptron(): Graph {
  const builder = new GraphBuilder('mlp');
  const x = builder.input('x', 'float32', ['N', 3]);
  const hidden = builder.relu(builder.linear(x, { name: 'first', outFeatures: 4 }));
  return builder.build([builder.linear(hidden, { name: 'second', outFeatures: 2, bias: false })]);
}

function feedsFor(graph: Graph, seed: number): Map<string, Tensor> {
  const random = createRandom(seed);
  return new Map(
    graph.inputs.map(({ name, type, shape }) => [
      name,
      randomTensor(random, { type, shape: shape as readonly number[] }),
    ]),
  );
}

test('a stage without gradients to send saves what its weight gradients read, nothing else', () => {
  const graphs = differentiate(instantiate(perceptron(), 5), { inputs: [] });
  assert.deepEqual(graphs.savedInputs, [{ name: 'x', type: 'float32', shape: [5, 3], bytes: 60 }]);
  assert.deepEqual(graphs.saved, [{ name: 'Relu_1', type: 'float32', shape: [5, 4], bytes: 80 }]);
  assert.deepEqual(graphs.usedParameters, ['second.weight']);
  assert.deepEqual(graphs.inputGradients, []);
  assert.deepEqual(graphs.parameterGradients, ['first.weight', 'first.bias', 'second.weight']);
  assert.deepEqual(graphs.withoutGradient, []);
  assert.deepEqual(names(graphs.forward.inputs), ['x', 'first.weight', 'first.bias', 'second.weight']);
  assert.deepEqual(names(graphs.forward.outputs), ['Gemm_2', 'Relu_1']);
  assert.deepEqual(names(graphs.backward.inputs), ['outputGradient(Gemm_2)', 'x', 'Relu_1', 'second.weight']);
  assert.deepEqual(names(graphs.backward.outputs), [
    'gradient(first.weight)',
    'gradient(first.bias)',
    'gradient(second.weight)',
  ]);
  assert.deepEqual(graphs.backwardInput.nodes, []);
  assert.deepEqual(graphs.backwardWeight.outputs, graphs.backward.outputs);
  assert.deepEqual([...graphs.forward.initializers.keys()], []);
});

test('the input half has the products with weights, the weight half those with activations', () => {
  const graphs = differentiate(instantiate(perceptron(), 5), { inputs: ['x'] });
  assert.deepEqual(operatorsOf(graphs.backwardInput), ['Gemm', 'Cast', 'Cast', 'Mul', 'Gemm']);
  assert.deepEqual(operatorsOf(graphs.backwardWeight).toSorted(), ['Gemm', 'Gemm', 'ReduceSum']);
  assert.deepEqual(
    graphs.intermediates.map(({ shape }) => shape),
    [[5, 4]],
  );
  assert.deepEqual(names(graphs.backwardInput.outputs), ['gradient(x)', ...names(graphs.intermediates)]);
  assert.deepEqual(names(graphs.backwardWeight.inputs), [
    'outputGradient(Gemm_2)',
    ...names(graphs.intermediates),
    'x',
    'Relu_1',
  ]);
});

test('frozen parameters cost no weight gradient, and values only they would read are not saved', () => {
  const graphs = differentiate(instantiate(perceptron(), 5), { inputs: [], parameters: ['second.weight'] });
  assert.deepEqual(operatorsOf(graphs.backward), ['Gemm']);
  assert.deepEqual(names(graphs.saved), ['Relu_1']);
  assert.deepEqual(graphs.savedInputs, []);
  assert.deepEqual(graphs.usedParameters, []);
  const none = differentiate(instantiate(perceptron(), 5), { inputs: ['x'], parameters: [] });
  assert.deepEqual(operatorsOf(none.backward), ['Gemm', 'Cast', 'Cast', 'Mul', 'Gemm']);
  assert.deepEqual([none.saved.length, none.savedInputs.length, none.backwardWeight.nodes.length], [1, 0, 0]);
});

test('inputs and parameters without a path to an output are listed and get no output', () => {
  const builder = new GraphBuilder('cut');
  const x = builder.input('x', 'float32', ['N', 2]);
  const w = builder.parameter('w', [2], ones);
  const cut = builder.node('Floor', [builder.mul(x, w)]);
  const v = builder.parameter('v', [2], ones);
  const graphs = differentiate(instantiate(builder.build([builder.mul(cut, v)]), 1), { inputs: ['x'] });
  assert.deepEqual(graphs.withoutGradient, ['x', 'w']);
  assert.deepEqual(graphs.parameterGradients, ['v']);
  assert.deepEqual(names(graphs.backward.outputs), ['gradient(v)']);
});

test('an input that passes through to an output gets both gradients', () => {
  const builder = new GraphBuilder('skip');
  const x = builder.input('x', 'float32', ['N', 2]);
  const w = builder.parameter('w', [2], ones);
  const stage = instantiate(builder.build([builder.mul(x, w), x]), 1);
  const y = stage.graph.outputs[0]?.name as string;
  const graphs = differentiate(stage, { inputs: ['x'] });
  const values = new Map([...stage.graph.initializers, ['x', tensor('float32', [1, 2], [3, 4])] as const]);
  const seeds = new Map([
    [y, tensor('float32', [1, 2], [10, 20])],
    ['x', tensor('float32', [1, 2], [1, 2])],
  ]);
  const gradients = runBackward(graphs, values, seeds);
  assert.deepEqual(toNumbers(gradients.get('gradient(x)') as Tensor), [11, 22]);
  assert.deepEqual(toNumbers(gradients.get('gradient(w)') as Tensor), [30, 80]);
  const alone = differentiate(stage, { inputs: ['x'], outputs: ['x'], parameters: [] });
  assert.deepEqual(
    alone.backward.nodes.map(({ operator, inputs, outputs }) => [operator, inputs, outputs]),
    [['Identity', ['outputGradient(x)'], ['gradient(x)']]],
  );
});

test('a weight that is used twice gets the sum', () => {
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
  checkGraph({ stage, feeds: feedsFor(stage.graph, 1), inputs: ['x'] }, createRandom(2));
});

test('neither views of saved values nor values derived from parameters alone are saved', () => {
  const builder = new GraphBuilder('views');
  const x = builder.input('x', 'float32', ['N', 2, 3]);
  const flat = builder.flatten(builder.sigmoid(x)); // Sigmoid saves its result, the products save its flat view
  const graph = builder.build([
    builder.matMul(flat, builder.transpose(builder.parameter('w', [4, 6], fanInUniform(6)), [1, 0])),
  ]);
  const graphs = differentiate(instantiate(graph, 2), { inputs: ['x'] });
  assert.deepEqual(names(graphs.saved), ['Sigmoid_1']);
  assert.deepEqual(graphs.usedParameters, ['w']);
});

test('values named in `recompute` are recomputed instead of saved', () => {
  const builder = new GraphBuilder('recompute');
  const x = builder.input('x', 'float32', ['N', 3]);
  const hidden = builder.mul(x, builder.parameter('w', [3], ones));
  const stage = instantiate(inDoublePrecision(builder.build([builder.mul(hidden, builder.node('Exp', [hidden]))])), 2);
  assert.deepEqual(names(differentiate(stage, { inputs: ['x'] }).saved), ['Mul_1', 'Exp_1']);
  const graphs = differentiate(stage, { inputs: ['x'], recompute: ['Exp_1'] });
  assert.deepEqual(names(graphs.saved), ['Mul_1']);
  const [y = ''] = names(stage.graph.outputs);
  const values = new Map([...stage.graph.initializers, ...feedsFor(stage.graph, 1)]);
  const seeds = new Map([[y, randomTensor(createRandom(2), { type: 'float64', shape: [2, 3] })]]);
  assert.deepEqual(
    runBackward(graphs, values, seeds),
    runBackward(differentiate(stage, { inputs: ['x'] }), values, seeds),
  );
});

test('x · sigmoid(x) is differentiated as one function and saves its result instead of x', () => {
  const builder = new GraphBuilder('swish');
  const x = builder.input('x', 'float32', ['N', 3]);
  const stage = instantiate(
    inDoublePrecision(builder.build([builder.silu(builder.mul(x, builder.parameter('w', [3], ones)))])),
    2,
  );
  const graphs = differentiate(stage, { inputs: ['x'], parameters: [] });
  assert.deepEqual(names(graphs.saved), ['Sigmoid_1', 'Mul_2']);
  assert.deepEqual(operatorsOf(graphs.backward), ['Sub', 'Mul', 'Add', 'Mul', 'Mul']);
  checkGraph({ stage, feeds: feedsFor(stage.graph, 1), inputs: ['x'] }, createRandom(2));
});

test('batch normalization of large images (sums of products are convolutions) agrees with central differences', () => {
  const builder = new GraphBuilder('large');
  const y = builder.batchNorm(builder.input('x', 'float32', ['N', 2, 16, 32]), { name: 'bn' });
  const stage = instantiate(inDoublePrecision(builder.build([y])), 2);
  const graphs = differentiate(stage, { inputs: [] });
  assert.equal(operatorsOf(graphs.backward).filter((operator) => operator === 'Conv').length, 1);
  checkGraph({ stage, feeds: feedsFor(stage.graph, 1), inputs: [] }, createRandom(2));
  const small = instantiate(inDoublePrecision(builder.build([y])), 1);
  checkGraph({ stage: small, feeds: feedsFor(small.graph, 1), inputs: ['x'] }, createRandom(2));
});

test('running statistics are outputs of the forward pass with the values that ONNX defines', () => {
  const builder = new GraphBuilder('norm');
  const x = builder.input('x', 'float32', ['N', 2, 3]);
  const stage = instantiate(
    inDoublePrecision(builder.build([builder.batchNorm(x, { name: 'bn', momentum: 0.75 })])),
    4,
  );
  const graphs = differentiate(stage, { inputs: ['x'] });
  assert.deepEqual(
    graphs.bufferUpdates.map(({ buffer }) => buffer),
    ['bn.running_mean', 'bn.running_var'],
  );
  assert.ok(graphs.bufferUpdates.every(({ output }) => names(graphs.forward.outputs).includes(output)));
  // x lowered by a sample is kept in place of x
  assert.deepEqual(graphs.savedInputs, []);
  assert.ok(graphs.saved.some(({ shape }) => String(shape) === '4,2,3'));
  assert.deepEqual(graphs.usedParameters, ['bn.weight']);
  const values = new Map([...stage.graph.initializers, ...feedsFor(stage.graph, 3)]);
  values.set('bn.running_mean', tensor('float64', [2], [0.5, -1]));
  values.set('bn.running_var', tensor('float64', [2], [2, 3]));
  const forward = evaluateGraph(graphs.forward, values);
  const node = stage.graph.nodes[0] as Node;
  const whole: Graph = {
    ...stage.graph,
    nodes: [node],
    outputs: node.outputs.map((name) => ({ name, type: 'float64', shape: [] })),
  };
  const expected = [...evaluateGraph(whole, values).values()];
  graphs.bufferUpdates.forEach(({ output, buffer }, index) => {
    assertClose(
      (forward.get(output) as Tensor).data as Float64Array,
      expected[index + 1]?.data as Float64Array,
      buffer,
      1e-12,
    );
  });
});

test('the gradients of a residual net with batch normalization and pooling agree with central differences', () => {
  const stage = instantiate(inDoublePrecision(residualNet()), 2);
  checkGraph({ stage, feeds: feedsFor(stage.graph, 4), inputs: ['x'] }, createRandom(5));
});

test('the gradients of an attention block agree with central differences', () => {
  const stage = instantiate(inDoublePrecision(attentionNet()), 2);
  const feeds = new Map([['tokens', tensor('int64', [2, 3], [0, 3, 3, 1, 4, 0])]]);
  checkGraph({ stage, feeds, inputs: [] }, createRandom(6));
});

test('the gradients of an inverted residual with squeeze and excitation agree with central differences', () => {
  const stage = instantiate(inDoublePrecision(depthwiseNet()), 2);
  checkGraph({ stage, feeds: feedsFor(stage.graph, 7), inputs: ['x'] }, createRandom(8));
});

test('the gradients of a net cut into two stages equal those of the whole net', () => {
  const first = (builder: GraphBuilder): readonly [string, string] => {
    const x = builder.input('x', 'float32', ['N', 3]);
    const a = builder.tanh(builder.linear(x, { name: 'a', outFeatures: 4 }));
    return [a, builder.sigmoid(builder.linear(a, { name: 'b', outFeatures: 4 }))];
  };
  const second = (builder: GraphBuilder, a: string, b: string): string =>
    builder.linear(builder.mul(a, b), { name: 'c', outFeatures: 2 });
  const build = (write: (builder: GraphBuilder) => readonly string[]) => {
    const builder = new GraphBuilder('net', { seed: 6 });
    return instantiate(inDoublePrecision(builder.build(write(builder))), 3);
  };
  const whole = build((builder) => [second(builder, ...first(builder))]);
  const front = build((builder) => first(builder));
  const back = build((builder) => [
    second(builder, builder.input('a', 'float32', ['N', 4]), builder.input('b', 'float32', ['N', 4])),
  ]);
  const [[y = ''], [a = '', b = ''], [z = '']] = [whole, front, back].map(({ graph }) => names(graph.outputs)) as [
    string[],
    string[],
    string[],
  ];
  const feeds = feedsFor(whole.graph, 9);
  const seed = randomTensor(createRandom(10), { type: 'float64', shape: [3, 2] });
  const expected = runBackward(
    differentiate(whole, { inputs: ['x'] }),
    new Map([...whole.graph.initializers, ...feeds]),
    new Map([[y, seed]]),
  );

  const frontGraphs = differentiate(front, { inputs: ['x'] });
  const frontValues = new Map([...front.graph.initializers, ...feeds]);
  const passed = evaluateGraph(frontGraphs.forward, frontValues);
  const backValues = new Map([
    ...back.graph.initializers,
    ['a', passed.get(a) as Tensor] as const,
    ['b', passed.get(b) as Tensor] as const,
  ]);
  const backGradients = runBackward(differentiate(back, { inputs: ['a', 'b'] }), backValues, new Map([[z, seed]]));
  const seeds = new Map([
    [a, backGradients.get(gradientName('a')) as Tensor],
    [b, backGradients.get(gradientName('b')) as Tensor],
  ]);
  const found = new Map([...backGradients, ...runBackward(frontGraphs, frontValues, seeds)]);
  for (const [name, gradient] of expected) assert.deepEqual(found.get(name)?.data, gradient.data, name);
});

test('equal expressions are computed once', () => {
  const builder = new GraphBuilder('twice');
  const x = builder.input('x', 'float32', ['N', 3]);
  const y = builder.tanh(builder.mul(x, builder.parameter('w', [3], ones)));
  const graphs = differentiate(instantiate(builder.build([builder.mul(y, builder.parameter('v', [3], ones))]), 2), {
    inputs: ['x'],
  });
  const keys = graphs.backward.nodes.map(({ operator, inputs }) => `${operator}(${inputs})`);
  assert.equal(new Set(keys).size, keys.length);
});

test('ties share the gradient evenly as in PyTorch, and kinks have derivative 0', () => {
  const gradientsOf = (write: (builder: GraphBuilder, x: string) => string, values: readonly number[]): number[] => {
    const builder = new GraphBuilder('kink');
    const x = builder.input('x', 'float32', [values.length]);
    const stage = instantiate(builder.build([write(builder, x)]), 1);
    const [y = ''] = names(stage.graph.outputs);
    const graphs = differentiate(stage, { inputs: ['x'] });
    const known = new Map([...stage.graph.initializers, ['x', tensor('float32', [values.length], values)] as const]);
    const { shape } = stage.types.get(y) as { shape: readonly number[] };
    const seed = tensor('float32', shape, new Array<number>(shape.reduce((a, b) => a * b, 1)).fill(1));
    return toNumbers(runBackward(graphs, known, new Map([[y, seed]])).get('gradient(x)') as Tensor);
  };
  const axes = { keepdims: int(0) };
  assert.deepEqual(
    gradientsOf((builder, x) => builder.relu(x), [-1, 0, 2]),
    [0, 0, 1],
  );
  assert.deepEqual(
    gradientsOf((builder, x) => builder.relu6(x), [0, 3, 6, 7]),
    [0, 1, 0, 0],
  );
  assert.deepEqual(
    gradientsOf((builder, x) => builder.node('Abs', [x]), [-2, 0, 2]),
    [-1, 0, 1],
  );
  assert.deepEqual(
    gradientsOf((builder, x) => builder.node('Max', [x, builder.scalarLike(x, 1)]), [0, 1, 2]),
    [0, 0.5, 1],
  );
  assert.deepEqual(
    gradientsOf((builder, x) => builder.node('ReduceMax', [x], axes), [3, 1, 3]),
    [0.5, 0, 0.5],
  );
  assert.deepEqual(
    gradientsOf((builder, x) => builder.node('ReduceL2', [x], axes), [0, 0]),
    [0, 0],
  );
  assert.deepEqual(
    gradientsOf((builder, x) => builder.node('ReduceProd', [x], axes), [2, 0, 5]),
    [0, 10, 0],
  );
});

test('an operator without a rule is refused by name only if a gradient has to pass it', () => {
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
    () => differentiate(stage, { inputs: [] }),
    (error: unknown) => {
      assert.ok(error instanceof InputError);
      assert.match(error.message, /"m1".*org\.example\.Mystery/);
      return true;
    },
  );
  assert.deepEqual(differentiate(stage, { inputs: [], parameters: [] }).backward.nodes, []);
});

test('batch normalization in inference mode reads its buffers as parameters and updates nothing', () => {
  const builder = new GraphBuilder('frozen');
  const x = builder.input('x', 'float32', ['N', 2, 3]);
  const inputs = [
    x,
    builder.parameter('s', [2], ones),
    builder.parameter('b', [2], zeros),
    builder.buffer('m', [2], zeros),
    builder.buffer('v', [2], ones),
  ];
  const stage = instantiate(builder.build([builder.node('BatchNormalization', inputs, { epsilon: float(1e-3) })]), 2);
  const graphs = differentiate(stage, { inputs: ['x'] });
  assert.deepEqual(graphs.bufferUpdates, []);
  assert.deepEqual([...graphs.usedParameters].sort(), ['m', 's', 'v']);
});

test('names of gradients', () => {
  assert.equal(gradientName('w'), 'gradient(w)');
  assert.equal(outputGradientName('y'), 'outputGradient(y)');
});

test('the gradients of random graphs agree with central differences, whole and in halves', () => {
  let checkedCount = 0;
  for (let seed = 0; seed < 120; seed++) {
    const graphCase = randomGraphCase(seed);
    if (graphCase === undefined) continue;
    checkedCount++;
    try {
      checkGraph(graphCase, createRandom(seed, 1));
    } catch (error) {
      throw new Error(`random graph ${seed}`, { cause: error });
    }
  }
  assert.ok(checkedCount > 80);
});
