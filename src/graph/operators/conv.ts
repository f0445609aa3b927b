// Convolution and its transpose over any number of spatial axes, with groups, strides, dilations and padding.

import { intAttribute, intsAttribute, type Node } from '../graph.ts';
import { elementCount, sameShape, type Tensor, type ValueType } from '../tensor.ts';
import { check, define, floatTypes, type Inputs, required, shapeText } from './define.ts';
import type { OperatorDefinition } from './definition.ts';
import { numbers, store } from './numbers.ts';
import {
  checkAutoPad,
  explicitPads,
  splitPadding,
  type Window,
  windowAttributes,
  windowOf,
  windowSteps,
  windowTable,
} from './windows.ts';

export const convolutions: Readonly<Record<'Conv' | 'ConvTranspose', OperatorDefinition>> = {
  // Y[n, m, o] = B[m] + Σ_c Σ_k W[m, c, k]·X[n, g·C/G + c, o·stride − pad + k·dilation], where g is m's group
  Conv: define({
    inputs: [2, 3],
    types: [floatTypes],
    sameType: 'all',
    attributes: { ...windowAttributes, group: 'int' },
    infer(node, inputs) {
      const { x, w, groups } = convolutionInputs(node, inputs);
      check(
        w.shape[1] === (x.shape[1] as number) / groups,
        node,
        () =>
          `has weights ${shapeText(w.shape)} for an input ${shapeText(x.shape)} with group = ${groups}; the ` +
          `weights' second dimension must be ${(x.shape[1] as number) / groups}`,
      );
      check(
        (w.shape[0] as number) % groups === 0,
        node,
        () => `has ${w.shape[0]} output channels, which ${groups} groups do not divide`,
      );
      checkBias(node, inputs[2], w.shape[0] as number);
      return [{ type: x.type, shape: [x.shape[0] as number, w.shape[0] as number, ...convWindow(node, x, w).output] }];
    },
    evaluate(node, inputs, [result]) {
      const [x, w] = [required(inputs, 0), required(inputs, 1)];
      return [convolve(inputs, convWindow(node, x, w), intAttribute(node, 'group', 1), result as ValueType)];
    },
  }),
  // The transpose of Conv's map from Y to X: Y[n, g·M/G + m, i·stride − pad + k·dilation] += X[n, c, i]·W[c, m, k]
  ConvTranspose: define({
    inputs: [2, 3],
    types: [floatTypes],
    sameType: 'all',
    attributes: { ...windowAttributes, group: 'int', output_padding: 'ints', output_shape: 'ints' },
    infer(node, inputs) {
      const { x, w, groups } = convolutionInputs(node, inputs);
      check(
        w.shape[0] === x.shape[1],
        node,
        () =>
          `has weights ${shapeText(w.shape)} for an input ${shapeText(x.shape)}; their first dimension must be ` +
          `${x.shape[1]}`,
      );
      const channels = (w.shape[1] as number) * groups;
      checkBias(node, inputs[2], channels);
      return [{ type: x.type, shape: [x.shape[0] as number, channels, ...transposedWindow(node, x, w).input] }];
    },
    evaluate(node, inputs, [result]) {
      const [x, w] = [required(inputs, 0), required(inputs, 1)];
      const groups = intAttribute(node, 'group', 1);
      return [convolveTransposed(inputs, transposedWindow(node, x, w), groups, result as ValueType)];
    },
  }),
};

function convolutionInputs(
  node: Node,
  inputs: Inputs<ValueType>,
): { readonly x: ValueType; readonly w: ValueType; readonly groups: number } {
  const [x, w] = [required(inputs, 0), required(inputs, 1)];
  check(
    x.shape.length >= 3 && w.shape.length === x.shape.length,
    node,
    () => `has an input ${shapeText(x.shape)} and weights ${shapeText(w.shape)}; both must have one rank of at least 3`,
  );
  const kernel = intsAttribute(node, 'kernel_shape');
  check(
    !kernel || sameShape(kernel, w.shape.slice(2)),
    node,
    () => `has kernel_shape ${kernel && shapeText(kernel)} and weights ${shapeText(w.shape)}, which disagree`,
  );
  const groups = intAttribute(node, 'group', 1);
  check(
    groups > 0 && (x.shape[1] as number) % groups === 0,
    node,
    () => `has ${x.shape[1]} input channels, which ${groups} groups do not divide`,
  );
  return { x, w, groups };
}

function checkBias(node: Node, bias: ValueType | undefined, channels: number): void {
  check(
    !bias || sameShape(bias.shape, [channels]),
    node,
    () => `has a bias of shape ${bias && shapeText(bias.shape)}; it must be [${channels}]`,
  );
}

function convWindow(node: Node, x: ValueType, w: ValueType): Window {
  return windowOf(node, x.shape.slice(2), w.shape.slice(2));
}

/** The window of the convolution that this node transposes: it slides over the node's output and has X's places. */
function transposedWindow(node: Node, x: ValueType, w: ValueType): Window {
  const [places, kernel] = [x.shape.slice(2), w.shape.slice(2)];
  const { strides, dilations, autoPad } = windowSteps(node, kernel);
  const extra = intsAttribute(node, 'output_padding') ?? kernel.map(() => 0);
  check(
    extra.length === kernel.length && extra.every((pad) => pad >= 0),
    node,
    () => `has output_padding ${shapeText(extra)}; it needs ${kernel.length} integers that are not negative`,
  );
  // The size that the scattered windows cover, before padding is removed.
  const covered = places.map(
    (count, axis) =>
      (count - 1) * (strides[axis] as number) +
      (extra[axis] as number) +
      ((kernel[axis] as number) - 1) * (dilations[axis] as number) +
      1,
  );
  const window = { kernel, strides, dilations, output: places };
  const stated = intsAttribute(node, 'output_shape');
  checkAutoPad(node, autoPad);
  if (!stated && !autoPad.startsWith('SAME')) {
    const [padsBegin, padsEnd] = explicitPads(node, kernel.length);
    checkCovering(
      node,
      covered,
      covered.map((size, axis) => size - (extra[axis] as number)),
      strides,
    );
    return { ...window, ...uncovered(node, covered, padsBegin, padsEnd) };
  }
  const size = stated ?? places.map((count, axis) => count * (strides[axis] as number));
  check(
    size.length === kernel.length && size.every((length) => length > 0),
    node,
    () => `has output_shape ${shapeText(size)}; it needs ${kernel.length} positive integers`,
  );
  // Padding removes the excess. If the windows cover less, an explicit output_shape has zeros at its end; SAME stays
  // smaller.
  const totals = covered.map((length, axis) => Math.max(0, length - (size[axis] as number)));
  const [padsBegin, padsEnd] = splitPadding(totals, autoPad === 'SAME_UPPER' ? 'SAME_UPPER' : 'SAME_LOWER');
  if (!stated) return { ...window, ...uncovered(node, covered, padsBegin, padsEnd) };
  checkCovering(node, stated, covered, strides);
  return { ...window, input: stated, padsBegin, padsEnd };
}

/**
 * Zeros after the last window must not leave room for another: the node would then not be the transpose of a
 * convolution.
 */
function checkCovering(
  node: Node,
  size: readonly number[],
  covered: readonly number[],
  strides: readonly number[],
): void {
  check(
    size.every((length, axis) => length - (covered[axis] as number) < (strides[axis] as number)),
    node,
    () =>
      `leaves a whole stride of its output ${shapeText(size)} uncovered by its windows, which reach ` +
      `${shapeText(covered)}; the strides are ${shapeText(strides)}`,
  );
}

/** The covered size without padding. */
function uncovered(
  node: Node,
  covered: readonly number[],
  padsBegin: readonly number[],
  padsEnd: readonly number[],
): Pick<Window, 'input' | 'padsBegin' | 'padsEnd'> {
  const input = covered.map((size, axis) => size - (padsBegin[axis] as number) - (padsEnd[axis] as number));
  check(
    input.every((size) => size > 0),
    node,
    () => `pads away its whole output, which would be ${shapeText(input)}`,
  );
  return { input, padsBegin, padsEnd };
}

/** The elements of X, W and B, and the sizes of a (transposed) convolution with this result. */
function operandsOf(inputs: Inputs<Tensor>, window: Window, { shape }: ValueType) {
  const [xTensor, wTensor, bias] = [required(inputs, 0), required(inputs, 1), inputs[2]];
  const [batch, channelsOut] = shape as [number, number];
  return {
    x: numbers(xTensor),
    w: numbers(wTensor),
    b: bias && numbers(bias),
    table: windowTable(window),
    batch,
    channelsOut,
    channels: xTensor.shape[1] as number,
    perGroup: wTensor.shape[1] as number,
    size: elementCount(window.input),
    places: elementCount(window.output),
    taps: elementCount(window.kernel),
  };
}

function convolve(inputs: Inputs<Tensor>, window: Window, groups: number, result: ValueType): Tensor {
  const { x, w, b, table, batch, channelsOut, channels, perGroup, size, places, taps } = operandsOf(
    inputs,
    window,
    result,
  );
  const y = new Float64Array(batch * channelsOut * places);
  for (let n = 0; n < batch; n++) {
    for (let m = 0; m < channelsOut; m++) {
      const firstChannel = Math.floor((m * groups) / channelsOut) * perGroup;
      const target = (n * channelsOut + m) * places;
      y.fill(b ? (b[m] as number) : 0, target, target + places);
      for (let c = 0; c < perGroup; c++) {
        const [fromX, fromW] = [(n * channels + firstChannel + c) * size, (m * perGroup + c) * taps];
        for (let place = 0; place < places; place++) {
          let sum = 0;
          for (let tap = 0; tap < taps; tap++) {
            const offset = table[place * taps + tap] as number;
            if (offset >= 0) sum += (w[fromW + tap] as number) * (x[fromX + offset] as number);
          }
          (y[target + place] as number) += sum;
        }
      }
    }
  }
  return store(result.type, result.shape, y);
}

function convolveTransposed(inputs: Inputs<Tensor>, window: Window, groups: number, result: ValueType): Tensor {
  const { x, w, b, table, batch, channelsOut, channels, perGroup, size, places, taps } = operandsOf(
    inputs,
    window,
    result,
  );
  const y = new Float64Array(batch * channelsOut * size);
  for (let n = 0; n < batch; n++) {
    for (let m = 0; m < channelsOut; m++)
      y.fill(b ? (b[m] as number) : 0, (n * channelsOut + m) * size, (n * channelsOut + m + 1) * size);
    for (let c = 0; c < channels; c++) {
      const firstOut = Math.floor((c * groups) / channels) * perGroup;
      const fromX = (n * channels + c) * places;
      for (let m = 0; m < perGroup; m++) {
        const [fromW, target] = [(c * perGroup + m) * taps, (n * channelsOut + firstOut + m) * size];
        for (let place = 0; place < places; place++) {
          for (let tap = 0; tap < taps; tap++) {
            const offset = table[place * taps + tap] as number;
            if (offset >= 0)
              (y[target + offset] as number) += (w[fromW + tap] as number) * (x[fromX + place] as number);
          }
        }
      }
    }
  }
  return store(result.type, result.shape, y);
}
