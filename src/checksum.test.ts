import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { crc32 as nodeCrc32 } from 'node:zlib';
import { crc32, portableCrc32 } from './checksum.ts';
import { createRandom } from './random.ts';
import { createSha256, portableSha256 } from './sha256.ts';

function randomBytes(seed: number, length: number): Uint8Array {
  const random = createRandom(seed, 1);
  return Uint8Array.from({ length }, () => random.integer(256));
}

test('CRC-32: the check value of the standard, and what zlib says, in parts and with empty parts', () => {
  const nine = new TextEncoder().encode('123456789');
  assert.equal(portableCrc32(nine), 0xcbf43926);
  for (let seed = 0; seed < 50; seed++) {
    const bytes = randomBytes(seed, seed * 7);
    const cut = Math.floor(bytes.length / 3);
    for (const sum of [crc32, portableCrc32]) {
      assert.equal(sum(bytes), nodeCrc32(bytes));
      assert.equal(sum(bytes.subarray(cut), sum(bytes.subarray(0, cut))), nodeCrc32(bytes));
      assert.equal(sum(new Uint8Array(0), sum(bytes)), nodeCrc32(bytes));
    }
  }
});

test('SHA-256: the standard example, and what node:crypto says, in parts', () => {
  const abc = 'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad';
  assert.equal(portableSha256().update('abc').digest(), abc);
  for (let seed = 0; seed < 150; seed++) {
    const bytes = randomBytes(seed, seed);
    const expected = createHash('sha256').update(bytes).digest('hex');
    const cut = Math.floor(bytes.length / 2);
    for (const create of [createSha256, portableSha256])
      assert.equal(create().update(bytes.subarray(0, cut)).update(bytes.subarray(cut)).digest(), expected);
  }
});
