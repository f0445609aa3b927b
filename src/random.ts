// Seeded pseudo-random numbers. Asteroid uses no other randomness, so a failing seed can always be replayed.

/** A stream of pseudo-random numbers (sfc32), the same on every machine for the same seed. */
export interface Random {
  /** Uniform in [0, 1), 32 bits of resolution. */
  uniform(): number;
  /** Uniform integer in [0, bound). */
  integer(bound: number): number;
  /** Standard normal (Box–Muller). */
  normal(): number;
}

/** Mixes any number of integers into one 32-bit hash (murmur3's finaliser, applied in sequence). */
export function hash32(...words: readonly number[]): number {
  let hash = 0x9e3779b9;
  for (const word of words) {
    hash = Math.imul(hash ^ (word | 0), 0x85ebca6b);
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
    hash ^= hash >>> 16;
  }
  return hash >>> 0;
}

/** Hashes a string to 32 bits (FNV-1a), for seeds derived from names. */
export function hashString(text: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < text.length; index++) {
    hash = Math.imul(hash ^ text.charCodeAt(index), 0x01000193);
  }
  return hash >>> 0;
}

/**
 * A generator seeded by integers, such as `createRandom(seed, epoch, index)`: streams with different seeds are
 * independent.
 */
export function createRandom(...seed: readonly number[]): Random {
  let a = hash32(...seed, 1);
  let b = hash32(...seed, 2);
  let c = hash32(...seed, 3);
  let counter = 1;
  const next = (): number => {
    const t = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + t) | 0;
    return t >>> 0;
  };
  for (let warmUp = 0; warmUp < 12; warmUp++) next();
  const uniform = (): number => next() / 0x1_0000_0000;
  return {
    uniform,
    integer: (bound) => Math.floor(uniform() * bound),
    normal: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()),
  };
}

/** Shuffles the indices 0 … length−1 (Fisher–Yates) with the given generator. */
export function permutation(length: number, random: Random): Uint32Array {
  const order = new Uint32Array(length);
  for (let index = 0; index < length; index++) {
    const other = random.integer(index + 1);
    order[index] = order[other] as number;
    order[other] = index;
  }
  return order;
}
