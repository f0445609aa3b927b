// Reproducible dropout and random numbers: they become inputs of the graph whose values are pure functions of the seed,
// the round, the node and the sample, so that a batch split in any way over devices and micro-batches uses the same
// numbers.

import { assert } from '../assert.ts';
import { floatAttribute, int, type Node, type ValueInfo } from '../graph/graph.ts';
import { dataTypeCode } from '../graph/operators/data-types.ts';
import { fail } from '../graph/operators/define.ts';
import type { StaticGraph } from '../graph/static.ts';
import { type ElementType, elementCount, type ValueType } from '../graph/tensor.ts';
import { hash32, hashString } from '../random.ts';

/** The distribution of numbers other than a mask: uniform in [low, high), or normal. */
export type Distribution =
  | { readonly kind: 'uniform'; readonly low: number; readonly high: number }
  | { readonly kind: 'normal'; readonly mean: number; readonly deviation: number };

/**
 * A mask that the runtime must feed: 0 for dropped elements, 1/(1 − ratio) for kept ones. Or other random numbers, if
 * `distribution` is given.
 */
export interface DropoutInput {
  /** The graph input's name. */
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** The probability that an element is dropped, in (0, 1]. */
  readonly ratio: number;
  /** Identifies this dropout in the model (a hash of its node's name), however the model is cut into stages. */
  readonly index: number;
  /** If given, the numbers' distribution instead of a mask; `ratio` is then 1 and ignored. */
  readonly distribution?: Distribution;
}

/**
 * Replaces every Dropout that drops by Mul(x, mask), with the mask a new graph input (after the others), and every
 * random node by an input with its numbers. Dropouts in inference mode or of ratio 0 stay. Throws InputError if the
 * ratio or the training mode is not a constant.
 */
export function replaceDropouts(stage: StaticGraph): {
  readonly stage: StaticGraph;
  readonly dropouts: readonly DropoutInput[];
} {
  const { graph } = stage;
  const types = new Map(stage.types);
  const dropouts: DropoutInput[] = [];
  const nodes = graph.nodes.flatMap((node) => {
    const drawn = node.domain === '' ? drawnBy(node, stage) : undefined;
    if (drawn === undefined) return [node];
    const { shape } = types.get(node.outputs[0] as string) as ValueType;
    const type = node.operator === 'Dropout' ? (types.get(node.outputs[0] as string) as ValueType).type : 'float32';
    const dropout = { name: `dropout(${node.name})`, type, shape, ...drawn, index: hashString(node.name) };
    dropouts.push(dropout);
    types.set(dropout.name, { type, shape });
    if (node.operator === 'Dropout') return maskedProduct(node, dropout.name);
    return drawnValue(node, {
      drawn: dropout.name,
      type: (types.get(node.outputs[0] as string) as ValueType).type,
      types,
    });
  });
  const inputs: readonly ValueInfo[] = [
    ...graph.inputs,
    ...dropouts.map(({ name, type, shape }) => ({ name, type, shape })),
  ];
  return { stage: { graph: { ...graph, nodes, inputs }, types }, dropouts };
}

/** The distribution of a node's random numbers; undefined if it draws none. */
function drawnBy(node: Node, stage: StaticGraph): Pick<DropoutInput, 'ratio' | 'distribution'> | undefined {
  switch (node.operator) {
    case 'Dropout': {
      const ratio = dropRatio(node, stage);
      return ratio === 0 ? undefined : { ratio };
    }
    case 'Bernoulli':
      return { ratio: 1, distribution: { kind: 'uniform', low: 0, high: 1 } };
    case 'RandomUniform':
    case 'RandomUniformLike':
      return {
        ratio: 1,
        distribution: { kind: 'uniform', low: floatAttribute(node, 'low', 0), high: floatAttribute(node, 'high', 1) },
      };
    case 'RandomNormal':
    case 'RandomNormalLike':
      return {
        ratio: 1,
        distribution: {
          kind: 'normal',
          mean: floatAttribute(node, 'mean', 0),
          deviation: floatAttribute(node, 'scale', 1),
        },
      };
    default:
      return undefined;
  }
}

interface DrawnOptions {
  /** The input with the random numbers, in float32. */
  readonly drawn: string;
  /** The element type of the node's output. */
  readonly type: ElementType;
  readonly types: Map<string, ValueType>;
}

/**
 * The node's output from the random numbers: the numbers themselves, or for Bernoulli 1 where they are less than its
 * probabilities.
 */
function drawnValue(node: Node, { drawn, type, types }: DrawnOptions): readonly Node[] {
  const [output = ''] = node.outputs;
  const write = (
    operator: string,
    name: string,
    inputs: readonly string[],
    outputs: readonly string[],
    to?: ElementType,
  ): Node => ({
    operator,
    domain: '',
    name,
    inputs,
    outputs,
    attributes: to === undefined ? {} : { to: int(dataTypeCode(to)) },
  });
  if (node.operator !== 'Bernoulli') return [write('Cast', node.name, [drawn], [output], type)];
  const { shape } = types.get(output) as ValueType;
  const [chances, hits] = [`${node.name}.chances`, `${node.name}.hits`];
  types.set(chances, { type: 'float32', shape });
  types.set(hits, { type: 'bool', shape });
  return [
    write('Cast', chances, [node.inputs[0] as string], [chances], 'float32'),
    write('Less', hits, [drawn, chances], [hits]),
    write('Cast', node.name, [hits], [output], type),
  ];
}

/** The ratio that a node drops with; 0 if it drops nothing. */
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
  const product: Node = {
    operator: 'Mul',
    domain: '',
    name: node.name,
    inputs: [x, mask],
    outputs: [y],
    attributes: {},
  };
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

/** Everything that a mask's value depends on. */
export interface DropoutMaskOptions {
  readonly seed: number;
  /** The round (training step); masks differ between rounds. */
  readonly round: number;
  /** {@link DropoutInput.index} */
  readonly index: number;
  readonly ratio: number;
  /** If given, random numbers instead of a mask; `ratio` is then ignored. */
  readonly distribution?: Distribution;
  /**
   * The mask's shape. Its batch axis counts the samples, or a multiple of them if each sample has several consecutive
   * entries.
   */
  readonly shape: readonly number[];
  /** The axis of the samples. Default 0. */
  readonly batchAxis?: number;
  /** Each sample's number in the data set or batch, the same wherever the sample is computed. */
  readonly sampleIds: ArrayLike<number>;
}

/**
 * The mask of a dropout for some samples. A sample's part depends only on (seed, round, index, its id), not on its
 * neighbours.
 */
export function dropoutMask(options: DropoutMaskOptions): Float32Array<ArrayBuffer> {
  const { seed, round, index, shape, batchAxis = 0, sampleIds } = options;
  const axisLength = shape[batchAxis] ?? 0;
  assert(
    axisLength % sampleIds.length === 0,
    `a dropout mask [${shape.join(', ')}] has no whole number of entries for each of ${sampleIds.length} ` +
      `samples on axis ${batchAxis}`,
  );
  const perSample = axisLength / sampleIds.length;
  const outer = elementCount(shape.slice(0, batchAxis));
  const run = perSample * elementCount(shape.slice(batchAxis + 1));
  const value = elementOf(options);
  const mask = new Float32Array(elementCount(shape));
  for (let sample = 0; sample < sampleIds.length; sample++) {
    const stream = hash32(seed, round, index, sampleIds[sample] as number);
    for (let block = 0; block < outer; block++) {
      const start = (block * sampleIds.length + sample) * run;
      for (let element = 0; element < run; element++) mask[start + element] = value(stream, block * run + element);
    }
  }
  return mask;
}

/** The n-th number of a stream. */
function elementOf({ ratio, distribution }: DropoutMaskOptions): (stream: number, n: number) => number {
  if (distribution === undefined) {
    const kept = ratio < 1 ? 1 / (1 - ratio) : 0;
    const threshold = Math.round(ratio * 2 ** 32);
    return (stream, n) => (randomWord(stream, n) >= threshold ? kept : 0);
  }
  // 24 bits, which float32 holds exactly, so that nothing is rounded up to the end of the interval.
  const uniform = (stream: number, n: number): number => (randomWord(stream, n) >>> 8) * 2 ** -24;
  if (distribution.kind === 'uniform') {
    const { low, high } = distribution;
    return (stream, n) => low + (high - low) * uniform(stream, n);
  }
  const { mean, deviation } = distribution;
  return (stream, n) =>
    mean +
    deviation *
      Math.sqrt(-2 * Math.log(1 - uniform(stream, 2 * n))) *
      Math.cos(2 * Math.PI * uniform(stream, 2 * n + 1));
}

/**
 * The n-th 32-bit word of a stream: a bijective hash of n (lowbias32's rounds) keyed by the stream before and between
 * the rounds.
 */
function randomWord(stream: number, n: number): number {
  let word = (n + Math.imul(stream, 0x9e3779b9)) ^ stream;
  word = Math.imul(word ^ (word >>> 16), 0x7feb352d);
  word = Math.imul(word ^ (word >>> 15) ^ stream, 0x846ca68b);
  return (word ^ (word >>> 16)) >>> 0;
}
