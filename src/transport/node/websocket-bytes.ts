// The bytes of a WebSocket that `ws` has opened: `ws` shakes hands, answers pings and closes; whole binary messages,
// which is all that links exchange, are written and read here (RFC 6455, 5.2), so that a tensor's bytes go from its
// memory to the socket, and from the socket into its memory, with one copy at most. Whatever else comes (texts,
// fragments, reserved bits, lengths beyond the limit) is left to `ws`, from there on for good.

import type { Socket } from 'node:net';
import { WebSocket } from 'ws';

/** Who takes whole messages. */
export interface MessageReceiver {
  /** Memory for the message that begins, of exactly this many bytes; undefined: it is not wanted, and is skipped. */
  room(byteCount: number): Uint8Array | undefined;
  /** The memory that `room` gave holds the message. */
  message(bytes: Uint8Array): void;
  /** Bytes of any kind have come. */
  seen(): void;
}

/** FIN and the opcode of binary messages; no reserved bits. */
const wholeBinary = 0x82;
const closeOpcode = 8;
/**
 * Close, ping and pong, each in one frame of at most `maxControlBytes` bytes. Anything else is a mistake, which `ws`
 * reports some time later.
 */
const controls: readonly number[] = [0x88, 0x89, 0x8a];
const maxControlBytes = 125;
const maskBit = 0x80;
const maxHeaderBytes = 14;
/**
 * One buffer for all sockets of a thread, since what is in it is used before the next is read: it stays in the
 * processor's cache, where a new one for each read costs as much as all the rest of receiving, and half as much again
 * for collecting it.
 */
const readBuffer = Buffer.allocUnsafeSlow(65_536);

/**
 * Writes the header of a binary message. A caller has to mask: with zeros, which changes nothing. Masks guard the
 * network against scripts that browsers run for strangers (RFC 6455, 10.3); a program of its own could write any bytes
 * to a plain socket as well.
 */
function writeHeader(target: Buffer, offset: number, byteCount: number, isMasked: boolean): number {
  const mask = isMasked ? maskBit : 0;
  target[offset] = wholeBinary;
  let end = offset + 2;
  if (byteCount < 126) {
    target[offset + 1] = mask | byteCount;
  } else if (byteCount < 65_536) {
    target[offset + 1] = mask | 126;
    end = target.writeUInt16BE(byteCount, end);
  } else {
    target[offset + 1] = mask | 127;
    target.writeUInt32BE(0, end);
    end = target.writeUInt32BE(byteCount, end + 4);
  }
  return isMasked ? target.writeUInt32LE(0, end) : end;
}

/** A short message is copied behind its header; a longer one is a part of its own. */
const joinBelowBytes = 4_096;

/**
 * The header of each message and the message, in as few parts as copying nothing long allows. Messages are shorter than
 * 4 GiB.
 */
export function frameMessages(messages: readonly Uint8Array[], isMasked: boolean): Uint8Array[] {
  let byteCount = 0;
  for (const { length } of messages) byteCount += maxHeaderBytes + (length < joinBelowBytes ? length : 0);
  const small = Buffer.allocUnsafe(byteCount);
  const parts: Uint8Array[] = [];
  let [first, end] = [0, 0];
  for (const message of messages) {
    end = writeHeader(small, end, message.length, isMasked);
    if (message.length < joinBelowBytes) {
      small.set(message, end);
      end += message.length;
    } else {
      parts.push(small.subarray(first, end), message);
      first = end;
    }
  }
  if (end > first) parts.push(small.subarray(first, end));
  return parts;
}

/** Bytes of a message's header, by its second byte. */
function headerBytesOf(code: number): number {
  const lengthCode = code & 0x7f;
  const lengthBytes = lengthCode === 127 ? 8 : lengthCode === 126 ? 2 : 0;
  return 2 + lengthBytes + ((code & maskBit) === 0 ? 0 : 4);
}

function payloadBytesOf(header: Buffer): number {
  const lengthCode = (header[1] as number) & 0x7f;
  if (lengthCode === 127) return Number(header.readBigUInt64BE(2));
  return lengthCode === 126 ? header.readUInt16BE(2) : lengthCode;
}

/** What the bytes of the message under way are for. */
type Destination =
  | { readonly kind: 'web-socket'; readonly isClose: boolean }
  | { readonly kind: 'receiver'; readonly room: Uint8Array | undefined; readonly mask: Uint8Array | undefined };

/**
 * A WebSocket's messages, diverted from `ws` once it is asked to; until then it only counts their bytes, to know where
 * the next begins.
 */
export class WebSocketBytes {
  readonly #socket: WebSocket;
  /** What it runs on. */
  readonly stream: Socket;
  /** What `ws` does with bytes. */
  readonly #listeners: readonly ((bytes: Buffer) => void)[];
  readonly #isServer: boolean;
  readonly #maxMessageBytes: number;
  #receiver: MessageReceiver | undefined;
  #isReadingHere = false;
  readonly #header = Buffer.allocUnsafeSlow(maxHeaderBytes);
  #headerBytes = 0;
  #destination: Destination = { kind: 'web-socket', isClose: false };
  /** Bytes of the message under way that have come, and all of them. */
  #filled = 0;
  #byteCount = 0;
  /** Everything is left to `ws`. */
  #isForeign = false;
  /** The peer has said its last word. */
  #isClosed = false;

  /**
   * To be made as soon as `ws` has the socket, before anything is read from it. `isServer`: what comes is masked, and
   * what goes is not.
   */
  constructor(
    socket: WebSocket,
    stream: Socket,
    { isServer, maxMessageBytes }: { readonly isServer: boolean; readonly maxMessageBytes: number },
  ) {
    this.#socket = socket;
    this.stream = stream;
    this.#isServer = isServer;
    this.#maxMessageBytes = maxMessageBytes;
    this.#listeners = stream.listeners('data') as ((bytes: Buffer) => void)[];
    for (const listener of this.#listeners) stream.off('data', listener);
    stream.on('data', (bytes: Buffer) => this.#take(bytes));
    socket.on('error', this.#onError);
  }

  /** `ws` has found something wrong, and wants nothing more. */
  readonly #onError = (): void => {
    this.#isClosed = true;
  };

  /** From the next message on, whole binary ones go to `receiver`. */
  divert(receiver: MessageReceiver): void {
    this.#receiver = receiver;
    // Whoever had the socket before may have taken all listeners off.
    this.#socket.off('error', this.#onError).on('error', this.#onError);
    this.#readHere();
  }

  /**
   * Sends messages in this order; `done` is called when their memory is free: also where the socket has closed, which
   * says so itself.
   */
  send(messages: readonly Uint8Array[], done: () => void): void {
    if (this.#socket.readyState !== WebSocket.OPEN) {
      queueMicrotask(done);
      return;
    }
    const parts = frameMessages(messages, !this.#isServer);
    // Together in one system call; ws turns off Nagle's algorithm, so that nothing waits in the kernel for more.
    this.stream.cork();
    for (const part of parts.slice(0, -1)) this.stream.write(part);
    this.stream.write(parts.at(-1) as Uint8Array, () => done());
    this.stream.uncork();
  }

  /** Where Node can, once nothing that was read before waits. */
  #readHere(): void {
    if (this.#isReadingHere || this.stream.readableLength > 0) return;
    this.#isReadingHere = readInto(this.stream, readBuffer, (bytes) => this.#take(bytes));
  }

  #take(bytes: Buffer): void {
    this.#receiver?.seen();
    let at = 0;
    while (at < bytes.length && !this.#isClosed) {
      if (this.#isForeign) {
        this.#forward(bytes.subarray(at));
        return;
      }
      if (this.#filled < this.#byteCount) {
        at += this.#takePayload(bytes, at);
      } else {
        this.#header[this.#headerBytes++] = bytes[at++] as number;
        if (this.#headerBytes >= 2 && this.#headerBytes === headerBytesOf(this.#header[1] as number)) this.#begin();
      }
    }
  }

  /** The header is whole. */
  #begin(): void {
    const header = this.#header.subarray(0, this.#headerBytes);
    this.#headerBytes = 0;
    const [first, second] = [header[0] as number, header[1] as number];
    const byteCount = payloadBytesOf(header);
    const isMaskRight = ((second & maskBit) !== 0) === this.#isServer;
    const isControl = controls.includes(first) && byteCount <= maxControlBytes && isMaskRight;
    const isOurs = first === wholeBinary && isMaskRight && byteCount <= this.#maxMessageBytes;
    this.#filled = 0;
    this.#byteCount = byteCount;
    if (this.#receiver !== undefined && isOurs) {
      const mask = this.#isServer ? Uint8Array.from(header.subarray(-4)) : undefined;
      const isChanged = mask?.some((byte) => byte !== 0) === true;
      this.#destination = {
        kind: 'receiver',
        room: this.#receiver.room(byteCount),
        mask: isChanged ? mask : undefined,
      };
    } else {
      this.#isForeign = this.#receiver !== undefined && !isControl;
      this.#destination = { kind: 'web-socket', isClose: (first & 0x0f) === closeOpcode };
      this.#forward(header);
    }
    if (byteCount === 0) this.#end();
  }

  #takePayload(bytes: Buffer, at: number): number {
    const count = Math.min(bytes.length - at, this.#byteCount - this.#filled);
    const part = bytes.subarray(at, at + count);
    const destination = this.#destination;
    if (destination.kind === 'web-socket') {
      this.#forward(part);
    } else if (destination.room !== undefined) {
      if (destination.mask !== undefined) unmask(part, destination.mask, this.#filled);
      destination.room.set(part, this.#filled);
    }
    this.#filled += count;
    if (this.#filled === this.#byteCount) this.#end();
    return count;
  }

  /** The message is whole. */
  #end(): void {
    const destination = this.#destination;
    if (destination.kind === 'web-socket') this.#isClosed = destination.isClose;
    else if (destination.room !== undefined) this.#receiver?.message(destination.room);
    if (!this.#isReadingHere && this.#receiver !== undefined) this.#readHere();
  }

  /** `ws` keeps what it is given. */
  #forward(bytes: Buffer): void {
    for (const listener of this.#listeners) listener.call(this.stream, Buffer.from(bytes));
  }
}

function unmask(bytes: Uint8Array, mask: Uint8Array, position: number): void {
  for (let index = 0; index < bytes.length; index++)
    bytes[index] = (bytes[index] as number) ^ (mask[(position + index) & 3] as number);
}

/**
 * Lets an open socket read into `buffer`, again and again, instead of into new memory each time: what `new Socket({
 * onread })` does for the caller's side alone. Node has no public way to do it for sockets that a server accepted, so
 * that its own places for it are filled in; where they are not found, it returns false and changes nothing.
 */
export function readInto(socket: Socket, buffer: Buffer, onBytes: (bytes: Buffer) => void): boolean {
  const { _handle: handle } = socket as {
    readonly _handle?: { readonly useUserBuffer?: (buffer: Uint8Array) => void } | null;
  };
  const symbols = Object.getOwnPropertySymbols(socket);
  const [place, callback, generator] = ['kBuffer', 'kBufferCb', 'kBufferGen'].map((name) =>
    symbols.find(({ description }) => description === name),
  );
  if (
    typeof handle?.useUserBuffer !== 'function' ||
    place === undefined ||
    callback === undefined ||
    generator === undefined
  )
    return false;
  Object.assign(socket, {
    [place]: buffer,
    [generator]: null,
    [callback]: (byteCount: number): boolean => {
      onBytes(buffer.subarray(0, byteCount));
      return true;
    },
  });
  handle.useUserBuffer(buffer);
  return true;
}
