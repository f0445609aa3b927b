// Element conversion while rows are gathered: pixels to floats, float64 to float32, any integer to int64. Not meant for
// computing.

import { assert } from '../../assert.ts';
import { halfToNumber } from '../../graph/operators/numbers.ts';
import { type ElementArray, type ElementType, isFloat } from '../../graph/tensor.ts';

/** byte / 255 as float32, for images. */
const unitBytes: Float32Array = Float32Array.from({ length: 256 }, (_, byte) => byte / 255);

/** A range of an array: `count` elements from `start`. */
export interface Stretch {
  readonly type: ElementType;
  readonly data: ElementArray;
  readonly start: number;
}

/** True if `convert` can convert `from` to `to` with no loss but float precision (integers must be in range). */
export function canConvert(from: ElementType, to: ElementType): boolean {
  if (from === to) return true;
  if (to === 'float16' || to === 'bool') return false;
  return isFloat(to) || !isFloat(from);
}

/** Writes `count` elements of `source`, divided by `divisor`, to `target`. */
export function convert(target: Stretch, source: Stretch, count: number, divisor: number): void {
  assert(canConvert(source.type, target.type), `${source.type} cannot become ${target.type}`);
  const [to, from] = [target.data, source.data];
  if (to instanceof BigInt64Array || to instanceof BigUint64Array) {
    for (let index = 0; index < count; index++)
      to[target.start + index] = BigInt(from[source.start + index] as number | bigint);
    return;
  }
  if (from instanceof BigInt64Array || from instanceof BigUint64Array) {
    for (let index = 0; index < count; index++) to[target.start + index] = Number(from[source.start + index]) / divisor;
    return;
  }
  if (source.type === 'float16') {
    for (let index = 0; index < count; index++)
      to[target.start + index] = halfToNumber(from[source.start + index] as number) / divisor;
    return;
  }
  if (target.type === 'float32' && source.type === 'uint8' && divisor === 255) {
    for (let index = 0; index < count; index++)
      to[target.start + index] = unitBytes[from[source.start + index] as number] as number;
    return;
  }
  for (let index = 0; index < count; index++)
    to[target.start + index] = (from[source.start + index] as number) / divisor;
}
