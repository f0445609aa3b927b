// A picture file to the bytes of a model's input: decoded, turned upright, in colour, resized and cropped. JPEG, PNG,
// WebP, the first frame of a GIF, TIFF and AVIF; grey, palette, 16 bit and CMYK become 8-bit sRGB, and what is
// transparent shows white. Resizing averages (antialias), as torchvision's does.

import { readFileSync } from 'node:fs';
import type { Augmentation, Region } from '../../../training/data/pictures/augment.ts';
import { augmented, cropRegion } from '../../../training/data/pictures/augment.ts';
import { drawOf } from '../../../training/data/pictures/draw.ts';
import type { PictureForm } from '../../../training/data/pictures/picture-form.ts';
import { normalize, type Raster, type Toned } from '../../../training/data/pictures/raster.ts';
import type { Sharp } from './sharp.ts';

/** How pictures are made into inputs: plain data. */
export interface Recipe {
  readonly form: PictureForm;
  readonly augment: readonly Augmentation[];
  readonly seed: number;
}

type Pipeline = ReturnType<Sharp>;

/** White behind what is transparent. */
const white = { r: 255, g: 255, b: 255 };

/**
 * What every epoch has in common of a file, and what a cache keeps: the whole picture where parts of it are drawn,
 * else what is left after resizing and cropping. Throws where the file cannot be decoded.
 */
export async function decode(sharp: Sharp, path: string, { form, augment }: Recipe): Promise<Raster> {
  // In a thread of its own: reading without waiting takes a millisecond more of it.
  const upright = sharp(readFileSync(path), { failOn: 'error', limitInputPixels: 2 ** 28 })
    .autoOrient()
    .flatten({ background: white })
    .toColourspace('srgb');
  if (augment.includes('random-resized-crop')) return rasterOf(upright);
  return rasterOf(resized(upright, form));
}

/** torchvision's Resize of the shorter side, which leaves a margin to crop; or resized whatever the proportions. */
function resized(picture: Pipeline, { width, height, resize }: PictureForm): Pipeline {
  const kernel = 'linear';
  if (resize === 0) return picture.resize(width, height, { fit: 'fill', kernel });
  const scale = resize / Math.min(width, height);
  return picture.resize(Math.round(width * scale), Math.round(height * scale), { fit: 'outside', kernel });
}

async function rasterOf(picture: Pipeline): Promise<Raster> {
  const { data, info } = await picture.raw({ depth: 'uchar' }).toBuffer({ resolveWithObject: true });
  const { width, height, channels } = info;
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return { width, height, pixels: channels === 3 ? bytes : threeChannels(bytes, width * height, channels) };
}

/** Grey as three equal channels; an alpha channel that is left is dropped. */
function threeChannels(bytes: Uint8Array, count: number, channels: number): Uint8Array {
  const pixels = new Uint8Array(count * 3);
  for (let index = 0; index < count; index++)
    for (let channel = 0; channel < 3; channel++)
      pixels[index * 3 + channel] = bytes[index * channels + (channels < 3 ? 0 : channel)] as number;
  return pixels;
}

/** One sample of an epoch: drawn, cropped, augmented. The form's height and width. */
export async function prepared(
  sharp: Sharp,
  base: Raster,
  recipe: Recipe,
  place: { readonly sample: number; readonly epoch: number },
): Promise<Toned> {
  const { form, augment, seed } = recipe;
  if (augment.length === 0) return centered(base, form);
  const random = drawOf({ seed, ...place });
  const cropped = augment.includes('random-resized-crop')
    ? await resizedRegion(sharp, base, cropRegion(base, random), form)
    : centered(base, form);
  return augmented(cropped, augment, random);
}

async function resizedRegion(
  sharp: Sharp,
  { pixels, width, height }: Raster,
  region: Region,
  form: PictureForm,
): Promise<Raster> {
  const raw = { width, height, channels: 3 as const };
  return rasterOf(
    sharp(pixels, { raw }).extract(region).resize(form.width, form.height, { fit: 'fill', kernel: 'linear' }),
  );
}

/** The middle of a picture, as torchvision's CenterCrop rounds it. */
function centered(raster: Raster, form: PictureForm): Raster {
  const { width, height, pixels } = raster;
  if (width === form.width && height === form.height) return raster;
  const left = Math.round((width - form.width) / 2);
  const top = Math.round((height - form.height) / 2);
  const result = new Uint8Array(form.width * form.height * 3);
  for (let row = 0; row < form.height; row++) {
    const from = ((top + row) * width + left) * 3;
    result.set(pixels.subarray(from, from + form.width * 3), row * form.width * 3);
  }
  return { width: form.width, height: form.height, pixels: result };
}

/** A sample as the model takes it: [channels, height, width]. */
export function inputOf(raster: Toned, { form }: Recipe): Float32Array<ArrayBuffer> {
  const values = new Float32Array(form.channels * form.height * form.width);
  normalize(raster, form, values, 0);
  return values;
}
