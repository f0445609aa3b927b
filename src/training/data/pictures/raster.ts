// Pictures as bytes, red, green and blue side by side, and what turns them into a model's input.

import type { PictureForm } from './picture-form.ts';

/** [height, width, 3] as bytes. */
export interface Raster {
  readonly width: number;
  readonly height: number;
  readonly pixels: Uint8Array;
}

/** A picture whose bytes stand for others: `tones[byte]`. */
export interface Toned extends Raster {
  /** 256 bytes; absent: each byte stands for itself. */
  readonly tones?: Uint8Array;
}

/** What becomes of each byte: the results cut to bytes. */
export function tonesOf(result: (value: number) => number): Uint8Array {
  return Uint8Array.from({ length: 256 }, (_, value) => result(value));
}

/** Each byte stands for itself. */
export const sameTones: Uint8Array = tonesOf((value) => value);

/** The luma of ITU-R 601-2, as Pillow's convert('L') rounds it. */
export function lumaOf(red: number, green: number, blue: number): number {
  return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
}

/**
 * Writes a picture as [channels, height, width], normalised, into `target` from `start`: (value / 255 − mean) /
 * deviation.
 */
export function normalize(
  { pixels, tones = sameTones }: Toned,
  { channels, mean, deviation }: Pick<PictureForm, 'channels' | 'mean' | 'deviation'>,
  target: Float32Array,
  start: number,
): void {
  const tables = mean.map((each, channel) => {
    const ofByte = (value: number): number => (value / 255 - each) / (deviation[channel] as number);
    // The normalised value of each byte: 256 divisions instead of one a pixel.
    return Float32Array.from(channels === 1 ? sameTones : tones, ofByte);
  });
  const count = pixels.length / 3;
  const [first, second, third] = tables as [Float32Array, Float32Array, Float32Array];
  for (let at = 0, to = start; at < pixels.length; at += 3, to++) {
    const [red, green, blue] = [pixels[at] as number, pixels[at + 1] as number, pixels[at + 2] as number];
    if (channels === 1) {
      target[to] = first[lumaOf(tones[red] as number, tones[green] as number, tones[blue] as number)] as number;
    } else {
      target[to] = first[red] as number;
      target[to + count] = second[green] as number;
      target[to + 2 * count] = third[blue] as number;
    }
  }
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
