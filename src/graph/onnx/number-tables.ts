// Tensors that nobody trains, recognized by their values: masks, counted positions, sinusoids. ONNX does not say what a
// tensor was in the source, but fresh and trained weights never look like these.

import type { Tensor } from '../tensor.ts';

/** Numbers of this magnitude are never weights: they mask attention scores. */
const maskMagnitude = 1e9;
/** A shorter sequence fits many formulas by chance. */
const shortest = 5;
/** The same for a tensor in a weight's position. */
const shortestWeight = 8;
/** Rounding of float32 in a table's values and in the sums below, relative to the table's largest element. */
const tolerance = 2e-5;
/** A column is no constant if its values differ by this part of the table's largest element. */
const leastVariation = 1e-3;

type Floats = Float32Array | Float64Array;

/**
 * Infinities, huge numbers, or only zeros and one number below −10: added to attention scores to hide them.
 */
export function isMask(value: Tensor): boolean {
  const data = value.data as Floats;
  let hidden = 0;
  let zeroCount = 0;
  let isTwoValued = true;
  // A plain loop: it runs over all weights of models of gigabytes.
  for (let index = 0; index < data.length; index++) {
    const element = data[index] as number;
    if (!(Math.abs(element) < maskMagnitude)) return true;
    if (element === 0) zeroCount++;
    else if (hidden === 0) hidden = element;
    else if (element !== hidden) isTwoValued = false;
  }
  return isTwoValued && hidden < -10 && zeroCount > 0;
}

/**
 * What a table of numbers is that no training made, in words for a note, or undefined for anything that may be a
 * weight: whole and half numbers that are not all equal; a geometric series; ramps and sinusoids along one axis, also
 * over the cells of a square grid. In a weight's position (`isWeight`), only the last two.
 */
export function formulaOf(
  value: Tensor,
  { isWeight = false }: { readonly isWeight?: boolean } = {},
): string | undefined {
  const data = value.data as Floats;
  const sizes = value.shape.filter((size) => size !== 1);
  if (data.length < (isWeight ? shortestWeight : shortest) || isUniform(data)) return undefined;
  if (!isWeight && isCounted(data)) return 'it holds whole and half numbers';
  if (!isWeight && sizes.length === 1 && isGeometric(data)) return 'it is a geometric series';
  return isSinusoidal(data, sizes, isWeight ? shortestWeight : shortest) ? 'it holds ramps or sinusoids' : undefined;
}

/** True for a depthwise filter that is the same for all channels, and no fresh weight: one that blurs or samples. */
export function isRepeatedFilter({ shape, data }: Tensor, readers: ReadonlySet<string>): boolean {
  const [channels = 0, own, ...kernel] = shape;
  const size = kernel.reduce((product, length) => product * length, 1);
  if (![...readers].every((reader) => reader === 'Conv') || own !== 1 || channels < 2 || size < 2) return false;
  for (let index = size; index < data.length; index++) if (data[index] !== data[index - size]) return false;
  return !isUniform(data);
}

/** True if all elements are equal. */
export function isUniform(data: ArrayLike<number | bigint>): boolean {
  for (let index = 1; index < data.length; index++) if (data[index] !== data[0]) return false;
  return true;
}

function isCounted(data: Floats): boolean {
  for (let index = 0; index < data.length; index++) if (!Number.isInteger(2 * (data[index] as number))) return false;
  return true;
}

function isGeometric(data: Floats): boolean {
  const ratio = (data[1] as number) / (data[0] as number);
  if (!(ratio > 0) || Math.abs(ratio - 1) < leastVariation) return false;
  for (let index = 1; index < data.length; index++) {
    const expected = (data[index - 1] as number) * ratio;
    if (!(Math.abs((data[index] as number) - expected) <= 1e-4 * Math.abs(expected))) return false;
  }
  return true;
}

/** True if along one axis every line is a sinusoid, a ramp or constant. */
function isSinusoidal(data: Floats, sizes: readonly number[], least: number): boolean {
  for (const [axis, length] of sizes.entries()) {
    const inner = sizes.slice(axis + 1).reduce((product, size) => product * size, 1);
    if (length >= least && isAlong(data, length, inner)) return true;
  }
  // Positions of a square of patches, perhaps after one of a class token.
  const [rows = 0, columns = 0] = sizes;
  if (sizes.length !== 2) return false;
  return [0, 1].some((skipped) => {
    const side = Math.sqrt(rows - skipped);
    return Number.isInteger(side) && isGrid(data, skipped * columns, side, columns);
  });
}

/** True if all lines of `length` elements, `inner` apart, are curves or constant. */
function isAlong(data: Floats, length: number, inner: number): boolean {
  const scale = largest(data);
  let varied = 0;
  let count = 0;
  for (let block = 0; block < data.length; block += length * inner) {
    for (let start = block; start < block + inner; start++, count++) {
      const kind = lineKind(data, { start, step: inner, length }, scale);
      if (kind === 'other') return false;
      if (kind === 'curve') varied++;
    }
  }
  return varied * 2 >= count;
}

/** True if every column over the cells of a square follows one of the square's axes alone. */
function isGrid(data: Floats, offset: number, side: number, columns: number): boolean {
  if (side < shortest) return false;
  const scale = largest(data);
  const line = (start: number, step: number): LineKind =>
    lineKind(data, { start: offset + start, step, length: side }, scale);
  let varied = 0;
  for (let column = 0; column < columns; column++) {
    const across = Array.from({ length: side }, (_, row) => line(row * side * columns + column, columns));
    const down = Array.from({ length: side }, (_, cell) => line(cell * columns + column, side * columns));
    const isFlat = (lines: readonly LineKind[]): boolean => lines.every((kind) => kind === 'constant');
    const isCurve = (lines: readonly LineKind[]): boolean => lines.every((kind) => kind !== 'other');
    if (!(isFlat(across) && isCurve(down)) && !(isFlat(down) && isCurve(across))) return false;
    if (!isFlat(across) || !isFlat(down)) varied++;
  }
  return varied * 2 >= columns;
}

type LineKind = 'constant' | 'curve' | 'other';

/**
 * The differences d of equally spaced values of a sinusoid with an offset (and of a ramp) follow d(t+1) + d(t−1) = κ
 * d(t), with one κ = 2 cos ω for the whole line: found by least squares, then tried.
 */
function lineKind(
  data: Floats,
  { start, step, length }: { readonly start: number; readonly step: number; readonly length: number },
  scale: number,
): LineKind {
  const at = (index: number): number => data[start + index * step] as number;
  const difference = (index: number): number => at(index + 1) - at(index);
  let [low, high] = [at(0), at(0)];
  for (let index = 1; index < length; index++) {
    low = Math.min(low, at(index));
    high = Math.max(high, at(index));
  }
  if (high - low <= tolerance * scale) return 'constant';
  let [products, squares] = [0, 0];
  for (let index = 1; index < length - 2; index++) {
    products += (difference(index + 1) + difference(index - 1)) * difference(index);
    squares += difference(index) ** 2;
  }
  const kappa = squares === 0 ? 0 : Math.max(-2, Math.min(2, products / squares));
  for (let index = 1; index < length - 2; index++) {
    const rest = difference(index + 1) + difference(index - 1) - kappa * difference(index);
    if (Math.abs(rest) > 4 * tolerance * scale) return 'other';
  }
  return high - low > leastVariation * scale ? 'curve' : 'constant';
}

function largest(data: Floats): number {
  let most = 0;
  for (let index = 0; index < data.length; index++) most = Math.max(most, Math.abs(data[index] as number));
  return most;
}
