// Holds gradients against central differences of the reference kernels in float64, and the two halves of a backward
// pass against the whole. Cases are one node (gradient-cases/) or any static graph.

import assert from 'node:assert/strict';
import { differentiate, outputGradientName, type StageGraphs } from '../autodiff/differentiate.ts';
import { Emitter } from '../graph/emitter.ts';
import { gradientName } from '../graph/gradient-name.ts';
import type { Graph, Node } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import { type ElementType, isFloat, type Tensor, tensor, type ValueType } from '../graph/tensor.ts';
import type { Random } from '../random.ts';
import { evaluateGraph } from './evaluate-graph.ts';

/** One node with values for its inputs. */
export interface GradientCase {
  readonly node: Node;
  /** By input name. */
  readonly inputs: Readonly<Record<string, Tensor>>;
  /** Inputs that are initializers of the graph: known before running. */
  readonly constants?: readonly string[];
  /** Inputs whose gradients are checked. */
  readonly differentiable: readonly string[];
  /** Outputs that receive gradients. Default: the first. */
  readonly seeded?: readonly string[];
}

/** A static graph with values for its inputs; parameters and buffers are in its initializers. */
export interface GraphCase {
  readonly stage: StaticGraph;
  readonly feeds: ReadonlyMap<string, Tensor>;
  /** Graph inputs whose gradients are checked, in addition to all parameters. */
  readonly inputs: readonly string[];
  readonly outputs?: readonly string[];
  /** What the forward pass computes, where that is not the graph itself (dropout). */
  readonly evaluate?: (feeds: ReadonlyMap<string, Tensor>) => Map<string, Tensor>;
}

/**
 * The largest difference that is accepted, relative to the largest gradient of the same value (or to 1 where that is
 * smaller).
 */
const tolerance = 1e-6;
/** Half the distance of a central difference: its error is about step² + 1e-16/step. */
const step = 1e-5;

/** Checks all gradients of a node. */
export function checkNode(gradientCase: GradientCase, random: Random): void {
  checkGraph(stageOfNode(gradientCase), random);
}

/** A graph of one node. The first differentiable input is a graph input, the others are parameters. */
export function stageOfNode({
  node,
  inputs,
  constants = [],
  differentiable,
  seeded = node.outputs.slice(0, 1),
}: GradientCase): GraphCase {
  const parameters = differentiable.slice(1);
  const emitter = new Emitter();
  for (const [name, value] of Object.entries(inputs)) {
    if (constants.includes(name)) emitter.initializer(name, value);
    else emitter.input(name, value.type, value.shape);
  }
  emitter.append(node);
  const built = emitter.build(
    'case',
    node.outputs.filter((output) => output !== ''),
  );
  const graph: Graph = {
    ...built,
    inputs: built.inputs.filter(({ name }) => !parameters.includes(name)),
    initializers: new Map([
      ...built.initializers,
      ...parameters.map((name) => [name, inputs[name] as Tensor] as const),
    ]),
    parameters,
  };
  const names = [...Object.keys(inputs), ...node.outputs].filter((name) => name !== '' && emitter.has(name));
  const types = new Map(names.map((name) => [name, emitter.type(name)]));
  return {
    stage: { graph, types },
    feeds: new Map(Object.entries(inputs)),
    inputs: differentiable.slice(0, 1),
    outputs: seeded,
  };
}

/**
 * Checks the gradients of a graph's inputs and parameters, the halves of its backward pass, and what it says it saves.
 */
export function checkGraph(
  { stage, feeds, inputs, outputs, evaluate = (values) => evaluateGraph(stage.graph, values) }: GraphCase,
  random: Random,
): void {
  const graphs = differentiate(stage, { inputs, ...(outputs ? { outputs } : {}) });
  const seededOutputs = outputs ?? stage.graph.outputs.filter(({ type }) => isFloat(type)).map(({ name }) => name);
  const seeds = new Map(seededOutputs.map((name) => [name, randomTensor(random, stage.types.get(name) as ValueType)]));
  const values = new Map([...stage.graph.initializers, ...feeds]);
  const gradients = runBackward(graphs, values, seeds);
  for (const of of ['backward', 'backward-weight'] as const) {
    const parameters = inGroups(stage.graph.parameters);
    checkPieces(
      differentiate(stage, { inputs, ...(outputs ? { outputs } : {}), pieces: { of, parameters } }),
      values,
      seeds,
      gradients,
    );
  }
  const loss = (changed: ReadonlyMap<string, Tensor>): number => {
    const results = evaluate(changed);
    return [...seeds].reduce((total, [name, seed]) => total + dot(results.get(name) as Tensor, seed), 0);
  };
  for (const name of [...inputs, ...stage.graph.parameters]) {
    const numeric = centralDifferences(loss, values, name);
    const zero = graphs.withoutGradient.includes(name);
    assertClose(
      zero ? numeric.map(() => 0) : ((gradients.get(gradientName(name)) as Tensor).data as Float64Array),
      numeric,
      `the gradient of "${name}"`,
    );
  }
}

/** All gradients by name, from the whole backward graph, after checking that the two halves give the same. */
export function runBackward(
  graphs: StageGraphs,
  values: ReadonlyMap<string, Tensor>,
  seeds: ReadonlyMap<string, Tensor>,
): Map<string, Tensor> {
  const forward = evaluateGraph(graphs.forward, values);
  const known = new Map(values);
  for (const { name, type, shape, bytes } of graphs.saved) {
    const value = forward.get(name) as Tensor;
    assert.deepEqual([value.type, value.shape, value.data.byteLength], [type, shape, bytes], `saved "${name}"`);
    known.set(name, value);
  }
  // The backward graphs may read nothing but what is declared.
  const declared = [...graphs.saved, ...graphs.savedInputs].map(({ name }) => name);
  const readable = new Map([...declared, ...graphs.usedParameters].map((name) => [name, known.get(name) as Tensor]));
  for (const [name, seed] of seeds) readable.set(outputGradientName(name), seed);
  const whole = evaluateGraph(graphs.backward, readable);
  const first = evaluateGraph(graphs.backwardInput, readable);
  for (const { name } of graphs.intermediates) readable.set(name, first.get(name) as Tensor);
  const second = evaluateGraph(graphs.backwardWeight, readable);
  const names = [...graphs.inputGradients, ...graphs.parameterGradients].map(gradientName);
  assert.deepEqual([...whole.keys()], names);
  assert.deepEqual([...second.keys()], graphs.parameterGradients.map(gradientName));
  for (const name of names) {
    const half = (second.get(name) ?? first.get(name)) as Tensor;
    assert.deepEqual(half.data, (whole.get(name) as Tensor).data, `"${name}" from the halves`);
  }
  return whole;
}

/**
 * The last of the names first, in up to three groups, of which the second is empty where there are enough to see what
 * that does.
 */
function inGroups(names: readonly string[]): readonly (readonly string[])[] {
  const middle = Math.ceil(names.length / 2);
  return names.length < 2 ? [names] : [names.slice(middle), ...(names.length > 3 ? [[]] : []), names.slice(0, middle)];
}

/**
 * The pieces of a backward pass give the very gradients of the whole, and read nothing but what is saved and what
 * pieces before them carry.
 */
function checkPieces(
  graphs: StageGraphs,
  values: ReadonlyMap<string, Tensor>,
  seeds: ReadonlyMap<string, Tensor>,
  whole: ReadonlyMap<string, Tensor>,
): void {
  const forward = evaluateGraph(graphs.forward, values);
  const declared = [...graphs.saved, ...graphs.savedInputs].map(({ name }) => name);
  const readable = new Map(
    [...declared, ...graphs.usedParameters].map((name) => [name, (forward.get(name) ?? values.get(name)) as Tensor]),
  );
  for (const [name, seed] of seeds) readable.set(outputGradientName(name), seed);
  const found = new Map<string, Tensor>();
  // Where the halves are in use, the pieces are of the second.
  const first = evaluateGraph(graphs.backwardInput, readable);
  for (const { name } of graphs.intermediates) readable.set(name, first.get(name) as Tensor);
  for (const name of graphs.inputGradients.map(gradientName)) found.set(name, first.get(name) as Tensor);
  for (const { graph, carried, parameterGradients } of graphs.pieces) {
    const results = evaluateGraph(graph, readable);
    for (const name of carried) readable.set(name, results.get(name) as Tensor);
    for (const name of parameterGradients) assert.ok(results.has(gradientName(name)), `"${name}" of a piece`);
    for (const [name, value] of results) if (!carried.includes(name)) found.set(name, value);
  }
  assert.deepEqual([...found.keys()].sort(), [...whole.keys()].sort());
  for (const [name, value] of whole) assert.deepEqual(found.get(name)?.data, value.data, `"${name}" from the pieces`);
}

/** dL/d(value) by central differences, element by element. */
function centralDifferences(
  loss: (values: ReadonlyMap<string, Tensor>) => number,
  values: ReadonlyMap<string, Tensor>,
  name: string,
): Float64Array {
  const original = values.get(name) as Tensor;
  const lossAt = (index: number, delta: number): number => {
    const data = Float64Array.from(original.data as Float64Array);
    data[index] = (data[index] as number) + delta;
    return loss(new Map(values).set(name, { ...original, data }));
  };
  return Float64Array.from(
    { length: original.data.length },
    (_, index) => (lossAt(index, step) - lossAt(index, -step)) / (2 * step),
  );
}

/** Fails where two lists of numbers differ by more than the tolerance. */
export function assertClose(
  found: ArrayLike<number>,
  expected: ArrayLike<number>,
  what: string,
  allowed: number = tolerance,
): void {
  assert.equal(found.length, expected.length, `${what}: the count of elements`);
  let scale = 1;
  for (let index = 0; index < expected.length; index++) scale = Math.max(scale, Math.abs(expected[index] as number));
  for (let index = 0; index < expected.length; index++) {
    const difference = Math.abs((found[index] as number) - (expected[index] as number));
    assert.ok(
      difference <= allowed * scale,
      `${what}[${index}] is ${found[index]} where ${expected[index]} is expected`,
    );
  }
}

/** Uniform values in [−1, 1). */
export function randomTensor(random: Random, { type, shape }: ValueType): Tensor {
  const count = shape.reduce((product, dimension) => product * dimension, 1);
  return tensor(
    type,
    shape,
    Float64Array.from({ length: count }, () => 2 * random.uniform() - 1),
  );
}

/** Σ a·b over all elements. */
export function dot(a: Tensor, b: Tensor): number {
  let total = 0;
  for (let index = 0; index < a.data.length; index++) total += Number(a.data[index]) * Number(b.data[index]);
  return total;
}

/** The graph with float64 in place of float32, for finite differences. */
export function inDoublePrecision(graph: Graph): Graph {
  const widen = <T extends { readonly type: ElementType }>(value: T): T =>
    value.type === 'float32' ? { ...value, type: 'float64' } : value;
  const convert = (value: Tensor): Tensor =>
    value.type === 'float32' ? tensor('float64', value.shape, value.data as Float32Array) : value;
  return {
    ...graph,
    inputs: graph.inputs.map(widen),
    outputs: graph.outputs.map(widen),
    initializers: new Map([...graph.initializers].map(([name, value]) => [name, convert(value)])),
  };
}
