// Holds tangents against central differences of the reference kernels in float64, and against reverse mode: ⟨J·v, u⟩ =
// ⟨v, Jᵀ·u⟩ for the tangents of all sources together and of each alone. The cases are gradient-check's.

import assert from 'node:assert/strict';
import { differentiate } from '../autodiff/differentiate.ts';
import { type TangentGraph, tangentGraph, tangentName } from '../autodiff/forward-mode.ts';
import { gradientName } from '../graph/gradient-name.ts';
import { isFloat, type Tensor, type ValueType } from '../graph/tensor.ts';
import type { Random } from '../random.ts';
import { evaluateGraph } from './evaluate-graph.ts';
import {
  assertClose,
  dot,
  type GradientCase,
  type GraphCase,
  randomTensor,
  runBackward,
  stageOfNode,
} from './gradient-check.ts';

/** Half the distance of a central difference along a direction. */
const step = 1e-5;

/** Checks all tangents of a node. */
export function checkNodeTangents(gradientCase: GradientCase, random: Random): void {
  checkTangents(stageOfNode(gradientCase), random);
}

/** Checks the tangents of a graph's outputs along random tangents of its inputs and parameters. */
export function checkTangents(
  { stage, feeds, inputs, outputs, evaluate = (values) => evaluateGraph(stage.graph, values) }: GraphCase,
  random: Random,
): void {
  const asked = outputs ?? stage.graph.outputs.filter(({ type }) => isFloat(type)).map(({ name }) => name);
  const sources = [...inputs, ...stage.graph.parameters];
  const draw = (names: readonly string[]): ReadonlyMap<string, Tensor> =>
    new Map(names.map((name) => [name, randomTensor(random, stage.types.get(name) as ValueType)]));
  const [directions, seeds] = [draw(sources), draw(asked)];
  const values = new Map([...stage.graph.initializers, ...feeds]);
  const tangents = runTangents(tangentGraph(stage, { inputs, outputs: asked }), values, directions);

  const moved = (distance: number): ReadonlyMap<string, Tensor> =>
    evaluate(
      new Map([
        ...values,
        ...sources.map((name) => [name, along(values.get(name), directions.get(name), distance)] as const),
      ]),
    );
  const [before, after] = [moved(-step), moved(step)];
  for (const name of asked) {
    const numeric = numbers(after.get(name)).map(
      (value, index) => (value - (numbers(before.get(name))[index] as number)) / (2 * step),
    );
    assertClose(
      tangents.has(name) ? numbers(tangents.get(name)) : numeric.map(() => 0),
      numeric,
      `the tangent of "${name}"`,
    );
  }

  const graphs = differentiate(stage, { inputs, outputs: asked });
  const gradients = runBackward(graphs, values, seeds);
  const against = (found: ReadonlyMap<string, Tensor>, by: ReadonlyMap<string, Tensor>): number =>
    [...found].reduce((total, [name, value]) => total + dot(value, by.get(name) as Tensor), 0);
  const expected = sources.map((name) => {
    const gradient = gradients.get(gradientName(name));
    return gradient === undefined ? 0 : dot(directions.get(name) as Tensor, gradient);
  });
  assertClose([against(tangents, seeds)], [expected.reduce((total, one) => total + one, 0)], '⟨J·v, u⟩');
  sources.forEach((source, index) => {
    const alone = tangentGraph(stage, {
      inputs: inputs.filter((name) => name === source),
      parameters: stage.graph.parameters.filter((name) => name === source),
      outputs: asked,
    });
    assertClose(
      [against(runTangents(alone, values, directions), seeds)],
      [expected[index] as number],
      `⟨J·v, u⟩ along "${source}"`,
    );
  });
}

/** The tangents of outputs by the outputs' names. The graph may read nothing but what is declared. */
export function runTangents(
  { graph, tangentInputs, tangentParameters, tangentOutputs, withoutTangent }: TangentGraph,
  values: ReadonlyMap<string, Tensor>,
  directions: ReadonlyMap<string, Tensor>,
): ReadonlyMap<string, Tensor> {
  const feeds = new Map(values);
  for (const name of [...tangentInputs, ...tangentParameters])
    feeds.set(tangentName(name), directions.get(name) as Tensor);
  const results = evaluateGraph(graph, feeds);
  for (const name of withoutTangent) assert.ok(!results.has(tangentName(name)));
  return new Map(tangentOutputs.map((name) => [name, results.get(tangentName(name)) as Tensor]));
}

function along(value: Tensor | undefined, direction: Tensor | undefined, distance: number): Tensor {
  const moved = numbers(value).map((element, index) => element + distance * (numbers(direction)[index] as number));
  return { ...(value as Tensor), data: moved } as Tensor;
}

function numbers(value: Tensor | undefined): Float64Array {
  return (value?.data ?? new Float64Array()) as Float64Array;
}
