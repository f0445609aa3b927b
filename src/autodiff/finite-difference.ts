// The derivative along a direction from two forward passes, in place of a tangent (MeZO: Malladi et al., "Fine-tuning
// language models with just forward passes"): once with the parameters moved a step along it, once against it. In a
// stage's graph a value is that of the first pass, and its "tangent" that of the second; the loss's is the derivative.

import type { Emitter } from '../graph/emitter.ts';
import type { Node } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import type { ValueType } from '../graph/tensor.ts';
import { replaceDropouts } from './dropout.ts';
import { checkNames, loadForward } from './forward.ts';
import { type TangentGraph, type TangentOptions, tangentName } from './forward-mode.ts';
import { assemble } from './subgraph.ts';

export interface DifferenceOptions extends Required<Pick<TangentOptions, 'inputs' | 'parameters' | 'outputs'>> {
  /** The step, in lengths of the direction: ε. */
  readonly step: number;
  /** Of `outputs`, the losses: they are the mean of both passes, with their derivatives. */
  readonly losses: readonly string[];
}

/**
 * The graph with the inputs and outputs of `tangentGraph`, where tangents of activations are the values of the second
 * pass. Both passes have the same dropouts; new buffers are the first's.
 */
export function differenceGraph(stage: StaticGraph, options: DifferenceOptions): TangentGraph {
  const { inputs, parameters, outputs, losses } = options;
  const { stage: masked, dropouts } = replaceDropouts(stage);
  const { graph } = masked;
  checkNames(graph, { inputs, parameters, outputs });
  const { emitter: e, bufferUpdates } = loadForward(masked, [...inputs, ...parameters], { deferred: false });
  const forward = [...e.nodes];
  const { ahead, behind } = movedParameters(e, options);
  // The losses' own names are for the means.
  for (const name of losses) ahead.set(name, `${name}/ahead`);
  const steps = e.nodes.slice(forward.length);
  appendBehind(e, forward, behind);
  const rename = writeDerivatives(e, behind, options);
  const named = new Map([...rename].map(([value, name]) => [name, value]));
  const results = [...graph.outputs.map(({ name }) => name), ...bufferUpdates.map(({ output }) => output)];
  const masks = new Set(dropouts.map(({ name }) => name));
  const given = [...graph.inputs.map(({ name }) => name), ...graph.parameters, ...graph.buffers];
  const moving = [...inputs, ...parameters].map((name) => tangentName(name));
  return {
    graph: assemble(e, {
      name: `${graph.name}.difference`,
      inputs: [...given.filter((name) => !masks.has(name)), ...masks, ...moving],
      nodes: [
        ...steps,
        ...forward.map((node) => renamed(node, ahead)),
        ...e.nodes.slice(forward.length + steps.length),
      ],
      outputs: [...new Set(results), ...outputs.map((name) => tangentName(name))].map(
        (name) => named.get(name) ?? name,
      ),
      rename,
    }),
    ...{ bufferUpdates, dropouts, tangentInputs: inputs, tangentParameters: parameters, tangentOutputs: outputs },
    withoutTangent: [],
  };
}

/** By name, the parameters a step along the directions, and a step against them, where inputs are the second pass's. */
function movedParameters(
  e: Emitter,
  { inputs, parameters, step }: DifferenceOptions,
): Readonly<Record<'ahead' | 'behind', Map<string, string>>> {
  const tangent = (name: string): string => {
    const { type, shape } = e.type(name);
    return e.input(tangentName(name), type, shape);
  };
  const ahead = new Map<string, string>();
  const behind = new Map(inputs.map((name) => [name, tangent(name)]));
  for (const name of parameters) {
    const direction = tangent(name);
    const scaled = e.emit('Mul', [direction, e.scalarLike(direction, step)]);
    ahead.set(name, e.emit('Add', [name, scaled]));
    behind.set(name, e.emit('Sub', [name, scaled]));
  }
  return { ahead, behind };
}

/** The nodes of the second pass, as far as it differs from the first; adds their outputs to `behind`. */
function appendBehind(e: Emitter, forward: readonly Node[], behind: Map<string, string>): void {
  for (const node of forward) {
    if (!node.inputs.some((input) => behind.has(input))) continue;
    const types = node.outputs.map((output) => (output === '' ? noType : e.type(output)));
    for (const output of node.outputs) if (output !== '') behind.set(output, `${output}/behind`);
    e.appendTyped({ ...renamed(node, behind), name: `${node.name}/behind` }, types);
  }
}

/** Mean and derivative of each loss. Returns the names of all outputs' tangents, and of the means. */
function writeDerivatives(
  e: Emitter,
  behind: ReadonlyMap<string, string>,
  { outputs, losses, step }: DifferenceOptions,
): Map<string, string> {
  const rename = new Map<string, string>();
  for (const name of outputs) {
    const second = behind.get(name) ?? e.emit('Identity', [name]);
    if (!losses.includes(name)) {
      rename.set(second, tangentName(name));
      continue;
    }
    const { type, shape } = e.type(name);
    const first = e.input(`${name}/ahead`, type, shape); // the first pass makes it
    const mean = e.emit('Mul', [e.emit('Add', [first, second]), e.scalarLike(first, 0.5)]);
    const derivative = e.emit('Mul', [e.emit('Sub', [first, second]), e.scalarLike(first, 0.5 / step)]);
    rename.set(mean, name).set(derivative, tangentName(name));
  }
  return rename;
}

const noType: ValueType = { type: 'float32', shape: [] };

function renamed(node: Node, names: ReadonlyMap<string, string>): Node {
  const rename = (value: string): string => names.get(value) ?? value;
  return { ...node, inputs: node.inputs.map(rename), outputs: node.outputs.map(rename) };
}
