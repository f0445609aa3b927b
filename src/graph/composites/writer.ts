// Helpers for expanding a composite: a thin layer over the emitter, for one node of the model. Each method writes at
// most a few nodes and returns the result's name.

import { defined } from '../../assert.ts';
import { Emitter } from '../emitter.ts';
import { type Attributes, float, int, ints, type Node } from '../graph.ts';
import { dataTypeCode } from '../operators/data-types.ts';
import { check } from '../operators/define.ts';
import {
  type ElementType,
  elementCount,
  sameShape,
  scalar,
  type Tensor,
  toNumbers,
  type ValueType,
} from '../tensor.ts';

/** The name of a value, or undefined if it is absent. */
export type Optional = string | undefined;

/** Writes nodes that are equivalent to `node`. */
export class Writer {
  readonly node: Node;
  readonly emitter: Emitter;

  /** `types` and `constants` are those of the node's inputs, in order. */
  constructor(
    node: Node,
    types: readonly (ValueType | undefined)[],
    constants: readonly (Tensor | undefined)[],
    prefix: string,
  ) {
    this.node = node;
    this.emitter = new Emitter(prefix);
    node.inputs.forEach((name, index) => {
      if (name === '' || this.emitter.has(name)) return;
      const constant = constants[index];
      const { type, shape } = defined(types[index], `the type of "${name}"`);
      if (constant === undefined) this.emitter.input(name, type, shape);
      else this.emitter.initializer(name, constant);
    });
  }

  /** Input `index`, or undefined if it is absent. */
  optional(index: number): Optional {
    const name = this.node.inputs[index];
    return name === '' ? undefined : name;
  }

  /** Input `index`. Throws InputError if it is absent. */
  input(index: number): string {
    const name = this.optional(index);
    check(name, this.node, () => `lacks input ${index}`);
    return name;
  }

  /** True if output `index` may be read. */
  wants(index: number): boolean {
    return (this.node.outputs[index] ?? '') !== '';
  }

  /** The numbers of a constant input, undefined if it is absent. Throws InputError if it is computed at run time. */
  numbers(index: number): readonly number[] | undefined {
    const name = this.optional(index);
    if (name === undefined) return undefined;
    const value = this.emitter.constantValue(name);
    check(value, this.node, () => `needs the value of its input "${name}" before running; make it an initializer`);
    return toNumbers(value);
  }

  shape(x: string): readonly number[] {
    return this.emitter.shape(x);
  }

  type(x: string): ElementType {
    return this.emitter.type(x).type;
  }

  /** One node with one output. */
  op(operator: string, inputs: readonly string[], attributes: Attributes = {}): string {
    return this.emitter.emit(operator, inputs, attributes);
  }

  add(a: string, b: string): string {
    return this.op('Add', [a, b]);
  }

  sub(a: string, b: string): string {
    return this.op('Sub', [a, b]);
  }

  mul(a: string, b: string): string {
    return this.op('Mul', [a, b]);
  }

  div(a: string, b: string): string {
    return this.op('Div', [a, b]);
  }

  /** A scalar of x's element type. */
  like(x: string, value: number): string {
    return this.emitter.constant(scalar(this.type(x), value));
  }

  /** x · factor */
  scale(x: string, factor: number): string {
    return factor === 1 ? x : this.mul(x, this.like(x, factor));
  }

  constant(value: Tensor): string {
    return this.emitter.constant(value);
  }

  cast(x: string, type: ElementType): string {
    return this.type(x) === type ? x : this.op('Cast', [x], { to: int(dataTypeCode(type)) });
  }

  reshape(x: string, shape: readonly number[]): string {
    return sameShape(this.shape(x), shape) ? x : this.op('Reshape', [x, this.emitter.int64s(shape)]);
  }

  /** Output axis i is input axis permutation[i]. */
  transpose(x: string, permutation: readonly number[]): string {
    return permutation.every((axis, index) => axis === index)
      ? x
      : this.op('Transpose', [x], { perm: ints(permutation) });
  }

  /** The last two axes swapped. */
  transposeLast(x: string): string {
    const rank = this.shape(x).length;
    return this.transpose(x, [...range(rank - 2), rank - 1, rank - 2]);
  }

  /** Parts of the given lengths along an axis. */
  split(x: string, axis: number, lengths: readonly number[]): readonly string[] {
    if (lengths.length === 1) return [x];
    return this.emitter.emitAll('Split', [x, this.emitter.int64s(lengths)], lengths.length, { axis: int(axis) });
  }

  concat(parts: readonly string[], axis: number): string {
    return parts.length === 1 ? defined(parts[0], 'a part') : this.op('Concat', parts, { axis: int(axis) });
  }

  /** Elements start … end − 1 of one axis. */
  slice(x: string, axis: number, start: number, end: number): string {
    if (start === 0 && end === this.shape(x)[axis]) return x;
    const [starts, ends, axes] = [[start], [end], [axis]].map((list) => this.emitter.int64s(list)) as [
      string,
      string,
      string,
    ];
    return this.op('Slice', [x, starts, ends, axes]);
  }

  /** A reduction ('ReduceSum', 'ReduceMean', …) over some axes, which are kept with size 1 or removed. */
  reduce(operator: string, x: string, axes: readonly number[], keep = true): string {
    return axes.length === 0 ? x : this.op(operator, [x, this.emitter.int64s(axes)], { keepdims: int(keep ? 1 : 0) });
  }

  expand(x: string, shape: readonly number[]): string {
    return sameShape(this.shape(x), shape) ? x : this.op('Expand', [x, this.emitter.int64s(shape)]);
  }

  /** α · a · b′ + c for matrices, b transposed: b [columns, inner]. */
  gemmTransposed(a: string, b: string, c: Optional): string {
    return this.op('Gemm', c === undefined ? [a, b] : [a, b, c], { transB: int(1) });
  }

  softmax(x: string): string {
    return this.op('Softmax', [x], { axis: int(-1) });
  }

  layerNormalization(x: string, scale: string, bias: Optional, epsilon: number): string {
    return this.op('LayerNormalization', bias === undefined ? [x, scale] : [x, scale, bias], {
      axis: int(-1),
      epsilon: float(epsilon),
    });
  }
}

/** [0, 1, …, count − 1] */
export function range(count: number): readonly number[] {
  return Array.from({ length: count }, (_, index) => index);
}

export const product: (dimensions: readonly number[]) => number = elementCount;
