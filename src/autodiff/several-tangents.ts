// Several tangents that share one forward pass: each node that depends on a tangent is there once for each of them, and
// all read the values of the one forward pass.
//
// Left to itself, an engine that runs nodes on demand (engine/execution-order.ts) would follow one tangent to the end
// before it began another, and all of the forward pass would be kept for that. So before each heavy node each of them
// waits until all have come as far: a zero that is made of the sizes of all is added to its value.

import { int, type Node } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import type { ValueType } from '../graph/tensor.ts';
import { type TangentGraph, tangentName } from './forward-mode.ts';

/** Operators that do most of the work: between two of them little is kept for the tangents that come later. */
const heavyOperators: ReadonlySet<string> = new Set(['Conv', 'ConvTranspose', 'Gemm', 'MatMul', 'MaxPool', 'Softmax']);

/**
 * A stage's graph with `count` tangents of everything that has one: inputs and outputs `tangentName(value, index)`, for
 * each value all indices. Nothing else of `single` changes.
 */
export function severalTangents(single: TangentGraph, count: number): TangentGraph {
  if (count === 1) return single;
  const { graph, tangentInputs, tangentParameters, tangentOutputs } = single;
  const owners = new Map(
    [...tangentInputs, ...tangentParameters, ...tangentOutputs].map((name) => [tangentName(name), name] as const),
  );
  const copy = (value: string, index: number): string => {
    const name = owners.get(value);
    if (index === 0) return value;
    return name === undefined ? `${value}#${index}` : tangentName(name, index);
  };
  const indices = Array.from({ length: count }, (_, index) => index);
  const repeated = <Info extends { readonly name: string }>(infos: readonly Info[]): Info[] =>
    infos.flatMap((info) =>
      owners.has(info.name) ? indices.map((index) => ({ ...info, name: copy(info.name, index) })) : [info],
    );
  return {
    ...single,
    graph: {
      ...graph,
      inputs: repeated(graph.inputs),
      outputs: repeated(graph.outputs),
      nodes: copiedNodes(single, indices, copy),
    },
  };
}

/** The nodes, with those that depend on a tangent once for each of them, one after the other. */
function copiedNodes(
  { graph, tangentInputs, tangentParameters }: TangentGraph,
  indices: readonly number[],
  copy: (value: string, index: number) => string,
): readonly Node[] {
  const ofWeights = new Set(tangentParameters.map((name) => tangentName(name)));
  const moving = new Set([...tangentInputs.map((name) => tangentName(name)), ...ofWeights]);
  /** What depends on more than tangents of weights: on what forward passes compute. */
  const activations = new Set(graph.inputs.flatMap(({ name }) => (ofWeights.has(name) ? [] : [name])));
  const barriers = new Barriers(inferTypes(graph));
  const named = (value: string, index: number): string => (moving.has(value) ? copy(value, index) : value);
  return graph.nodes.flatMap((node): readonly Node[] => {
    const outputs = node.outputs.filter((output) => output !== '');
    if (node.inputs.some((input) => activations.has(input))) for (const output of outputs) activations.add(output);
    if (!node.inputs.some((input) => moving.has(input))) return [node];
    for (const output of outputs) moving.add(output);
    const waits = heavyOperators.has(node.operator)
      ? node.inputs.filter((input) => moving.has(input) && activations.has(input))
      : [];
    const waiting = new Map(
      waits.map((value) => [
        value,
        barriers.at(
          value,
          indices.map((index) => copy(value, index)),
        ),
      ]),
    );
    const copies = indices.map(
      (index): Node => ({
        ...node,
        name: index === 0 ? node.name : `${node.name}#${index}`,
        inputs: node.inputs.map((input) => waiting.get(input)?.values[index] ?? named(input, index)),
        outputs: node.outputs.map((output) => named(output, index)),
      }),
    );
    return [...[...waiting.values()].flatMap(({ nodes }) => nodes), ...copies];
  });
}

interface Barrier {
  /** The values, each of which is there when all are. */
  readonly values: readonly string[];
  /** What makes them; nothing where they were made before. */
  readonly nodes: readonly Node[];
}

/** Values that wait for each other. */
class Barriers {
  readonly #types: ReadonlyMap<string, Pick<ValueType, 'type'>>;
  readonly #made = new Set<string>();

  constructor(types: ReadonlyMap<string, Pick<ValueType, 'type'>>) {
    this.#types = types;
  }

  /** `all`: the value of each tangent, `value` the first of them. */
  at(value: string, all: readonly string[]): Barrier {
    const values = all.map((own) => `${own}/waited`);
    if (this.#made.has(value)) return { values, nodes: [] };
    this.#made.add(value);
    const sizes = all.map((own) => `${own}/size`);
    const [size, none, zero] = [`${value}/sizes`, `${value}/none`, `${value}/zero`];
    // Of a blocked layout, whose types are not known here, all values are float32.
    const type = dataTypeCode(this.#types.get(value)?.type ?? 'float32');
    return {
      values,
      nodes: [
        ...all.map((own, index) => nodeOf('Size', [own], sizes[index] as string)),
        ...sumOf(sizes, size),
        nodeOf('Sub', [size, size], none),
        nodeOf('Cast', [none], zero, { to: int(type) }),
        ...all.map((own, index) => nodeOf('Add', [own, zero], values[index] as string)),
      ],
    };
  }
}

function nodeOf(
  operator: string,
  inputs: readonly string[],
  output: string,
  attributes: Node['attributes'] = {},
): Node {
  return { operator, domain: '', name: output, inputs, outputs: [output], attributes };
}

/** Integers are added in pairs; there are at least two. */
function sumOf(values: readonly string[], result: string): readonly Node[] {
  return values.slice(1).map((value, index) => {
    const before = index === 0 ? (values[0] as string) : `${result}/${index - 1}`;
    return nodeOf('Add', [before, value], index === values.length - 2 ? result : `${result}/${index}`);
  });
}
