// Changes of colour as torchvision's functional transforms compute them on pictures of bytes (through Pillow): the
// blend of a picture with another, and the operations of AutoAugment. The hue is in hue.ts.

import { lumaOf, type Raster, sameTones, tonesOf } from './raster.ts';

/** other + factor · (value − other), clipped; a byte that takes it is cut, as Pillow does it. */
export function blend(value: number, other: number, factor: number): number {
  const blended = other + factor * (value - other);
  return blended <= 0 ? 0 : blended >= 255 ? 255 : blended;
}

/** Every byte blended with the same other. */
function blendedWith(raster: Raster, factor: number, other: number): Raster {
  const tones = tonesOf((value) => blend(value, other, factor));
  const { pixels } = raster;
  const result = new Uint8Array(pixels.length);
  for (let at = 0; at < pixels.length; at++) result[at] = tones[pixels[at] as number] as number;
  return { ...raster, pixels: result };
}

/** Towards black (0), the picture itself (1), or beyond. */
export function brightness(raster: Raster, factor: number): Raster {
  return blendedWith(raster, factor, 0);
}

/** Towards the mean grey. */
export function contrast(raster: Raster, factor: number): Raster {
  return blendedWith(raster, factor, meanLuma(raster.pixels, sameTones));
}

/** The mean of the pixels' luma, rounded, where each byte stands for `tones[byte]`. */
export function meanLuma(pixels: Uint8Array, tones: Uint8Array): number {
  let sum = 0;
  for (let at = 0; at < pixels.length; at += 3)
    sum += lumaOf(
      tones[pixels[at] as number] as number,
      tones[pixels[at + 1] as number] as number,
      tones[pixels[at + 2] as number] as number,
    );
  return Math.floor((3 * sum) / pixels.length + 0.5);
}

/** Towards grey, pixel by pixel. */
export function saturation(raster: Raster, factor: number): Raster {
  const result = new Uint8Array(raster.pixels.length);
  saturate(raster.pixels, sameTones, factor, result);
  return { ...raster, pixels: result };
}

/** As `saturation`, where each byte stands for `tones[byte]`, into `target`, which may be `pixels`. */
export function saturate(pixels: Uint8Array, tones: Uint8Array, factor: number, target: Uint8Array): void {
  for (let at = 0; at < pixels.length; at += 3) {
    const red = tones[pixels[at] as number] as number;
    const green = tones[pixels[at + 1] as number] as number;
    const blue = tones[pixels[at + 2] as number] as number;
    const grey = lumaOf(red, green, blue);
    target[at] = blend(red, grey, factor);
    target[at + 1] = blend(green, grey, factor);
    target[at + 2] = blend(blue, grey, factor);
  }
}

/** Towards the picture smoothed by Pillow's SMOOTH kernel, (1 1 1, 1 5 1, 1 1 1) / 13; the border stays. */
export function sharpness(raster: Raster, factor: number): Raster {
  const { width, height, pixels } = raster;
  const smooth = Uint8Array.from(pixels);
  const stride = width * 3;
  for (let row = 1; row < height - 1; row++) {
    for (let at = row * stride + 3; at < (row + 1) * stride - 3; at++) {
      let sum = (pixels[at] as number) * 4;
      for (let vertical = at - stride; vertical <= at + stride; vertical += stride)
        sum += (pixels[vertical - 3] as number) + (pixels[vertical] as number) + (pixels[vertical + 3] as number);
      smooth[at] = Math.floor(sum / 13 + 0.5);
    }
  }
  for (let at = 0; at < pixels.length; at++) smooth[at] = blend(pixels[at] as number, smooth[at] as number, factor);
  return { ...raster, pixels: smooth };
}

/** Keeps the upper `bits` bits of each byte. */
export function posterize(raster: Raster, bits: number): Raster {
  const mask = 256 - 2 ** (8 - bits);
  return { ...raster, pixels: raster.pixels.map((value) => value & mask) };
}

/** Inverts bytes from `threshold` on. */
export function solarize(raster: Raster, threshold: number): Raster {
  return { ...raster, pixels: raster.pixels.map((value) => (value < threshold ? value : 255 - value)) };
}

/** Stretches each channel from its least and largest value to 0 and 255. */
export function autoContrast(raster: Raster): Raster {
  return perChannel(raster, (counts) => {
    const least = counts.findIndex((count) => count > 0);
    const most = counts.findLastIndex((count) => count > 0);
    if (most <= least) return identity;
    const scale = 255 / (most - least);
    return (value) => Math.max(0, Math.min(255, Math.trunc(value * scale - least * scale)));
  });
}

/** Spreads each channel's values evenly, by their cumulative counts. */
export function equalize(raster: Raster): Raster {
  return perChannel(raster, (counts) => {
    const present = counts.filter((count) => count > 0);
    const total = present.reduce((sum, count) => sum + count, 0);
    const step = Math.floor((total - (present.at(-1) ?? 0)) / 255);
    if (present.length <= 1 || step === 0) return identity;
    const table: number[] = [];
    let sum = Math.floor(step / 2);
    for (const count of counts) {
      table.push(Math.min(255, Math.floor(sum / step)));
      sum += count;
    }
    return (value) => table[value] as number;
  });
}

function identity(value: number): number {
  return value;
}

function perChannel(raster: Raster, mapOf: (counts: number[]) => (value: number) => number): Raster {
  const { pixels } = raster;
  const result = new Uint8Array(pixels.length);
  for (let channel = 0; channel < 3; channel++) {
    const counts = new Array<number>(256).fill(0);
    for (let at = channel; at < pixels.length; at += 3)
      counts[pixels[at] as number] = (counts[pixels[at] as number] as number) + 1;
    const map = mapOf(counts);
    const table = Uint8Array.from({ length: 256 }, (_, value) => map(value));
    for (let at = channel; at < pixels.length; at += 3) result[at] = table[pixels[at] as number] as number;
  }
  return { ...raster, pixels: result };
}
