// Pieces: what really travels. A frame is cut into pieces, so that a long one never holds up a more urgent one for longer than a piece. A
// piece is one message with a header and the frame's small parts, and, where `trailingBytes` says so, a second message: the raw bytes of
// (a part of) one tensor, which so reaches the socket and leaves it without being copied. The checksum covers both; the sequence number
// makes a lost, doubled or reordered message visible. A third kind of message acknowledges bytes.
//
//   0 checksum of all after it, trailing message included   4 sequence number   8 magic   9 lane (3: acknowledgement)   10 flags   11 zero
//   12 bytes of the trailing message   16 the frame's bytes (an acknowledgement: count and time as doubles)

import { crc32 } from 'node:zlib';
import { ProtocolError } from '../errors.ts';
import type { Priority } from './link.ts';

/** The lanes in the order of their urgency; a lane keeps its own order. */
export const lanes: readonly Priority[] = ['control', 'pipeline', 'bulk'];

/** The longest trailing message; senders stay at or below it. */
export const maxTrailingBytes: number = 2 ** 20;
/** The longest message with a header. */
export const maxMessageBytes = 65_536;

const headerBytes = 16;
const magic = 0xa5;
const acknowledgementLane = 3;
const firstFlag = 1;
const lastFlag = 2;

/** A part of a frame, ready to be sent. */
export interface Piece {
  readonly lane: Priority;
  /** First and last piece of its frame. */
  readonly first: boolean;
  readonly last: boolean;
  /** Small parts, copied into the message. */
  readonly inline: readonly Uint8Array[];
  /** The raw bytes that follow in a message of their own; absent: none follows. */
  readonly trailing?: Uint8Array;
}

/** What a receiver says of itself. */
export interface Acknowledgement {
  /** All bytes received so far. */
  readonly byteCount: number;
  /** When the last of them came, on the receiver's monotonic clock. */
  readonly atMs: number;
}

/** What the header of a message announces. */
export type Announcement =
  | ({ readonly kind: 'acknowledgement' } & Acknowledgement)
  | {
      readonly kind: 'piece';
      readonly lane: Priority;
      readonly first: boolean;
      readonly last: boolean;
      /** A view into the message. */
      readonly inline: Uint8Array;
      readonly trailingBytes: number;
      /** Checksum that the header announces, and that of the bytes so far. */
      readonly checksum: number;
      readonly checksumSoFar: number;
    };

/** Encodes a piece as one or two messages. The trailing one is the tensor's own memory. */
export function encodePiece(piece: Piece, sequence: number): Uint8Array[] {
  let length = headerBytes;
  for (const part of piece.inline) length += part.length;
  const message = Buffer.allocUnsafe(length);
  const trailingBytes = piece.trailing?.length ?? 0;
  writeHeader(message, sequence, lanes.indexOf(piece.lane), (piece.first ? firstFlag : 0) | (piece.last ? lastFlag : 0), trailingBytes);
  let offset = headerBytes;
  for (const part of piece.inline) {
    message.set(part, offset);
    offset += part.length;
  }
  let checksum = crc32(message.subarray(4));
  if (piece.trailing !== undefined) checksum = crc32(piece.trailing, checksum);
  message.writeUInt32LE(checksum, 0);
  return piece.trailing === undefined ? [message] : [message, piece.trailing];
}

/** Encodes an acknowledgement. */
export function encodeAcknowledgement({ byteCount, atMs }: Acknowledgement, sequence: number): Uint8Array {
  const message = Buffer.allocUnsafe(headerBytes + 16);
  writeHeader(message, sequence, acknowledgementLane, 0, 0);
  message.writeDoubleLE(byteCount, headerBytes);
  message.writeDoubleLE(atMs, headerBytes + 8);
  message.writeUInt32LE(crc32(message.subarray(4)), 0);
  return message;
}

function writeHeader(message: Buffer, sequence: number, lane: number, flags: number, trailingBytes: number): void {
  message.writeUInt32LE(sequence, 4);
  message[8] = magic;
  message[9] = lane;
  message[10] = flags;
  message[11] = 0;
  message.writeUInt32LE(trailingBytes, 12);
}

/** Reads a message with a header, the `sequence`-th of its link. Throws ProtocolError. */
export function decodeMessage(message: Uint8Array, sequence: number): Announcement {
  if (message.length < headerBytes) throw new ProtocolError(`a message of ${message.length} bytes is shorter than its header`);
  const view = new DataView(message.buffer, message.byteOffset, message.byteLength);
  const [lane, flags] = [message[9] as number, message[10] as number];
  if (message[8] !== magic || message[11] !== 0) throw new ProtocolError('a message does not begin with the header of this protocol');
  if (view.getUint32(4, true) !== sequence)
    throw new ProtocolError(`message ${view.getUint32(4, true)} came in the place of message ${sequence}`);
  const trailingBytes = view.getUint32(12, true);
  if (trailingBytes > maxTrailingBytes)
    throw new ProtocolError(`a message announces ${trailingBytes} more bytes, above the limit of ${maxTrailingBytes}`);
  const checksum = view.getUint32(0, true);
  const checksumSoFar = crc32(message.subarray(4));
  if (trailingBytes === 0 && checksum !== checksumSoFar) throw wrongChecksum();
  if (lane === acknowledgementLane) {
    const isWhole = message.length === headerBytes + 16 && flags === 0 && trailingBytes === 0;
    const byteCount = isWhole ? view.getFloat64(headerBytes, true) : Number.NaN;
    if (!Number.isSafeInteger(byteCount)) throw new ProtocolError('an acknowledgement is malformed');
    return { kind: 'acknowledgement', byteCount, atMs: view.getFloat64(headerBytes + 8, true) };
  }
  const priority = lanes[lane];
  if (priority === undefined || flags > (firstFlag | lastFlag))
    throw new ProtocolError(`a message has lane ${lane} and flags ${flags}, which do not exist`);
  const [first, last] = [(flags & firstFlag) !== 0, (flags & lastFlag) !== 0];
  return { kind: 'piece', lane: priority, first, last, inline: message.subarray(headerBytes), trailingBytes, checksum, checksumSoFar };
}

/** Checks the message that follows an announcement. Throws ProtocolError. */
export function checkTrailing(announcement: Announcement & { kind: 'piece' }, trailing: Uint8Array): void {
  if (trailing.length !== announcement.trailingBytes) {
    throw new ProtocolError(`a message of ${trailing.length} bytes came where ${announcement.trailingBytes} were announced`);
  }
  if (crc32(trailing, announcement.checksumSoFar) !== announcement.checksum) throw wrongChecksum();
}

function wrongChecksum(): ProtocolError {
  return new ProtocolError('the checksum of a message is wrong: bytes were changed on the way');
}
