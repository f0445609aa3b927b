// How a plan's tensors travel: as they are, or in fewer bits (runtime/device/codec.ts).

/** Bits on a link in the place of a float32: a half, or 8 bits with the rounding error fed back (sums only). */
export type Encoding = 'float16' | 'int8';

/** What of a plan travels in fewer bits; absent: as it is. */
export interface Compression {
  /** Activations at the cuts. */
  readonly activation?: 'float16';
  /** Their gradients. */
  readonly gradient?: 'float16';
  /** Weight gradients while they are summed over a stage's devices. */
  readonly allReduce?: Encoding;
}

/** Bytes on the link for each byte of float32. The scales (4 bytes a tensor or piece) do not count. */
export function encodedFraction(encoding: Encoding | undefined): number {
  return encoding === undefined ? 1 : encoding === 'float16' ? 0.5 : 0.25;
}

/**
 * Writing an element in fewer bits and reading it again, on the two ends of a link, 7.6 ns (bench/results): in
 * milliseconds, and exact in binary.
 */
const elementMs = 2 ** -17;

/**
 * Milliseconds that tensors of so many bytes of float32 are under way because they are encoded; 0 where they are not.
 */
export function codecMs(encoding: Encoding | undefined, bytes: number): number {
  return encoding === undefined ? 0 : (bytes / 4) * elementMs;
}
