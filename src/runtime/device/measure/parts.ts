// The model in parts of about the same size, and sums over them: plain arithmetic.

import { defined } from '../../../assert.ts';

/** Layers [first, end). */
export type Range = readonly [first: number, end: number];

/** Parts of the model: enough that a cut inside one matters little, few enough to compile. */
const usualPartCount = 8;
/** Of a part's size, what is its time; the rest is its number of layers. */
const timeWeight = 0.75;
/** The beginning of a part may move by so much of a part: every layer is in reach of one. */
const mostMove = 0.5;
/**
 * The first layers of parts of about the same size, to which a layer adds by its time and, less, by being one: short
 * layers alone are in the processor's caches, which they are not in a stage, and must not share a part with long ones.
 * Nearby, or a layer before or behind, a part begins where the fewest bytes cross, as the stages of plans do: handing
 * over is part of what it takes. `borderBytes`: what crosses before each layer.
 */
export function partStarts(
  layerMs: readonly number[],
  borderBytes: readonly number[] = [],
  partCount: number = usualPartCount,
): readonly number[] {
  const { positions, starts } = evenParts(layerMs, partCount);
  const distance = (layer: number, start: number): number => Math.abs(at(positions, layer) - at(positions, start));
  const bytes = (layer: number): number => borderBytes[layer] ?? 0;
  const nearby = (start: number): readonly number[] =>
    [...positions.keys()].filter(
      (layer) => layer > 0 && (Math.abs(layer - start) <= 1 || distance(layer, start) <= mostMove / partCount),
    );
  const cheapest = (start: number): number =>
    nearby(start).reduce((best, layer) => {
      const fewer = bytes(layer) - bytes(best) || distance(layer, start) - distance(best, start);
      return fewer < 0 ? layer : best;
    }, start);
  return [...new Set([...starts].map((start) => (start === 0 ? 0 : cheapest(start))))];
}

/** Where each layer begins in the model's whole size of 1, and the first layers of parts of about the same size. */
function evenParts(
  layerMs: readonly number[],
  partCount: number,
): {
  readonly positions: readonly number[];
  readonly starts: ReadonlySet<number>;
} {
  const totalMs = sum(layerMs);
  const positions: number[] = [];
  const starts = new Set([0]);
  let [passed, part] = [0, 0];
  for (const [layer, ms] of layerMs.entries()) {
    positions.push(passed);
    const size = totalMs === 0 ? 1 / layerMs.length : (timeWeight * ms) / totalMs + (1 - timeWeight) / layerMs.length;
    const middle = Math.floor((passed + size / 2) * partCount + 1e-9);
    if (middle > part) {
      starts.add(layer);
      part = middle;
    }
    passed += size;
  }
  return { positions, starts };
}

/** `count` ranges of about as many neighbours each. */
export function joined(ranges: readonly Range[], count: number): readonly Range[] {
  const bounds = Array.from({ length: count + 1 }, (_, index) => Math.floor((index * ranges.length) / count));
  return bounds.slice(1).flatMap((bound, index) => {
    const [[first] = [], [, end] = []] = [ranges[at(bounds, index)], ranges[bound - 1]];
    return first === undefined || end === undefined || first >= end ? [] : [[first, end] as const];
  });
}

/** Layers by part. */
export function rangesOf(starts: readonly number[], layerCount: number): readonly Range[] {
  return starts.map((start, part): Range => [start, starts[part + 1] ?? layerCount]);
}

/** The part that a layer is in. */
export function partOf(starts: readonly number[], layer: number): number {
  return starts.findLastIndex((start) => start <= layer);
}

/** By part, the sum of its layers' values. */
export function sumsByPart<Layer>(
  starts: readonly number[],
  layers: readonly Layer[],
  value: (layer: Layer) => number,
): readonly number[] {
  return starts.map((start, part) => sum(layers.slice(start, starts[part + 1]).map(value)));
}

/** The value at an index, which must exist. */
export function at(values: readonly number[], index: number): number {
  return defined(values[index], 'a value');
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
