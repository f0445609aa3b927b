// Values that a normalization is about to centre, lowered by something near their mean beforehand. No normalization
// changes by it, but digits do: where a mean is large beside the deviation, a variance that is a difference of squares,
// y as gain·x + offset, and the gradient's sums would cancel. What is subtracted counts as a constant: a normalization
// passes no gradient to it.

import type { Emitter } from '../graph/emitter.ts';
import { type Attributes, int, ints } from '../graph/graph.ts';
import { deferChannelSample } from './deferred.ts';
import { expand, product, range, reshape, sub } from './expressions.ts';
import type { Sliding } from './forms.ts';

/** x lowered by a number a channel, and these numbers. */
export interface Centered {
  /** In x's shape. */
  readonly centered: string;
  /** [C] */
  readonly sample: string;
}

/**
 * x [N, C, …] minus the mean of a few of each channel's elements, which lies within about a deviation of the mean of
 * all. Takes a pass over memory; lowering does without it behind a convolution.
 */
export function centerChannels(e: Emitter, x: string, { deferred }: { readonly deferred: boolean }): Centered {
  const [, channels = 1, ...image] = e.shape(x);
  const sample = deferred && image.length === 2 ? deferChannelSample(e, x) : channelSample(e, x);
  return { centered: sub(e, x, sample), sample: reshape(e, sample, [channels]) };
}

/** x [N, C, …] minus the mean of a few elements of each sample's groups of channels. */
export function centerImages(e: Emitter, x: string, groups: number): string {
  const [samples = 1, channels = 1, ...image] = e.shape(x);
  const perGroup = channels / groups;
  const means = imageSample(e, reshape(e, x, [samples, groups, perGroup * product(image)]));
  const all = expand(e, means, [samples, groups, perGroup]);
  return sub(e, x, reshape(e, all, [samples, channels, ...image.map(() => 1)]));
}

/** The mean of a few elements of each channel of x [N, C, …]: [C, 1, …]. */
export function channelSample(e: Emitter, x: string): string {
  const [samples = 1, channels = 1, ...image] = e.shape(x);
  const places = product(image);
  const shape = [channels, ...image.map(() => 1)];
  if (places === 1) return reshape(e, e.emit('ReduceMean', [x, e.int64s([0])], { keepdims: int(0) }), shape);
  const rows = reshape(e, x, [1, 1, samples, channels * places]);
  return reshape(e, e.emit('AveragePool', [rows], channelSampling(samples, places)), shape);
}

/** How many elements of a channel make a good sample, and of how many images they are. */
const [wantedElements, wantedImages] = [64, 8];

/**
 * The attributes of a pool over the rows [N, C·P] of images with P places that averages a few elements of each
 * channel: of some of the samples, some places.
 */
export function channelSampling(samples: number, places: number): Attributes {
  const images = spread(samples, wantedImages);
  const elements = spread(places, Math.ceil(wantedElements / images.count));
  return {
    kernel_shape: ints([images.count, elements.count]),
    dilations: ints([images.step, elements.step]),
    strides: ints([samples, places]),
  };
}

/**
 * `wanted` of so many places in a row, or all, as far apart as possible: an odd step, so that the places of an image
 * lie in different columns.
 */
function spread(places: number, wanted: number): { readonly count: number; readonly step: number } {
  const count = Math.min(places, wanted);
  const step = Math.floor(places / count);
  return { count, step: step % 2 === 0 ? step - 1 : step };
}

/** The mean of a few elements of each image [N, C, P]: [N, C, 1]. */
function imageSample(e: Emitter, images: string): string {
  const [, , places = 1] = e.shape(images);
  const { count, step } = spread(places, wantedElements);
  return e.emit('AveragePool', [images], {
    kernel_shape: ints([count]),
    dilations: ints([step]),
    strides: ints([places]),
  });
}

/**
 * For each tap of a convolution's kernel, in row-major order, the fraction of the output's places for which it lies
 * inside the input.
 */
export function tapCoverage({ input, output, kernel, strides, dilations, padsBegin }: Sliding): readonly number[] {
  const axes = kernel.map((size, axis) =>
    range(size).map((tap) => {
      const inside = range(output[axis] as number).filter((place) => {
        const at = place * (strides[axis] as number) + tap * (dilations[axis] as number) - (padsBegin[axis] as number);
        return at >= 0 && at < (input[axis] as number);
      });
      return inside.length / (output[axis] as number);
    }),
  );
  return axes.reduce((all, one) => all.flatMap((a) => one.map((b) => a * b)), [1]);
}
