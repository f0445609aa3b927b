import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ProtocolError } from '../errors.ts';
import { type Announcement, checkTrailing, decodeMessage, encodePiece, type Piece } from './piece.ts';

const [proven, unproven] = [{ isProven: true }, { isProven: false }];
const piece: Piece = {
  lane: 'bulk',
  first: true,
  last: false,
  inline: [Uint8Array.of(1, 2), Uint8Array.of(3)],
  trailing: Uint8Array.of(4, 5),
};

function announced(
  message: Uint8Array | undefined,
  carrier: { readonly isProven: boolean },
): Announcement & { kind: 'piece' } {
  const announcement = decodeMessage(message as Uint8Array, 7, carrier);
  assert.ok(announcement.kind === 'piece');
  return announcement;
}

test('a piece is its header with the small parts, and the memory of the long one', () => {
  const [message, trailing] = encodePiece(piece, 7, unproven);
  const { lane, first, last, inline, trailingBytes } = announced(message, unproven);
  assert.deepEqual(
    { lane, first, last, inline: [...inline], trailingBytes },
    { lane: 'bulk', first: true, last: false, inline: [1, 2, 3], trailingBytes: 2 },
  );
  assert.equal(trailing, piece.trailing);
});

test('each flipped bit of a header is found, on every carrier', () => {
  for (const carrier of [proven, unproven]) {
    const [message] = encodePiece(piece, 7, carrier) as [Uint8Array];
    for (let bit = 0; bit < 8 * message.length; bit++) {
      const changed = Uint8Array.from(message);
      changed[bit >> 3] = (changed[bit >> 3] as number) ^ (1 << (bit & 7));
      assert.throws(() => decodeMessage(changed, 7, carrier), ProtocolError, `bit ${bit}`);
    }
  }
});

test('long parts have a checksum of their own, but where the carrier proves that nothing was changed', () => {
  const changed = Uint8Array.of(4, 4);
  const checked = announced(encodePiece(piece, 7, unproven)[0], unproven);
  checkTrailing(checked, piece.trailing as Uint8Array);
  assert.throws(() => checkTrailing(checked, changed), /checksum of a message is wrong/);
  checkTrailing(announced(encodePiece(piece, 7, proven)[0], proven), changed);
  // A proven carrier takes messages with checksums too, and compares them.
  assert.throws(
    () => checkTrailing(announced(encodePiece(piece, 7, unproven)[0], proven), changed),
    /checksum of a message is wrong/,
  );
});

test('no peer can leave the checksum out by itself', () => {
  const [message] = encodePiece(piece, 7, proven);
  assert.throws(() => decodeMessage(message as Uint8Array, 7, unproven), /has no checksum, on a link that needs one/);
});

test('a trailing message of another length than announced is refused', () => {
  const announcement = announced(encodePiece(piece, 7, proven)[0], proven);
  assert.throws(
    () => checkTrailing(announcement, Uint8Array.of(4)),
    /a message of 1 bytes came where 2 were announced/,
  );
});
