// The derivative along a direction from two forward passes, in place of a tangent (MeZO: Malladi et al., "Fine-tuning
// language models with just forward passes"): once with the parameters moved a step along it, once against it. In a
// stage's graph a value is that of the first pass, and its "tangent" that of the second; the loss's is the derivative.

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
  const { inputs, parameters, outputs, step, losses } = options;
  const { stage: masked, dropouts } = replaceDropouts(stage);
  const { graph } = masked;
  checkNames(graph, { inputs, parameters, outputs });
  const { emitter: e, bufferUpdates } = loadForward(masked, [...inputs, ...parameters], { deferred: false });
  const forward = [...e.nodes];
  const tangent = (name: string): string => {
    const { type, shape } = e.type(name);
    return e.input(tangentName(name), type, shape);
  };
  const moved = new Map<string, string>();
  const against = new Map(inputs.map((name) => [name, tangent(name)]));
  for (const name of parameters) {
    const direction = tangent(name);
    const scaled = e.emit('Mul', [direction, e.scalarLike(direction, step)]);
    moved.set(name, e.emit('Add', [name, scaled]));
    against.set(name, e.emit('Sub', [name, scaled]));
  }
  // The losses' own names are for the means.
  for (const name of losses) moved.set(name, `${name}/ahead`);
  const steps = e.nodes.slice(forward.length);
  const start = e.nodes.length;
  for (const node of forward) {
    if (!node.inputs.some((input) => against.has(input))) continue;
    const types = node.outputs.map((output) => (output === '' ? noType : e.type(output)));
    for (const output of node.outputs) if (output !== '') against.set(output, `${output}/behind`);
    e.appendTyped({ ...renamed(node, against), name: `${node.name}/behind` }, types);
  }
  const rename = new Map<string, string>();
  for (const name of outputs) {
    const behind = against.get(name) ?? e.emit('Identity', [name]);
    if (!losses.includes(name)) {
      rename.set(behind, tangentName(name));
      continue;
    }
    const { type, shape } = e.type(name);
    const ahead = e.input(`${name}/ahead`, type, shape); // the first pass makes it
    const mean = e.emit('Mul', [e.emit('Add', [ahead, behind]), e.scalarLike(ahead, 0.5)]);
    const derivative = e.emit('Mul', [e.emit('Sub', [ahead, behind]), e.scalarLike(ahead, 0.5 / step)]);
    rename.set(mean, name).set(derivative, tangentName(name));
  }
  const results = [...graph.outputs.map(({ name }) => name), ...bufferUpdates.map(({ output }) => output)];
  const named = new Map([...rename].map(([value, name]) => [name, value]));
  const masks = new Set(dropouts.map(({ name }) => name));
  const given = [...graph.inputs.map(({ name }) => name), ...graph.parameters, ...graph.buffers];
  return {
    graph: assemble(e, {
      name: `${graph.name}.difference`,
      inputs: [
        ...given.filter((name) => !masks.has(name)),
        ...masks,
        ...[...inputs, ...parameters].map((name) => tangentName(name)),
      ],
      nodes: [...steps, ...forward.map((node) => renamed(node, moved)), ...e.nodes.slice(start)],
      outputs: [...new Set(results), ...outputs.map((name) => tangentName(name))].map(
        (name) => named.get(name) ?? name,
      ),
      rename,
    }),
    ...{ bufferUpdates, dropouts, tangentInputs: inputs, tangentParameters: parameters, tangentOutputs: outputs },
    withoutTangent: [],
  };
}

const noType: ValueType = { type: 'float32', shape: [] };

function renamed(node: Node, names: ReadonlyMap<string, string>): Node {
  const rename = (value: string): string => names.get(value) ?? value;
  return { ...node, inputs: node.inputs.map(rename), outputs: node.outputs.map(rename) };
}
