// Summary statistics of measured times.

import { defined } from './assert.ts';

/** The upper median: of two middle values the larger. `values` must not be empty. */
export function median(values: readonly number[]): number {
  return defined(values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)], 'a value');
}

/** The median: of two middle values their mean; 0 without values. */
export function middle(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const half = sorted.length >> 1;
  const upper = sorted[half] ?? 0;
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[half - 1] ?? 0)) / 2;
}

/** The arithmetic mean. `values` must not be empty. */
export function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/**
 * The quartiles: a quarter of the values are below the first, half below the second, a quarter above the third.
 * `values` must not be empty.
 */
export function quartiles(values: readonly number[]): [low: number, median: number, high: number] {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (part: number): number => defined(sorted[Math.floor(part * (sorted.length - 1))], 'a value');
  return [at(0.25), at(0.5), at(0.75)];
}
