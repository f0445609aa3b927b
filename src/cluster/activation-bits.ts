// In how many bits activations cross a link: what --activation-bits says, and `auto`, which chooses for each link by
// its measured bandwidth, as QuantPipe does (Wang et al., arXiv 2211.04515): the most bits with which the link still
// keeps the pipeline's pace. Pure; whoever measures calls it again and again, and the result follows slowly enough that
// noise does not change it.

import { InputError } from '../errors.ts';
import { type ActivationEncoding, activationEncodingNames, encodedFraction, encodings } from './compression.ts';

/** Bits of an element: 32 is float32 as it is. */
export type ActivationBits = 32 | 16 | 8 | 6 | 4 | 2;

/** The most first. */
export const activationBits: readonly ActivationBits[] = [
  32,
  ...activationEncodingNames.map((name) => encodings[name].bits as ActivationBits),
];

/** The encoding of activations with so many bits; undefined: none, for 32. */
export function encodingOfBits(bits: ActivationBits): ActivationEncoding | undefined {
  return activationEncodingNames.find((name) => encodings[name].bits === bits);
}

/** What `--activation-bits` asks for. */
export interface BitsWish {
  /** What plans count with, and what travels first. */
  readonly encoding: ActivationEncoding;
  /** Each sender then chooses by what its links carry. */
  readonly isAdaptive: boolean;
}

/** What `auto` begins with: no trained net loses by it (bench/results/2026-11-28-activation-bits.md). */
const firstEncoding: ActivationEncoding = 'uint8';

/** The bits that a user asks for. Throws InputError for others than 16, 8, 6, 4, 2 and auto. */
export function bitsWish(text: string): BitsWish {
  if (text === 'auto') return { encoding: firstEncoding, isAdaptive: true };
  const encoding = activationEncodingNames.find((name) => String(encodings[name].bits) === text);
  if (encoding !== undefined) return { encoding, isAdaptive: false };
  const known = activationEncodingNames.map((name) => encodings[name].bits).join(', ');
  throw new InputError(`--activation-bits ${text} must be one of ${known}, auto.`);
}

/** What the choice for a link depends on. */
export interface LinkLoad {
  /** Of the activations of a micro-batch that cross it, as float32. */
  readonly bytes: number;
  /** As measured. */
  readonly bandwidthMbps: number;
  /** What it carries now; absent: nothing is known yet. */
  readonly current?: ActivationBits;
}

/** The part of the pace that a link may be busy. */
const mostBusy = 0.95;
/** The part from which on more bits are not taken: the distance to `mostBusy` is what noise may do. */
const leastBusy = 0.8;

/**
 * The most bits with which a link carries a micro-batch within `paceMs`; the fewest if none does. With `current`, fewer
 * bits are taken where the link is busier than 95 % of the pace, more where it would be busy for less than 80 % of it.
 */
export function bitsForLink({ bytes, bandwidthMbps, current }: LinkLoad, paceMs: number): ActivationBits {
  const busy = (bits: ActivationBits): number => {
    const ms = (bytes * encodedFraction(encodingOfBits(bits)) * 8) / (bandwidthMbps * 1000);
    return ms / paceMs;
  };
  const most = (limit: number): ActivationBits =>
    activationBits.find((bits) => busy(bits) <= limit) ?? (activationBits.at(-1) as ActivationBits);
  if (current === undefined) return most(mostBusy);
  if (busy(current) > mostBusy) return most(mostBusy);
  const more = most(leastBusy);
  return more > current ? more : current;
}

/**
 * The pace that links have to keep, in milliseconds a micro-batch: that of the target rate, or, without one, of the
 * slowest stage, which no link can improve.
 */
export function paceOfLinks(
  stageMs: readonly number[],
  microBatchSize: number,
  targetSamplesPerS: number | undefined,
): number {
  const slowestMs = Math.max(...stageMs);
  return targetSamplesPerS === undefined ? slowestMs : Math.max(slowestMs, (microBatchSize / targetSamplesPerS) * 1000);
}

/** How far outputs are from those of activations as they are, for a sample of inputs. */
export interface OutputError {
  /** The norm of the difference over the norm of the outputs. */
  readonly relative: number;
  readonly largest: number;
  /** The fraction of samples whose largest output is another one; of classifiers. */
  readonly changedFraction: number;
}

/** Compares outputs of `sampleCount` samples, each of equal length. Both hold finite numbers. */
export function outputError(exact: Float32Array, found: Float32Array, sampleCount: number): OutputError {
  const length = exact.length / sampleCount;
  let [difference, norm, largest, changedCount] = [0, 0, 0, 0];
  for (let sample = 0; sample < sampleCount; sample++) {
    let [exactBest, foundBest] = [sample * length, sample * length];
    for (let index = sample * length; index < (sample + 1) * length; index++) {
      const [a, b] = [exact[index] as number, found[index] as number];
      difference += (a - b) ** 2;
      norm += a ** 2;
      largest = Math.max(largest, Math.abs(a - b));
      if (a > (exact[exactBest] as number)) exactBest = index;
      if (b > (found[foundBest] as number)) foundBest = index;
    }
    if (exactBest !== foundBest) changedCount++;
  }
  return {
    relative: norm > 0 ? Math.sqrt(difference / norm) : Math.sqrt(difference),
    largest,
    changedFraction: changedCount / sampleCount,
  };
}
