// How a plan's tensors travel: as they are, or in fewer bits. The table of encodings is the single place that knows
// their bits, their codec (runtime/device/codec.ts) and what they cost; adding one is a row here and its codec there.

/** What of a plan may travel in an encoding. */
type Use = 'activation' | 'gradient' | 'sum';

/** An encoding of float32 elements on a link. */
interface EncodingRow {
  /** On the link, for each element. What a tensor or sample needs besides (4 to 8 bytes) does not count. */
  readonly bits: number;
  /**
   * 'half': IEEE half precision with a scale. 'steps': whole steps up to the largest, the rounding error fed back.
   * 'levels': 2^bits equal steps between two ends, which clip outliers.
   */
  readonly codec: 'half' | 'steps' | 'levels';
  /** What feeds errors back is for sums only; what clips is for activations, which no optimizer adds up. */
  readonly uses: readonly Use[];
  /** Encoding an element and decoding it, at the two ends of a link, in milliseconds. */
  readonly elementMs: number;
}

/** 7.6 ns, exact in binary (bench/results/2026-11-21-compression.md). */
const elementMs = 2 ** -17;

/** What gradients at the cuts may travel as in the place of float32. */
export type CutEncoding = 'float16';

/** What sums of gradients may travel as. */
export type SumEncoding = CutEncoding | 'int8';

/** What activations may travel as. */
export type ActivationEncoding = CutEncoding | 'uint8' | 'uint6' | 'uint4' | 'uint2';

export type Encoding = SumEncoding | ActivationEncoding;

/** All encodings by the names that plans use. */
export const encodings: Readonly<Record<Encoding, EncodingRow>> = {
  float16: { bits: 16, codec: 'half', uses: ['activation', 'gradient', 'sum'], elementMs },
  int8: { bits: 8, codec: 'steps', uses: ['sum'], elementMs },
  uint8: { bits: 8, codec: 'levels', uses: ['activation'], elementMs },
  uint6: { bits: 6, codec: 'levels', uses: ['activation'], elementMs },
  uint4: { bits: 4, codec: 'levels', uses: ['activation'], elementMs },
  uint2: { bits: 2, codec: 'levels', uses: ['activation'], elementMs },
};

/** The encodings of each use, the most bits first. */
export const activationEncodingNames: readonly ActivationEncoding[] = namesFor('activation');
export const cutEncodingNames: readonly CutEncoding[] = namesFor('gradient');
export const sumEncodingNames: readonly SumEncoding[] = namesFor('sum');

/** What of a plan travels in fewer bits; absent: as it is. */
export interface Compression {
  /** Activations at the cuts. */
  readonly activation?: ActivationEncoding;
  /** Their gradients. */
  readonly gradient?: CutEncoding;
  /** Weight gradients while they are summed over a stage's devices. */
  readonly allReduce?: SumEncoding;
  /** Of a plan of inference: senders choose bits by what links carry; `activation` is what they begin with. */
  readonly adaptive?: AdaptiveBits;
  /**
   * Of a plan of inference: in rounds 1, 1 + n, 1 + 2n, … activations travel as they are. Such a round repeats the
   * first micro-batch of the round before, so that the outputs' error is known. Absent: none.
   */
  readonly exactEvery?: number;
}

/** How senders choose. */
export interface AdaptiveBits {
  /** Milliseconds a micro-batch that links have to keep. Absent: what the sender computes on one. */
  readonly paceMs?: number;
}

/** Whether activations of a round travel as they are, to compare others with. */
export function isExactRound(round: number, { exactEvery }: Pick<Compression, 'exactEvery'>): boolean {
  return exactEvery !== undefined && round % exactEvery === 1;
}

function namesFor<Name extends Encoding>(use: Use): readonly Name[] {
  return Object.entries(encodings).flatMap(([name, { uses }]) => (uses.includes(use) ? [name as Name] : []));
}

export function isCutEncoding(encoding: Encoding): encoding is CutEncoding {
  return encodings[encoding].uses.includes('gradient');
}

/** Bytes on the link for each byte of float32. */
export function encodedFraction(encoding: Encoding | undefined): number {
  return encoding === undefined ? 1 : encodings[encoding].bits / 32;
}

/** The delay on a link, in milliseconds, of encoding and decoding `bytes` of float32; 0 without an encoding. */
export function codecMs(encoding: Encoding | undefined, bytes: number): number {
  return encoding === undefined ? 0 : (bytes / 4) * encodings[encoding].elementMs;
}
