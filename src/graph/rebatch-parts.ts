// Parts of rebatch.ts that look at one graph, node or tensor at a time.

import { type Graph, intAttribute, type Node } from './graph.ts';
import { instantiate } from './static.ts';
import { allocate, elementCount, sameShape, type Tensor, wrap } from './tensor.ts';

/** Thrown within rebatch.ts if a model cannot be freed. */
export class FixedBatch extends Error {}

/**
 * The name of what differs, or undefined: at its own size the freed graph must equal the original, and other sizes must
 * work alike. Throws InputError where another size does not fit.
 */
export function freedDifference(original: Graph, freed: Graph, batchSize: number): string | undefined {
  const before = instantiate(original, batchSize);
  const after = instantiate(freed, batchSize);
  const computed = new Set(original.nodes.flatMap(({ outputs }) => outputs));
  for (const [name, { shape }] of before.types) {
    const now = after.types.get(name);
    if (now !== undefined && computed.has(name) && !sameShape(now.shape, shape)) return name;
  }
  instantiate(freed, batchSize + 3);
  // If the nodes themselves depend on the size, it is not a batch but the length of an unrolled sequence.
  const [few, many] = [batchSize + 3, batchSize + 4].map((size) => instantiate(freed, size, { simplify: false }));
  return few?.graph.nodes.length === many?.graph.nodes.length ? undefined : 'the nodes';
}

/** The constant with one entry in place of equal entries for every sample, or undefined if it has no such. */
export function firstSample({ type, shape, data }: Tensor, batchSize: number): Tensor | undefined {
  if (shape[0] !== batchSize) return undefined;
  const size = elementCount(shape.slice(1));
  for (let index = size; index < data.length; index++) if (data[index] !== data[index - size]) return undefined;
  const first = allocate(type, size);
  for (let index = 0; index < size; index++)
    (first as (number | bigint)[] & typeof first)[index] = data[index] as number & bigint;
  return wrap(type, [1, ...shape.slice(1)], first);
}

/** True for two known constants that are equal. */
export function sameValues(one: Tensor | undefined, other: Tensor | undefined): boolean {
  if (one === undefined || other === undefined) return false;
  return sameShape(one.shape, other.shape) && String(one.data) === String(other.data);
}

export const reshaping: ReadonlySet<string> = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze']);

export const recurrent: ReadonlySet<string> = new Set(['GRU', 'LSTM', 'RNN']);
/** The positions of a recurrent node's initial states. */
export const statePositions: readonly number[] = [5, 6];

/** Operators all of whose inputs must have the batch's size. */
export const joining: ReadonlySet<string> = new Set(['Concat', 'GatherElements']);

/** One element with as many axes as a constant whose elements are all equal; undefined for others. */
export function oneElement(value: Tensor | undefined): Tensor | undefined {
  if (value === undefined || value.data.length === 0) return undefined;
  const shape = value.shape.map(() => 1);
  const first = wrap(value.type, shape, value.data.slice(0, 1) as typeof value.data);
  return value.data.every((element: number | bigint) => element === value.data[0]) ? first : undefined;
}

/** Operators that select along an axis of their first input by indices. */
export const gathering: ReadonlySet<string> = new Set(['Gather', 'GatherElements', 'GatherND', 'ScatterND']);

/**
 * Which component of a gathering node's indices counts along `axis` of its first input, whose rank is given: 0 for
 * Gather, whose indices have no components. Undefined if none does. `components` is the indices' last size.
 */
export function indexComponent(
  node: Node,
  axis: number,
  { rank, components }: { readonly rank: number; readonly components: number },
): number | undefined {
  if (node.operator === 'Gather' || node.operator === 'GatherElements') {
    const own = intAttribute(node, 'axis', 0);
    return (own < 0 ? own + rank : own) === axis ? 0 : undefined;
  }
  const component = axis - intAttribute(node, 'batch_dims', 0);
  return component >= 0 && component < components ? component : undefined;
}

/**
 * The dimension of a Reshape's result that contains the batch if neighbouring samples are `stride` elements apart. For
 * a batch of one several may; then prefers a dimension of its own to a merged one, the input's axis if the ranks agree,
 * the one before which as many elements stand as in the input, and the foremost. Undefined if there is none.
 */
export function axisAt(
  shape: readonly number[],
  stride: number,
  { batchSize, from }: { readonly batchSize: number; readonly from: { shape: readonly number[]; axis: number } },
): number | undefined {
  const candidates = shape.flatMap((dimension, axis) => {
    const behind = elementCount(shape.slice(axis + 1));
    return stride % behind === 0 && (behind * dimension) % (stride * batchSize) === 0 ? [axis] : [];
  });
  const own = candidates.filter((axis) => shape[axis] === batchSize);
  const choices = own.length > 0 ? own : candidates;
  if (choices.includes(from.axis) && (own.length > 0 || shape.length === from.shape.length)) return from.axis;
  const before = elementCount(from.shape.slice(0, from.axis));
  const alike = choices.find(
    (axis) => shape[axis] === from.shape[from.axis] && elementCount(shape.slice(0, axis)) === before,
  );
  return alike ?? choices[0];
}
