// Augmentation by torchvision's names and ranges. What is drawn for a picture is a function of (seed, epoch, sample)
// alone, so that a run sees the same pictures whatever its plan and however many threads decode.

import { InputError } from '../../../errors.ts';
import type { Random } from '../../../random.ts';
import { rotated, sheared, translated } from './affine.ts';
import * as color from './color.ts';
import { between } from './draw.ts';
import { colorJitter } from './jitter.ts';
import { flipped, type Raster, type Toned } from './raster.ts';

/** The augmentations, in the order in which they are applied: torchvision's transform of each name. */
export const augmentations = [
  'random-resized-crop',
  'flip',
  'trivial-augment',
  'rand-augment',
  'color-jitter',
] as const;

export type Augmentation = (typeof augmentations)[number];

/** Reads a list such as "flip,color-jitter". Throws InputError that lists the names. */
export function parseAugment(text: string): readonly Augmentation[] {
  const names = text.split(',').map((name) => name.trim());
  const unknown = names.find((name) => !(augmentations as readonly string[]).includes(name));
  if (unknown !== undefined)
    throw new InputError(
      `--augment has no "${unknown}": give one or more of ${augmentations.join(', ')}, separated by commas.`,
    );
  if (names.includes('trivial-augment') && names.includes('rand-augment'))
    throw new InputError('--augment takes trivial-augment or rand-augment, not both: leave one out.');
  return augmentations.filter((name) => names.includes(name));
}

/** A part of a picture, in pixels. */
export interface Region {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

/** RandomResizedCrop's default ranges: the part of the area, and width over height. */
const [scaleRange, ratioRange] = [
  [0.08, 1],
  [3 / 4, 4 / 3],
] as const;

/** RandomResizedCrop's region: ten tries, then the largest middle part within the ratios. */
export function cropRegion({ width, height }: Pick<Raster, 'width' | 'height'>, random: Random): Region {
  for (let attempt = 0; attempt < 10; attempt++) {
    const area = width * height * between(random, ...scaleRange);
    const ratio = Math.exp(between(random, Math.log(ratioRange[0]), Math.log(ratioRange[1])));
    const [w, h] = [Math.round(Math.sqrt(area * ratio)), Math.round(Math.sqrt(area / ratio))];
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return { left: random.integer(width - w + 1), top: random.integer(height - h + 1), width: w, height: h };
  }
  const ratio = width / height;
  const w = ratio > ratioRange[1] ? Math.round(height * ratioRange[1]) : width;
  const h = ratio < ratioRange[0] ? Math.round(width / ratioRange[0]) : height;
  return { left: (width - w) >> 1, top: (height - h) >> 1, width: w, height: h };
}

/** Everything behind the crop, in the order of {@link augmentations}. */
export function augmented(raster: Raster, names: readonly Augmentation[], random: Random): Toned {
  let result = raster;
  if (names.includes('flip') && random.uniform() < 0.5) result = flipped(result);
  if (names.includes('trivial-augment')) result = trivialAugment(result, random);
  if (names.includes('rand-augment')) result = randAugment(result, random);
  return names.includes('color-jitter') ? colorJitter(result, random) : result;
}

/** An operation of AutoAugment: `magnitude` in its own units, with its sign. */
export type Operation = (raster: Raster, magnitude: number) => Raster;

interface Range {
  readonly apply: Operation;
  /** The magnitude at `level` from 0 to 1; absent: it has none. */
  readonly at?: (level: number, raster: Raster) => number;
  /** Half of the magnitudes are negative. */
  readonly isSigned?: boolean;
}

/** torchvision's names. */
export type OperationName =
  | 'Identity'
  | `${'Shear' | 'Translate'}${'X' | 'Y'}`
  | 'Rotate'
  | 'Brightness'
  | 'Color'
  | 'Contrast'
  | 'Sharpness'
  | 'Posterize'
  | 'Solarize'
  | 'AutoContrast'
  | 'Equalize';

/** The operations by torchvision's names, and what their magnitudes mean. */
export const operations: Readonly<Record<OperationName, Operation>> = {
  Identity: (raster) => raster,
  ShearX: (raster, magnitude) => sheared(raster, magnitude, true),
  ShearY: (raster, magnitude) => sheared(raster, magnitude, false),
  TranslateX: (raster, magnitude) => translated(raster, Math.trunc(magnitude), 0),
  TranslateY: (raster, magnitude) => translated(raster, 0, Math.trunc(magnitude)),
  Rotate: (raster, magnitude) => rotated(raster, magnitude),
  Brightness: (raster, magnitude) => color.brightness(raster, 1 + magnitude),
  Color: (raster, magnitude) => color.saturation(raster, 1 + magnitude),
  Contrast: (raster, magnitude) => color.contrast(raster, 1 + magnitude),
  Sharpness: (raster, magnitude) => color.sharpness(raster, 1 + magnitude),
  Posterize: (raster, magnitude) => color.posterize(raster, Math.trunc(magnitude)),
  Solarize: (raster, magnitude) => color.solarize(raster, magnitude),
  AutoContrast: (raster) => color.autoContrast(raster),
  Equalize: (raster) => color.equalize(raster),
};

/** The ranges of TrivialAugmentWide (`wide`) or RandAugment. */
function rangesOf(wide: boolean): readonly Range[] {
  const signed = (apply: Operation, most: number): Range => ({ apply, isSigned: true, at: (level) => level * most });
  const shift = (apply: Operation, side: 'width' | 'height'): Range =>
    wide
      ? signed(apply, 32)
      : { apply, isSigned: true, at: (level, raster) => (150 / 331) * (raster[side] as number) * level };
  const colors = wide ? 0.99 : 0.9;
  return [
    { apply: operations.Identity },
    signed(operations.ShearX, wide ? 0.99 : 0.3),
    signed(operations.ShearY, wide ? 0.99 : 0.3),
    shift(operations.TranslateX, 'width'),
    shift(operations.TranslateY, 'height'),
    signed(operations.Rotate, wide ? 135 : 30),
    signed(operations.Brightness, colors),
    signed(operations.Color, colors),
    signed(operations.Contrast, colors),
    signed(operations.Sharpness, colors),
    { apply: operations.Posterize, at: (level) => 8 - Math.round(level * (wide ? 6 : 4)) },
    { apply: operations.Solarize, at: (level) => 255 * (1 - level) },
    { apply: operations.AutoContrast },
    { apply: operations.Equalize },
  ];
}

const [wideRanges, usualRanges] = [rangesOf(true), rangesOf(false)];
/** Both draw from 31 magnitudes; RandAugment takes number 9, twice. */
const [binCount, randMagnitude, randCount] = [31, 9, 2];

function trivialAugment(raster: Raster, random: Random): Raster {
  return applied(raster, wideRanges, random, random.integer(binCount));
}

function randAugment(raster: Raster, random: Random): Raster {
  let result = raster;
  for (let count = 0; count < randCount; count++) result = applied(result, usualRanges, random, randMagnitude);
  return result;
}

function applied(raster: Raster, ranges: readonly Range[], random: Random, bin: number): Raster {
  const { apply, at, isSigned = false } = ranges[random.integer(ranges.length)] as Range;
  const magnitude = at?.(bin / (binCount - 1), raster) ?? 0;
  const sign = isSigned && random.integer(2) === 1 ? -1 : 1;
  return apply(raster, sign * magnitude);
}
