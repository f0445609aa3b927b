// Pieces: what really travels. A frame is cut into pieces, so that a long one never holds up a more urgent one for
// longer than a piece. A piece is one message with a header and the frame's small parts, and, where `trailingBytes`
// says so, a second message: the raw bytes of (a part of) one tensor, which so reaches the socket and leaves it without
// being copied. Each message has a checksum; the sequence number makes a lost, doubled or reordered one visible. A
// third kind of message acknowledges bytes. Where the carrier proves that nothing was changed (TLS), trailing messages,
// which are nearly all bytes, have no checksum.
//
//   0 checksum of all after it in this message   4 sequence number   8 magic   9 lane (3: acknowledgement)   10 flags
//   11 zero
//   12 bytes of the trailing message   16 its checksum, or zero   20 the frame's bytes (an acknowledgement: count and
//   time as doubles)

import { crc32 } from '../checksum.ts';
import { ProtocolError } from '../errors.ts';
import type { Priority } from './link.ts';

/** The lanes in the order of their urgency; a lane keeps its own order. */
export const lanes: readonly Priority[] = ['control', 'pipeline', 'bulk'];

/** The longest trailing message; senders stay at or below it. */
export const maxTrailingBytes: number = 2 ** 20;
/** The longest message with a header. */
export const maxMessageBytes = 65_536;

const headerBytes = 20;
const magic = 0xa5;
const acknowledgementLane = 3;
const firstFlag = 1;
const lastFlag = 2;
/** The trailing message has no checksum. */
const uncheckedFlag = 4;

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
      /** Of the trailing message, where it has one. */
      readonly trailingChecksum: number | undefined;
    };

/** What the carrier of messages proves by itself. */
export interface Carrier {
  /**
   * That nothing was changed on the way. Both ends of a link know it of themselves; one that does not refuses messages
   * without checksums.
   */
  readonly isProven: boolean;
}

/** Encodes a piece as one or two messages. The trailing one is the tensor's own memory. */
export function encodePiece(piece: Piece, sequence: number, { isProven }: Carrier): Uint8Array[] {
  let length = headerBytes;
  for (const part of piece.inline) length += part.length;
  const message = new Uint8Array(length);
  const view = viewOf(message);
  const { lane, first, last, inline, trailing } = piece;
  const isChecked = trailing !== undefined && !isProven;
  const flags =
    (first ? firstFlag : 0) | (last ? lastFlag : 0) | (trailing !== undefined && isProven ? uncheckedFlag : 0);
  writeHeader(view, sequence, lanes.indexOf(lane), flags);
  view.setUint32(12, trailing?.length ?? 0, true);
  view.setUint32(16, isChecked ? crc32(trailing) : 0, true);
  let offset = headerBytes;
  for (const part of inline) {
    message.set(part, offset);
    offset += part.length;
  }
  view.setUint32(0, crc32(message.subarray(4)), true);
  return trailing === undefined ? [message] : [message, trailing];
}

/** Encodes an acknowledgement. */
export function encodeAcknowledgement({ byteCount, atMs }: Acknowledgement, sequence: number): Uint8Array {
  const message = new Uint8Array(headerBytes + 16);
  const view = viewOf(message);
  writeHeader(view, sequence, acknowledgementLane, 0);
  view.setFloat64(headerBytes, byteCount, true);
  view.setFloat64(headerBytes + 8, atMs, true);
  view.setUint32(0, crc32(message.subarray(4)), true);
  return message;
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function writeHeader(view: DataView, sequence: number, lane: number, flags: number): void {
  view.setUint32(4, sequence, true);
  view.setUint8(8, magic);
  view.setUint8(9, lane);
  view.setUint8(10, flags);
  view.setUint8(11, 0);
}

/** Reads a message with a header, the `sequence`-th of its link. Throws ProtocolError. */
export function decodeMessage(message: Uint8Array, sequence: number, { isProven }: Carrier): Announcement {
  if (message.length < headerBytes)
    throw new ProtocolError(`a message of ${message.length} bytes is shorter than its header`);
  const view = viewOf(message);
  const [lane, flags] = [message[9] as number, message[10] as number];
  if (message[8] !== magic || message[11] !== 0)
    throw new ProtocolError('a message does not begin with the header of this protocol');
  if (view.getUint32(4, true) !== sequence)
    throw new ProtocolError(`message ${view.getUint32(4, true)} came in the place of message ${sequence}`);
  const trailingBytes = view.getUint32(12, true);
  if (trailingBytes > maxTrailingBytes)
    throw new ProtocolError(`a message announces ${trailingBytes} more bytes, above the limit of ${maxTrailingBytes}`);
  if (view.getUint32(0, true) !== crc32(message.subarray(4))) throw wrongChecksum();
  if (lane === acknowledgementLane) {
    const isWhole = message.length === headerBytes + 16 && flags === 0 && trailingBytes === 0;
    const byteCount = isWhole ? view.getFloat64(headerBytes, true) : Number.NaN;
    if (!Number.isSafeInteger(byteCount)) throw new ProtocolError('an acknowledgement is malformed');
    return { kind: 'acknowledgement', byteCount, atMs: view.getFloat64(headerBytes + 8, true) };
  }
  const priority = lanes[lane];
  if (priority === undefined || flags > (firstFlag | lastFlag | uncheckedFlag))
    throw new ProtocolError(`a message has lane ${lane} and flags ${flags}, which do not exist`);
  const isUnchecked = (flags & uncheckedFlag) !== 0;
  if (isUnchecked && !isProven) throw new ProtocolError('a message has no checksum, on a link that needs one');
  const trailingChecksum = isUnchecked ? undefined : view.getUint32(16, true);
  const [first, last] = [(flags & firstFlag) !== 0, (flags & lastFlag) !== 0];
  return {
    kind: 'piece',
    lane: priority,
    first,
    last,
    inline: message.subarray(headerBytes),
    trailingBytes,
    trailingChecksum,
  };
}

/** Checks the message that follows an announcement. Throws ProtocolError. */
export function checkTrailing(announcement: Announcement & { kind: 'piece' }, trailing: Uint8Array): void {
  if (trailing.length !== announcement.trailingBytes) {
    throw new ProtocolError(
      `a message of ${trailing.length} bytes came where ${announcement.trailingBytes} were announced`,
    );
  }
  const { trailingChecksum } = announcement;
  if (trailingChecksum !== undefined && crc32(trailing) !== trailingChecksum) throw wrongChecksum();
}

function wrongChecksum(): ProtocolError {
  return new ProtocolError('the checksum of a message is wrong: bytes were changed on the way');
}
