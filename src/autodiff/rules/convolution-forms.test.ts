// All forms of a convolution's gradients compute the same numbers, whichever is fastest for a shape.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { Emitter } from '../../graph/emitter.ts';
import { createRandom } from '../../random.ts';
import { evaluateGraph } from '../../testing/evaluate-graph.ts';
import { assertClose, randomTensor } from '../../testing/gradient-check.ts';
import {
  type ConvolutionSize,
  canFlip,
  type InputGradientForm,
  plainForms,
  type Sliding,
  type WeightGradientForm,
} from '../forms.ts';
import { inputGradient, weightGradient } from './convolution-forms.ts';

const axis = fc.record({
  kernel: fc.integer({ min: 1, max: 3 }),
  stride: fc.integer({ min: 1, max: 3 }),
  dilation: fc.integer({ min: 1, max: 2 }),
  pad: fc.nat(2),
  output: fc.integer({ min: 1, max: 3 }),
  unread: fc.nat(2),
});

const sizes = fc.record({
  axes: fc.array(axis, { minLength: 1, maxLength: 2 }),
  samples: fc.integer({ min: 1, max: 3 }),
  group: fc.integer({ min: 1, max: 3 }),
  perGroupIn: fc.integer({ min: 1, max: 2 }),
  perGroupOut: fc.integer({ min: 1, max: 2 }),
  seed: fc.nat(999),
});

type Sizes = typeof sizes extends fc.Arbitrary<infer T> ? T : never;

/** A convolution whose windows cover its input from −pad on and leave up to stride − 1 elements at the end unread. */
function slidingOf({ axes, group }: Sizes): Sliding {
  type Axis = Sizes['axes'][number];
  const list = (pick: (one: Axis) => number): readonly number[] => axes.map(pick);
  const covered = ({ output, stride, kernel, dilation }: Axis): number =>
    (output - 1) * stride + (kernel - 1) * dilation + 1;
  const padding = (one: Axis): number => Math.min(one.pad, Math.floor((covered(one) - 1) / 2));
  return {
    kernel: list(({ kernel }) => kernel),
    strides: list(({ stride }) => stride),
    dilations: list(({ dilation }) => dilation),
    padsBegin: list(padding),
    output: list(({ output }) => output),
    input: list((one) => covered(one) - 2 * padding(one) + Math.min(one.unread, one.stride - 1)),
    group,
  };
}

function evaluate(
  write: (e: Emitter, x: string, w: string, g: string) => string,
  sizes_: Sizes,
): { readonly values: Float64Array; readonly shape: readonly number[] } {
  const { samples, group, perGroupIn, perGroupOut, seed } = sizes_;
  const { input, output, kernel } = slidingOf(sizes_);
  const random = createRandom(seed);
  const e = new Emitter();
  const feeds = new Map(
    Object.entries({
      x: [samples, group * perGroupIn, ...input],
      w: [group * perGroupOut, perGroupIn, ...kernel],
      g: [samples, group * perGroupOut, ...output],
    }).map(([name, shape]) => [e.input(name, 'float64', shape), randomTensor(random, { type: 'float64', shape })]),
  );
  const target = write(e, 'x', 'w', 'g');
  const value = evaluateGraph(e.build('form', [target]), feeds).get(target);
  return { values: value?.data as Float64Array, shape: value?.shape ?? [] };
}

function compareForms<F>(
  forms: (sizes: Sizes) => readonly F[],
  write: (form: F, sliding: Sliding) => (e: Emitter, x: string, w: string, g: string) => string,
): void {
  fc.assert(
    fc.property(sizes, (drawn) => {
      const sliding = slidingOf(drawn);
      const [first, ...others] = forms(drawn).map((form) => ({ form, ...evaluate(write(form, sliding), drawn) }));
      for (const { form, values, shape } of others) {
        assert.deepEqual(shape, first?.shape);
        assertClose(values, first?.values as Float64Array, `the form "${form}"`, 1e-12);
      }
    }),
    { seed: 20261123, numRuns: 150, includeErrorInReport: true },
  );
}

test('every form of the weight gradient computes the same', () => {
  compareForms<WeightGradientForm>(
    ({ group, perGroupIn }) => [
      'sample-products',
      'convolution',
      ...(group === 1 ? (['joint-products', 'columns', 'joint-columns'] as const) : []),
      ...(perGroupIn === 1 ? (['depthwise', 'joint-dots'] as const) : []),
    ],
    (form, sliding) => (e, x, _w, g) => weightGradient(e, { x, g, sliding, form }),
  );
});

test('every form of the input gradient computes the same', () => {
  compareForms<InputGradientForm>(
    (drawn) => (canFlip(slidingOf(drawn)) ? ['transposed', 'flipped'] : ['transposed']),
    (form, sliding) => (e, _x, w, g) => inputGradient(e, { g, w, sliding, form }),
  );
});

/** A square convolution of an image, with `same` padding. */
function square(size: number, kernel: number, stride: number, group = 1): Sliding {
  const two = (value: number): readonly number[] => [value, value];
  return {
    input: two(size),
    output: two(Math.ceil(size / stride)),
    kernel: two(kernel),
    strides: two(stride),
    dilations: two(1),
    padsBegin: two((kernel - 1) / 2),
    group,
  };
}

test('the forms follow the shapes', () => {
  const size = (samples: number, channels: number, outputChannels: number, sliding: Sliding): ConvolutionSize => ({
    sliding,
    samples,
    channels,
    outputChannels,
  });
  const { inputGradient: input, weightGradient: weight } = plainForms;
  assert.equal(input(size(32, 64, 64, square(32, 3, 1))), 'flipped');
  assert.equal(input(size(32, 64, 64, square(32, 3, 2))), 'transposed');
  assert.equal(input(size(8, 512, 512, square(7, 3, 1))), 'transposed');
  assert.equal(input(size(1, 4, 4, { ...square(8, 1, 1), padsBegin: [1, 1], output: [10, 10] })), 'transposed');
  assert.equal(weight(size(32, 160, 960, square(4, 1, 1))), 'joint-products');
  assert.equal(weight(size(8, 64, 256, square(56, 1, 1))), 'sample-products');
  assert.equal(weight(size(8, 64, 64, square(56, 3, 1))), 'sample-products');
  assert.equal(weight(size(8, 512, 512, square(7, 3, 1))), 'joint-columns');
  assert.equal(weight(size(8, 128, 512, square(14, 3, 2))), 'joint-columns');
  assert.equal(weight(size(8, 128, 128, square(28, 3, 1))), 'sample-products');
  assert.equal(weight(size(2, 512, 512, square(28, 3, 1))), 'joint-columns');
  assert.equal(weight(size(16, 256, 256, square(14, 3, 1))), 'joint-products');
  assert.equal(weight(size(32, 3, 32, square(32, 3, 2))), 'columns');
  assert.equal(weight(size(8, 3, 64, square(224, 7, 2))), 'convolution');
  assert.equal(weight(size(32, 960, 960, square(4, 3, 1, 960))), 'depthwise');
  assert.equal(weight(size(32, 96, 96, square(32, 3, 2, 96))), 'depthwise');
  assert.equal(weight(size(32, 96, 96, square(32, 3, 1, 96))), 'joint-dots');
  assert.equal(weight(size(32, 64, 64, square(8, 3, 1, 4))), 'sample-products');
});
