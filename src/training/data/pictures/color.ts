// Changes of colour as torchvision's functional transforms compute them on pictures of bytes (through Pillow): the
// blend of a picture with another, and the operations of AutoAugment.

import { lumaOf, type Raster } from './raster.ts';

/** out = other + factor · (value − other), clipped as Pillow clips it. */
function blended(raster: Raster, factor: number, other: (at: number) => number): Raster {
  const { pixels } = raster;
  const result = new Uint8Array(pixels.length);
  for (let at = 0; at < pixels.length; at++) {
    const base = other(at);
    const value = base + factor * ((pixels[at] as number) - base);
    result[at] = value <= 0 ? 0 : value >= 255 ? 255 : value;
  }
  return { ...raster, pixels: result };
}

/** Towards black (0), the picture itself (1), or beyond. */
export function brightness(raster: Raster, factor: number): Raster {
  return blended(raster, factor, () => 0);
}

/** Towards the mean grey. */
export function contrast(raster: Raster, factor: number): Raster {
  const grey = greyOf(raster);
  let sum = 0;
  for (const value of grey) sum += value;
  const mean = Math.floor(sum / grey.length + 0.5);
  return blended(raster, factor, () => mean);
}

/** Towards grey, pixel by pixel. */
export function saturation(raster: Raster, factor: number): Raster {
  const grey = greyOf(raster);
  return blended(raster, factor, (at) => grey[Math.floor(at / 3)] as number);
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
  return blended(raster, factor, (at) => smooth[at] as number);
}

/** Turns the hue by `shift` of the whole circle, in [−0.5, 0.5], in Pillow's HSV of bytes. */
export function hue(raster: Raster, shift: number): Raster {
  const { pixels } = raster;
  const result = new Uint8Array(pixels.length);
  const turn = Math.trunc(shift * 255) & 255;
  for (let at = 0; at < pixels.length; at += 3) {
    const [red, green, blue] = [pixels[at] as number, pixels[at + 1] as number, pixels[at + 2] as number];
    const most = Math.max(red, green, blue);
    const range = most - Math.min(red, green, blue);
    if (range === 0) {
      result.fill(most, at, at + 3);
      continue;
    }
    const turned = (hueOf(red, green, blue, most, range) + turn) & 255;
    fromHsv(result, at, turned, Math.trunc((range * 255) / most), most);
  }
  return { ...raster, pixels: result };
}

function hueOf(red: number, green: number, blue: number, most: number, range: number): number {
  const part = (value: number): number => Math.fround((most - value) / range);
  const sixth =
    red === most ? part(blue) - part(green) : green === most ? 2 + part(red) - part(blue) : 4 + part(green) - part(red);
  const whole = sixth / 6 + 1;
  return Math.max(0, Math.min(255, Math.trunc((whole - Math.floor(whole)) * 255)));
}

function fromHsv(target: Uint8Array, at: number, hueByte: number, saturationByte: number, value: number): void {
  const sixths = (hueByte * 6) / 255;
  const sector = Math.floor(sixths);
  const part = sixths - sector;
  const strength = saturationByte / 255;
  const down = Math.round(value * (1 - strength));
  const falling = Math.round(value * (1 - strength * part));
  const rising = Math.round(value * (1 - strength * (1 - part)));
  const [red, green, blue] = (
    [
      [value, rising, down],
      [falling, value, down],
      [down, value, rising],
      [down, falling, value],
      [rising, down, value],
      [value, down, falling],
    ] as const
  )[sector % 6] as readonly [number, number, number];
  target[at] = red;
  target[at + 1] = green;
  target[at + 2] = blue;
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

function greyOf({ pixels }: Raster): Uint8Array {
  const grey = new Uint8Array(pixels.length / 3);
  for (let index = 0, at = 0; index < grey.length; index++, at += 3)
    grey[index] = lumaOf(pixels[at] as number, pixels[at + 1] as number, pixels[at + 2] as number);
  return grey;
}
