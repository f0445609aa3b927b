// The classifier at the end of a model: the last linear layer, or 1x1 convolution, that determines the number of
// classes.

import { InputError } from '../errors.ts';
import { type Graph, intAttribute, intsAttribute, type Node } from './graph.ts';
import { producers } from './liveness.ts';
import type { Tensor } from './tensor.ts';

/** A tensor of the head, and its axis of classes. */
export interface HeadTensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly classAxis: number;
}

/** A model's classifier. */
export interface Head {
  /** The node of the linear layer or convolution. */
  readonly node: Node;
  readonly classCount: number;
  /** Inputs of each class, which scale its initial weights. */
  readonly fanIn: number;
  readonly weight: HeadTensor;
  readonly bias: HeadTensor | undefined;
  /** Shapes of the Reshapes and sizes of the Resizes after it: if constant, they may contain the number of classes. */
  readonly reshapes: readonly string[];
  /** Values that it computes, up to the output. */
  readonly values: ReadonlySet<string>;
}

/** Operators after a head that keep its classes. */
const passes: ReadonlySet<string> = new Set([
  'AveragePool',
  'Cast',
  'Clip',
  'Dropout',
  'Flatten',
  'GlobalAveragePool',
  'GlobalMaxPool',
  'Identity',
  'LogSoftmax',
  'MaxPool',
  'ReduceMean',
  'Relu',
  'Reshape',
  'Resize',
  'Sigmoid',
  'Softmax',
  'Squeeze',
  'Transpose',
  'Unsqueeze',
]);

/**
 * Finds the head by walking back from the first output. Throws InputError if there is none, or if its weights are used
 * elsewhere, too.
 */
export function findHead(graph: Graph): Head {
  const made = producers(graph.nodes);
  const reshapes: string[] = [];
  const values = new Set<string>();
  let bias: string | undefined;
  let node = made.get(graph.outputs[0]?.name ?? '');
  while (node !== undefined && node.domain === '') {
    for (const output of node.outputs) values.add(output);
    const found = headAt(graph, made, node, bias);
    if (found !== undefined) return whole(graph, { ...found, node, reshapes, values });
    const next = nextBack(graph, node);
    if (next === undefined || (next.bias !== undefined && bias !== undefined)) break;
    bias = next.bias ?? bias;
    if (node.operator === 'Reshape') reshapes.push(node.inputs[1] ?? '');
    if (node.operator === 'Resize') reshapes.push(node.inputs[3] ?? '');
    node = made.get(next.value);
  }
  const at =
    node === undefined
      ? 'no node computes its output'
      : `walking back from the output, ${node.operator} ("${node.name}") comes first`;
  throw new InputError(
    'The model has no classifier that --head-classes could replace, which is a linear layer or a 1x1 ' +
      `convolution at its end: ${at}; replace the end of the model before exporting it.`,
  );
}

/** The value before a node on the path from the output to the head, and a bias that is added on the path. */
function nextBack(graph: Graph, node: Node): { value: string; bias?: string } | undefined {
  const [first = '', second = ''] = node.inputs;
  if (passes.has(node.operator)) return { value: first };
  if (node.operator !== 'Add') return undefined;
  if (isWeight(graph, second)) return { value: first, bias: second };
  return isWeight(graph, first) ? { value: second, bias: first } : undefined;
}

function isWeight(graph: Graph, name: string): boolean {
  return graph.parameters.includes(name);
}

type Parts = Pick<Head, 'weight' | 'bias' | 'fanIn'>;

/** The head's tensors, if `node` is its product. */
function headAt(
  graph: Graph,
  made: ReadonlyMap<string, Node>,
  node: Node,
  added: string | undefined,
): Parts | undefined {
  const source = weightOf(graph, made, node.inputs[1] ?? '');
  if (source === undefined) return undefined;
  const { name, flipped } = source;
  const { shape } = graph.initializers.get(name) as Tensor;
  const bias = added ?? node.inputs[2] ?? '';
  const parts = (classAxis: number): Parts => {
    const classCount = shape[classAxis] as number;
    const fanIn = shape.reduce((product, dimension) => product * dimension, 1) / classCount;
    return { weight: { name, shape, classAxis }, bias: biasOf(graph, bias, classCount), fanIn };
  };
  if (node.operator === 'Conv') {
    const isPoint = (intsAttribute(node, 'kernel_shape') ?? shape.slice(2)).every((size) => size === 1);
    return isPoint && intAttribute(node, 'group', 1) === 1 && !flipped ? parts(0) : undefined;
  }
  if (shape.length !== 2) return undefined;
  if (node.operator === 'Gemm') return parts((intAttribute(node, 'transB', 0) === 1) === flipped ? 1 : 0);
  return node.operator === 'MatMul' ? parts(flipped ? 0 : 1) : undefined;
}

/** The parameter behind a product's second input, possibly transposed by the exporter. */
function weightOf(
  graph: Graph,
  made: ReadonlyMap<string, Node>,
  value: string,
): { name: string; flipped: boolean } | undefined {
  if (isWeight(graph, value)) return { name: value, flipped: false };
  const node = made.get(value);
  const name = node?.inputs[0] ?? '';
  if (node === undefined || node.domain !== '' || !isWeight(graph, name)) return undefined;
  if (node.operator === 'Identity') return { name, flipped: false };
  return node.operator === 'Transpose' && graph.initializers.get(name)?.shape.length === 2
    ? { name, flipped: true }
    : undefined;
}

/** A bias with one number for each class; a single number for all of them is kept. */
function biasOf(graph: Graph, name: string, classCount: number): HeadTensor | undefined {
  const shape = graph.initializers.get(name)?.shape ?? [];
  const classAxis = shape.lastIndexOf(classCount);
  return isWeight(graph, name) && classAxis >= 0 ? { name, shape, classAxis } : undefined;
}

function whole(graph: Graph, found: Parts & Pick<Head, 'node' | 'reshapes' | 'values'>): Head {
  const { weight, bias } = found;
  for (const { name } of bias === undefined ? [weight] : [weight, bias]) {
    const readers = graph.nodes.filter((node) => node.inputs.includes(name));
    if (readers.length > 1)
      throw new InputError(
        `The classifier's weight ${name} is also read by ${readers.find((node) => node !== found.node)?.name}, ` +
          'so --head-classes cannot replace it: replace the end of the model before exporting it.',
      );
  }
  return { ...found, classCount: weight.shape[weight.classAxis] as number };
}
