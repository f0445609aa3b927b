// Forward mode on graphs with static shapes: from a stage's graph to one that computes its outputs and, in the same
// pass, their tangents: the directional derivative (Jacobian–vector product) along given tangents of its inputs and
// parameters. Nothing is saved, so memory does not grow with depth; values without a tangent cost nothing more. Rules:
// tangents.ts.

import { assert } from '../assert.ts';
import type { Emitter } from '../graph/emitter.ts';
import type { Graph, Node } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import { isFloat, sameShape, type ValueType } from '../graph/tensor.ts';
import type { TrainingPass } from './differentiate.ts';
import { type DropoutInput, replaceDropouts } from './dropout.ts';
import { type BufferUpdate, checkNames, loadForward } from './forward.ts';
import { differentiableOperator } from './rule.ts';
import { assemble, NodeList } from './subgraph.ts';
import { type Arranged, arrange, tangentsFirst } from './tangents/arrange.ts';
import type { TangentRule } from './tangents/rule.ts';
import { tangentRules } from './tangents.ts';

/** Which values have tangents, and which outputs' tangents to compute. */
export interface TangentOptions {
  /** Graph inputs that have a tangent: activations from a stage before, if that has parameters with tangents. */
  readonly inputs: readonly string[];
  /** Parameters that have a tangent; others are constant and cost no tangent work. Default: all of the graph's. */
  readonly parameters?: readonly string[];
  /**
   * Computed values that have a tangent of their own, which is added to what inputs and parameters give them: graph
   * input `tangentName(activityName(…))`. Default: none.
   */
  readonly values?: readonly string[];
  /** Float outputs whose tangents are computed. Default: all of them. */
  readonly outputs?: readonly string[];
  /**
   * Rewrites the forward pass followed by the tangents, as for `differentiate`; `gradients` are the outputs' tangents.
   * Default: nothing.
   */
  readonly lower?: (pass: TrainingPass) => TrainingPass;
}

/** A stage's forward pass with its Jacobian–vector product. */
export interface TangentGraph {
  /**
   * Inputs: the stage's inputs, parameters, buffers, dropout masks, and `tangentName(…)` of `tangentInputs` and
   * `tangentParameters`. Outputs: the stage's outputs, new buffers, and `tangentName(…)` of `tangentOutputs`. A tangent
   * has its value's shape and type.
   */
  readonly graph: Graph;
  readonly bufferUpdates: readonly BufferUpdate[];
  /** Masks and other random numbers to feed. */
  readonly dropouts: readonly DropoutInput[];
  /** The requested inputs, and `activityName` of the values, whose tangents reach an output. */
  readonly tangentInputs: readonly string[];
  /** The requested parameters whose tangents reach an output. */
  readonly tangentParameters: readonly string[];
  /** The requested outputs that have a tangent. */
  readonly tangentOutputs: readonly string[];
  /** The requested outputs that depend on no value with a tangent: their tangent is zero and is not computed. */
  readonly withoutTangent: readonly string[];
}

/** The graph's name for a tangent of a value; of several (several-tangents.ts), that with this index. */
export function tangentName(value: string, index = 0): string {
  return index === 0 ? `tangent(${value})` : `tangent(${value})#${index}`;
}

/** What has a value's own tangent, beside that which comes from before it. */
export function activityName(value: string): string {
  return `activity(${value})`;
}

/**
 * The graph that computes a stage's outputs and their tangents. Throws InputError, naming node and operator, if a
 * tangent has to pass an operator without a rule.
 */
export function tangentGraph(stage: StaticGraph, options: TangentOptions): TangentGraph {
  const { stage: masked, dropouts } = replaceDropouts(stage);
  const { graph } = masked;
  const parameters = options.parameters ?? graph.parameters;
  const outputs = options.outputs ?? graph.outputs.filter(({ type }) => isFloat(type)).map(({ name }) => name);
  checkNames(graph, { inputs: options.inputs, parameters, outputs });
  const { inputs, values = [] } = options;
  const sources = [...inputs, ...parameters, ...values].filter((name) =>
    isFloat((masked.types.get(name) as ValueType).type),
  );
  const [lower, deferred] = [options.lower ?? ((pass: TrainingPass) => pass), options.lower !== undefined];
  const { emitter: written, bufferUpdates, varied } = loadForward(masked, sources, { deferred });
  const owners = [...inputs, ...values.map(activityName)];
  const tangents = declareTangents(written, sources, values);
  const [data, forwardCount] = [graph.inputs.map(({ name }) => name), written.nodes.length];
  const starts = propagate(written, { varied, tangents, data, deferred });
  const tangentOutputs = outputs.filter((name) => tangents.has(name));
  const results = [...new Set([...graph.outputs, ...bufferUpdates.map(({ output: name }) => ({ name }))].map(nameOf))];
  const gradients = new Map(tangentOutputs.map((name) => [name, tangents.get(name) as string]));
  const pass = lower({ emitter: written, forwardCount, results, gradients });
  const { emitter } = pass;
  const moving = owners.map((name) => tangentName(name));
  const arranged = arrange(emitter, { forwardCount: pass.forwardCount, data, moving, starts });
  const { list, targets, rename } = nameTangents(emitter, { ...arranged, tangents: pass.gradients });
  const isKnown = (value: string): boolean => emitter.constantValue(value) !== undefined;
  const selection = list.select([...results, ...targets], () => false, isKnown);
  const read = new Set(selection.leaves);
  const used = (names: readonly string[]): readonly string[] => names.filter((name) => read.has(tangentName(name)));
  const [tangentInputs, tangentParameters] = [used(owners), used(parameters)];
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

function nameOf({ name }: { readonly name: string }): string {
  return name;
}

/** By value, the inputs that are its tangents: those of computed values are their activities'. */
function declareTangents(emitter: Emitter, sources: readonly string[], values: readonly string[]): Map<string, string> {
  const computed = new Set(values);
  return new Map(
    sources.map((name) => {
      const { type, shape } = emitter.type(name);
      return [name, emitter.input(tangentName(computed.has(name) ? activityName(name) : name), type, shape)];
    }),
  );
}

/**
 * Writes the tangents of all `varied` values that `tangents` (value → its tangent) reach, and adds them to it. Returns
 * the parameters' tangents from which the activations' first ones arise (a first layer's): these meet activations
 * without tangents.
 */
function propagate(
  emitter: Emitter,
  {
    varied,
    tangents,
    data,
    deferred,
  }: {
    readonly varied: ReadonlySet<string>;
    readonly tangents: Map<string, string>;
    readonly data: readonly string[];
    readonly deferred: boolean;
  },
): ReadonlySet<string> {
  const activations = new Set(data);
  const starts = new Set<string>();
  /** For parameters and values derived from them alone: the parameter tangents that they depend on. */
  const origins = new Map([...tangents].map(([name, tangent]) => [name, [tangent]]));
  for (const node of [...emitter.nodes]) {
    const isActivation = node.inputs.some((input) => activations.has(input));
    if (isActivation) for (const output of node.outputs) if (output !== '') activations.add(output);
    const results = node.outputs.filter((output) => varied.has(output));
    const movingInputs = node.inputs.filter((input) => tangents.has(input));
    if (results.length === 0 || movingInputs.length === 0) continue;
    const found = ruleOf(node)({ node, emitter, tangents: node.inputs.map((input) => tangents.get(input)), deferred });
    const from = movingInputs.flatMap((input) => origins.get(input) ?? []);
    if (isActivation && !movingInputs.some((input) => activations.has(input)))
      for (const tangent of from) starts.add(tangent);
    for (const output of results) {
      const tangent = found[node.outputs.indexOf(output)];
      if (tangent === undefined) continue;
      checkType(emitter, node, output, tangent);
      const own = tangents.get(output);
      tangents.set(output, own === undefined ? tangent : emitter.emit('Add', [tangent, own]));
      if (!isActivation) origins.set(output, [...new Set(from)]);
    }
  }
  return starts;
}

/** All nodes, with the outputs' tangents under their final names; one that cannot be renamed is copied. */
function nameTangents(
  emitter: Emitter,
  { nodes, aliases, tangents }: Arranged & { readonly tangents: ReadonlyMap<string, string> },
): { readonly list: NodeList; readonly targets: readonly string[]; readonly rename: ReadonlyMap<string, string> } {
  const all = [...nodes];
  const computed = new Set(nodes.flatMap((node) => node.outputs));
  const rename = new Map<string, string>();
  const targets = [...tangents].map(([output, tangent]) => {
    let value = aliases.get(tangent) ?? tangent;
    if (value === tangentName(output)) return value; // an input that is an output, too
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
    `the rule of ${node.operator} (node "${node.name}") gave ${found.type}[${found.shape}] for the tangent of ` +
      `${expected.type}[${expected.shape}]`,
  );
}
