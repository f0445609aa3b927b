// Forward mode on graphs with static shapes: from a stage's graph to one that computes its outputs and, in the same pass, their tangents:
// the directional derivative (Jacobian–vector product) along tangents given for its inputs and parameters. Nothing is kept for later, so
// that memory does not grow with depth; what no tangent reaches costs nothing. Rules: tangents.ts.

import { assert } from '../assert.ts';
import type { Emitter } from '../graph/emitter.ts';
import type { Graph, Node } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import { isFloat, sameShape, type ValueType } from '../graph/tensor.ts';
import { type DropoutInput, replaceDropouts } from './dropout.ts';
import { type BufferUpdate, checkNames, loadForward } from './forward.ts';
import { differentiableOperator } from './rule.ts';
import { assemble, mergeEqualNodes, NodeList } from './subgraph.ts';
import { arrange, tangentsFirst } from './tangents/arrange.ts';
import type { TangentRule } from './tangents/rule.ts';
import { tangentRules } from './tangents.ts';

/** What moves, and whose tangents are wanted. */
export interface TangentOptions {
  /** Graph inputs that come with a tangent: activations from a stage before, if that has parameters that move. */
  readonly inputs: readonly string[];
  /** Parameters that come with a tangent; others stay and cost no tangent work. Default: all of the graph's. */
  readonly parameters?: readonly string[];
  /** Float outputs whose tangents are wanted. Default: all of them. */
  readonly outputs?: readonly string[];
}

/** A stage's forward pass with its Jacobian–vector product. */
export interface TangentGraph {
  /**
   * Inputs: the stage's inputs, parameters, buffers, dropout masks, and `tangentName(…)` of `tangentInputs` and `tangentParameters`.
   * Outputs: the stage's outputs, new buffers, and `tangentName(…)` of `tangentOutputs`. A tangent has its value's shape and type.
   */
  readonly graph: Graph;
  readonly bufferUpdates: readonly BufferUpdate[];
  /** Masks to feed. */
  readonly dropouts: readonly DropoutInput[];
  /** The inputs asked for whose tangents reach an output. */
  readonly tangentInputs: readonly string[];
  /** The parameters asked for whose tangents reach an output. */
  readonly tangentParameters: readonly string[];
  /** The outputs asked for that move. */
  readonly tangentOutputs: readonly string[];
  /** The outputs asked for to which nothing that moves has a path: their tangent is zero and is not computed. */
  readonly withoutTangent: readonly string[];
}

/** The graph's name for the tangent of a value. */
export function tangentName(value: string): string {
  return `tangent(${value})`;
}

/**
 * The graph that computes a stage's outputs and their tangents.
 * Throws InputError naming node and operator where a tangent would have to pass an operator without a rule.
 */
export function tangentGraph(stage: StaticGraph, options: TangentOptions): TangentGraph {
  const { stage: masked, dropouts } = replaceDropouts(stage);
  const { graph } = masked;
  const parameters = options.parameters ?? graph.parameters;
  const outputs = options.outputs ?? graph.outputs.filter(({ type }) => isFloat(type)).map(({ name }) => name);
  checkNames(graph, { inputs: options.inputs, parameters, outputs });
  const sources = [...options.inputs, ...parameters].filter((name) => isFloat((masked.types.get(name) as ValueType).type));
  const { emitter, bufferUpdates, moved } = loadForward(masked, sources);
  const tangents = new Map(sources.map((name) => [name, declareTangent(emitter, name)]));
  const nodes = propagate(emitter, { moved, tangents, inputs: graph.inputs.map(({ name }) => name) });
  const tangentOutputs = outputs.filter((name) => tangents.has(name));
  const { list, targets, rename } = nameTangents(emitter, nodes, { outputs: tangentOutputs, tangents });
  const results = [...new Set([...graph.outputs.map(({ name }) => name), ...bufferUpdates.map(({ output }) => output)])];
  const isConstant = (value: string): boolean => emitter.constantValue(value) !== undefined;
  const selection = list.select([...results, ...targets], () => false, isConstant);
  const read = new Set(selection.leaves);
  const used = (names: readonly string[]): readonly string[] => names.filter((name) => read.has(tangentName(name)));
  const [tangentInputs, tangentParameters] = [used(options.inputs), used(parameters)];
  const given = [...graph.inputs.map(({ name }) => name), ...graph.parameters, ...graph.buffers];
  const masks = new Set(dropouts.map(({ name }) => name));
  return {
    graph: assemble(emitter, {
      name: `${graph.name}.tangent`,
      inputs: [
        ...given.filter((name) => !masks.has(name)),
        ...masks,
        ...[...tangentInputs, ...tangentParameters].map((name) => tangentName(name)),
      ],
      nodes: tangentsFirst(emitter, {
        nodes: Array.from(selection.nodes, (index) => list.nodes[index] as Node),
        targets,
        outputs: graph.outputs.map(({ name }) => name),
      }),
      outputs: [...results, ...targets],
      rename,
    }),
    bufferUpdates,
    dropouts,
    tangentInputs,
    tangentParameters,
    tangentOutputs,
    withoutTangent: outputs.filter((name) => !tangents.has(name)),
  };
}

function declareTangent(emitter: Emitter, name: string): string {
  const { type, shape } = emitter.type(name);
  return emitter.input(tangentName(name), type, shape);
}

/**
 * Writes the tangents of all `moved` values that those in `tangents` (value → its tangent) reach, and adds them to it. Returns all nodes, in
 * the order that lets them run in little memory.
 */
function propagate(
  emitter: Emitter,
  {
    moved,
    tangents,
    inputs,
  }: { readonly moved: ReadonlySet<string>; readonly tangents: Map<string, string>; readonly inputs: readonly string[] },
): readonly Node[] {
  const forward = [...emitter.nodes];
  /** The inputs and what depends on them; not, say, a transposed weight. */
  const activations = new Set(inputs);
  const moving = new Set(inputs.flatMap((name) => tangents.get(name) ?? []));
  for (const node of forward) {
    if (node.inputs.some((input) => activations.has(input))) for (const output of node.outputs) if (output !== '') activations.add(output);
    const results = node.outputs.filter((output) => moved.has(output));
    const found = node.inputs.map((input) => tangents.get(input));
    if (results.length === 0 || found.every((tangent) => tangent === undefined)) continue;
    const written = ruleOf(node)({ node, emitter, tangents: found });
    for (const output of results) {
      const tangent = written[node.outputs.indexOf(output)];
      if (tangent === undefined) continue;
      checkType(emitter, node, output, tangent);
      tangents.set(output, tangent);
      if (activations.has(output)) moving.add(tangent);
    }
  }
  const { nodes, aliases } = mergeEqualNodes(emitter.nodes.slice(forward.length));
  for (const [value, tangent] of tangents) tangents.set(value, aliases.get(tangent) ?? tangent);
  for (const [repeated, first] of aliases) if (moving.has(repeated)) moving.add(first);
  return arrange(emitter, { forward, tangent: nodes, activations, tangents: moving });
}

/** All nodes and the outputs' tangents under the names that these get; one that cannot be renamed is copied. */
function nameTangents(
  emitter: Emitter,
  nodes: readonly Node[],
  { outputs, tangents }: { readonly outputs: readonly string[]; readonly tangents: ReadonlyMap<string, string> },
): { readonly list: NodeList; readonly targets: readonly string[]; readonly rename: ReadonlyMap<string, string> } {
  const all = [...nodes];
  const computed = new Set(nodes.flatMap((node) => node.outputs));
  const rename = new Map<string, string>();
  const targets = outputs.map((output) => {
    let value = tangents.get(output) as string;
    if (!computed.has(value) || rename.has(value)) {
      value = emitter.emit('Identity', [value]);
      all.push(emitter.nodes.at(-1) as Node);
    }
    rename.set(value, tangentName(output));
    return value;
  });
  return { list: new NodeList(all), targets, rename };
}

function ruleOf(node: Node): TangentRule {
  const rule = tangentRules[differentiableOperator(node)];
  assert(rule !== 'not-differentiable', `a tangent reached ${node.operator}`);
  return rule;
}

function checkType(emitter: Emitter, node: Node, value: string, tangent: string): void {
  const [expected, found] = [emitter.type(value), emitter.type(tangent)];
  const fits = expected.type === found.type && sameShape(expected.shape, found.shape);
  assert(
    fits,
    `the rule of ${node.operator} (node "${node.name}") gave ${found.type}[${found.shape}] for the tangent of ${expected.type}[${expected.shape}]`,
  );
}
