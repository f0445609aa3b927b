// Join codes: what a person copies from one terminal to another so that a device may join. 80 random bits, readable,
// valid for an hour, revocable. Only hashes are kept, comparisons take the same time whatever they find, and no code is
// ever part of a log. Over TLS the code begins with 120 bits of the hash of the key that the server must have: whoever
// has another never gets to see the secret.

import { createHash, timingSafeEqual } from 'node:crypto';
import { assert } from '../../assert.ts';
import type { Clock } from '../../clock.ts';

/** Crockford's base 32: no I, L, O or U. */
const alphabet = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
/** Random bytes that a code needs: 80 bits, 16 characters. */
export const joinCodeBytes = 10;
/** Bytes of a key's hash in a code. */
const keyHashBytes = 15;
const keyHashLength = 24;
const secretLength = 16;
/** How long a code is valid: an hour. */
export const joinCodeLifetimeMs = 3_600_000;
const maxCodes = 64;

/** A code in its parts, both normalised. */
export interface JoinCodeParts {
  /** The beginning of the server's key hash; absent in a code for plain links. */
  readonly keyHash?: string;
  readonly secret: string;
}

/** The code for a server whose key has this hash (SHA-256). */
export function withKeyHash(hash: Uint8Array, code: string): string {
  return `${createJoinCode(hash.subarray(0, keyHashBytes))}-${code}`;
}

/** Takes a typed code apart; undefined where it has the length of no code. */
export function splitJoinCode(typed: string): JoinCodeParts | undefined {
  const code = normaliseJoinCode(typed);
  if (code.length === secretLength) return { secret: code };
  if (code.length !== keyHashLength + secretLength) return undefined;
  return { keyHash: code.slice(0, keyHashLength), secret: code.slice(keyHashLength) };
}

/** Whether a key's hash (SHA-256) begins as a code says. */
export function matchesKeyHash(hash: Uint8Array, { keyHash }: JoinCodeParts): boolean {
  return keyHash !== undefined && normaliseJoinCode(createJoinCode(hash.subarray(0, keyHashBytes))) === keyHash;
}

/** Writes random bytes (at least 10) as a code such as `7K2M-Q0ZD-XW4R-9TBC`. */
export function createJoinCode(bytes: Uint8Array): string {
  assert(bytes.length >= joinCodeBytes, `a join code needs ${joinCodeBytes} random bytes, not ${bytes.length}`);
  let bits = 0;
  let bitCount = 0;
  let code = '';
  for (const byte of bytes) {
    bits = (bits << 8) | byte;
    bitCount += 8;
    while (bitCount >= 5) {
      bitCount -= 5;
      code += alphabet[(bits >>> bitCount) & 31];
    }
    bits &= (1 << bitCount) - 1;
  }
  return code.replace(/(.{4})(?=.)/g, '$1-');
}

/** What a person typed, as the code was meant: case, dashes and blanks do not count; O is 0, I and L are 1. */
export function normaliseJoinCode(typed: string): string {
  return typed.toUpperCase().replace(/[\s-]/g, '').replaceAll('O', '0').replace(/[IL]/g, '1');
}

/** Compares two secrets in time that does not depend on where they differ. */
export function sameSecret(a: string, b: string): boolean {
  return timingSafeEqual(digest(a), digest(b));
}

function digest(secret: string): Buffer {
  return createHash('sha256').update(secret).digest();
}

/** What a check found. */
export type JoinCodeVerdict = 'valid' | 'expired' | 'wrong';

/** The codes that are valid at the moment. */
export interface JoinCodes {
  /**
   * Makes a code from random bytes (at least 10) and accepts it from now on. The oldest goes when there are more than
   * 64.
   */
  issue(bytes: Uint8Array): string;
  /** Looks at what a peer sent. */
  check(typed: string): JoinCodeVerdict;
  /** Ends a code's validity, or that of all; links made with it stay. */
  revoke(code?: string): void;
}

/** Options of createJoinCodes. */
export interface JoinCodesOptions {
  readonly clock: Clock;
  /** Default: one hour. */
  readonly lifetimeMs?: number;
}

/** An empty set of join codes. */
export function createJoinCodes(options: JoinCodesOptions): JoinCodes {
  const { clock, lifetimeMs = joinCodeLifetimeMs } = options;
  let entries: { readonly hash: Buffer; readonly expiresAtMs: number }[] = [];
  return {
    issue(bytes) {
      const code = createJoinCode(bytes);
      entries = [...entries, { hash: digest(normaliseJoinCode(code)), expiresAtMs: clock.now() + lifetimeMs }].slice(
        -maxCodes,
      );
      return code;
    },
    check(typed) {
      const hash = digest(normaliseJoinCode(typed));
      let verdict: JoinCodeVerdict = 'wrong';
      for (const entry of entries) {
        if (timingSafeEqual(entry.hash, hash)) verdict = clock.now() < entry.expiresAtMs ? 'valid' : 'expired';
      }
      return verdict;
    },
    revoke(code) {
      const hash = code === undefined ? undefined : digest(normaliseJoinCode(code));
      entries = hash === undefined ? [] : entries.filter((entry) => !timingSafeEqual(entry.hash, hash));
    },
  };
}
