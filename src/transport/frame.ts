// Frames as bytes: a small head (version, kind, epoch, round, micro-batch, tensor types and shapes, control JSON,
// lengths, checksums) and the tensors' own bytes, each at a multiple of 8 from the frame's start. Nothing is copied
// either way, and nothing is allocated or read before its size has been checked. Little-endian throughout, as every
// machine that Node runs on for us is.
//
//   0 magic 'AST1'   4 version  5 kind's length  6 tensor count (16 bits)   8 epoch   12 round   16 micro-batch   20
//   bytes of the head
//   24 bytes of control JSON   28 flags   32 total bytes (64 bits)   40 checksum of the tensors   44 checksum of the
//   rest of the head
//   48 kind, then for each tensor: type, rank, dimensions (32 bits each), then control JSON, then zeros up to a
//   multiple of 8

import { assert } from '../assert.ts';
import { crc32 } from '../checksum.ts';
import { ProtocolError, RunError } from '../errors.ts';
import {
  byteLength,
  type ElementType,
  elementBytes,
  elementCount,
  type Tensor,
  tensorBytes,
  viewBytes,
} from '../graph/tensor.ts';
import { parseJson } from './json.ts';
import type { Frame } from './link.ts';

/** What a frame may be at most. A frame beyond it is refused before anything is allocated for it. */
export interface FrameLimits {
  /** The whole frame. Default 1 GiB. */
  readonly frameBytes: number;
  /** Its control JSON. Default 1 MiB. */
  readonly controlBytes: number;
  /** Nested objects and arrays in it. Default 32. */
  readonly controlDepth: number;
  /** Default 4096. */
  readonly tensorCount: number;
}

/** Limits that a training run on edge devices does not meet. */
export const defaultFrameLimits: FrameLimits = {
  frameBytes: 2 ** 30,
  controlBytes: 2 ** 20,
  controlDepth: 32,
  tensorCount: 4096,
};

/** The largest rank of a tensor in a frame. */
export const maxRank = 8;

/** Where a tensor lies in its frame. */
export interface TensorLayout {
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** From the frame's first byte; a multiple of 8. */
  readonly offset: number;
  readonly byteLength: number;
}

/** Everything of a frame but the tensors' bytes. */
export interface FrameHead {
  readonly frame: Omit<Frame, 'tensors'>;
  readonly layouts: readonly TensorLayout[];
  readonly headBytes: number;
  readonly totalBytes: number;
  /** CRC-32 of the tensors' bytes in order, where the sender computed it. */
  readonly tensorsChecksum?: number;
}

/** The fixed part at the front of each head. */
export interface FixedHead {
  readonly kindBytes: number;
  readonly tensorCount: number;
  readonly headBytes: number;
  readonly controlBytes: number;
  readonly totalBytes: number;
}

/** Bytes of the fixed part. */
export const fixedHeadBytes = 48;

const magic = 0x31545341;
const version = 1;
const checksumFlag = 1;
const kindPattern = /^[a-z][a-z0-9-]{0,31}$/;
const maxDimension = 2 ** 32 - 1;
const padding = new Uint8Array(8);
const textEncoder = new TextEncoder();

/** The types on the wire: the numbers of ONNX's TensorProto.DataType, which never change. */
const typeCodes: { readonly [T in ElementType]: number } = {
  float32: 1,
  uint8: 2,
  int8: 3,
  uint16: 4,
  int16: 5,
  int32: 6,
  int64: 7,
  bool: 9,
  float16: 10,
  float64: 11,
  uint32: 12,
  uint64: 13,
};
const typesByCode: ReadonlyMap<number, ElementType> = new Map(
  Object.entries(typeCodes).map(([type, code]) => [code, type as ElementType]),
);

function align(bytes: number): number {
  return Math.ceil(bytes / 8) * 8;
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** CRC-32 of the head's bytes without the field that holds it. */
function headChecksum(head: Uint8Array): number {
  return crc32(head.subarray(fixedHeadBytes), crc32(head.subarray(0, fixedHeadBytes - 4)));
}

function checkOutgoing(frame: Frame, tensors: readonly Tensor[]): void {
  assert(
    kindPattern.test(frame.kind),
    `"${frame.kind}" is no frame kind (lower-case letters, digits and dashes, at most 32)`,
  );
  assert(
    Number.isInteger(frame.epoch) && frame.epoch >= 0 && frame.epoch < 2 ** 32,
    `${frame.kind} frame has epoch ${frame.epoch}`,
  );
  for (const index of [frame.round, frame.microBatch]) {
    assert(
      Number.isInteger(index) && index >= -1 && index < 2 ** 31,
      `${frame.kind} frame has a round or micro-batch of ${index}`,
    );
  }
  for (const { type, shape, data } of tensors) {
    assert(shape.length <= maxRank, `${frame.kind} frame has a tensor of rank ${shape.length}`);
    assert(
      shape.every((dimension) => Number.isInteger(dimension) && dimension >= 0 && dimension <= maxDimension),
      `${frame.kind} frame has a tensor of shape [${shape.join(', ')}]`,
    );
    assert(
      byteLength({ type, shape }) === data.byteLength,
      `${frame.kind} frame has a ${type} tensor of shape [${shape.join(', ')}] with ${data.length} elements`,
    );
  }
}

function writeHead(
  head: Uint8Array,
  frame: Frame,
  tensors: readonly Tensor[],
  control: Uint8Array,
  totalBytes: number,
  checksum: number | undefined,
): void {
  const view = viewOf(head);
  view.setUint32(0, magic, true);
  view.setUint8(4, version);
  view.setUint8(5, frame.kind.length);
  view.setUint16(6, tensors.length, true);
  view.setUint32(8, frame.epoch, true);
  view.setInt32(12, frame.round, true);
  view.setInt32(16, frame.microBatch, true);
  view.setUint32(20, head.length, true);
  view.setUint32(24, control.length, true);
  view.setUint32(28, checksum === undefined ? 0 : checksumFlag, true);
  view.setUint32(32, totalBytes % 2 ** 32, true);
  view.setUint32(36, Math.floor(totalBytes / 2 ** 32), true);
  view.setUint32(40, checksum ?? 0, true);
  for (let index = 0; index < frame.kind.length; index++) head[fixedHeadBytes + index] = frame.kind.charCodeAt(index);
  let offset = fixedHeadBytes + frame.kind.length;
  for (const { type, shape } of tensors) {
    head[offset++] = typeCodes[type];
    head[offset++] = shape.length;
    for (const dimension of shape) {
      view.setUint32(offset, dimension, true);
      offset += 4;
    }
  }
  head.set(control, offset);
  view.setUint32(44, headChecksum(head), true);
}

/** Options of encodeFrame. */
export interface EncodeOptions {
  /** Default: defaultFrameLimits. */
  readonly limits?: FrameLimits;
  /**
   * Whether the head carries a checksum of the tensors. Default true; a link leaves it out, because each of its pieces
   * carries one.
   */
  readonly checksum?: boolean;
}

/**
 * The frame's bytes: one new buffer for the head, then the tensors' own memory with padding between. Throws RunError
 * beyond the limits.
 */
export function encodeFrame(frame: Frame, options: EncodeOptions = {}): Uint8Array[] {
  const limits = options.limits ?? defaultFrameLimits;
  const tensors = frame.tensors ?? [];
  checkOutgoing(frame, tensors);
  const control =
    frame.control === undefined ? padding.subarray(0, 0) : textEncoder.encode(JSON.stringify(frame.control));
  if (control.length > limits.controlBytes) {
    throw new RunError(
      `a ${frame.kind} frame has ${control.length} bytes of control data, more than the ${limits.controlBytes} a link takes`,
    );
  }
  if (tensors.length > limits.tensorCount) {
    throw new RunError(
      `a ${frame.kind} frame has ${tensors.length} tensors, more than the ${limits.tensorCount} a link takes`,
    );
  }
  let headBytes = fixedHeadBytes + frame.kind.length + control.length;
  for (const { shape } of tensors) headBytes += 2 + 4 * shape.length;
  const head = new Uint8Array(align(headBytes));
  const parts: Uint8Array[] = [head];
  let totalBytes = head.length;
  for (const tensor of tensors) {
    if (totalBytes % 8 !== 0) parts.push(padding.subarray(totalBytes % 8));
    totalBytes = align(totalBytes);
    if (tensor.data.byteLength > 0) parts.push(tensorBytes(tensor));
    totalBytes += tensor.data.byteLength;
  }
  if (totalBytes > limits.frameBytes) {
    throw new RunError(
      `a ${frame.kind} frame has ${totalBytes} bytes, more than the ${limits.frameBytes} a link takes`,
    );
  }
  const checksum =
    options.checksum === false ? undefined : tensors.reduce((sum, tensor) => crc32(tensorBytes(tensor), sum), 0);
  writeHead(head, frame, tensors, control, totalBytes, checksum);
  return parts;
}

/** Checks and reads the first 48 bytes of a frame: all its sizes. Throws ProtocolError. */
export function decodeFixedHead(bytes: Uint8Array, limits: FrameLimits = defaultFrameLimits): FixedHead {
  if (bytes.length < fixedHeadBytes)
    throw new ProtocolError(`a frame of ${bytes.length} bytes is shorter than its head`);
  const view = viewOf(bytes);
  if (view.getUint32(0, true) !== magic)
    throw new ProtocolError("the bytes are no frame: the peer may be another program's");
  if (bytes[4] !== version)
    throw new ProtocolError(
      `the frame has version ${bytes[4]}, this program speaks ${version}: use the same release on all devices`,
    );
  const head: FixedHead = {
    kindBytes: bytes[5] as number,
    tensorCount: view.getUint16(6, true),
    headBytes: view.getUint32(20, true),
    controlBytes: view.getUint32(24, true),
    totalBytes: view.getUint32(36, true) * 2 ** 32 + view.getUint32(32, true),
  };
  if (head.totalBytes > limits.frameBytes)
    throw new ProtocolError(`the frame has ${head.totalBytes} bytes, more than the limit of ${limits.frameBytes}`);
  if (head.tensorCount > limits.tensorCount)
    throw new ProtocolError(`the frame has ${head.tensorCount} tensors, more than the limit of ${limits.tensorCount}`);
  if (head.controlBytes > limits.controlBytes) {
    throw new ProtocolError(
      `the frame has ${head.controlBytes} bytes of control data, more than the limit of ${limits.controlBytes}`,
    );
  }
  const least = fixedHeadBytes + head.kindBytes + 2 * head.tensorCount + head.controlBytes;
  const most = align(least + 4 * maxRank * head.tensorCount);
  if (head.headBytes < least || head.headBytes > most || head.headBytes % 8 !== 0 || head.headBytes > head.totalBytes) {
    throw new ProtocolError(`the frame's head cannot have ${head.headBytes} bytes`);
  }
  return head;
}

function decodeLayouts(head: Uint8Array, fixed: FixedHead): { layouts: TensorLayout[]; end: number } {
  const view = viewOf(head);
  const limit = head.length - fixed.controlBytes;
  const layouts: TensorLayout[] = [];
  let at = fixedHeadBytes + fixed.kindBytes;
  let end = head.length;
  for (let index = 0; index < fixed.tensorCount; index++) {
    const type = typesByCode.get(head[at] as number);
    const rank = head[at + 1] as number;
    if (type === undefined)
      throw new ProtocolError(`tensor ${index} of the frame has the unknown element type ${head[at]}`);
    if (rank > maxRank) throw new ProtocolError(`tensor ${index} of the frame has rank ${rank}, more than ${maxRank}`);
    at += 2;
    if (at + 4 * rank + 2 * (fixed.tensorCount - index - 1) > limit)
      throw new ProtocolError("the frame's head is cut short");
    const shape: number[] = [];
    for (let axis = 0; axis < rank; axis++) shape.push(view.getUint32(at + 4 * axis, true));
    at += 4 * rank;
    const offset = align(end);
    const bytes = elementCount(shape) * elementBytes(type);
    end = offset + bytes;
    if (end > fixed.totalBytes)
      throw new ProtocolError(
        `tensor ${index} of the frame, of shape [${shape.join(', ')}], reaches beyond the frame's end`,
      );
    layouts.push({ type, shape, offset, byteLength: bytes });
  }
  if (end !== fixed.totalBytes)
    throw new ProtocolError(`the frame has ${fixed.totalBytes} bytes where its tensors end at ${end}`);
  return { layouts, end: at };
}

/** Checks and reads a whole head (`bytes` may go on beyond it). Throws ProtocolError. */
export function decodeHead(bytes: Uint8Array, limits: FrameLimits = defaultFrameLimits): FrameHead {
  const fixed = decodeFixedHead(bytes, limits);
  if (bytes.length < fixed.headBytes) throw new ProtocolError("the frame's head is cut short");
  const head = bytes.subarray(0, fixed.headBytes);
  const view = viewOf(head);
  if (view.getUint32(44, true) !== headChecksum(head))
    throw new ProtocolError("the checksum of the frame's head is wrong: bytes were changed on the way");
  const flags = view.getUint32(28, true);
  if (flags > checksumFlag) throw new ProtocolError(`the frame has the unknown flags ${flags}`);
  const kind = String.fromCharCode(...head.subarray(fixedHeadBytes, fixedHeadBytes + fixed.kindBytes));
  if (!kindPattern.test(kind))
    throw new ProtocolError("the frame's kind is not made of lower-case letters, digits and dashes");
  const round = view.getInt32(12, true);
  const microBatch = view.getInt32(16, true);
  if (round < -1 || microBatch < -1)
    throw new ProtocolError(`the ${kind} frame has round ${round} and micro-batch ${microBatch}`);
  const { layouts, end } = decodeLayouts(head, fixed);
  if (align(end + fixed.controlBytes) !== head.length)
    throw new ProtocolError(`the head of the ${kind} frame has ${head.length} bytes, not those it announces`);
  const frame = { kind, epoch: view.getUint32(8, true), round, microBatch };
  const { headBytes, totalBytes } = fixed;
  const checksum = flags === checksumFlag ? { tensorsChecksum: view.getUint32(40, true) } : {};
  if (fixed.controlBytes === 0) return { frame, layouts, headBytes, totalBytes, ...checksum };
  const control = parseJson(
    head.subarray(end, end + fixed.controlBytes),
    `the control data of the ${kind} frame`,
    limits.controlDepth,
  );
  return { frame: { ...frame, control }, layouts, headBytes, totalBytes, ...checksum };
}

/** Options of decodeFrame. */
export interface DecodeOptions {
  /** Whether the tensors are compared with their checksum where there is one. Default true. */
  readonly verify?: boolean;
}

/**
 * Reads one whole frame. Its tensors are views into `bytes`, without a copy where `bytes` begins at a multiple of 8 of
 * its buffer: they share that buffer. Throws ProtocolError, and nothing else, whatever the bytes are.
 */
export function decodeFrame(
  bytes: Uint8Array,
  limits: FrameLimits = defaultFrameLimits,
  options: DecodeOptions = {},
): Frame {
  const head = decodeHead(bytes, limits);
  if (bytes.length !== head.totalBytes)
    throw new ProtocolError(`the frame has ${bytes.length} bytes where it announces ${head.totalBytes}`);
  if (head.layouts.length === 0) return head.frame;
  let checksum = 0;
  const tensors = head.layouts.map(({ type, shape, offset, byteLength: length }): Tensor => {
    const data = bytes.subarray(offset, offset + length);
    if (head.tensorsChecksum !== undefined && options.verify !== false) checksum = crc32(data, checksum);
    return { type, shape, data: viewBytes(type, data) };
  });
  if (head.tensorsChecksum !== undefined && options.verify !== false && checksum !== head.tensorsChecksum) {
    throw new ProtocolError(
      `the checksum of the ${head.frame.kind} frame's tensors is wrong: bytes were changed on the way`,
    );
  }
  return { ...head.frame, tensors };
}
