// Every operator's reference kernel against ONNX Runtime's, on random cases; and the table of kernels that ONNX Runtime
// lacks.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import type { Graph } from '../graph/graph.ts';
import { operators } from '../graph/operators/index.ts';
import type { OperatorName, RandomName } from '../graph/operators/names.ts';
import { type ElementType, isFloat, sameShape, type Tensor, toNumbers } from '../graph/tensor.ts';
import { runOnEngine } from '../testing/onnxruntime-check.ts';
import { gapTypes, onnxRuntimeGaps } from '../testing/onnxruntime-gaps.ts';
import { type OperatorCase, operatorCase } from '../testing/operator-cases.ts';
import type { Engine } from './engine.ts';
import { createOnnxRuntimeNodeEngine } from './node/onnxruntime-node.ts';

/** Cases of each operator and element type: seeds 0, 1, … */
const seedCount = 12;
/** What is not compared, with the reason. */
const incomparable: Readonly<
  Partial<Record<OperatorName, { readonly types: readonly ElementType[]; readonly reason: string }>>
> = {
  LayerNormalization: { types: ['float64'], reason: 'our statistics are float64, ONNX has float32' },
  ReduceLogSumExp: { types: ['int32', 'int64'], reason: 'the runtime rounds between the steps' },
};
/** Where the runtime computes by a formula that loses digits: x·(scale/σ) + (bias − mean·scale/σ). */
const inexact: ReadonlySet<OperatorName> = new Set([
  'BatchNormalization',
  'GroupNormalization',
  'InstanceNormalization',
]);

let engine: Engine | undefined;
let missing: string | undefined;
try {
  engine = await createOnnxRuntimeNodeEngine();
} catch (error) {
  if (!(error instanceof InputError)) throw error;
  missing = error.message;
}
after(() => engine?.close());

/** Each side draws its own numbers. */
const drawn: Readonly<Record<RandomName, true>> = {
  Bernoulli: true,
  RandomNormal: true,
  RandomNormalLike: true,
  RandomUniform: true,
  RandomUniformLike: true,
};

for (const operator of (Object.keys(operators) as OperatorName[]).filter((name) => !Object.hasOwn(drawn, name))) {
  test(`${operator} computes what ONNX Runtime computes`, { skip: missing }, async () => {
    const without: ElementType[] = [];
    for (const type of gapTypes) {
      if (incomparable[operator]?.types.includes(type)) continue;
      const cases = Array.from({ length: seedCount }, (_, seed) =>
        operatorCase(operator, seed, { types: [type] }),
      ).filter((one) => isAbout(one, type));
      const implemented = await Promise.all(cases.map((one) => compare(defined(engine, 'the engine'), operator, one)));
      if (implemented.includes(false)) without.push(type);
    }
    assert.deepEqual(without, onnxRuntimeGaps[operator] ?? []);
  });
}

/** True where the case has the wanted type, and no other than those of the table. */
function isAbout({ inputs }: OperatorCase, type: ElementType): boolean {
  const types = inputs.flatMap((input) => (input ? [input.type] : []));
  return (types.length === 0 || types.includes(type)) && types.every((other) => gapTypes.includes(other));
}

/** Compares one case; false where the runtime has no kernel. */
async function compare(runtime: Engine, operator: OperatorName, one: OperatorCase): Promise<boolean> {
  const { node, inputs } = one;
  const { evaluate, constantInputs } = operators[operator];
  const expected = evaluate(node, inputs);
  const given = inputs.flatMap((value, index) =>
    value ? [{ name: defined(node.inputs[index], 'a name'), value, constant: constantInputs.includes(index) }] : [],
  );
  const graph: Graph = {
    name: `${operator}: ${node.name}`,
    inputs: given
      .filter(({ constant }) => !constant)
      .map(({ name, value }) => ({ name, type: value.type, shape: value.shape })),
    initializers: new Map(given.filter(({ constant }) => constant).map(({ name, value }) => [name, value])),
    outputs: node.outputs.map((name, index) => ({
      name,
      type: defined(expected[index], name).type,
      shape: defined(expected[index], name).shape,
    })),
    parameters: [],
    buffers: [],
    nodes: [node],
  };
  let outputs: ReadonlyMap<string, Tensor>;
  try {
    outputs = await runOnEngine(runtime, graph, new Map(given.map(({ name, value }) => [name, value])));
  } catch (error) {
    if (error instanceof InputError && error.message.includes('Could not find an implementation for')) return false;
    throw error;
  }
  for (const [index, name] of node.outputs.entries()) {
    assertNear(
      defined(expected[index], name),
      defined(outputs.get(name), name),
      inexact.has(operator) ? 1e-3 : 1e-5,
      graph.name,
    );
  }
  return true;
}

function assertNear(ours: Tensor, theirs: Tensor, tolerance: number, what: string): void {
  assert.ok(
    ours.type === theirs.type && sameShape(ours.shape, theirs.shape),
    `${what}: ${ours.type}[${ours.shape}] is not ${theirs.type}[${theirs.shape}]`,
  );
  const [a, b] = [toNumbers(ours), toNumbers(theirs)];
  a.forEach((value, index) => {
    const other = defined(b[index], 'an element');
    const near = isFloat(ours.type) && Math.abs(value - other) <= tolerance * Math.max(1, Math.abs(other));
    assert.ok(
      value === other || Object.is(value, other) || near,
      `${what}: element ${index} is ${value} here and ${other} in ONNX Runtime`,
    );
  });
}
