// Numbers that cannot be trained on, found when data are loaded: NaN, infinity, and what float32 cannot hold.

import { InputError } from '../../errors.ts';
import { halfToNumber } from '../../graph/operators/numbers.ts';
import { elementCount, type Tensor } from '../../graph/tensor.ts';

/**
 * Throws InputError that names the first number which is not finite as a float32: file, row and place in it, from 0.
 */
export function checkFinite(values: Tensor, source: string): void {
  const index = firstNotFinite(values);
  if (index < 0) return;
  const { type, shape, data } = values;
  const raw = Number(data[index]);
  const value = type === 'float16' ? halfToNumber(raw) : raw;
  const perSample = shape.slice(1);
  const rowSize = elementCount(perSample);
  const row = Math.floor(index / rowSize);
  const why = Number.isFinite(value) ? ', which is beyond the range of float32' : '';
  throw new InputError(
    `${source} holds ${value}${why}, at row ${row}${placeText(index % rowSize, perSample)}; correct it, or leave ` +
      'that row out.',
  );
}

/** The place of an element in a row: nothing, a column, or its indices. */
function placeText(place: number, shape: readonly number[]): string {
  const axes = shape.length;
  if (axes === 0) return '';
  if (axes === 1) return `, column ${place}`;
  const indices: number[] = [];
  for (let rest = place, axis = axes - 1; axis >= 0; axis--) {
    const size = shape[axis] as number;
    indices.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return `, at [${indices.join(', ')}] in it`;
}

/** The index of the first number that is not finite as a float32; −1 if all are, or are integers. */
export function firstNotFinite({ type, data }: Tensor): number {
  const values = data as Float32Array;
  if (type === 'float16') {
    // All ones in the exponent: infinity or NaN.
    for (let index = 0; index < values.length; index++)
      if (((values[index] as number) & 0x7c00) === 0x7c00) return index;
  } else if (type === 'float32') {
    for (let index = 0; index < values.length; index++) {
      const value = values[index] as number;
      if (value - value !== 0) return index;
    }
  } else if (type === 'float64') {
    for (let index = 0; index < values.length; index++)
      if (!Number.isFinite(Math.fround(values[index] as number))) return index;
  }
  return -1;
}
