// A stream of Node as a channel of bytes.

import type { Duplex } from 'node:stream';
import type { ByteChannel } from '../byte-channel.ts';

/** The channel over an open stream, which belongs to it from here on. */
export function channelOver(stream: Duplex): ByteChannel {
  return {
    write(bytes, done) {
      if (stream.destroyed || stream.writableEnded) queueMicrotask(done);
      else stream.write(bytes, () => done());
    },
    receive(receiver) {
      let failure = 'it was closed';
      stream.on('error', (error: Error) => {
        failure = error.message;
      });
      stream.on('data', (bytes: Buffer) => receiver.bytes(bytes));
      stream.once('end', () => stream.destroy()); // both directions end together
      stream.once('close', () => receiver.ended(failure));
      if (stream.destroyed) queueMicrotask(() => receiver.ended(failure));
    },
    close() {
      if (stream.destroyed) return;
      stream.end();
      stream.once('finish', () => stream.destroy());
    },
  };
}
