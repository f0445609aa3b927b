import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { defined } from '../assert.ts';
import type { Engine } from '../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../engine/node/onnxruntime-node.ts';
import { createReferenceEngine } from '../engine/reference.ts';
import { Emitter } from '../graph/emitter.ts';
import { gradientName } from '../graph/gradient-name.ts';
import { type Graph, string, tensorAttribute } from '../graph/graph.ts';
import {
  allocate,
  type ElementType,
  elementCount,
  scalar,
  type Tensor,
  tensor,
  toNumbers,
  wrap,
} from '../graph/tensor.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';
import { runGraph } from '../testing/run-graph.ts';
import { clipScale, squaredNormGraph } from './clipping.ts';
import type { Parameter } from './names.ts';
import { accumulateGraph, optimizerGraph, summedName, sumName, withSums, zerosGraph } from './optimizers.ts';
import type { OptimizerKind, OptimizerOptions } from './update-rules.ts';

type Values = Readonly<Record<string, readonly number[]>>;

interface Trajectories {
  readonly shapes: Readonly<Record<string, readonly number[]>>;
  readonly start: Values;
  readonly gradients: readonly Values[];
  /** The learning rate of each step, as a multiple of the case's. */
  readonly rates: readonly number[];
  readonly cases: readonly {
    readonly kind: OptimizerKind;
    readonly name: string;
    readonly options: OptimizerOptions;
    readonly learningRate: number;
    readonly clipNorm: number | null;
    /** Global gradient norms before clipping. */
    readonly norms: readonly number[];
    /** The parameters after each step. */
    readonly steps: readonly Values[];
  }[];
}

const fixture = JSON.parse(
  readFileSync(join(fixtureFolder('pytorch'), 'optimizers', 'trajectories.json'), 'utf8'),
) as Trajectories;

/** Of the parameters' moving averages. */
const averageDecay = 0.8;

/** Runs one case and compares after every step; `tolerance` is relative, for elements below 0.1 relative to 0.1. */
async function follow(
  engine: Engine,
  type: ElementType,
  trajectory: Trajectories['cases'][number],
  tolerance: number,
): Promise<void> {
  const parameters: Parameter[] = Object.entries(fixture.shapes).map(([name, shape]) => ({ name, shape, type }));
  const optimizer = optimizerGraph(trajectory.kind, parameters, { ...trajectory.options, averageDecay });
  const averages: Record<string, readonly number[]> = {};
  const executable = await engine.compile(optimizer.graph);
  const values: Record<string, Tensor> = {};
  for (const { name, shape } of parameters)
    values[name] = tensor(type, shape, fixture.start[name] as readonly number[]);
  for (const part of optimizer.state)
    values[part.name] = wrap(part.type, part.shape, allocate(part.type, elementCount(part.shape)));
  for (const [index, expected] of trajectory.steps.entries()) {
    for (const [name, wanted] of Object.entries(expected))
      averages[name] = wanted.map((value, element) => {
        const old = averages[name]?.[element] ?? value; // the first is the parameter
        return averageDecay * old + (1 - averageDecay) * value;
      });
    const gradients: Record<string, Tensor> = {};
    for (const { name, shape } of parameters)
      gradients[gradientName(name)] = tensor(type, shape, fixture.gradients[index]?.[name] as readonly number[]);
    const { squaredNorm } = await runGraph(engine, squaredNormGraph(parameters), gradients);
    const norm = Math.sqrt(toNumbers(squaredNorm as Tensor)[0] as number);
    if (trajectory.clipNorm !== null)
      assert.ok(Math.abs(norm / (trajectory.norms[index] as number) - 1) < 1e-6, `norm ${norm}`);
    const settings = {
      learningRate: trajectory.learningRate * (fixture.rates[index] as number),
      gradientScale: trajectory.clipNorm === null ? 1 : clipScale(norm ** 2, trajectory.clipNorm),
      step: index + 1,
    };
    const scalars = Object.entries(optimizer.scalars(settings)).map(
      ([name, value]) => [name, scalar('float32', value)] as const,
    );
    const feeds = { ...values, ...gradients, ...Object.fromEntries(scalars) };
    assert.deepEqual(new Set(Object.keys(feeds)), new Set(executable.inputs));
    const results = await runGraph(engine, optimizer.graph, feeds);
    for (const { name } of [...parameters, ...optimizer.state])
      values[name] = results[optimizer.updatedName(name)] as Tensor;
    const checked = {
      ...expected,
      ...Object.fromEntries(Object.entries(averages).map(([k, v]) => [`${k}/average`, v])),
    };
    for (const name of Object.keys(checked)) {
      for (const [element, value] of toNumbers(values[name] as Tensor).entries()) {
        const wanted = checked[name]?.[element] as number;
        const isNear = Math.abs(value - wanted) <= tolerance * Math.max(0.1, Math.abs(wanted));
        assert.ok(isNear, `step ${index + 1}, ${name}[${element}]: ${value} instead of ${wanted}`);
      }
    }
  }
  executable.release();
}

describe('ten steps equal PyTorch’s, and Lion’s by its paper', () => {
  const reference = createReferenceEngine();
  let fast: Engine;
  before(async () => {
    fast = await createOnnxRuntimeNodeEngine();
  });
  after(async () => {
    await reference.close();
    await fast.close();
  });
  assert.equal(fixture.cases.length, 14);
  for (const trajectory of fixture.cases) {
    test(`${trajectory.kind}, ${trajectory.name}: float64 by the definitions`, () =>
      follow(reference, 'float64', trajectory, 1e-6));
    test(`${trajectory.kind}, ${trajectory.name}: float32 by ONNX Runtime`, () =>
      follow(fast, 'float32', trajectory, 1e-5));
  }
});

test('state is described by name, shape and type', () => {
  const parameters: Parameter[] = [
    { name: 'w', shape: [2, 3] },
    { name: 'b', shape: [3], type: 'float64' },
  ];
  assert.deepEqual(optimizerGraph('sgd', parameters).state, []);
  assert.deepEqual(optimizerGraph('sgd', parameters, { momentum: 0.9 }).state, [
    { name: 'w/momentum', parameter: 'w', kind: 'momentum', type: 'float32', shape: [2, 3] },
    { name: 'b/momentum', parameter: 'b', kind: 'momentum', type: 'float64', shape: [3] },
  ]);
  assert.deepEqual(
    optimizerGraph('adamw', parameters).state.map(({ name }) => name),
    ['w/mean', 'w/variance', 'b/mean', 'b/variance'],
  );
});

test('a stage without parameters has an empty update', () => {
  const { graph, state, scalars } = optimizerGraph('adam', []);
  assert.deepEqual([graph.inputs, graph.outputs, graph.nodes, state], [[], [], [], []]);
  assert.deepEqual(scalars({ learningRate: 1, gradientScale: 1, step: 1 }), {});
});

test('accumulateGraph adds gradients to their sums', async () => {
  const engine = createReferenceEngine();
  const graph = accumulateGraph([
    { name: 'w', shape: [2] },
    { name: 'b', shape: [] },
  ]);
  const results = await runGraph(engine, graph, {
    [sumName('w')]: tensor('float32', [2], [1, 2]),
    [gradientName('w')]: tensor('float32', [2], [10, 20]),
    [sumName('b')]: scalar('float32', 5),
    [gradientName('b')]: scalar('float32', -5),
  });
  assert.deepEqual(
    Object.entries(results).map(([name, value]) => [name, toNumbers(value)]),
    [
      ['w', [11, 22]],
      ['b', [0]],
    ],
  );
  await engine.close();
});

test('withSums adds gradients to their sums where they are computed, even one that is an input', async () => {
  const engine = createReferenceEngine();
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [2]);
  emitter.input(gradientName('given'), 'float32', [2]);
  emitter.append({ operator: 'Neg', domain: '', name: 'n', inputs: [x], outputs: [gradientName('w')], attributes: {} });
  const y = emitter.emit('Exp', [gradientName('w')]);
  const parameters = ['w', 'frozen', 'given'].map((name) => ({ name, shape: [2] }));
  const graph = withSums(emitter.build('backward', [y, gradientName('w'), gradientName('given')]), parameters);
  assert.deepEqual(
    graph.nodes.map(({ operator }) => operator),
    ['Neg', 'Add', 'Exp', 'Add'],
  );
  const results = await runGraph(engine, graph, {
    x: tensor('float32', [2], [0, -1]),
    [gradientName('given')]: tensor('float32', [2], [7, 8]),
    [sumName('w')]: tensor('float32', [2], [10, 20]),
    [sumName('given')]: tensor('float32', [2], [1, 1]),
  });
  assert.deepEqual(
    Object.entries(results).map(([name, value]) => [name, toNumbers(value)]),
    [
      [y, [1, Math.fround(Math.E)]],
      [summedName('w'), [10, 21]],
      [summedName('given'), [8, 9]],
    ],
  );
  await engine.close();
});

test('withSums adds each gradient of a node with several outputs', () => {
  const emitter = new Emitter();
  const x = emitter.input('x', 'float32', [4]);
  const parameters = ['v', 'w'].map((name) => ({ name, shape: [2] }));
  const outputs = parameters.map(({ name }) => gradientName(name));
  emitter.append({
    operator: 'Split',
    domain: '',
    name: 'n',
    inputs: [x, emitter.int64s([2, 2])],
    outputs,
    attributes: {},
  });
  const { nodes } = withSums(emitter.build('backward', outputs), parameters);
  assert.deepEqual(
    nodes.map((node) => [node.operator, node.outputs]),
    [
      ['Split', outputs],
      ['Add', [summedName('v')]],
      ['Add', [summedName('w')]],
    ],
  );
});

/** A graph whose gradient of w, [3, 2], is scattered into a constant, with sums added by withSums. */
function scatteredGradient(
  operator: string,
  reduction: string,
  fill: number,
  isReadAgain: boolean,
  scatterAbove = 5,
): Graph {
  const emitter = new Emitter();
  const rows = emitter.input('rows', 'float32', [2, 2]);
  const places = emitter.input('places', 'int64', operator === 'ScatterND' ? [2, 1] : [2, 2]);
  const value = tensorAttribute(tensor('float32', [1], [fill]));
  const zeros = emitter.emit('ConstantOfShape', [emitter.int64s([3, 2])], { value });
  const attributes = { reduction: string(reduction) };
  emitter.append({
    operator,
    domain: '',
    name: 'n',
    inputs: [zeros, places, rows],
    outputs: [gradientName('w')],
    attributes,
  });
  const norms = isReadAgain ? [emitter.emit('Abs', [gradientName('w')])] : [];
  return withSums(
    emitter.build('backward', [gradientName('w'), ...norms]),
    [{ name: 'w', shape: [3, 2] }],
    scatterAbove,
  );
}

test('withSums scatters rows into the sum if the gradient is rows in zeros that nothing else reads', async () => {
  const engine = createReferenceEngine();
  assert.deepEqual(
    scatteredGradient('ScatterND', 'add', 0, false, 6).nodes.map(({ operator }) => operator),
    ['ConstantOfShape', 'ScatterND', 'Add'],
    'a small one',
  );
  const cases = [
    {
      operator: 'ScatterND',
      reduction: 'add',
      fill: 0,
      isReadAgain: false,
      nodes: ['ScatterND'],
      summed: [10, 20, 30, 40, 54, 66],
    },
    {
      operator: 'ScatterElements',
      reduction: 'add',
      fill: 0,
      isReadAgain: false,
      nodes: ['ScatterElements'],
      summed: [10, 20, 30, 40, 54, 66],
    },
    {
      ...{ operator: 'ScatterND', reduction: 'none', fill: 0, isReadAgain: false },
      ...{ nodes: ['ConstantOfShape', 'ScatterND', 'Add'], summed: [10, 20, 30, 40, 53, 64] },
    },
    {
      ...{ operator: 'ScatterND', reduction: 'add', fill: 1, isReadAgain: false },
      ...{ nodes: ['ConstantOfShape', 'ScatterND', 'Add'], summed: [11, 21, 31, 41, 55, 67] },
    },
    {
      ...{ operator: 'ScatterND', reduction: 'add', fill: 0, isReadAgain: true },
      ...{ nodes: ['ConstantOfShape', 'ScatterND', 'Add', 'Abs'], summed: [10, 20, 30, 40, 54, 66] },
    },
  ];
  for (const { operator, reduction, fill, isReadAgain, nodes, summed } of cases) {
    const graph = scatteredGradient(operator, reduction, fill, isReadAgain);
    assert.deepEqual(
      graph.nodes.map((node) => node.operator),
      nodes,
    );
    const results = await runGraph(engine, graph, {
      rows: tensor('float32', [2, 2], [1, 2, 3, 4]),
      places: operator === 'ScatterND' ? tensor('int64', [2, 1], [2, 2]) : tensor('int64', [2, 2], [2, 2, 2, 2]),
      [sumName('w')]: tensor('float32', [3, 2], [10, 20, 30, 40, 50, 60]),
    });
    assert.deepEqual(toNumbers(defined(results[summedName('w')], 'the sum')), summed);
  }
  await engine.close();
});

test('zerosGraph gives zeros of each shape, from a scalar', async () => {
  const engine = createReferenceEngine();
  const graph = zerosGraph([
    { name: 'w', shape: [2, 1] },
    { name: 'b', shape: [] },
  ]);
  const results = await runGraph(engine, graph, { zero: scalar('float32', 0) });
  assert.deepEqual(
    Object.entries(results).map(([name, value]) => [name, value.shape, toNumbers(value)]),
    [
      ['w', [2, 1], [0, 0]],
      ['b', [], [0]],
    ],
  );
  await engine.close();
});
