// The forms of a convolution's gradients (written out in rules/convolution-forms.ts), and which is fastest for which
// shapes. Notation: x [N, C, input…], w [K, C/group, kernel…], g [N, K, output…] the gradient of the output; P places =
// Π output, T taps = Π kernel.

import { product } from './expressions.ts';

/**
 * The geometry of a convolution, with one entry a spatial axis. Elements read: o·stride − padsBegin + tap·dilation for
 * 0 ≤ o < output, 0 ≤ tap < kernel.
 */
export interface Sliding {
  readonly input: readonly number[];
  readonly output: readonly number[];
  readonly kernel: readonly number[];
  readonly strides: readonly number[];
  readonly dilations: readonly number[];
  readonly padsBegin: readonly number[];
  readonly group: number;
}

/** The sizes that decide which form is fastest. */
export interface ConvolutionSize {
  readonly sliding: Sliding;
  /** N */
  readonly samples: number;
  /** C */
  readonly channels: number;
  /** K */
  readonly outputChannels: number;
}

/** The forms of the gradient with respect to x. */
export type InputGradientForm =
  /**
   * Conv of g with the flipped and transposed weights. For stride 1, and padding that the kernel covers (`canFlip`).
   */
  | 'flipped'
  /** ConvTranspose. */
  | 'transposed';

/** The forms of the gradient with respect to w. */
export type WeightGradientForm =
  /** For each tap one product [K, N·P]·[N·P, C], of copies with the batch axis moved inwards. One group. */
  | 'joint-products'
  /** For each tap a product [K/G, P]·[P, C/G] per sample and group, summed over samples. */
  | 'sample-products'
  /** One product [K, P]·[P, C·T] per sample, of the taps' concatenated slices, summed over samples. One group. */
  | 'columns'
  /** One product [K, N·P]·[N·P, C·T], of copies with the batch axis moved inwards. One group. */
  | 'joint-columns'
  /** Conv of x with g as filters, batch and channels exchanged. */
  | 'convolution'
  /**
   * Conv of x as one image of N·C channels with g as N·K filters of one channel each, then a sum over N. One channel a
   * group.
   */
  | 'depthwise'
  /**
   * For each tap the dot products of rows [N·P] of x and g, as a convolution with one output place. One channel a
   * group.
   */
  | 'joint-dots';

/** Chooses forms; an engine with other kernels provides its own. */
export interface ConvolutionForms {
  inputGradient(size: ConvolutionSize): InputGradientForm;
  weightGradient(size: ConvolutionSize): WeightGradientForm;
}

/** With few channels, the products for each tap are thin; from this number of channels on, a product a tap is fast. */
const fewChannels = 8;
/** With few channels, from this number of taps on a convolution of transposes beats copying a slice for each tap. */
const manyTaps = 25;
/** Up to this number of places (of all samples) an output channel, one product of all taps beats one for each. */
const columnsPerChannel = 8;
/**
 * Above this number of places a tap, dot products of slices beat one convolution with g as its kernel, in depthwise
 * convolutions of stride 1.
 */
const placesPerTap = 7;

/** The forms measured as fastest with ONNX Runtime's plain CPU kernels, one thread (x64 with AVX-512). */
export const plainForms: ConvolutionForms = {
  inputGradient({ sliding, samples, channels, outputChannels }) {
    if (!canFlip(sliding)) return 'transposed';
    // Flipping large weights costs more than it saves on small images.
    const weights = (channels / sliding.group) * outputChannels * product(sliding.kernel);
    const moved = samples * (channels * product(sliding.input) + outputChannels * product(sliding.output));
    return product(sliding.kernel) > 1 && weights > 2 * moved ? 'transposed' : 'flipped';
  },
  weightGradient({ sliding, samples, channels, outputChannels }) {
    const { input, output, kernel, strides, group } = sliding;
    const taps = product(kernel);
    if (channels === group) {
      return strides.every((stride) => stride === 1) && product(output) >= placesPerTap * taps
        ? 'joint-dots'
        : 'depthwise';
    }
    if (group > 1) return 'sample-products';
    if (channels < fewChannels && taps > 1) return taps >= manyTaps ? 'convolution' : 'columns';
    // concatenated, the taps' copies grow with the images; separate products are joined at a cost that grows with the
    // weights
    if (taps > 1 && samples * product(output) <= columnsPerChannel * outputChannels) return 'joint-columns';
    // joint products copy x and g once; sample products write a gradient for each sample and sum them
    const moved = channels * product(input) + outputChannels * product(output);
    return samples === 1 || moved < channels * outputChannels * taps ? 'joint-products' : 'sample-products';
  },
};

/**
 * True if the form 'flipped' is possible: flipped, the padding is what the window extends beyond the old padding, which
 * must not be negative.
 */
export function canFlip(sliding: Sliding): boolean {
  const { kernel, strides, dilations, padsBegin } = sliding;
  const ends = padsEnd(sliding);
  return kernel.every((size, axis) => {
    const reach = (size - 1) * (dilations[axis] as number);
    return strides[axis] === 1 && (padsBegin[axis] as number) <= reach && (ends[axis] as number) <= reach;
  });
}

/** The padding at the end that the last window needs; negative if windows leave elements unread. */
export function padsEnd({ input, output, kernel, strides, dilations, padsBegin }: Sliding): readonly number[] {
  return input.map(
    (size, axis) =>
      ((output[axis] as number) - 1) * (strides[axis] as number) +
      ((kernel[axis] as number) - 1) * (dilations[axis] as number) +
      1 -
      size -
      (padsBegin[axis] as number),
  );
}
