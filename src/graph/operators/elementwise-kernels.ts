// The elementwise operators that are not just a function of numbers: Clip, Pow, Mod, BitShift, Where, Cast.

import { intAttribute, type Node, stringAttribute } from '../graph.ts';
import { type ElementType, isFloat, type Tensor, type ValueType } from '../tensor.ts';
import { check, type Inputs, required } from './define.ts';
import { type Binary, zip } from './elementwise-forms.ts';
import { broadcastOffsets, gather } from './indexing.ts';
import {
  highest,
  isBig,
  isInteger,
  literal,
  lowest,
  mapNumbers,
  numbers,
  plainNumbers,
  scratch,
  store,
  storePlain,
  toBig,
} from './numbers.ts';

/** min(max(x, low), high), so that crossed bounds give the upper one, as in numpy. */
export function clip(inputs: Inputs<Tensor>): Tensor {
  const { type, shape } = required(inputs, 0);
  const x = numbers(required(inputs, 0));
  const low = inputs[1] === undefined ? lowest(type) : (numbers(inputs[1])[0] as number);
  const high = inputs[2] === undefined ? highest(type) : (numbers(inputs[2])[0] as number);
  const values = scratch(type, x.length);
  for (let index = 0; index < x.length; index++) {
    let value = x[index] as number;
    if (value < low) value = low;
    if (value > high) value = high;
    values[index] = value;
  }
  return store(type, shape, values);
}

/** a to the power of b in a's type. 64-bit integers with a whole exponent stay exact modulo 2^64. */
export function power(base: Tensor, exponent: Tensor, { type, shape }: ValueType): Tensor {
  if (isBig(type) && isInteger(exponent.type))
    return zip([base, cast(exponent, 'int64')], { type, shape }, powerBig as unknown as Binary);
  const [a, b] = [plainNumbers(base), plainNumbers(exponent)];
  const [first, second] = [broadcastOffsets(base.shape, shape), broadcastOffsets(exponent.shape, shape)];
  const values = new Float64Array(first.length);
  for (let index = 0; index < values.length; index++)
    values[index] = (a[first[index] as number] as number) ** (b[second[index] as number] as number);
  return storePlain(type, shape, values);
}

/** a to the power of b modulo 2^64, by squaring. */
function powerBig(a: bigint, b: bigint): bigint {
  if (b < 0n) return toBig(Number(a) ** Number(b));
  let result = 1n;
  for (let square = a, rest = b; rest > 0n; rest >>= 1n) {
    if (rest & 1n) result = BigInt.asIntN(64, result * square);
    square = BigInt.asIntN(64, square * square);
  }
  return result;
}

/** Truncating division of 64-bit integers; 0 for a divisor of 0, whose quotient ONNX leaves undefined. */
export const divideBig: Binary = ((a: bigint, b: bigint) => (b === 0n ? 0n : a / b)) as unknown as Binary;

/**
 * fmod = 1: the remainder has the sign of the dividend, as in C. fmod = 0 (integers only): the sign of the divisor, as
 * in Python.
 */
export function modulo(node: Node, type: ElementType): Binary {
  const fmod = intAttribute(node, 'fmod', 0) !== 0;
  check(fmod || !isFloat(type), node, () => `has ${type} operands and fmod = 0; floats need fmod = 1`);
  const zero = literal(type, 0);
  if (isInteger(type)) {
    return (a, b) => {
      if (b === zero) return zero;
      const rest = a % b;
      return !fmod && rest !== zero && rest < zero !== b < zero ? rest + b : rest;
    };
  }
  return (a, b) => a % b;
}

/** Shifts by `direction`; everything is shifted out by the width or more. */
export function bitShift(node: Node, type: ElementType): Binary {
  const direction = stringAttribute(node, 'direction', '');
  check(
    direction === 'LEFT' || direction === 'RIGHT',
    node,
    () => `has direction "${direction}"; it must be "LEFT" or "RIGHT"`,
  );
  const left = direction === 'LEFT';
  if (isBig(type)) return ((a: bigint, b: bigint) => (b > 63n ? 0n : left ? a << b : a >> b)) as unknown as Binary;
  // Powers of two keep unsigned 32-bit values out of JavaScript's signed shifts.
  return (a, b) => (left ? a * 2 ** b : Math.floor(a / 2 ** b));
}

/** `yes` where the condition holds, `no` elsewhere, all broadcast. */
export function where(inputs: Inputs<Tensor>, { type, shape }: ValueType): Tensor {
  const [condition, yes, no] = [required(inputs, 0), required(inputs, 1), required(inputs, 2)];
  const flags = condition.data as Uint8Array;
  const flagOffsets = broadcastOffsets(condition.shape, shape);
  const result = gather(no, shape, broadcastOffsets(no.shape, shape));
  const yesOffsets = broadcastOffsets(yes.shape, shape);
  const [to, from] = [result.data as Float64Array, yes.data as Float64Array];
  for (let index = 0; index < to.length; index++)
    if (flags[flagOffsets[index] as number]) to[index] = from[yesOffsets[index] as number] as number;
  return { type, shape, data: to };
}

/**
 * The values in another element type: floats round to nearest, integers drop the fraction and wrap, bool is "not zero".
 */
export function cast(source: Tensor, type: ElementType): Tensor {
  const { shape } = source;
  if (source.type === type) return source;
  if (type === 'bool')
    return store(
      type,
      shape,
      mapNumbers(plainNumbers(source), (x) => Number(x !== 0)),
    );
  if (!isBig(source.type)) return storePlain(type, shape, plainNumbers(source));
  if (isBig(type))
    return {
      type,
      shape,
      data: (type === 'int64' ? BigInt64Array : BigUint64Array).from(source.data as BigInt64Array),
    };
  // Wrapping to 32 bits first keeps the low bits, which a double would lose.
  if (isInteger(type))
    return store(
      type,
      shape,
      mapNumbers(numbers(source), (x) => Number(BigInt.asIntN(32, x as unknown as bigint))),
    );
  return store(type, shape, plainNumbers(source));
}
