// A Link over an established WebSocket of `ws`: the wire under wire-link.ts, signs of life, and closing in bounded
// time.

import { TLSSocket } from 'node:tls';
import { type RawData, WebSocket } from 'ws';
import { type Clock, systemClock } from '../../clock.ts';
import { type LinkEnd, silenceLimitsMs } from '../link.ts';
import { maxMessageBytes, maxTrailingBytes } from '../piece.ts';
import { type LinkLimits, type Wire, WireLink } from '../wire-link.ts';
import type { WebSocketBytes } from './websocket-bytes.ts';

/** When a silent peer is given up. */
export interface Heartbeat {
  /** A ping goes out every so often. Default 2 s. */
  readonly intervalMs: number;
  /** A peer from which nothing at all came for so long is dead. Default 10 s. */
  readonly deadAfterMs: number;
  /** The same for one of which silence is expected. Default 30 s. */
  readonly busyDeadAfterMs?: number;
}

export const defaultHeartbeat: Heartbeat = { intervalMs: 2_000, deadAfterMs: silenceLimitsMs.usual };

/** The longest WebSocket message: frames travel in pieces. */
export const maxPayloadBytes: number = Math.max(maxMessageBytes, maxTrailingBytes);

/** Options of createWebSocketLink. */
export interface WebSocketLinkOptions {
  readonly peer: string;
  readonly limits?: LinkLimits;
  readonly clock?: Clock;
  readonly heartbeat?: Heartbeat;
}

/** Close codes: 1000 is a close on purpose, 4400 says what the peer did wrong. */
const cleanCode = 1000;
const faultCode = 4400;
/** How long the peer may take to answer a close. */
const closeMs = 3_000;
const faultCloseMs = 500;

/** Makes a link of an open socket, whose messages belong to the link from here on. */
export function createWebSocketLink(socket: WebSocket, bytes: WebSocketBytes, options: WebSocketLinkOptions): WireLink {
  const { clock = systemClock, heartbeat = defaultHeartbeat } = options;
  let cancelClose = (): void => {};
  let failure: string | undefined;
  let closing: LinkEnd | undefined;

  const wire: Wire = {
    isProven: bytes.stream instanceof TLSSocket,
    send: (messages, done) => bytes.send(messages, done),
    expectSilence: (isExpected) => life.expectSilence(isExpected),
    close(end) {
      closing = end;
      socket.close(end.clean ? cleanCode : faultCode, shortened(end.reason));
      cancelClose = clock.after(end.clean ? closeMs : faultCloseMs, () => socket.terminate());
    },
  };
  const link = new WireLink(wire, options);

  const life = watchLife(socket, heartbeat, clock, (silentMs) => {
    closing = { clean: false, reason: `no sign of life from ${options.peer} for ${(silentMs / 1000).toFixed(1)} s` };
    socket.terminate();
  });
  bytes.divert({
    room: (byteCount) => link.room(byteCount),
    message: (message) => link.message(message),
    seen: life.seen,
  });
  socket.on('message', (data: RawData, isBinary: boolean) => {
    // A text is no message of this protocol: it is passed on as what it is, bytes that begin with no header.
    link.message(isBinary ? bytesOf(data) : new Uint8Array(0));
  });
  socket.on('error', (error: Error) => {
    failure = error.message;
  });
  socket.on('close', (code: number, reason: Buffer) => {
    life.stop();
    cancelClose();
    link.wireEnded(endOf(code, reason.toString(), failure, closing));
  });
  return link;
}

function bytesOf(data: RawData): Uint8Array {
  if (Array.isArray(data)) return Buffer.concat(data);
  return data instanceof ArrayBuffer ? new Uint8Array(data) : data;
}

function endOf(code: number, reason: string, failure: string | undefined, closing: LinkEnd | undefined): LinkEnd {
  if (code === cleanCode) return { clean: true, reason };
  if (reason !== '') return { clean: false, reason };
  if (closing !== undefined) return closing; // the peer was gone before it answered the close
  return {
    clean: false,
    reason: failure === undefined ? 'the connection was lost' : `the connection was lost: ${failure}`,
  };
}

/** Pings, and watches that anything comes. */
function watchLife(
  socket: WebSocket,
  heartbeat: Heartbeat,
  clock: Clock,
  onDead: (silentMs: number) => void,
): { seen(): void; expectSilence(isExpected: boolean): void; stop(): void } {
  let deadAfterMs = heartbeat.deadAfterMs;
  let seenAtMs = clock.now();
  let tickAtMs = seenAtMs;
  let cancel = (): void => {};
  const seen = (): void => {
    seenAtMs = clock.now();
  };
  const tick = (): void => {
    const nowMs = clock.now();
    // When this process itself was stalled (stopped, swapped out), what the peer sent meanwhile has not been read yet.
    if (nowMs - tickAtMs > 2 * heartbeat.intervalMs) seenAtMs = nowMs;
    tickAtMs = nowMs;
    if (nowMs - seenAtMs >= deadAfterMs) {
      onDead(nowMs - seenAtMs);
      return;
    }
    if (socket.readyState === WebSocket.OPEN) socket.ping();
    cancel = clock.after(heartbeat.intervalMs, tick);
  };
  cancel = clock.after(heartbeat.intervalMs, tick);
  socket.on('ping', seen);
  socket.on('pong', seen);
  const expectSilence = (isExpected: boolean): void => {
    const { deadAfterMs: usualMs, busyDeadAfterMs: busyMs = silenceLimitsMs.busy } = heartbeat;
    const limitMs = isExpected ? busyMs : usualMs;
    // A peer that has just become free has yet to answer what came meanwhile.
    if (limitMs < deadAfterMs) seen();
    deadAfterMs = limitMs;
  };
  return { seen, expectSilence, stop: () => cancel() };
}

/** A close frame has room for 123 bytes of reason. */
function shortened(reason: string): string {
  if (Buffer.byteLength(reason) <= 123) return reason;
  let text = reason.slice(0, 120);
  while (Buffer.byteLength(text) > 120) text = text.slice(0, -1);
  return `${text}…`;
}
