// Finds the batch axis of each value by instantiating a model at two batch sizes and comparing shapes. Also finds the
// nodes that mix samples.

import { InputError } from '../errors.ts';
import { batchSymbol, type Graph, intAttribute, type Node } from './graph.ts';
import { instantiate, type StaticGraph } from './static.ts';
import { elementCount, toNumbers, type ValueType } from './tensor.ts';

/** The batch sizes at which a model with a symbolic batch is instantiated. */
const probeSizes = [2, 3] as const;

/** One graph at one or, if its batch size is open, two batch sizes, with the same nodes. */
export interface Probe {
  readonly batchSize: number;
  /** The graph at `batchSize`. */
  readonly static: StaticGraph;
  /** The graph at another batch size; absent if the batch size is fixed. */
  readonly other?: StaticGraph & { readonly batchSize: number };
}

/** True for a graph with the batch symbol in one of its inputs. */
export function hasOpenBatch(graph: Graph): boolean {
  return graph.inputs.some((input) => input.shape.includes(batchSymbol));
}

/** Instantiates a graph at its fixed batch size, or at two sizes. Throws InputError as `instantiate` does. */
export function probe(graph: Graph): Probe {
  if (graph.fixedBatch !== undefined)
    return { batchSize: graph.fixedBatch, static: instantiate(graph, graph.fixedBatch) };
  const [small, large] = probeSizes;
  const names = (graphs: readonly StaticGraph[]): string[] =>
    graphs.map(({ graph: { nodes } }) => nodes.map((node) => node.name).join('\n'));
  let graphs = probeSizes.map((size) => instantiate(graph, size));
  // A node may be a no-op at one size only; then simplification is skipped, so that both graphs have the same nodes.
  if (new Set(names(graphs)).size > 1) graphs = probeSizes.map((size) => instantiate(graph, size, { simplify: false }));
  if (new Set(names(graphs)).size > 1) {
    throw new InputError(
      `Model "${graph.name}" computes something else at another batch size, so that the first dimension of its ` +
        "input is not a batch (perhaps a sequence's steps); export it with the batch first.",
    );
  }
  return {
    batchSize: small,
    static: graphs[0] as StaticGraph,
    other: { ...(graphs[1] as StaticGraph), batchSize: large },
  };
}

/** The axis on which a value has exactly one entry a sample, or undefined. */
export function batchAxis(name: string, { batchSize, static: { types }, other }: Probe): number | undefined {
  const shape = types.get(name)?.shape ?? [];
  if (other === undefined) {
    if (shape[0] === batchSize) return 0;
    const axes = shape.flatMap((dimension, axis) => (dimension === batchSize ? [axis] : []));
    return axes.length === 1 ? axes[0] : undefined;
  }
  const axis = varyingAxis(shape, other.types.get(name)?.shape ?? []);
  return axis !== undefined && shape[axis] === batchSize && other.types.get(name)?.shape[axis] === other.batchSize
    ? axis
    : undefined;
}

/** The single axis in which two shapes of equal rank differ. */
function varyingAxis(a: readonly number[], b: readonly number[]): number | undefined {
  if (a.length !== b.length) return undefined;
  const axes = a.flatMap((dimension, axis) => (dimension === b[axis] ? [] : [axis]));
  return axes.length === 1 ? axes[0] : undefined;
}

/**
 * True for a node whose result for one sample depends on other samples: batch normalization in training mode, and
 * operators that work along the batch axis (also if that is merged with another, as in [batch · heads, …]).
 */
export function mixesBatch(node: Node, graphProbe: Probe): boolean {
  if (node.operator === 'BatchNormalization') return intAttribute(node, 'training_mode', 0) === 1;
  const input = node.inputs[0] ?? '';
  const type = graphProbe.static.types.get(input);
  if (type === undefined) return false;
  const otherType = graphProbe.other?.types.get(input);
  const axis = otherType === undefined ? batchAxis(input, graphProbe) : varyingAxis(type.shape, otherType.shape);
  if (axis !== undefined && worksAlong(node, axis, type, graphProbe.static.graph)) return true;
  return !growsWithBatch(node, graphProbe);
}

/**
 * False if an output of a node that reads batched values does not grow in proportion to the batch, as after a
 * contraction over it.
 */
function growsWithBatch(node: Node, { batchSize, static: { types }, other }: Probe): boolean {
  if (other === undefined) return true;
  const count = (name: string, from: ReadonlyMap<string, ValueType>): number =>
    elementCount(from.get(name)?.shape ?? []);
  const grows = (name: string): boolean =>
    count(name, types) * other.batchSize === count(name, other.types) * batchSize;
  const reads = node.inputs.some((name) => count(name, types) !== count(name, other.types));
  return !reads || node.outputs.every((name) => name === '' || grows(name));
}

function worksAlong(node: Node, batch: number, { shape }: ValueType, { initializers }: Graph): boolean {
  const rank = shape.length;
  const normal = (axis: number): number => (axis < 0 ? axis + rank : axis);
  const values = (index: number): number[] | undefined => {
    const value = initializers.get(node.inputs[index] ?? '');
    return value === undefined ? undefined : toNumbers(value).map(normal);
  };
  switch (node.operator) {
    case 'Softmax':
    case 'LogSoftmax':
    case 'LpNormalization':
    case 'TopK':
      return normal(intAttribute(node, 'axis', -1)) === batch;
    case 'ArgMax':
    case 'ArgMin':
    case 'Concat':
    case 'Gather':
    case 'GatherElements':
    case 'ScatterElements':
    case 'Split':
      return normal(intAttribute(node, 'axis', 0)) === batch;
    case 'LayerNormalization':
      return normal(intAttribute(node, 'axis', -1)) <= batch;
    case 'CumSum':
      return values(1)?.includes(batch) ?? true;
    default: {
      if (!node.operator.startsWith('Reduce')) return false;
      const axes = values(1);
      return axes === undefined || axes.length === 0
        ? intAttribute(node, 'noop_with_empty_axes', 0) === 0
        : axes.includes(batch);
    }
  }
}
