// The optimizers as graphs: one run updates all parameters of a stage, exactly as torch.optim's SGD, Adam and AdamW,
// or as Lion. State starts as zeros. Also the graphs that sum the gradients of micro-batches.

import { assert } from '../assert.ts';
import { Emitter } from '../graph/emitter.ts';
import { gradientName } from '../graph/gradient-name.ts';
import { type Graph, type Node, stringAttribute } from '../graph/graph.ts';
import { neededNodes } from '../graph/liveness.ts';
import { elementCount, toNumbers } from '../graph/tensor.ts';
import type { Parameter } from './names.ts';
import {
  type OptimizerKind,
  type OptimizerOptions,
  type OptimizerState,
  RuleWriter,
  ruleOf,
  scalarName,
  type UpdateSettings,
} from './update-rules.ts';

/** An update of all parameters of a stage. */
export interface OptimizerGraph {
  /**
   * Inputs: the parameters under their names, `gradientName` of each, the state under its names, and the scalars.
   * Outputs: `updatedName` of each parameter, then of each piece of state; then, where weights are predicted,
   * `readName` of each parameter.
   */
  readonly graph: Graph;
  readonly state: readonly OptimizerState[];
  /** The graph's scalar inputs by name (float32, shape []) and their values for one update. */
  scalars(settings: UpdateSettings): Readonly<Record<string, number>>;
  /** The name of the output that replaces a parameter or a piece of state. */
  updatedName(name: string): string;
  /** The name of the output that passes read as the parameter: predicted weights, or simply the new ones. */
  readName(parameter: string): string;
}

/** Builds the update of `parameters` (float32 or float64). With no parameters the graph is empty. */
export function optimizerGraph(
  kind: OptimizerKind,
  parameters: readonly Parameter[],
  options: OptimizerOptions = {},
): OptimizerGraph {
  const emitter = new Emitter();
  for (const { name, type = 'float32', shape } of parameters) emitter.input(name, type, shape);
  for (const { name, type = 'float32', shape } of parameters) emitter.input(gradientName(name), type, shape);
  const rule = ruleOf(kind, options);
  const state = parameters.flatMap(({ name, type = 'float32', shape }) =>
    rule.state.map((part): OptimizerState => ({ name: `${name}/${part}`, parameter: name, kind: part, type, shape })),
  );
  for (const { name, type, shape } of state) emitter.input(name, type, shape);
  const names =
    parameters.length === 0 ? [] : Object.keys(rule.scalars({ learningRate: 0, gradientScale: 0, step: 1 }));
  for (const name of names) emitter.input(scalarName(name), 'float32', []);
  for (const { name, type = 'float32' } of parameters) {
    assert(type === 'float32' || type === 'float64', `parameter "${name}" of type ${type}`);
    rule.write(new RuleWriter(emitter, { name, type }, { updatedName, readName: predictedName }));
  }
  const readName = rule.predicts ? predictedName : updatedName;
  const predicted = rule.predicts ? parameters.map(({ name }) => predictedName(name)) : [];
  const outputs = [...[...parameters, ...state].map(({ name }) => updatedName(name)), ...predicted];
  const scalars = (settings: UpdateSettings): Record<string, number> => {
    const values = rule.scalars(settings);
    return Object.fromEntries(names.map((name) => [scalarName(name), values[name] as number]));
  };
  return { graph: emitter.build(kind, outputs), state, scalars, updatedName, readName };
}

/**
 * Inputs: for each parameter `sumName`, and its new gradient under `gradientName`. Outputs: their sums, under the
 * parameters' names.
 */
export function accumulateGraph(parameters: readonly Parameter[]): Graph {
  const emitter = new Emitter();
  for (const { name, type = 'float32', shape } of parameters) {
    emitter.input(sumName(name), type, shape);
    emitter.input(gradientName(name), type, shape);
  }
  for (const { name } of parameters) writeAs(emitter, name, 'Add', [sumName(name), gradientName(name)]);
  return emitter.build(
    'accumulate',
    parameters.map(({ name }) => name),
  );
}

/**
 * The graph with gradient summation added: it takes `sumName` of each parameter, and outputs `summedName` instead of
 * the gradient. The addition directly follows the node that computes the gradient, which is then still in the cache; a
 * separate pass over all weights would read and write each once more. A gradient of rows scattered into zeros, such as
 * an embedding's, is scattered into its sum if it has more than `scatterAbove` elements; that rounds differently from
 * adding, so the choice must not depend on how a plan cuts.
 */
export function withSums(graph: Graph, parameters: readonly Parameter[], scatterAbove = 0): Graph {
  const given = new Set(graph.outputs.map(({ name }) => name));
  const own = new Map(
    parameters.filter(({ name }) => given.has(gradientName(name))).map((spec) => [gradientName(spec.name), spec]),
  );
  const adding = ({ name }: Parameter): Node => ({
    ...{ operator: 'Add', domain: '', name: summedName(name), attributes: {} },
    ...{ inputs: [sumName(name), gradientName(name)], outputs: [summedName(name)] },
  });
  const makers = new Map(graph.nodes.flatMap((node) => node.outputs.map((output) => [output, node] as const)));
  const read = new Set(graph.nodes.flatMap(({ inputs }) => inputs));
  const summing = (node: Node): readonly Node[] => {
    const specs = node.outputs.flatMap((name) => own.get(name) ?? []);
    const [spec] = specs;
    const [target, ...added] = node.inputs;
    const isScattered =
      spec !== undefined &&
      elementCount(spec.shape) > scatterAbove &&
      isAddingAt(node) &&
      isZeros(makers.get(target as string)) &&
      !read.has(gradientName(spec.name));
    if (!isScattered) return [node, ...specs.map(adding)];
    return [
      {
        ...node,
        name: summedName(spec.name),
        inputs: [sumName(spec.name), ...added],
        outputs: [summedName(spec.name)],
      },
    ];
  };
  // a gradient that is an input
  const unmade = [...own].filter(([gradient]) => !makers.has(gradient)).map(([, spec]) => adding(spec));
  const outputs = graph.outputs.map((output) => {
    const spec = own.get(output.name);
    return spec === undefined ? output : { ...output, name: summedName(spec.name) };
  });
  return {
    ...graph,
    inputs: [
      ...graph.inputs,
      ...Array.from(own.values(), ({ name, type = 'float32', shape }) => ({ name: sumName(name), type, shape })),
    ],
    outputs,
    nodes: neededNodes(
      [...graph.nodes.flatMap(summing), ...unmade],
      outputs.map(({ name }) => name),
    ),
  };
}

/** True for a node that adds to elements of its first input. */
function isAddingAt(node: Node): boolean {
  return (
    node.domain === '' &&
    (node.operator === 'ScatterND' || node.operator === 'ScatterElements') &&
    stringAttribute(node, 'reduction', 'none') === 'add'
  );
}

function isZeros(node: Node | undefined): boolean {
  if (node?.operator !== 'ConstantOfShape' || node.domain !== '') return false;
  const { value } = node.attributes;
  return value === undefined || (value.type === 'tensor' && toNumbers(value.value)[0] === 0);
}

/**
 * Initial zeros of the parameters' sums, under their names, from the scalar `zero`: an input, so that they do not
 * become constants as large as the weights.
 */
export function zerosGraph(parameters: readonly Parameter[]): Graph {
  const emitter = new Emitter();
  const zero = emitter.input('zero', 'float32', []);
  for (const { name, shape } of parameters) writeAs(emitter, name, 'Expand', [zero, emitter.int64s(shape)]);
  return emitter.build(
    'zeros',
    parameters.map(({ name }) => name),
  );
}

/** The name of the sum of a parameter's gradients so far, an input of the graph that adds to it. */
export function sumName(parameter: string): string {
  return `sum(${parameter})`;
}

/** The name of the sum with one more gradient, an output of `withSums`. */
export function summedName(parameter: string): string {
  return `summed(${parameter})`;
}

function updatedName(name: string): string {
  return `updated(${name})`;
}

function predictedName(name: string): string {
  return `predicted(${name})`;
}

function writeAs(emitter: Emitter, output: string, operator: string, inputs: readonly string[]): string {
  emitter.append({ operator, domain: '', name: output, inputs, outputs: [output], attributes: {} });
  return output;
}
