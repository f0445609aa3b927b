// The noise of forward gradients: a standard random direction for each parameter, round and tangent, drawn by counting
// (Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"). Any device makes any part of it
// again, to the bit, from a few numbers; an independent program does (test/fixtures/forward-gradient).
//
// Element e of the direction z of a parameter: key = (seed mod 2³², FNV-1a-32 of its name in UTF-8), counter =
// (block, tangent, round, 0x46474431).
// - rademacher: block ⌊e/128⌋, word ⌊e/32⌋ mod 4, bit e mod 32 (least first): +1 where it is 1, else −1.
// - gaussian: block ⌊e/4⌋; words (w0, w1) give elements 0 and 1 of the block, (w2, w3) elements 2 and 3:
//   r = √(−2 ln((w0 + 1)/2³²)), θ = 2π·w1/2³², r·cos θ and r·sin θ, in float64, rounded to float32.

/** How a direction is distributed: its elements are independent, with mean 0 and variance 1. */
export type NoiseKind = 'gaussian' | 'rademacher';

export const noiseKinds: readonly [NoiseKind, NoiseKind] = ['gaussian', 'rademacher'];

/** A multiple of a parameter's direction, at a place in a larger vector. */
export interface NoisePart {
  /** The parameter. */
  readonly name: string;
  /** The first element of the vector, and how many; they are elements `first`, `first` + 1, … of the direction. */
  readonly offset: number;
  readonly count: number;
  readonly scale: number;
  /** Of the directions of a round: from 0. */
  readonly tangent: number;
  /** The first element of the direction. Default 0. */
  readonly first?: number;
}

/** A vector of noise: the sum of its parts, 0 where there is none. */
export interface Noise {
  readonly kind: NoiseKind;
  readonly seed: number;
  readonly round: number;
  readonly parts: readonly NoisePart[];
}

/** The last word of the counter: "FGD1". */
const purpose = 0x46474431;

const [multiplier0High, multiplier0Low, multiplier1High, multiplier1Low] = [0xd251, 0x1f53, 0xcd9e, 0x8d57];
const [multiplier0, multiplier1] = [0xd2511f53 | 0, 0xcd9e8d57 | 0];
const [weyl0, weyl1] = [0x9e3779b9 | 0, 0xbb67ae85 | 0];
const roundCount = 10;

/** Writes the noise over all of `into`. */
export function writeNoise(into: Float32Array, { kind, seed, round, parts }: Noise): void {
  /** Elements before this one have been written. */
  let written = 0;
  for (const { name, offset, count, scale, tangent, first = 0 } of parts) {
    const block = new PhiloxBlocks(seed, fnv1a(name), [tangent, round, purpose]);
    const end = offset + count;
    const place = into.subarray(offset, end);
    const isFirstThere = offset >= written;
    const isWrittenWhole = isFirstThere && kind === 'rademacher';
    if (written < offset || !isWrittenWhole) into.fill(0, written, isWrittenWhole ? offset : Math.max(written, end));
    written = Math.max(written, end);
    if (isWrittenWhole) writeRademacher(place, block, { scale, first });
    else if (kind === 'gaussian') addGaussian(place, block, { scale, first });
    else addRademacher(place, block, { scale, first });
  }
  into.fill(0, written);
}

/** FNV-1a in 32 bits of a text in UTF-8. */
export function fnv1a(text: string): number {
  let hash = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) hash = Math.imul(hash ^ byte, 0x01000193);
  return hash >>> 0;
}

/** Philox4x32-10 for one key, with counters of which only the first word changes. */
export class PhiloxBlocks {
  /** The block that was computed last: four words of 32 bits, as signed numbers. */
  w0 = 0;
  w1 = 0;
  w2 = 0;
  w3 = 0;
  readonly #keys0 = new Int32Array(roundCount);
  readonly #keys1 = new Int32Array(roundCount);
  readonly #c1: number;
  readonly #c2: number;
  readonly #c3: number;

  constructor(key0: number, key1: number, [c1, c2, c3]: readonly [number, number, number]) {
    // A seed may be larger than 2³², where | takes the remainder as well.
    [this.#c1, this.#c2, this.#c3] = [c1 | 0, c2 | 0, c3 | 0];
    for (let index = 0; index < roundCount; index++) {
      this.#keys0[index] = key0 + Math.imul(index, weyl0);
      this.#keys1[index] = key1 + Math.imul(index, weyl1);
    }
  }

  /** Computes the block whose counter begins with `c0`. The high halves of products come from products of 16 bits. */
  compute(c0: number): void {
    const [keys0, keys1] = [this.#keys0, this.#keys1];
    let [a, b, c, d] = [c0 | 0, this.#c1, this.#c2, this.#c3];
    for (let index = 0; index < roundCount; index++) {
      const [aHigh, aLow, cHigh, cLow] = [a >>> 16, a & 0xffff, c >>> 16, c & 0xffff];
      let sum = (Math.imul(multiplier0High, aLow) >>> 0) + (Math.imul(multiplier0Low, aLow) >>> 16);
      let low = (Math.imul(multiplier0Low, aHigh) >>> 0) + (sum & 0xffff);
      const high0 = Math.imul(multiplier0High, aHigh) + (sum >>> 16) + (low >>> 16);
      sum = (Math.imul(multiplier1High, cLow) >>> 0) + (Math.imul(multiplier1Low, cLow) >>> 16);
      low = (Math.imul(multiplier1Low, cHigh) >>> 0) + (sum & 0xffff);
      const high1 = Math.imul(multiplier1High, cHigh) + (sum >>> 16) + (low >>> 16);
      const [low0, low1] = [Math.imul(multiplier0, a), Math.imul(multiplier1, c)];
      a = high1 ^ b ^ (keys0[index] as number);
      b = low1;
      c = high0 ^ d ^ (keys1[index] as number);
      d = low0;
    }
    [this.w0, this.w1, this.w2, this.w3] = [a, b, c, d];
  }
}

type Slice = Required<Pick<NoisePart, 'scale' | 'first'>>;

/** Writes ±scale by the sign's bit alone: these are most of what a step of one tangent draws. */
function writeRademacher(into: Float32Array, block: PhiloxBlocks, { scale, first }: Slice): void {
  const words = new Int32Array(into.buffer, into.byteOffset, into.length);
  const negative = (new Int32Array(Float32Array.of(-scale).buffer)[0] as number) | 0;
  let at = 0;
  for (let word = Math.floor(first / 32); at < words.length; word++) {
    const skipped = at === 0 ? first & 31 : 0;
    let bits = wordOf(block, word, at === 0) >>> skipped;
    const end = Math.min(words.length, at + 32 - skipped);
    // Eight at a time: a loop over single bits takes 2.3 times as long.
    for (; at + 8 <= end; at += 8) {
      words[at] = negative ^ (bits << 31);
      words[at + 1] = negative ^ ((bits & 0x02) << 30);
      words[at + 2] = negative ^ ((bits & 0x04) << 29);
      words[at + 3] = negative ^ ((bits & 0x08) << 28);
      words[at + 4] = negative ^ ((bits & 0x10) << 27);
      words[at + 5] = negative ^ ((bits & 0x20) << 26);
      words[at + 6] = negative ^ ((bits & 0x40) << 25);
      words[at + 7] = negative ^ ((bits & 0x80) << 24);
      bits >>>= 8;
    }
    for (; at < end; at++) {
      words[at] = negative ^ (bits << 31);
      bits >>>= 1;
    }
  }
}

/** Word `index` of the direction; blocks are computed when their first word is asked for, or where `begins`. */
function wordOf(block: PhiloxBlocks, index: number, begins: boolean): number {
  const part = index & 3;
  if (part === 0 || begins) block.compute(index >>> 2);
  return part === 0 ? block.w0 : part === 1 ? block.w1 : part === 2 ? block.w2 : block.w3;
}

function addRademacher(into: Float32Array, block: PhiloxBlocks, { scale, first }: Slice): void {
  let at = 0;
  for (let word = Math.floor(first / 32); at < into.length; word++) {
    const skipped = at === 0 ? first & 31 : 0;
    let bits = wordOf(block, word, at === 0) >>> skipped;
    const end = Math.min(into.length, at + 32 - skipped);
    for (; at < end; at++) {
      into[at] = (into[at] as number) + ((bits & 1) * 2 - 1) * scale;
      bits >>>= 1;
    }
  }
}

const scaleOfWord = 1 / 2 ** 32;

function addGaussian(into: Float32Array, block: PhiloxBlocks, { scale, first }: Slice): void {
  const count = into.length;
  for (let at = -(first & 3); at < count; at += 4) {
    block.compute((first + at) >>> 2);
    if (at + 1 >= 0) addPair(into, at, [block.w0 >>> 0, block.w1 >>> 0], scale);
    if (at + 2 < count) addPair(into, at + 2, [block.w2 >>> 0, block.w3 >>> 0], scale);
  }
}

/** Box and Muller's pair of normal numbers, as far as it is within. */
function addPair(into: Float32Array, at: number, [first, second]: readonly [number, number], scale: number): void {
  const radius = Math.sqrt(-2 * Math.log((first + 1) * scaleOfWord));
  const angle = 2 * Math.PI * (second * scaleOfWord);
  if (at >= 0) into[at] = (into[at] as number) + scale * Math.fround(radius * Math.cos(angle));
  if (at + 1 < into.length) into[at + 1] = (into[at + 1] as number) + scale * Math.fround(radius * Math.sin(angle));
}
