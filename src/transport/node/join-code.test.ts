import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import {
  createJoinCode,
  createJoinCodes,
  matchesKeyHash,
  normaliseJoinCode,
  sameSecret,
  splitJoinCode,
  withKeyHash,
} from './join-code.ts';

const bytes = (fill: number): Uint8Array => new Uint8Array(10).fill(fill);

test('createJoinCode writes 80 bits as four groups of Crockford base 32', () => {
  assert.equal(createJoinCode(bytes(0)), '0000-0000-0000-0000');
  assert.equal(createJoinCode(bytes(0xff)), 'ZZZZ-ZZZZ-ZZZZ-ZZZZ');
  assert.equal(
    createJoinCode(Uint8Array.of(0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23)),
    '04HM-ASW9-NF6Y-Y093',
  );
  assert.throws(() => createJoinCode(new Uint8Array(9)), /needs 10 random bytes, not 9/);
});

test('normaliseJoinCode forgives case, dashes, blanks and look-alikes', () => {
  assert.equal(normaliseJoinCode(' o4hm asw9-nf6y-yo9l\n'), '04HMASW9NF6YY091');
});

test('join codes are valid for their time, for everyone who types them, until they are revoked', () => {
  let nowMs = 5;
  const codes = createJoinCodes({ clock: { now: () => nowMs, after: () => () => {} } });
  const first = codes.issue(bytes(1));
  const second = codes.issue(bytes(2));
  assert.equal(codes.check(first), 'valid');
  assert.equal(codes.check(first.toLowerCase().replaceAll('-', ' ')), 'valid');
  assert.equal(codes.check(createJoinCode(bytes(3))), 'wrong');
  assert.equal(codes.check(''), 'wrong');
  codes.revoke(second);
  assert.equal(codes.check(second), 'wrong');
  nowMs = 5 + 3_600_000 - 1;
  assert.equal(codes.check(first), 'valid');
  nowMs = 5 + 3_600_000;
  assert.equal(codes.check(first), 'expired');
  const third = codes.issue(bytes(4));
  codes.revoke();
  assert.equal(codes.check(third), 'wrong');
});

test('the oldest of more than 64 codes goes', () => {
  const codes = createJoinCodes({ clock: { now: () => 0, after: () => () => {} } });
  const issued = Array.from({ length: 65 }, (_, index) => codes.issue(bytes(index)));
  assert.equal(codes.check(issued[0] as string), 'wrong');
  assert.equal(codes.check(issued[1] as string), 'valid');
  assert.equal(codes.check(issued[64] as string), 'valid');
});

test('sameSecret compares secrets of any length', () => {
  assert.equal(sameSecret('abc', 'abc'), true);
  assert.equal(sameSecret('abc', 'abd'), false);
  assert.equal(sameSecret('abc', 'abcd'), false);
});

test('a code for TLS begins with 120 bits of the hash of the key; taken apart, both parts are what they were', () => {
  const hash = createHash('sha256').update('key').digest();
  const secret = createJoinCode(new Uint8Array(10).fill(7));
  const code = withKeyHash(hash, secret);
  assert.match(code, /^([0-9A-Z]{4}-){9}[0-9A-Z]{4}$/);
  const parts = splitJoinCode(` ${code.toLowerCase()}\n`) ?? { secret: '' };
  assert.equal(parts.secret, secret.replaceAll('-', ''));
  assert.equal(matchesKeyHash(hash, parts), true);
  for (const index of [0, 14]) {
    const other = Uint8Array.from(hash);
    other[index] = (other[index] ?? 0) ^ 1;
    assert.equal(matchesKeyHash(other, parts), false);
  }
  assert.deepEqual(splitJoinCode(secret), { secret: secret.replaceAll('-', '') });
  assert.equal(matchesKeyHash(hash, { secret: 'x' }), false);
  for (const wrong of ['', 'x', code.slice(1), `${code}0`]) assert.equal(splitJoinCode(wrong), undefined);
});
