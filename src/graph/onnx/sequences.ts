// Sequences of tensors that exporters write for `chunk`, `split` and `stack`: their elements are named by constant
// numbers, so that each is a plain tensor. Sequences that depend on data stay, and are refused by name.

import { int, intAttribute, type Node } from '../graph.ts';
import { freshName } from '../liveness.ts';
import { int64s, scalar, type Tensor, toNumbers } from '../tensor.ts';

/** What the rewriting reads of a graph, and where it adds constants. */
export interface SequenceContext {
  /** The graph's constants by name; new ones are added. */
  readonly initializers: Map<string, Tensor>;
  /** All names of the graph. */
  readonly names: Set<string>;
}

/** The elements of a sequence: a value for each, or a function that makes the nodes of one. */
interface Sequence {
  /** The number of elements, if it is known. */
  readonly length?: number;
  /** The element at an index, from the end below 0. Undefined if there is none, or it is not known. */
  element(index: number): string | undefined;
}

/**
 * The nodes with plain operators in place of SplitToSequence and SequenceConstruct, where SequenceAt,
 * ConcatFromSequence and SequenceLength read them by constant numbers. `nodes` are of the canonical opset, in
 * topological order.
 */
export function plainSequences(nodes: readonly Node[], context: SequenceContext): readonly Node[] {
  if (!nodes.some(({ operator }) => operator === 'SequenceAt' || operator === 'ConcatFromSequence')) return nodes;
  const sequences = new Map<string, Sequence>();
  const result: Node[] = [];
  for (const node of nodes) {
    const [first = '', second = ''] = node.inputs;
    const [output = ''] = node.outputs;
    const sequence = sequences.get(first);
    const made = node.domain === '' ? sequenceOf(node, context, result) : undefined;
    if (made !== undefined) {
      sequences.set(output, made);
      result.push(node); // unused once all its readers are rewritten
    } else result.push(...(sequence === undefined ? [node] : (readerNodes(node, sequence, second, context) ?? [node])));
  }
  return result;
}

/** The nodes in place of one that reads a sequence, or undefined where that is not possible. */
function readerNodes(
  node: Node,
  sequence: Sequence,
  position: string,
  { initializers, names }: SequenceContext,
): readonly Node[] | undefined {
  const [output = ''] = node.outputs;
  const plain = (operator: string, inputs: readonly string[]): Node => ({ ...node, operator, inputs, attributes: {} });
  if (node.operator === 'SequenceAt') {
    const index = initializers.get(position);
    const value = index?.data.length === 1 ? sequence.element(Number(index.data[0])) : undefined;
    return value === undefined ? undefined : [plain('Identity', [value])];
  }
  if (sequence.length === undefined) return undefined;
  if (node.operator === 'SequenceLength') {
    initializers.set(output, scalar('int64', sequence.length));
    return [];
  }
  if (node.operator !== 'ConcatFromSequence') return undefined;
  const axis = intAttribute(node, 'axis', 0);
  const values = Array.from({ length: sequence.length }, (_, index) => sequence.element(index) as string);
  const concat = (inputs: readonly string[]): Node => ({ ...plain('Concat', inputs), attributes: { axis: int(axis) } });
  if (intAttribute(node, 'new_axis', 0) === 0) return [concat(values)];
  const axes = freshName(`${node.name}.axes`, names);
  initializers.set(axes, int64s([axis]));
  const parts = values.map((value) => ({ value, name: freshName(`${node.name}.part`, names) }));
  return [
    ...parts.map(({ value, name }) => ({ ...plain('Unsqueeze', [value, axes]), name, outputs: [name] })),
    concat(parts.map(({ name }) => name)),
  ];
}

/** The sequence that a node makes of constants, or undefined. Nodes that its elements need go to `result`. */
function sequenceOf(node: Node, context: SequenceContext, result: Node[]): Sequence | undefined {
  if (node.operator === 'SequenceConstruct') return listed(node.inputs);
  if (node.operator !== 'SplitToSequence') return undefined;
  const sizes = context.initializers.get(node.inputs[1] ?? '');
  if (sizes === undefined && (node.inputs[1] ?? '') !== '') return undefined;
  if (sizes !== undefined && sizes.shape.length === 1)
    return listed(splitNode(node, toNumbers(sizes), context, result));
  const size = sizes === undefined ? 1 : Number(sizes.data[0]);
  const keeps = sizes !== undefined || intAttribute(node, 'keepdims', 1) !== 0;
  return chunks(node, { size, keeps }, context, result);
}

function listed(values: readonly string[]): Sequence {
  return { length: values.length, element: (index) => values.at(index) };
}

/** The outputs of a Split into parts of the given sizes, which is added to `result`. */
function splitNode(
  node: Node,
  sizes: readonly number[],
  { initializers, names }: SequenceContext,
  result: Node[],
): readonly string[] {
  const split = freshName(`${node.name}.sizes`, names);
  initializers.set(split, int64s(sizes));
  const outputs = sizes.map(() => freshName(`${node.name}.part`, names));
  const name = freshName(`${node.name}.split`, names);
  const axis = int(intAttribute(node, 'axis', 0));
  result.push({
    ...node,
    operator: 'Split',
    name,
    inputs: [node.inputs[0] ?? '', split],
    outputs,
    attributes: { axis },
  });
  return outputs;
}

/**
 * Chunks of one size, whose number depends on a shape that is not known here: each is a Slice of its own, made when it
 * is first read. From the end they are counted only for chunks of size 1, since the last one may be smaller.
 */
function chunks(
  node: Node,
  { size, keeps }: { readonly size: number; readonly keeps: boolean },
  { initializers, names }: SequenceContext,
  result: Node[],
): Sequence {
  const made = new Map<number, string>();
  const axis = intAttribute(node, 'axis', 0);
  const constant = (stem: string, value: number): string => {
    const name = freshName(`${node.name}.${stem}`, names);
    initializers.set(name, int64s([value]));
    return name;
  };
  const slice = (index: number): string => {
    const end = index === -1 ? Number.MAX_SAFE_INTEGER : (index + 1) * size;
    const axes = constant('axis', axis);
    const name = freshName(`${node.name}.part`, names);
    const inputs = [node.inputs[0] ?? '', constant('start', index * size), constant('end', end), axes];
    result.push({ ...node, operator: 'Slice', name, inputs, outputs: [name], attributes: {} });
    if (keeps) return name;
    const squeezed = freshName(`${node.name}.element`, names);
    result.push({
      ...node,
      operator: 'Squeeze',
      name: squeezed,
      inputs: [name, axes],
      outputs: [squeezed],
      attributes: {},
    });
    return squeezed;
  };
  return {
    element(index) {
      if (index < 0 && size !== 1) return undefined;
      const known = made.get(index) ?? slice(index);
      made.set(index, known);
      return known;
    },
  };
}
