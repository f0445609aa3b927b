// Changes of colour as torchvision's functional transforms compute them on pictures of bytes (through Pillow): the
// blend of a picture with another, and the operations of AutoAugment.

import { lumaOf, type Raster } from './raster.ts';

/** other + factor · (value − other), clipped and cut as Pillow does it. */
function blend(value: number, other: number, factor: number): number {
  const blended = other + factor * (value - other);
  return blended <= 0 ? 0 : blended >= 255 ? 255 : blended;
}

/** Every byte blended with the same other: a table of 256 results. */
function blendedWith(raster: Raster, factor: number, other: number): Raster {
  const blends = Uint8Array.from({ length: 256 }, (_, value) => blend(value, other, factor));
  return { ...raster, pixels: mapped(raster.pixels, blends) };
}

function mapped(pixels: Uint8Array, results: Uint8Array): Uint8Array {
  const result = new Uint8Array(pixels.length);
  for (let at = 0; at < pixels.length; at++) result[at] = results[pixels[at] as number] as number;
  return result;
}

/** Towards black (0), the picture itself (1), or beyond. */
export function brightness(raster: Raster, factor: number): Raster {
  return blendedWith(raster, factor, 0);
}

/** Towards the mean grey. */
export function contrast(raster: Raster, factor: number): Raster {
  const { pixels } = raster;
  let sum = 0;
  for (let at = 0; at < pixels.length; at += 3)
    sum += lumaOf(pixels[at] as number, pixels[at + 1] as number, pixels[at + 2] as number);
  return blendedWith(raster, factor, Math.floor((3 * sum) / pixels.length + 0.5));
}

/** Towards grey, pixel by pixel. */
export function saturation(raster: Raster, factor: number): Raster {
  const { pixels } = raster;
  const result = new Uint8Array(pixels.length);
  for (let at = 0; at < pixels.length; at += 3) {
    const red = pixels[at] as number;
    const green = pixels[at + 1] as number;
    const blue = pixels[at + 2] as number;
    const grey = lumaOf(red, green, blue);
    result[at] = blend(red, grey, factor);
    result[at + 1] = blend(green, grey, factor);
    result[at + 2] = blend(blue, grey, factor);
  }
  return { ...raster, pixels: result };
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

/** Turns the hue by `shift` of the whole circle, in [−0.5, 0.5], in Pillow's HSV of bytes. */
export function hue(raster: Raster, shift: number): Raster {
  const { pixels } = raster;
  const result = new Uint8Array(pixels.length);
  const turn = Math.trunc(shift * 255) & 255;
  for (let at = 0; at < pixels.length; at += 3) {
    const red = pixels[at] as number;
    const green = pixels[at + 1] as number;
    const blue = pixels[at + 2] as number;
    const most = Math.max(red, green, blue);
    const range = most - Math.min(red, green, blue);
    if (range === 0) {
      result[at] = most;
      result[at + 1] = most;
      result[at + 2] = most;
    } else {
      const turned = (hueOf(red, green, blue, most, range) + turn) & 255;
      fromHsv(result, at, turned, Math.trunc((range * 255) / most), most);
    }
  }
  return { ...raster, pixels: result };
}

/** In sixths of the circle from the largest channel, as a byte. */
function hueOf(red: number, green: number, blue: number, most: number, range: number): number {
  const r = Math.fround((most - red) / range);
  const g = Math.fround((most - green) / range);
  const b = Math.fround((most - blue) / range);
  const sixths = red === most ? b - g : green === most ? 2 + r - b : 4 + g - r;
  const whole = sixths / 6 + 1;
  return Math.trunc((whole - Math.floor(whole)) * 255);
}

function fromHsv(target: Uint8Array, at: number, hueByte: number, saturationByte: number, value: number): void {
  const sixths = (hueByte * 6) / 255;
  const sector = Math.floor(sixths);
  const part = sixths - sector;
  const strength = saturationByte / 255;
  const down = Math.round(value * (1 - strength));
  // Between the largest and the smallest channel, falling in odd sectors and rising in even ones.
  const between = Math.round(value * (1 - strength * (sector % 2 === 1 ? part : 1 - part)));
  const place = sector % 6;
  target[at] = place === 0 || place === 5 ? value : place === 1 || place === 4 ? between : down;
  target[at + 1] = place === 1 || place === 2 ? value : place === 0 || place === 3 ? between : down;
  target[at + 2] = place === 3 || place === 4 ? value : place === 2 || place === 5 ? between : down;
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
