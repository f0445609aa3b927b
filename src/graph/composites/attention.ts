// Attention as products, a softmax and masks: ONNX's operator (from opset 23), rotary embeddings, and ONNX Runtime's
// fused forms.

import { floatAttribute, int, intAttribute } from '../graph.ts';
import { check } from '../operators/define.ts';
import { tensor } from '../tensor.ts';
import type { Composite } from './composite.ts';
import type { Writer } from './writer.ts';

export const attentionComposites: Readonly<Record<string, Composite>> = {
  Attention: {
    inputs: [3, 7],
    attributes: {
      is_causal: 'int',
      kv_num_heads: 'int',
      left_window_size: 'int',
      q_num_heads: 'int',
      qk_matmul_output_mode: 'int',
      right_window_size: 'int',
      scale: 'float',
      softcap: 'float',
      softmax_precision: 'int',
    },
    ranks: [
      [3, 4],
      [3, 4],
      [3, 4],
      [2, 4],
      [4, 4],
      [4, 4],
    ],
    otherTypes: [3],
    write: attention,
  },
  RotaryEmbedding: {
    inputs: [3, 4],
    attributes: { interleaved: 'int', num_heads: 'int', rotary_embedding_dim: 'int' },
    ranks: [
      [3, 4],
      [2, 3],
      [2, 3],
      [2, 2],
    ],
    otherTypes: [3],
    write: rotaryEmbedding,
  },
  // input [N, L, D], weights [D, 3·D′], bias [3·D′]: queries, keys and values concatenated
  'com.microsoft.Attention': {
    inputs: [2, 7],
    attributes: { mask_filter_value: 'float', num_heads: 'int', scale: 'float', unidirectional: 'int' },
    ranks: [
      [3, 3],
      [2, 2],
      [1, 1],
    ],
    otherTypes: [3],
    write(w) {
      const bias = w.optional(2);
      for (const index of [3, 4, 6]) refuseInput(w, index);
      const product = w.op('MatMul', [w.input(0), w.input(1)]);
      const all = bias === undefined ? product : w.add(product, bias);
      const size = (w.shape(all).at(-1) as number) / 3;
      const [q, k, v] = w.split(all, 2, [size, size, size]) as [string, string, string];
      return [multiHead(w, q, k, v, w.optional(5))];
    },
  },
  // query [N, L, D], key and value [N, S, D], bias [3·D]
  'com.microsoft.MultiHeadAttention': {
    inputs: [3, 10],
    attributes: { mask_filter_value: 'float', num_heads: 'int', scale: 'float', unidirectional: 'int' },
    ranks: [
      [3, 3],
      [3, 3],
      [3, 3],
      [1, 1],
    ],
    otherTypes: [4],
    write(w) {
      for (const index of [4, 6, 7, 8, 9]) refuseInput(w, index);
      let [q, k, v] = [w.input(0), w.input(1), w.input(2)];
      const bias = w.optional(3);
      if (bias !== undefined) {
        const parts = w.split(
          bias,
          0,
          [q, k, v].map((value) => w.shape(value)[2] as number),
        );
        [q, k, v] = [q, k, v].map((value, index) => w.add(value, parts[index] as string)) as [string, string, string];
      }
      return [multiHead(w, q, k, v, w.optional(5))];
    },
  },
};

function refuseInput(w: Writer, index: number): void {
  const name = w.optional(index);
  check(
    name === undefined,
    w.node,
    () => `has the input "${name}", which is not supported here; export the model without fused attention`,
  );
}

/** Reshapes [N, L, heads·d] to [N, heads, L, d]. */
function splitHeads(w: Writer, x: string, heads: number): string {
  const [samples, length, size] = w.shape(x) as [number, number, number];
  check(heads > 0 && size % heads === 0, w.node, () => `cannot split ${size} features among ${heads} heads`);
  return w.transpose(w.reshape(x, [samples, length, heads, size / heads]), [0, 2, 1, 3]);
}

/** Reshapes [N, heads, L, d] to [N, L, heads·d]. */
function joinHeads(w: Writer, x: string): string {
  const [samples, heads, length, size] = w.shape(x) as [number, number, number, number];
  return w.reshape(w.transpose(x, [0, 2, 1, 3]), [samples, length, heads * size]);
}

function multiHead(w: Writer, q: string, k: string, v: string, bias: string | undefined): string {
  const heads = intAttribute(w.node, 'num_heads', 0);
  const [queries, keys, values] = [q, k, v].map((value) => splitHeads(w, value, heads)) as [string, string, string];
  let scores = scaledScores(w, queries, keys);
  if (bias !== undefined) scores = w.add(scores, bias);
  if (intAttribute(w.node, 'unidirectional', 0) !== 0)
    scores = w.add(scores, window(w, scores, { offset: 0, right: 0 }));
  return joinHeads(w, w.op('MatMul', [w.softmax(scores), values]));
}

/** scale · Q·Kᵀ; the default scale is 1/√d. The queries are scaled, since they are the smaller factor. */
function scaledScores(w: Writer, queries: string, keys: string): string {
  const given = floatAttribute(w.node, 'scale', 0);
  const factor = given === 0 ? 1 / Math.sqrt(w.shape(queries).at(-1) as number) : given;
  return w.op('MatMul', [w.scale(queries, factor), w.transposeLast(keys)]);
}

/**
 * A term for the scores [..., L, S] that lets query i see only the keys from i + offset − left to i + offset + right.
 */
function window(
  w: Writer,
  scores: string,
  { offset, left, right }: { offset: number; left?: number; right?: number },
): string {
  const [rows, columns] = w.shape(scores).slice(-2) as [number, number];
  const hidden = Float32Array.from({ length: rows * columns }, (_, index) => {
    const distance = (index % columns) - Math.floor(index / columns) - offset;
    return (right !== undefined && distance > right) || (left !== undefined && -distance > left)
      ? Number.NEGATIVE_INFINITY
      : 0;
  });
  return w.constant(tensor(w.type(scores), [rows, columns], hidden));
}

/**
 * Queries, keys and values [N, heads, L, d] or [N, L, heads·d]; with fewer heads of keys and values, neighbouring query
 * heads share them.
 */
function attention(w: Writer): readonly (string | undefined)[] {
  const { node } = w;
  refuseInput(w, 6);
  const ranks = [0, 1, 2].map((index) => w.shape(w.input(index)).length);
  check(new Set(ranks).size === 1, node, () => `has inputs of ${ranks.join(', ')} dimensions; they must agree`);
  const [queryHeads, keyHeads] = [intAttribute(node, 'q_num_heads', 0), intAttribute(node, 'kv_num_heads', 0)];
  const flat = w.shape(w.input(0)).length === 3;
  const heads = (index: number, count: number): string =>
    flat ? splitHeads(w, w.input(index), count) : w.input(index);
  const queries = heads(0, queryHeads);
  const withPast = (index: number, past: number): string => {
    const name = w.optional(past);
    const own = heads(index, keyHeads);
    return name === undefined ? own : w.concat([name, own], 2);
  };
  const [presentKeys, presentValues] = [withPast(1, 4), withPast(2, 5)];
  const copies = (w.shape(queries)[1] as number) / (w.shape(presentKeys)[1] as number);
  check(
    Number.isInteger(copies),
    node,
    () => `has ${w.shape(queries)[1]} heads of queries for ${w.shape(presentKeys)[1]} of keys`,
  );
  let scores = scaledScores(w, queries, repeatHeads(w, presentKeys, copies));
  const cap = floatAttribute(node, 'softcap', 0);
  if (cap > 0) scores = w.scale(w.op('Tanh', [w.scale(scores, 1 / cap)]), cap);
  const mask = w.optional(3);
  if (mask !== undefined) scores = w.add(scores, additiveMask(w, mask, scores));
  const past = w.optional(4);
  const offset = past === undefined ? 0 : (w.shape(past)[2] as number);
  if (intAttribute(node, 'is_causal', 0) !== 0) scores = w.add(scores, window(w, scores, { offset, right: 0 }));
  const [left, right] = [intAttribute(node, 'left_window_size', -1), intAttribute(node, 'right_window_size', -1)];
  if (left >= 0 || right >= 0)
    scores = w.add(
      scores,
      window(w, scores, { offset, ...(left >= 0 ? { left } : {}), ...(right >= 0 ? { right } : {}) }),
    );
  const y = w.op('MatMul', [w.softmax(scores), repeatHeads(w, presentValues, copies)]);
  return [flat ? joinHeads(w, y) : y, presentKeys, presentValues];
}

/** Each head repeated `copies` times in a row. */
function repeatHeads(w: Writer, x: string, copies: number): string {
  if (copies === 1) return x;
  const [samples, heads, length, size] = w.shape(x) as [number, number, number, number];
  const repeated = w.expand(w.reshape(x, [samples, heads, 1, length, size]), [samples, heads, copies, length, size]);
  return w.reshape(repeated, [samples, heads * copies, length, size]);
}

/** A mask as a term of the scores: false becomes −∞. A mask that is too short hides the remaining keys. */
function additiveMask(w: Writer, mask: string, scores: string): string {
  const type = w.type(scores);
  const term =
    w.type(mask) === 'bool'
      ? w.op('Where', [mask, w.like(scores, 0), w.like(scores, Number.NEGATIVE_INFINITY)])
      : w.cast(mask, type);
  const shape = w.shape(term);
  const missing = (w.shape(scores).at(-1) as number) - (shape.at(-1) as number);
  if (missing <= 0 || shape.at(-1) === 1) return term;
  const pads = w.emitter.int64s([
    ...shape.map(() => 0),
    ...shape.map((_, axis) => (axis === shape.length - 1 ? missing : 0)),
  ]);
  return w.op('Pad', [term, pads, w.like(scores, Number.NEGATIVE_INFINITY)]);
}

/**
 * Rotates pairs (a, b) of features by an angle each: (a·cos − b·sin, a·sin + b·cos). Pairs are neighbours, or half the
 * features apart.
 */
function rotaryEmbedding(w: Writer): readonly string[] {
  const { node } = w;
  const flat = w.shape(w.input(0)).length === 3;
  const x = flat ? splitHeads(w, w.input(0), intAttribute(node, 'num_heads', 0)) : w.input(0);
  const [samples, heads, length, size] = w.shape(x) as [number, number, number, number];
  const turned = intAttribute(node, 'rotary_embedding_dim', 0) || size;
  const half = turned / 2;
  const [pairs, rest] = turned === size ? [x, undefined] : w.split(x, 3, [turned, size - turned]);
  const positions = w.optional(3);
  const angles = (index: number): string => {
    const table =
      positions === undefined ? w.input(index) : w.op('Gather', [w.input(index), positions], { axis: int(0) });
    const [n, l] = w.shape(table) as [number, number];
    check(w.shape(table).length === 3 && w.shape(table)[2] === half, node, () => `wants tables of ${half} angles`);
    return w.reshape(table, [n, 1, l, half]);
  };
  const [cos, sin] = [angles(1), angles(2)];
  const interleaved = intAttribute(node, 'interleaved', 0) !== 0;
  const column = (value: string): string => w.reshape(value, [samples, heads, length, half, 1]);
  const [a, b] = interleaved
    ? w
        .split(w.reshape(pairs as string, [samples, heads, length, half, 2]), 4, [1, 1])
        .map((part) => w.reshape(part, [samples, heads, length, half]))
    : w.split(pairs as string, 3, [half, half]);
  const real = w.sub(w.mul(a as string, cos), w.mul(b as string, sin));
  const imaginary = w.add(w.mul(a as string, sin), w.mul(b as string, cos));
  const both = interleaved
    ? w.reshape(w.concat([column(real), column(imaginary)], 4), [samples, heads, length, turned])
    : w.concat([real, imaginary], 3);
  const y = rest === undefined ? both : w.concat([both, rest], 3);
  return [flat ? joinHeads(w, y) : y];
}
