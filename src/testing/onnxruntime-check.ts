// Holds the graphs that differentiation writes against ONNX Runtime: they must load, and give in float32 what the
// reference gives.

import { differentiate, outputGradientName } from '../autodiff/differentiate.ts';
import { tangentGraph, tangentName } from '../autodiff/forward-mode.ts';
import type { Engine } from '../engine/engine.ts';
import { loweringOf } from '../engine/lowering.ts';
import { type Graph, int, type Node } from '../graph/graph.ts';
import { isFloat, type Tensor, tensor, type ValueType } from '../graph/tensor.ts';
import type { Random } from '../random.ts';
import { evaluateGraph } from './evaluate-graph.ts';
import { assertClose, type GradientCase, type GraphCase, randomTensor, stageOfNode } from './gradient-check.ts';

/**
 * The largest difference that is accepted, relative to the largest element of the same value (or to 1 where that is
 * smaller).
 */
const tolerance = 1e-4;

/** Runs a node's forward and backward graphs on the engine and compares every output with the reference. */
export async function checkNodeOnEngine(engine: Engine, gradientCase: GradientCase, random: Random): Promise<void> {
  await checkGraphOnEngine(engine, stageOfNode(inSinglePrecision(gradientCase)), random);
}

/** Runs a graph's forward and backward graphs on the engine and compares every output with the reference. */
export async function checkGraphOnEngine(
  engine: Engine,
  { stage, feeds, inputs, outputs }: GraphCase,
  random: Random,
): Promise<void> {
  const graphs = differentiate(stage, { inputs, ...(outputs ? { outputs } : {}) });
  const values = new Map([...stage.graph.initializers, ...feeds]);
  for (const [name, value] of await compare(engine, graphs.forward, values)) values.set(name, value);
  for (const { name, type, shape } of outputs
    ? stage.graph.outputs.filter((output) => outputs.includes(output.name))
    : stage.graph.outputs) {
    if (isFloat(type))
      values.set(outputGradientName(name), randomTensor(random, { type, shape: shape as readonly number[] }));
  }
  for (const graph of [graphs.backward, graphs.backwardInput, graphs.backwardWeight]) {
    if (graph.outputs.length === 0) continue;
    for (const [name, value] of await compare(engine, graph, values)) values.set(name, value);
  }
}

/** Runs the graph of a node's tangents on the engine and compares every output with the reference. */
export async function checkNodeTangentsOnEngine(
  engine: Engine,
  gradientCase: GradientCase,
  random: Random,
): Promise<void> {
  await checkTangentsOnEngine(engine, stageOfNode(inSinglePrecision(gradientCase)), random);
}

/**
 * Runs the graph of a graph's outputs and their tangents on the engine, plain and lowered to its kernels, and compares
 * every output with the reference.
 */
export async function checkTangentsOnEngine(
  engine: Engine,
  { stage, feeds, inputs, outputs }: GraphCase,
  random: Random,
): Promise<void> {
  const options = { inputs, ...(outputs ? { outputs } : {}) };
  const { graph, tangentInputs, tangentParameters } = tangentGraph(stage, options);
  const values = new Map([...stage.graph.initializers, ...feeds]);
  for (const name of [...tangentInputs, ...tangentParameters])
    values.set(tangentName(name), randomTensor(random, stage.types.get(name) as ValueType));
  const expected = await compare(engine, graph, values);
  const lowered = tangentGraph(stage, { ...options, ...loweringOf(engine) });
  const found = await runOnEngine(engine, lowered.graph, values);
  for (const { name } of stage.graph.outputs) {
    for (const result of [name, tangentName(name)]) {
      if (expected.has(result))
        assertClose(numbersOf(found.get(result)), numbersOf(expected.get(result)), `"${result}" lowered`, tolerance);
    }
  }
}

/** The reference's outputs, after comparing the engine's with them. */
async function compare(
  engine: Engine,
  graph: Graph,
  values: ReadonlyMap<string, Tensor>,
): Promise<ReadonlyMap<string, Tensor>> {
  const expected = evaluateGraph(graph, values);
  const found = await runOnEngine(engine, graph, values);
  for (const [name, value] of expected) {
    assertClose(
      numbersOf(found.get(name)),
      numbersOf(value),
      `"${name}" of ${graph.name} on ${engine.name}`,
      tolerance,
    );
  }
  return expected;
}

/** A graph's outputs as an engine computes them. */
export async function runOnEngine(
  engine: Engine,
  graph: Graph,
  values: ReadonlyMap<string, Tensor>,
): Promise<Map<string, Tensor>> {
  const executable = await engine.compile(graph);
  const copies = graph.inputs.map(({ name }) => [name, values.get(name) as Tensor] as const);
  const feeds = Object.fromEntries(
    copies.map(([name, value]) => [name, engine.upload({ ...value, data: value.data.slice() as Tensor['data'] })]),
  );
  const results = executable.run(feeds);
  const found = new Map<string, Tensor>();
  for (const { name } of graph.outputs) if (results[name]) found.set(name, await engine.take(results[name]));
  for (const value of Object.values(feeds)) engine.release(value);
  await engine.settled();
  executable.release();
  return found;
}

function numbersOf(value: Tensor | undefined): Float64Array {
  return Float64Array.from((value?.data ?? []) as ArrayLike<number | bigint>, Number);
}

/** The case in float32, the type that engines are fast in. */
function inSinglePrecision(gradientCase: GradientCase): GradientCase {
  const node: Node =
    gradientCase.node.operator === 'Cast' ? { ...gradientCase.node, attributes: { to: int(1) } } : gradientCase.node;
  const inputs = Object.fromEntries(
    Object.entries(gradientCase.inputs).map(([name, value]) => [
      name,
      value.type === 'float64' ? tensor('float32', value.shape, value.data as Float64Array) : value,
    ]),
  );
  return { ...gradientCase, node, inputs };
}
