// Pictures as bytes, red, green and blue side by side, and what turns them into a model's input.

import type { PictureForm } from './picture-form.ts';

/** [height, width, 3] as bytes. */
export interface Raster {
  readonly width: number;
  readonly height: number;
  readonly pixels: Uint8Array;
}

/** The luma of ITU-R 601-2, as Pillow's convert('L') rounds it. */
export function lumaOf(red: number, green: number, blue: number): number {
  return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

/**
 * Writes a picture as [channels, height, width], normalised, into `target` from `start`: (value / 255 − mean) /
 * deviation.
 */
export function normalize(
  { pixels }: Raster,
  { channels, mean, deviation }: Pick<PictureForm, 'channels' | 'mean' | 'deviation'>,
  target: Float32Array,
  start: number,
): void {
  const count = pixels.length / 3;
  for (let channel = 0; channel < channels; channel++) {
    const table = tableOf(mean[channel] as number, deviation[channel] as number);
    const to = start + channel * count;
    if (channels === 1) {
      for (let index = 0, at = 0; index < count; index++, at += 3)
        target[to + index] = table[
          lumaOf(pixels[at] as number, pixels[at + 1] as number, pixels[at + 2] as number)
        ] as number;
    } else {
      for (let index = 0, at = channel; index < count; index++, at += 3)
        target[to + index] = table[pixels[at] as number] as number;
    }
  }
}

/** The normalised value of each byte: 256 divisions instead of one a pixel. */
function tableOf(mean: number, deviation: number): Float32Array {
  return Float32Array.from({ length: 256 }, (_, value) => (value / 255 - mean) / deviation);
}

/** Mirrored left to right. */
export function flipped({ width, height, pixels }: Raster): Raster {
  const mirrored = new Uint8Array(pixels.length);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const from = (row * width + column) * 3;
      const to = (row * width + width - 1 - column) * 3;
      mirrored[to] = pixels[from] as number;
      mirrored[to + 1] = pixels[from + 1] as number;
      mirrored[to + 2] = pixels[from + 2] as number;
    }
  }
  return { width, height, pixels: mirrored };
}
