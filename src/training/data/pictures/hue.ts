// Turns of hue as torchvision computes them on pictures of bytes, in Pillow's HSV of bytes. Everything that depends on
// one or two bytes alone is looked up: this is the dearest step of ColorJitter.

import { type Raster, sameTones } from './raster.ts';

/** For each pair (range, most) of bytes, at range · 256 + most: the saturation as a byte. */
const saturations = Uint8Array.from({ length: 65536 }, (_, at) => ((at >> 8) * 255) / Math.max(1, at & 255));
/** For each hue as a byte: the place in it from one sixth of the circle to the next, falling in odd sixths. */
const falls = Float64Array.from({ length: 256 }, (_, hue) => {
  const sixths = (hue * 6) / 255;
  const part = sixths - Math.floor(sixths);
  return Math.floor(sixths) % 2 === 1 ? part : 1 - part;
});
/** For each hue as a byte: the channels of the largest value, the one between and the least. */
const [mostAt, betweenAt, leastAt] = [
  [0, 1, 1, 2, 2, 0],
  [1, 0, 2, 1, 0, 2],
  [2, 2, 0, 0, 1, 1],
].map((channels) =>
  Uint8Array.from({ length: 256 }, (_, hue) => channels[Math.floor((hue * 6) / 255) % 6] as number),
) as [Uint8Array, Uint8Array, Uint8Array];

/** Turns the hue by `shift` of the whole circle, in [−0.5, 0.5]. */
export function hue(raster: Raster, shift: number): Raster {
  const result = new Uint8Array(raster.pixels.length);
  turnHue(raster.pixels, sameTones, shift, result);
  return { ...raster, pixels: result };
}

/** As `hue`, where each byte stands for `tones[byte]`, into `target`, which may be `pixels`. */
export function turnHue(pixels: Uint8Array, tones: Uint8Array, shift: number, target: Uint8Array): void {
  const turn = Math.trunc(shift * 255) & 255;
  for (let at = 0; at < pixels.length; at += 3) {
    const red = tones[pixels[at] as number] as number;
    const green = tones[pixels[at + 1] as number] as number;
    const blue = tones[pixels[at + 2] as number] as number;
    const most = Math.max(red, green, blue);
    const range = most - Math.min(red, green, blue);
    if (range === 0) {
      target[at] = most;
      target[at + 1] = most;
      target[at + 2] = most;
      continue;
    }
    const turned = (hueOf(red, green, blue, most, range) + turn) & 255;
    const strength = (saturations[range * 256 + most] as number) / 255;
    // Halves are rounded up, as no value is negative.
    target[at + (mostAt[turned] as number)] = most;
    target[at + (betweenAt[turned] as number)] = most * (1 - strength * (falls[turned] as number)) + 0.5;
    target[at + (leastAt[turned] as number)] = most * (1 - strength) + 0.5;
  }
}

/** In sixths of the circle from the largest channel, as a byte. */
function hueOf(red: number, green: number, blue: number, most: number, range: number): number {
  const sixths =
    red === most
      ? Math.fround((most - blue) / range) - Math.fround((most - green) / range)
      : green === most
        ? 2 + Math.fround((most - red) / range) - Math.fround((most - blue) / range)
        : 4 + Math.fround((most - green) / range) - Math.fround((most - red) / range);
  const whole = sixths / 6 + 1;
  return Math.trunc((whole >= 1 ? whole - 1 : whole) * 255);
}
