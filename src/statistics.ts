// Of measured times.

import { defined } from './assert.ts';

/** The middle value, the larger of two. There must be one. */
export function median(values: readonly number[]): number {
  return defined(values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)], 'a value');
}
