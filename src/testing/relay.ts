// A bad network between two ends: a TCP relay whose delay, bandwidth and faults are set while it runs, the same for the
// same seed. It understands WebSocket framing (of plain links), so that whole frames can be damaged, lost, doubled or
// swapped. Used by tests only.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { type Clock, systemClock } from '../clock.ts';
import { createRandom, type Random } from '../random.ts';

/** Towards the server, or towards its caller. */
export type Direction = 'toServer' | 'toCaller';

/** How bytes travel in one direction; may be changed at any time. */
export interface Conditions {
  /** Default 0. */
  delayMs?: number;
  /** Up to this much more, drawn for each stretch of bytes; order is kept. Default 0. */
  jitterMs?: number;
  /** Default: unlimited. */
  bandwidthMbps?: number;
  /** Bytes arrive 1 to this many at a time. Default: as they come. */
  dribbleBytes?: number;
  /** Everything is swallowed, and the connection stays. */
  silent?: boolean;
}

/**
 * What may happen to a WebSocket frame: a flipped bit (anywhere, its header included; or in the middle of a message,
 * where it is sure to be noticed: most bits of a ping mean nothing), a shorter one, one twice, two swapped, none.
 */
export type FrameFault = 'flip' | 'flip-middle' | 'cut' | 'double' | 'swap' | 'lose';

export interface RelayOptions {
  /** Where the server listens on this machine. */
  readonly port: number;
  readonly seed: number;
  /** Default: the system's. */
  readonly clock?: Clock;
}

/** A relay that listens. */
export interface Relay {
  readonly port: number;
  readonly conditions: Readonly<Record<Direction, Conditions>>;
  /**
   * Damages the frame in this direction that comes after `frameCount` others (default 0), counted from now over all
   * connections.
   */
  damage(direction: Direction, fault: FrameFault, frameCount?: number): void;
  /** Faults that have happened. */
  damagedCount(): number;
  /** Resets all connections (RST). */
  reset(): void;
  close(): Promise<void>;
}

/** The relay reads no more while this many bytes wait in it. */
const bufferBytes = 65_536;
const stretchBytes = 16_384;
/** In a frame's first byte: it is a ping, a pong or a close, no part of a message (RFC 6455, 5.2). */
const controlBit = 0x08;

/** Starts a relay on a free port of this machine. */
export async function startRelay(options: RelayOptions): Promise<Relay> {
  const relay = new TcpRelay(options);
  await relay.listen();
  return relay;
}

class TcpRelay implements Relay {
  readonly conditions: Record<Direction, Conditions> = { toServer: {}, toCaller: {} };
  readonly #options: RelayOptions;
  readonly #random: Random;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #planned: Record<Direction, { readonly fault: FrameFault; left: number }[]> = { toServer: [], toCaller: [] };
  /** Frames that go after the next one. */
  readonly #held: Record<Direction, Buffer[]> = { toServer: [], toCaller: [] };
  #damagedCount = 0;

  constructor(options: RelayOptions) {
    this.#options = options;
    this.#random = createRandom(options.seed, 71);
    this.#server = createServer({ noDelay: true }, (incoming) => this.#join(incoming));
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  async listen(): Promise<void> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
  }

  damage(direction: Direction, fault: FrameFault, frameCount = 0): void {
    this.#planned[direction].push({ fault, left: frameCount });
  }

  damagedCount(): number {
    return this.#damagedCount;
  }

  reset(): void {
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    const closed = once(this.#server, 'close');
    this.#server.close();
    await closed;
  }

  #join(incoming: Socket): void {
    const outgoing = connect({ port: this.#options.port, host: '127.0.0.1', noDelay: true });
    this.#carry(incoming, outgoing, 'toServer');
    this.#carry(outgoing, incoming, 'toCaller');
  }

  #carry(from: Socket, to: Socket, direction: Direction): void {
    this.#sockets.add(from);
    const conditions = this.conditions[direction];
    const { clock = systemClock } = this.#options;
    const line = new SlowLine(to, conditions, {
      clock,
      random: this.#random,
      onLength: (bytes) => bytes < bufferBytes && from.resume(),
    });
    const frames = new FrameSplitter();
    from.on('error', () => {});
    from.on('end', () => line.end());
    from.on('close', () => {
      this.#sockets.delete(from);
      if (from.errored !== null) to.destroy();
    });
    from.on('data', (bytes: Buffer) => {
      if (conditions.silent === true) return;
      for (const part of frames.split(bytes))
        for (const piece of part.isFrame ? this.#pass(part.bytes, direction) : [part.bytes]) line.add(piece);
      if (line.length >= bufferBytes) from.pause();
    });
    to.on('close', () => line.drop());
  }

  /** What goes on in the place of a frame. */
  #pass(frame: Buffer, direction: Direction): Buffer[] {
    const planned = this.#planned[direction];
    const due = planned.find(({ left }) => left === 0);
    if (due?.fault === 'flip-middle' && ((frame[0] as number) & controlBit) !== 0) return [frame];
    for (const plan of planned) plan.left--;
    const held = this.#held[direction].splice(0);
    if (due === undefined) return [frame, ...held];
    planned.splice(planned.indexOf(due), 1);
    this.#damagedCount++;
    if (due.fault === 'swap') {
      this.#held[direction].push(frame);
      return held;
    }
    return [...damaged(frame, due.fault, this.#random), ...held];
  }
}

function damaged(frame: Buffer, fault: Exclude<FrameFault, 'swap'>, random: Random): Buffer[] {
  switch (fault) {
    case 'flip':
    case 'flip-middle': {
      const at = fault === 'flip' ? random.integer(frame.length) : frame.length >> 1;
      frame[at] = (frame[at] as number) ^ (1 << random.integer(8));
      return [frame];
    }
    case 'cut':
      return [shortened(frame, random)];
    case 'double':
      return [frame, Buffer.from(frame)];
    case 'lose':
      return [];
  }
}

/** A frame with fewer bytes of payload, well formed; of a frame without any, a byte of the header is missing. */
function shortened(frame: Buffer, random: Random): Buffer {
  const { headerBytes, payloadBytes } = headerOf(frame) as FrameHeader;
  if (payloadBytes === 0) return frame.subarray(0, frame.length - 1);
  const length = random.integer(payloadBytes);
  const header = Buffer.from(frame.subarray(0, headerBytes));
  const isMasked = (header[1] as number) & 0x80;
  const code = (header[1] as number) & 0x7f;
  if (code === 126) header.writeUInt16BE(length, 2);
  else if (code === 127) header.writeBigUInt64BE(BigInt(length), 2);
  else header[1] = isMasked | length;
  return Buffer.concat([header, frame.subarray(headerBytes, headerBytes + length)]);
}

interface FrameHeader {
  readonly headerBytes: number;
  readonly payloadBytes: number;
}

/** RFC 6455, 5.2; undefined while bytes are missing. */
function headerOf(bytes: Buffer): FrameHeader | undefined {
  if (bytes.length < 2) return undefined;
  const code = (bytes[1] as number) & 0x7f;
  const lengthBytes = code === 126 ? 2 : code === 127 ? 8 : 0;
  const headerBytes = 2 + lengthBytes + ((bytes[1] as number) & 0x80 ? 4 : 0);
  if (bytes.length < headerBytes) return undefined;
  const payloadBytes =
    lengthBytes === 2 ? bytes.readUInt16BE(2) : lengthBytes === 8 ? Number(bytes.readBigUInt64BE(2)) : code;
  return { headerBytes, payloadBytes };
}

/** Takes a stream apart: the HTTP head, then WebSocket frames, each whole. */
class FrameSplitter {
  #rest: Buffer = Buffer.alloc(0);
  #isUpgraded = false;

  split(bytes: Buffer): { readonly isFrame: boolean; readonly bytes: Buffer }[] {
    this.#rest = this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes]);
    const parts: { isFrame: boolean; bytes: Buffer }[] = [];
    for (;;) {
      const length = this.#isUpgraded ? this.#frameBytes() : this.#headBytes();
      if (length === undefined || this.#rest.length < length) return parts;
      parts.push({ isFrame: this.#isUpgraded, bytes: this.#rest.subarray(0, length) });
      this.#rest = this.#rest.subarray(length);
      this.#isUpgraded = true;
    }
  }

  #headBytes(): number | undefined {
    const end = this.#rest.indexOf('\r\n\r\n');
    return end < 0 ? undefined : end + 4;
  }

  #frameBytes(): number | undefined {
    const header = headerOf(this.#rest);
    return header && header.headerBytes + header.payloadBytes;
  }
}

/** Bytes on their slow way to a socket, in order. */
class SlowLine {
  readonly #to: Socket;
  readonly #conditions: Conditions;
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #onLength: (byteCount: number) => void;
  #waiting: { readonly atMs: number; readonly bytes: Buffer }[] = [];
  #freeAtMs = 0;
  #lastAtMs = 0;
  #isRunning = false;
  #isEnding = false;
  /** Bytes that wait here. */
  length = 0;

  constructor(
    to: Socket,
    conditions: Conditions,
    {
      clock,
      random,
      onLength,
    }: { readonly clock: Clock; readonly random: Random; readonly onLength: (byteCount: number) => void },
  ) {
    this.#to = to;
    this.#conditions = conditions;
    this.#clock = clock;
    this.#random = random;
    this.#onLength = onLength;
  }

  add(bytes: Buffer): void {
    const { delayMs = 0, jitterMs = 0, bandwidthMbps = Number.POSITIVE_INFINITY } = this.#conditions;
    for (let at = 0; at < bytes.length; ) {
      const length = this.#stretch(bytes.length - at);
      const nowMs = this.#clock.now();
      this.#freeAtMs = Math.max(this.#freeAtMs, nowMs) + length / (bandwidthMbps * 125);
      this.#lastAtMs = Math.max(this.#lastAtMs, this.#freeAtMs + delayMs + this.#random.uniform() * jitterMs);
      this.#waiting.push({ atMs: this.#lastAtMs, bytes: bytes.subarray(at, at + length) });
      at += length;
    }
    this.length += bytes.length;
    void this.#run();
  }

  /** The other side gets its end when all has arrived. */
  end(): void {
    this.#isEnding = true;
    void this.#run();
  }

  drop(): void {
    this.#waiting = [];
    this.length = 0;
  }

  #stretch(left: number): number {
    const { dribbleBytes } = this.#conditions;
    return Math.min(left, dribbleBytes === undefined ? stretchBytes : 1 + this.#random.integer(dribbleBytes));
  }

  async #run(): Promise<void> {
    if (this.#isRunning) return;
    this.#isRunning = true;
    for (let next = this.#waiting[0]; next !== undefined; next = this.#waiting[0]) {
      const waitMs = next.atMs - this.#clock.now();
      if (waitMs > 0.5) await new Promise<void>((resolve) => this.#clock.after(waitMs, resolve));
      else if (this.#conditions.dribbleBytes !== undefined) await new Promise((resolve) => setImmediate(resolve));
      if (this.#waiting[0] !== next || this.#to.destroyed) break;
      this.#waiting.shift();
      this.length -= next.bytes.length;
      if (!this.#to.write(next.bytes))
        // After an error, 'close' follows.
        await Promise.race([once(this.#to, 'drain'), once(this.#to, 'close')]).catch(() => {});
      this.#onLength(this.length);
    }
    this.#isRunning = false;
    if (this.#isEnding && this.#waiting.length === 0) this.#to.end();
  }
}
