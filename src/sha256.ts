// SHA-256 (FIPS 180-4) of bytes that come in parts, without waiting: Node's where there is one, else a plain one. For
// keys of caches and checksums of files; what must be secret is the host's business.

import { builtinModule } from './builtin.ts';

export interface Sha256 {
  /** Adds bytes, or a text as UTF-8. */
  update(part: Uint8Array | string): Sha256;
  /** The hash in hexadecimal digits; nothing may be added afterwards. */
  digest(): string;
}

interface NativeHash {
  update(part: Uint8Array | string): NativeHash;
  digest(encoding: 'hex'): string;
}

const native = builtinModule<{ readonly createHash: (name: string) => NativeHash }>('node:crypto')?.createHash;

/** A new hash of nothing so far. */
export function createSha256(): Sha256 {
  return native === undefined ? portableSha256() : nativeSha256(native('sha256'));
}

function nativeSha256(hash: NativeHash): Sha256 {
  const self: Sha256 = {
    update(part) {
      hash.update(part);
      return self;
    },
    digest: () => hash.digest('hex'),
  };
  return self;
}

const firstPrimes: readonly number[] = (() => {
  const found: number[] = [];
  for (let candidate = 2; found.length < 64; candidate++)
    if (found.every((prime) => candidate % prime !== 0)) found.push(candidate);
  return found;
})();

/** The first 32 bits of a number's fraction. */
const fractionBits = (value: number): number => Math.floor((value - Math.floor(value)) * 2 ** 32);
const roundConstants = Uint32Array.from(firstPrimes, (prime) => fractionBits(Math.cbrt(prime)));
const initialState = firstPrimes.slice(0, 8).map((prime) => fractionBits(Math.sqrt(prime)));

/** The plain form, for where there is no other. */
export function portableSha256(): Sha256 {
  const state = Uint32Array.from(initialState);
  const block = new Uint8Array(64);
  let [filled, byteCount] = [0, 0];
  const add = (bytes: Uint8Array): void => {
    for (const byte of bytes) {
      block[filled++] = byte;
      if (filled < 64) continue;
      compress(state, block);
      filled = 0;
    }
  };
  const self: Sha256 = {
    update(part) {
      const bytes = typeof part === 'string' ? new TextEncoder().encode(part) : part;
      byteCount += bytes.length;
      add(bytes);
      return self;
    },
    digest() {
      const bits = byteCount * 8;
      add(Uint8Array.of(0x80));
      add(new Uint8Array((120 - filled) % 64));
      const length = new DataView(new ArrayBuffer(8));
      length.setUint32(0, Math.floor(bits / 2 ** 32));
      length.setUint32(4, bits >>> 0);
      add(new Uint8Array(length.buffer));
      return Array.from(state, (word) => word.toString(16).padStart(8, '0')).join('');
    },
  };
  return self;
}

const turned = (word: number, bits: number): number => (word >>> bits) | (word << (32 - bits));

const schedule = new Uint32Array(64);

/** FIPS 180-4, 6.2.2, with its letters. */
function compress(state: Uint32Array, block: Uint8Array): void {
  const view = new DataView(block.buffer);
  for (let t = 0; t < 16; t++) schedule[t] = view.getUint32(4 * t);
  for (let t = 16; t < 64; t++) {
    const [early, late] = [schedule[t - 15] as number, schedule[t - 2] as number];
    const sigma0 = turned(early, 7) ^ turned(early, 18) ^ (early >>> 3);
    const sigma1 = turned(late, 17) ^ turned(late, 19) ^ (late >>> 10);
    schedule[t] = sigma1 + (schedule[t - 7] as number) + sigma0 + (schedule[t - 16] as number);
  }
  let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
  for (let t = 0; t < 64; t++) {
    const sum1 = turned(e, 6) ^ turned(e, 11) ^ turned(e, 25);
    const choice = (e & f) ^ (~e & g);
    const t1 = (h + sum1 + choice + (roundConstants[t] as number) + (schedule[t] as number)) >>> 0;
    const sum0 = turned(a, 2) ^ turned(a, 13) ^ turned(a, 22);
    const majority = (a & b) ^ (a & c) ^ (b & c);
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) >>> 0, c, b, a, (t1 + sum0 + majority) >>> 0];
  }
  for (const [index, word] of [a, b, c, d, e, f, g, h].entries()) state[index] = (state[index] as number) + word;
}
