// Dropout made reproducible: its mask becomes an input of the graph, and the mask's value is a pure function of the seed, the round,
// the dropout and the sample, so that a batch split in any way over devices and micro-batches drops the same elements.

import { assert } from '../assert.ts';
import { int, type Node, type ValueInfo } from '../graph/graph.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import { fail } from '../graph/operators/define.ts';
import type { StaticGraph } from '../graph/static.ts';
import { type ElementType, elementCount, type ValueType } from '../graph/tensor.ts';
import { hash32, hashString } from '../random.ts';

/** A mask that the runtime must feed: 0 where an element is dropped, 1/(1 − ratio) where it stays. */
export interface DropoutInput {
  /** The graph input's name. */
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** The probability that an element is dropped, in (0, 1]. */
  readonly ratio: number;
  /** Tells this dropout from the others of the model (a hash of its node's name): the same however the model is cut into stages. */
  readonly index: number;
}

/**
 * Replaces every Dropout that drops by Mul(x, mask) with the mask a new graph input (after the others). Dropouts in inference mode or of
 * ratio 0 stay as they are. Throws InputError where the ratio or the training mode is not a constant.
 */
export function replaceDropouts(stage: StaticGraph): { readonly stage: StaticGraph; readonly dropouts: readonly DropoutInput[] } {
  const { graph } = stage;
  const types = new Map(stage.types);
  const dropouts: DropoutInput[] = [];
  const nodes = graph.nodes.flatMap((node) => {
    const ratio = node.domain === '' && node.operator === 'Dropout' ? dropRatio(node, stage) : 0;
    if (ratio === 0) return [node];
    const dropout = {
      name: `dropout(${node.name})`,
      ...(types.get(node.outputs[0] as string) as ValueType),
      ratio,
      index: hashString(node.name),
    };
    dropouts.push(dropout);
    types.set(dropout.name, { type: dropout.type, shape: dropout.shape });
    return maskedProduct(node, dropout.name);
  });
  const inputs: readonly ValueInfo[] = [...graph.inputs, ...dropouts.map(({ name, type, shape }) => ({ name, type, shape }))];
  return { stage: { graph: { ...graph, nodes, inputs }, types }, dropouts };
}

/** The ratio that a node drops with; 0 where it drops nothing. */
function dropRatio(node: Node, { graph }: StaticGraph): number {
  const value = (index: number, fallback: number): number => {
    const name = node.inputs[index] ?? '';
    if (name === '') return fallback;
    const constant = graph.initializers.get(name);
    return constant
      ? Number(constant.data[0])
      : fail(node, `computes its input "${name}" at run time; make its ratio and its training mode constants`);
  };
  if (value(2, 0) === 0) return 0;
  const ratio = value(1, 0.5);
  return ratio >= 0 && ratio <= 1 ? ratio : fail(node, `has ratio ${ratio}; it must be from 0 to 1`);
}

/** y = x · mask; the node's own mask output, if it has one, is "mask is not 0". */
function maskedProduct(node: Node, mask: string): readonly Node[] {
  const [x = '', y = '', kept = ''] = [node.inputs[0], node.outputs[0], node.outputs[1]];
  const product: Node = { operator: 'Mul', domain: '', name: node.name, inputs: [x, mask], outputs: [y], attributes: {} };
  if (kept === '') return [product];
  const cast: Node = {
    operator: 'Cast',
    domain: '',
    name: `${node.name}.mask`,
    inputs: [mask],
    outputs: [kept],
    attributes: { to: int(dataTypeCode('bool')) },
  };
  return [product, cast];
}

/** What a mask's value depends on. */
export interface DropoutMaskOptions {
  readonly seed: number;
  /** The round (training step): other masks every time. */
  readonly round: number;
  /** {@link DropoutInput.index} */
  readonly index: number;
  readonly ratio: number;
  /** The mask's shape. Its batch axis counts the samples, or a multiple of them where each sample has several consecutive entries. */
  readonly shape: readonly number[];
  /** The axis of the samples. Default 0. */
  readonly batchAxis?: number;
  /** Each sample's number in the whole data set or batch, the same wherever the sample is computed. */
  readonly sampleIds: ArrayLike<number>;
}

/** The mask of a dropout for some samples. A sample's part depends on (seed, round, index, its id) only, not on its neighbours. */
export function dropoutMask({ seed, round, index, ratio, shape, batchAxis = 0, sampleIds }: DropoutMaskOptions): Float32Array<ArrayBuffer> {
  const axisLength = shape[batchAxis] ?? 0;
  assert(
    axisLength % sampleIds.length === 0,
    `a dropout mask [${shape.join(', ')}] has no whole number of entries for each of ${sampleIds.length} samples on axis ${batchAxis}`,
  );
  const perSample = axisLength / sampleIds.length;
  const outer = elementCount(shape.slice(0, batchAxis));
  const run = perSample * elementCount(shape.slice(batchAxis + 1));
  const kept = ratio < 1 ? 1 / (1 - ratio) : 0;
  const threshold = Math.round(ratio * 2 ** 32);
  const mask = new Float32Array(elementCount(shape));
  for (let sample = 0; sample < sampleIds.length; sample++) {
    const stream = hash32(seed, round, index, sampleIds[sample] as number);
    for (let block = 0; block < outer; block++) {
      const start = (block * sampleIds.length + sample) * run;
      for (let element = 0; element < run; element++)
        mask[start + element] = randomWord(stream, block * run + element) >= threshold ? kept : 0;
    }
  }
  return mask;
}

/** The n-th 32-bit word of a stream: a bijective mix of n (lowbias32's rounds) keyed by the stream before and between. */
function randomWord(stream: number, n: number): number {
  let word = (n + Math.imul(stream, 0x9e3779b9)) ^ stream;
  word = Math.imul(word ^ (word >>> 16), 0x7feb352d);
  word = Math.imul(word ^ (word >>> 15) ^ stream, 0x846ca68b);
  return (word ^ (word >>> 16)) >>> 0;
}
