// Shears, shifts and turns of pictures, as torchvision's affine and rotate compute them with nearest neighbours: what
// comes from outside is black.

import type { Raster } from './raster.ts';

/** The source of the pixel at (x, y): (a x + b y + c, d x + e y + f), at the middles of pixels. */
export type AffineMap = readonly [a: number, b: number, c: number, d: number, e: number, f: number];

/** The picture moved; `map` leads from places in the result to places in the source. */
export function moved(raster: Raster, [a, b, c, d, e, f]: AffineMap): Raster {
  const { width, height, pixels } = raster;
  const result = new Uint8Array(pixels.length);
  for (let y = 0, to = 0; y < height; y++) {
    for (let x = 0; x < width; x++, to += 3) {
      const sourceX = Math.floor(a * (x + 0.5) + b * (y + 0.5) + c);
      const sourceY = Math.floor(d * (x + 0.5) + e * (y + 0.5) + f);
      if (sourceX < 0 || sourceX >= width || sourceY < 0 || sourceY >= height) continue;
      const from = (sourceY * width + sourceX) * 3;
      result[to] = pixels[from] as number;
      result[to + 1] = pixels[from + 1] as number;
      result[to + 2] = pixels[from + 2] as number;
    }
  }
  return { width, height, pixels: result };
}

/** Shifts the rows (`horizontal`) or columns by `amount` of their distance from the first, as AutoAugment does. */
export function sheared(raster: Raster, amount: number, horizontal: boolean): Raster {
  return moved(raster, horizontal ? [1, amount, 0, 0, 1, 0] : [1, 0, 0, amount, 1, 0]);
}

/** Moves right and down by whole pixels. */
export function translated(raster: Raster, right: number, down: number): Raster {
  return moved(raster, [1, 0, -right, 0, 1, -down]);
}

/** Turns counter-clockwise about the middle. */
export function rotated(raster: Raster, degrees: number): Raster {
  const { width, height } = raster;
  const angle = (-degrees * Math.PI) / 180;
  const [cosine, sine] = [Math.cos(angle), Math.sin(angle)];
  const [x, y] = [width / 2, height / 2];
  return moved(raster, [cosine, sine, x - cosine * x - sine * y, -sine, cosine, y + sine * x - cosine * y]);
}
