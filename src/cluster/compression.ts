// How a plan's tensors travel: as they are, or in fewer bits. The table of encodings is the single place that knows
// their bits, their codec (runtime/device/codec.ts) and what they cost; adding one is a row here and its codec there.

/** An encoding of float32 elements on a link. */
interface EncodingRow {
  /** On the link, for each element. The scales (4 bytes a tensor or piece) do not count. */
  readonly bits: number;
  /** 'half': IEEE half precision with a scale. 'steps': whole steps up to the largest, the rounding error fed back. */
  readonly codec: 'half' | 'steps';
  /** Whether activations and their gradients may travel so: what feeds errors back is for sums only. */
  readonly atCuts: boolean;
  /** Encoding an element and decoding it, at the two ends of a link, in milliseconds. */
  readonly elementMs: number;
}

/** 7.6 ns, exact in binary (bench/results/2026-11-21-compression.md). */
const elementMs = 2 ** -17;

/** What activations and their gradients may travel as in the place of float32. */
export type CutEncoding = 'float16';

/** What sums of gradients may travel as, too. */
export type Encoding = CutEncoding | 'int8';

/** All encodings by the names that plans and `--compress` use, the most bits first. */
export const encodings: Readonly<Record<Encoding, EncodingRow>> = {
  float16: { bits: 16, codec: 'half', atCuts: true, elementMs },
  int8: { bits: 8, codec: 'steps', atCuts: false, elementMs },
};

export const encodingNames: readonly Encoding[] = Object.keys(encodings) as Encoding[];
export const cutEncodingNames: readonly CutEncoding[] = encodingNames.filter(isCutEncoding);

/** What of a plan travels in fewer bits; absent: as it is. */
export interface Compression {
  /** Activations at the cuts. */
  readonly activation?: CutEncoding;
  /** Their gradients. */
  readonly gradient?: CutEncoding;
  /** Weight gradients while they are summed over a stage's devices. */
  readonly allReduce?: Encoding;
}

export function isCutEncoding(encoding: Encoding): encoding is CutEncoding {
  return encodings[encoding].atCuts;
}

/** Bytes on the link for each byte of float32. */
export function encodedFraction(encoding: Encoding | undefined): number {
  return encoding === undefined ? 1 : encodings[encoding].bits / 32;
}

/** The delay on a link, in milliseconds, of encoding and decoding `bytes` of float32; 0 without an encoding. */
export function codecMs(encoding: Encoding | undefined, bytes: number): number {
  return encoding === undefined ? 0 : (bytes / 4) * encodings[encoding].elementMs;
}
