// Sliding windows, shared by convolutions and pools. Sizes from attributes (auto_pad, ceil_mode, dilations, pads,
// strides), and the table of which input element lies under which element of the kernel, for every place of the window.

import { intsAttribute, type Node, stringAttribute } from '../graph.ts';
import { elementCount } from '../tensor.ts';
import { check, shapeText } from './define.ts';
import { stridesOf } from './indexing.ts';

/** A window that slides over the spatial axes; every list has one entry a spatial axis. */
export interface Window {
  /** The size of the spatial axes that it slides over. */
  readonly input: readonly number[];
  readonly kernel: readonly number[];
  readonly strides: readonly number[];
  readonly dilations: readonly number[];
  /** Padding before and after each axis. */
  readonly padsBegin: readonly number[];
  readonly padsEnd: readonly number[];
  /** The number of places. */
  readonly output: readonly number[];
}

export const windowAttributes = {
  auto_pad: 'string',
  dilations: 'ints',
  kernel_shape: 'ints',
  pads: 'ints',
  strides: 'ints',
} as const;

/** The window of a Conv or a pool over `input`. `ceil` rounds the number of places up (pools' ceil_mode). */
export function windowOf(node: Node, input: readonly number[], kernel: readonly number[], ceil = false): Window {
  const { strides, dilations, autoPad } = windowSteps(node, kernel);
  const reach = kernel.map((size, axis) => (size - 1) * (dilations[axis] as number) + 1);
  const [padsBegin, padsEnd] = windowPads(node, input, reach, strides, autoPad);
  const output = input.map((size, axis) => {
    const stride = strides[axis] as number;
    const begin = padsBegin[axis] as number;
    if (autoPad.startsWith('SAME')) return Math.ceil(size / stride);
    const room = size + begin + (padsEnd[axis] as number) - (reach[axis] as number);
    check(
      room >= 0,
      node,
      () => `has a window of ${shapeText(reach)} (dilated) that is larger than its padded input ${shapeText(input)}`,
    );
    const count = (ceil ? Math.ceil(room / stride) : Math.floor(room / stride)) + 1;
    // A window that would start in the padding after the input is dropped, so every window touches the input.
    return ceil && (count - 1) * stride >= size + begin ? count - 1 : count;
  });
  return { input, kernel, strides, dilations, padsBegin, padsEnd, output };
}

/** strides, dilations and auto_pad with their defaults, checked for one entry per axis. */
export function windowSteps(
  node: Node,
  kernel: readonly number[],
): { readonly strides: readonly number[]; readonly dilations: readonly number[]; readonly autoPad: string } {
  const positive = (name: string): readonly number[] => {
    const list = intsAttribute(node, name) ?? kernel.map(() => 1);
    check(
      list.length === kernel.length && list.every((step) => step > 0),
      node,
      () => `has ${name} ${shapeText(list)}; it needs ${kernel.length} positive integers`,
    );
    return list;
  };
  const autoPad = stringAttribute(node, 'auto_pad', 'NOTSET');
  check(
    ['NOTSET', 'VALID', 'SAME_UPPER', 'SAME_LOWER'].includes(autoPad),
    node,
    () => `has auto_pad "${autoPad}", which ONNX does not know`,
  );
  check(
    kernel.every((size) => size > 0),
    node,
    () => `has an empty kernel ${shapeText(kernel)}`,
  );
  return { strides: positive('strides'), dilations: positive('dilations'), autoPad };
}

/** The attribute `pads`, split in two; zeros where it is absent. */
export function explicitPads(node: Node, rank: number): readonly [begin: readonly number[], end: readonly number[]] {
  const pads = intsAttribute(node, 'pads') ?? new Array<number>(2 * rank).fill(0);
  check(
    pads.length === 2 * rank && pads.every((pad) => pad >= 0),
    node,
    () => `has pads ${shapeText(pads)}; it needs ${2 * rank} integers that are not negative`,
  );
  return [pads.slice(0, rank), pads.slice(rank)];
}

/** Throws if `pads` is given together with an auto_pad that overrides it. */
export function checkAutoPad(node: Node, autoPad: string): void {
  const pads = intsAttribute(node, 'pads') ?? [];
  check(
    autoPad === 'NOTSET' || pads.every((pad) => pad === 0),
    node,
    () => `has both auto_pad "${autoPad}" and pads ${shapeText(pads)}; remove one`,
  );
}

/** Splits a total of padding in two halves; an odd element goes to the end (UPPER) or to the beginning (LOWER). */
export function splitPadding(
  totals: readonly number[],
  autoPad: string,
): readonly [begin: readonly number[], end: readonly number[]] {
  const small = totals.map((total) => Math.floor(total / 2));
  const large = totals.map((total) => Math.ceil(total / 2));
  return autoPad === 'SAME_LOWER' ? [large, small] : [small, large];
}

function windowPads(
  node: Node,
  input: readonly number[],
  reach: readonly number[],
  strides: readonly number[],
  autoPad: string,
): readonly [begin: readonly number[], end: readonly number[]] {
  checkAutoPad(node, autoPad);
  if (!autoPad.startsWith('SAME')) return explicitPads(node, input.length);
  // SAME: ceil(input / stride) places; the padding is what that many windows need.
  const totals = input.map((size, axis) => {
    const stride = strides[axis] as number;
    return Math.max(0, (Math.ceil(size / stride) - 1) * stride + (reach[axis] as number) - size);
  });
  return splitPadding(totals, autoPad);
}

/**
 * table[place · kernelCount + k]: the offset in the spatial input that element k of the kernel covers at this place of
 * the window, −1 if that is in the padding.
 */
export function windowTable({ input, kernel, strides, dilations, padsBegin, output }: Window): Int32Array {
  const [places, taps] = [elementCount(output), elementCount(kernel)];
  const [placeStrides, tapStrides, inputStrides] = [stridesOf(output), stridesOf(kernel), stridesOf(input)];
  const table = new Int32Array(places * taps);
  for (let place = 0; place < places; place++) {
    for (let tap = 0; tap < taps; tap++) {
      let offset = 0;
      for (let axis = 0; axis < input.length && offset >= 0; axis++) {
        const at = Math.floor(place / (placeStrides[axis] as number)) % (output[axis] as number);
        const under = Math.floor(tap / (tapStrides[axis] as number)) % (kernel[axis] as number);
        const position =
          at * (strides[axis] as number) - (padsBegin[axis] as number) + under * (dilations[axis] as number);
        offset =
          position >= 0 && position < (input[axis] as number) ? offset + position * (inputStrides[axis] as number) : -1;
      }
      table[place * taps + tap] = offset;
    }
  }
  return table;
}
