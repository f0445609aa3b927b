// Weights [K, C/group, h, w] in the orders that the blocked kernels read. Notation: B channels of a block, t = h·w
// taps. ReorderInput, which is fast, does the inner part of each; channels are padded to whole blocks with zeros.

import { padZeros, product, range, transpose } from '../autodiff/expressions.ts';
import type { Layouts } from './layouts.ts';

/**
 * [K/B, C/B, t, B of C, B of K], or [K/B, C, t, B of K] for fewer channels than a block, for which the kernel reads a
 * plain image.
 */
export function denseFilter(l: Layouts, weights: string): string {
  const { block } = l;
  const [, given = 1, ...kernel] = l.emitter.shape(weights);
  const channels = given < block ? given : l.padded(given);
  const padded = padChannels(l, weights, channels);
  const [outputs = 1] = l.emitter.shape(padded);
  const taps = product(kernel);
  const inner = innerBlocks(l, l.reshape(padded, [outputs / block, block, channels, taps]));
  const ordered =
    channels < block || taps === 1
      ? inner
      : transpose(
          l.emitter,
          l.reshape(inner, [outputs / block, channels / block, block, taps, block]),
          [0, 1, 3, 2, 4],
        );
  return l.reshape(ordered, [outputs, channels, ...kernel]);
}

/**
 * The filter of the input's gradient, from K channels to C: [C/B, K/B, taps, B of K, B of C] for the given taps, as an
 * h × w kernel.
 */
export function flippedFilter(l: Layouts, weights: string, taps: readonly number[], kernel: readonly number[]): string {
  const { block, emitter: e } = l;
  const padded = padChannels(l, weights, l.padded(e.shape(weights)[1] as number));
  const [outputs = 1, channels = 1, ...all] = e.shape(padded);
  const inner = l.reshape(innerBlocks(l, padded), [outputs / block, block, channels / block, product(all), block]);
  const ordered = transpose(e, inner, [2, 0, 3, 1, 4]);
  return l.reshape(pickTaps(l, ordered, 2, taps), [channels, outputs, ...kernel]);
}

/**
 * Weights [C, 1, h, w] of one channel a group: [C/B, taps, B]. `taps`: which ones, in which order and kernel size;
 * default all.
 */
export function depthwiseFilter(
  l: Layouts,
  weights: string,
  picked?: { readonly taps: readonly number[]; readonly kernel: readonly number[] },
): string {
  const { block } = l;
  const [given = 1, , ...all] = l.emitter.shape(weights);
  const channels = l.padded(given);
  const count = product(all);
  const inner = innerBlocks(l, l.reshape(pad(l, weights, [channels, 1, ...all]), [channels / block, block, count, 1]));
  const { taps, kernel } = picked ?? { taps: range(count), kernel: all };
  return l.reshape(pickTaps(l, l.reshape(inner, [channels / block, count, block]), 1, taps), [channels, 1, ...kernel]);
}

/** A vector with one entry a channel, padded with zeros to whole blocks. */
export function channelVector(l: Layouts, vector: string): string {
  return pad(l, vector, [l.padded(l.emitter.shape(vector)[0] as number)]);
}

function padChannels(l: Layouts, weights: string, channels: number): string {
  const [outputs = 1, , ...kernel] = l.emitter.shape(weights);
  return pad(l, weights, [l.padded(outputs), channels, ...kernel]);
}

function pad(l: Layouts, value: string, shape: readonly number[]): string {
  const old = l.emitter.shape(value);
  return padZeros(
    l.emitter,
    value,
    shape.map(() => 0),
    shape.map((size, axis) => size - (old[axis] as number)),
  );
}

/** Reorders [n, c, h, w] in memory to [n, c/B, h, w, B]. */
function innerBlocks(l: Layouts, value: string): string {
  return l.emit('ReorderInput', [value], l.emitter.shape(value));
}

function pickTaps(l: Layouts, value: string, axis: number, taps: readonly number[]): string {
  const all = range(l.emitter.shape(value)[axis] as number);
  if (taps.length === all.length && taps.every((tap, index) => tap === index)) return value;
  return l.emitter.emit('Gather', [value, l.emitter.int64s(taps)], { axis: { type: 'int', value: axis } });
}
