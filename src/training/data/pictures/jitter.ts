// ColorJitter with as few passes over the picture as its steps need: brightness and contrast change each byte alone, so
// they wait as a table of 256 values until the next step that reads pixels, or until bytes become numbers.

import type { Random } from '../../../random.ts';
import { blend, meanLuma, saturate } from './color.ts';
import { between } from './draw.ts';
import { turnHue } from './hue.ts';
import { type Raster, sameTones, type Toned, tonesOf } from './raster.ts';

/** ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1), in a drawn order. The source stays as it is. */
export function colorJitter(raster: Raster, random: Random): Toned {
  const jitter = new Jitter(raster);
  const steps = [
    () => jitter.brightness(between(random, 0.6, 1.4)),
    () => jitter.contrast(between(random, 0.6, 1.4)),
    () => jitter.saturation(between(random, 0.6, 1.4)),
    () => jitter.hue(between(random, -0.1, 0.1)),
  ];
  while (steps.length > 0) {
    const [step] = steps.splice(random.integer(steps.length), 1);
    step?.();
  }
  return jitter.result;
}

/** The bytes of one picture on their way through the steps: each stands for `tones[byte]`. */
class Jitter {
  readonly #source: Raster;
  readonly #target: Uint8Array;
  #pixels: Uint8Array;
  #tones = sameTones;

  constructor(source: Raster) {
    this.#source = source;
    this.#pixels = source.pixels;
    this.#target = new Uint8Array(source.pixels.length);
  }

  get result(): Toned {
    return { ...this.#source, pixels: this.#pixels, tones: this.#tones };
  }

  brightness(factor: number): void {
    this.#blend(factor, 0);
  }

  contrast(factor: number): void {
    this.#blend(factor, meanLuma(this.#pixels, this.#tones));
  }

  saturation(factor: number): void {
    this.#write(() => saturate(this.#pixels, this.#tones, factor, this.#target));
  }

  hue(shift: number): void {
    this.#write(() => turnHue(this.#pixels, this.#tones, shift, this.#target));
  }

  #blend(factor: number, other: number): void {
    const tones = this.#tones;
    this.#tones = tonesOf((value) => blend(tones[value] as number, other, factor));
  }

  /** A step that has applied the table. */
  #write(step: () => void): void {
    step();
    this.#pixels = this.#target;
    this.#tones = sameTones;
  }
}
