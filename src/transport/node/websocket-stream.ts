// A stream of bytes over an established WebSocket of `ws`: each message is a stretch of it. It is read only as fast as
// it is consumed, and written only as fast as the other end reads, so that it holds a bounded part of what passes.

import type { Duplex } from 'node:stream';
import { createWebSocketStream, type WebSocket } from 'ws';

/** Bytes that wait in each direction, and those of the longest message. */
const waitingBytes = 2 ** 16;

/** Of a message that is not the last of what is written: the last one fails, too. */
const ignore = (): void => {};

/** The stream over an open socket, whose messages belong to it from here on. It ends when either side closes. */
export function streamOver(socket: WebSocket): Duplex {
  const stream = createWebSocketStream(socket, { highWaterMark: waitingBytes });
  const send = stream._write.bind(stream);
  stream._write = (bytes: Buffer, encoding, done): void => {
    let at = 0;
    for (; at + waitingBytes < bytes.length; at += waitingBytes)
      send(bytes.subarray(at, at + waitingBytes), encoding, ignore);
    send(bytes.subarray(at), encoding, done);
  };
  stream.on('error', () => {}); // 'close' follows
  // What is left is of no use: both directions end together.
  stream.once('end', () => stream.destroy());
  return stream;
}

/** Passes on the bytes of each stream to the other; when one ends, both do. */
export function joinStreams(one: Duplex, other: Duplex): void {
  for (const [from, to] of [
    [one, other],
    [other, one],
  ] as const) {
    from.pipe(to, { end: false });
    from.once('close', () => to.destroy());
  }
}
