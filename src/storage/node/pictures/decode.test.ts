// What becomes of picture files, against Pillow and torchvision (test/fixtures/pictures/make_fixtures.py).

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { fixtureFolder } from '../../../testing/pytorch-fixtures.ts';
import { type OperationName, operations } from '../../../training/data/pictures/augment.ts';
import { hue } from '../../../training/data/pictures/hue.ts';
import type { PictureForm } from '../../../training/data/pictures/picture-form.ts';
import { decode, inputOf, prepared, type Recipe } from './decode.ts';
import { loadSharp } from './sharp.ts';

interface Expected {
  readonly pictures: Readonly<Record<string, readonly number[]>>;
  readonly wide: readonly number[];
  readonly operations: Readonly<Record<string, readonly number[]>>;
}

const folder = fixtureFolder('pictures');
const expected = JSON.parse(readFileSync(join(folder, 'expected.json'), 'utf8')) as Expected;
const imageNet = { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };
const sharp = await loadSharp();

function recipe(form: Partial<PictureForm>): Recipe {
  const whole = { channels: 3, height: 16, width: 24, resize: 0, ...imageNet, ...form } as const;
  return { form: whole, augment: [], seed: 0 };
}

/** The largest and the mean difference. */
function differences(a: ArrayLike<number>, b: readonly number[]): readonly [most: number, mean: number] {
  assert.equal(a.length, b.length);
  const each = b.map((value, index) => Math.abs(value - (a[index] as number)));
  return [Math.max(...each), each.reduce((sum, value) => sum + value, 0) / each.length];
}

/** Bytes by which a decoder may differ: JPEG's arithmetic, a profile of printing inks, 16 bits rounded. */
const tolerances: Readonly<Record<string, number>> = {
  'colour.jpg': 3,
  'turned.jpg': 3,
  'cmyk.jpg': 120,
  'grey16.png': 1,
};

for (const [name, bytes] of Object.entries(expected.pictures)) {
  test(`${name} is decoded to the colours that Pillow finds`, async () => {
    const size = name === 'turned.jpg' ? { height: 24, width: 16 } : {};
    const raster = await decode(sharp, join(folder, name), recipe(size));
    const [most, mean] = differences(raster.pixels, bytes);
    assert.ok(most <= (tolerances[name] ?? 0), `differs by ${most}, on average by ${mean}`);
  });
}

test('resized, cropped and normalised as torchvision does it, to half a step of a byte on average', async () => {
  const made = recipe({ height: 128, width: 128, resize: 146 });
  const raster = await prepared(sharp, await decode(sharp, join(folder, 'wide.png'), made), made, {
    sample: 0,
    epoch: 0,
  });
  const every = inputOf(raster, made).filter((_, index) => index % 7 === 0);
  const [most, mean] = differences(every, expected.wide);
  const step = 1 / 255 / 0.229;
  assert.ok(most < 3 * step && mean < step / 2, `differs by ${most / step} steps, on average by ${mean / step}`);
});

test('operations of AutoAugment and the hue give the bytes that torchvision gives', async () => {
  const raster = await decode(sharp, join(folder, 'colour.png'), recipe({}));
  for (const [call, bytes] of Object.entries(expected.operations)) {
    const [name = '', magnitude = ''] = call.split(' ');
    const result =
      name === 'Hue' ? hue(raster, Number(magnitude)) : operations[name as OperationName](raster, Number(magnitude));
    const [most, mean] = differences(result.pixels, bytes);
    // Pillow computes hues in another precision: a few bytes of a whole picture fall on the other side.
    assert.ok(name === 'Hue' ? mean < 0.05 : most <= 1, `${call} differs by ${most}, on average by ${mean}`);
  }
});
