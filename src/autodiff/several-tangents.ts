// Several tangents that share one forward pass: each node that depends on a tangent is there once for each of them, and
// all read the values of the one forward pass.
//
// Left to itself, an engine that runs nodes on demand (engine/execution-order.ts) would follow the first tangent to the
// end before it began the second, and all of the forward pass would be kept for that. So the first waits before each
// heavy node until the others have come as far: a zero that is made of their sizes is added to its value.

import { int, type Node } from '../graph/graph.ts';
import { inferTypes } from '../graph/infer-types.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import { type TangentGraph, tangentName } from './forward-mode.ts';

/** Operators that do most of the work: between two of them little is kept for the tangents that come later. */
const heavyOperators: ReadonlySet<string> = new Set(['Conv', 'ConvTranspose', 'Gemm', 'MatMul', 'MaxPool', 'Softmax']);

/**
 * A stage's graph with `count` tangents of everything that has one: inputs and outputs `tangentName(value, index)`, for
 * each value all indices. Nothing else of `single` changes.
 */
export function severalTangents(single: TangentGraph, count: number): TangentGraph {
  if (count === 1) return single;
  const { graph } = single;
  const given = new Set([...single.tangentInputs, ...single.tangentParameters].map((name) => tangentName(name)));
  const results = new Set(single.tangentOutputs.map((name) => tangentName(name)));
  const named = new Map(
    [...single.tangentInputs, ...single.tangentParameters, ...single.tangentOutputs].map((name) => [
      tangentName(name),
      name,
    ]),
  );
  const moving = new Set(given);
  /** Of these, the ones that depend on activations, not on weights and their tangents alone. */
  const activations = new Set(graph.inputs.map(({ name }) => name));
  for (const name of single.tangentParameters) activations.delete(tangentName(name));
  const weights = new Set([...graph.parameters, ...graph.buffers]);
  const copy = (value: string, index: number): string => {
    if (!moving.has(value) || index === 0) return value;
    const name = named.get(value);
    return name === undefined ? `${value}#${index}` : tangentName(name, index);
  };
  const indices = Array.from({ length: count }, (_, index) => index);
  const barriers = new Barriers(inferTypes(graph));
  const nodes = graph.nodes.flatMap((node): readonly Node[] => {
    if (node.inputs.some((input) => activations.has(input) && !weights.has(input)))
      for (const output of node.outputs) activations.add(output);
    if (!node.inputs.some((input) => moving.has(input))) return [node];
    for (const output of node.outputs) if (output !== '') moving.add(output);
    const waits = heavyOperators.has(node.operator)
      ? node.inputs.filter((input) => moving.has(input) && activations.has(input))
      : [];
    const waiting = new Map(
      waits.map((value) => [
        value,
        barriers.at(
          value,
          indices.slice(1).map((index) => copy(value, index)),
        ),
      ]),
    );
    const copies = indices.map(
      (index): Node => ({
        ...node,
        name: index === 0 ? node.name : `${node.name}#${index}`,
        inputs: node.inputs.map((input) => (index === 0 ? (waiting.get(input)?.value ?? input) : copy(input, index))),
        outputs: node.outputs.map((output) => copy(output, index)),
      }),
    );
    return [...[...waiting.values()].flatMap((barrier) => barrier.nodes), ...copies];
  });
  const repeated = <Info extends { readonly name: string }>(infos: readonly Info[], of: ReadonlySet<string>): Info[] =>
    infos.flatMap((info) =>
      of.has(info.name) ? indices.map((index) => ({ ...info, name: copy(info.name, index) })) : [info],
    );
  return {
    ...single,
    graph: { ...graph, inputs: repeated(graph.inputs, given), outputs: repeated(graph.outputs, results), nodes },
  };
}

interface Barrier {
  /** The value, which is there when the others are. */
  readonly value: string;
  /** What makes it; nothing where it was made before. */
  readonly nodes: readonly Node[];
}

/** Values that wait for others. */
class Barriers {
  readonly #types: ReadonlyMap<string, { readonly type: Parameters<typeof dataTypeCode>[0] }>;
  readonly #made = new Set<string>();

  constructor(types: ReadonlyMap<string, { readonly type: Parameters<typeof dataTypeCode>[0] }>) {
    this.#types = types;
  }

  at(value: string, others: readonly string[]): Barrier {
    const result = `${value}/waited`;
    if (this.#made.has(value)) return { value: result, nodes: [] };
    this.#made.add(value);
    const node = (
      operator: string,
      inputs: readonly string[],
      output: string,
      attributes: Node['attributes'] = {},
    ): Node => ({
      ...{ operator, domain: '', name: output, inputs, outputs: [output], attributes },
    });
    const sizes = others.map((_, index) => `${value}/size${index}`);
    const [size, none, zero] = [`${value}/sizes`, `${value}/none`, `${value}/zero`];
    // Of a blocked layout, whose types are not known here, all values are float32.
    const type = dataTypeCode(this.#types.get(value)?.type ?? 'float32');
    return {
      value: result,
      nodes: [
        ...others.map((other, index) => node('Size', [other], sizes[index] as string)),
        sizes.length === 1 ? node('Identity', sizes, size) : sumOf(sizes, size, node),
        node('Sub', [size, size], none),
        node('Cast', [none], zero, { to: int(type) }),
        node('Add', [value, zero], result),
      ].flat(),
    };
  }
}

/** Integers are added in pairs. */
function sumOf(
  values: readonly string[],
  result: string,
  node: (operator: string, inputs: readonly string[], output: string) => Node,
): readonly Node[] {
  return values.slice(1).map((value, index) => {
    const before = index === 0 ? (values[0] as string) : `${result}/${index - 1}`;
    return node('Add', [before, value], index === values.length - 2 ? result : `${result}/${index}`);
  });
}
