// Input from whoever is at the other end of a relay: records, handshakes and sealed messages, whole or damaged, in any
// pieces.

import assert from 'node:assert/strict';
import { defined } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import type { Random } from '../../random.ts';
import type { ByteChannel, ChannelReceiver } from '../../transport/byte-channel.ts';
import { encodeFrame } from '../../transport/frame.ts';
import type { Frame, Link } from '../../transport/link.ts';
import { nativeAead } from '../../transport/node/native-aead.ts';
import { encodePiece } from '../../transport/piece.ts';
import { RecordReader, recordHead, recordHeadBytes } from '../../transport/records.ts';
import { beginHandshake } from '../../transport/sealed-handshake.ts';
import { maxRecordBytes, sealLink } from '../../transport/sealed-link.ts';
import { damagedBytes, oneOf, randomBytes } from '../inputs.ts';
import type { Target } from '../target.ts';
import { sampleFrames } from './frames.ts';
import { Refused } from './links.ts';

/** A clock that stands still and never calls back. */
const frozen: Clock = { now: () => 1000, after: () => () => {} };
const options = { name: 'b', peer: 'a', isInitiator: false, secret: 'secret', clock: frozen } as const;

function record(kind: number, body: Uint8Array): Uint8Array {
  return Buffer.concat([recordHead(kind, body.length), body]);
}

/** The same bytes in other pieces. */
function inPieces(bytes: Uint8Array, random: Random): Uint8Array[] {
  const pieces: Uint8Array[] = [];
  for (let at = 0; at < bytes.length; ) {
    const length = 1 + random.integer(bytes.length);
    pieces.push(bytes.slice(at, at + length));
    at += length;
  }
  return pieces;
}

interface RecordsInput {
  readonly records: readonly Uint8Array[];
  readonly pieces: readonly Uint8Array[];
}

/** Records come out as they went in, whatever the pieces; one that is too long is refused. */
export function recordsTarget(): Target<RecordsInput> {
  return {
    input(random) {
      const records = Array.from({ length: 1 + random.integer(4) }, () =>
        record(random.integer(256), randomBytes(random)),
      );
      const bytes = Buffer.concat(records);
      const isWhole = random.integer(2) === 0;
      return {
        records: isWhole ? records : [],
        pieces: inPieces(isWhole ? bytes : damagedBytes([bytes], random), random),
      };
    },
    take({ records, pieces }) {
      const reader = new RecordReader(1000);
      const found: Uint8Array[] = [];
      for (const piece of pieces)
        reader.take(piece, ({ head, body }) => {
          assert.ok(head.length === recordHeadBytes && body.length <= 1000);
          found.push(Buffer.concat([head, body]));
        });
      if (records.length > 0) assert.deepEqual(found.map(hex), records.map(hex));
    },
  };
}

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

interface SealedInput {
  /** A beginning that is damaged; undefined: a right one, and then a frame. */
  readonly greeting: Uint8Array | undefined;
  readonly seed: Random;
}

/** A sealed link takes records until one is wrong: then it ends, with a reason, and nothing wrong is delivered. */
export function sealedTarget(): Target<SealedInput> {
  return {
    input: (random) => ({
      greeting: random.integer(4) > 0 ? damagedBytes([greetingBytes], random) : undefined,
      seed: random,
    }),
    async take({ greeting, seed }) {
      const channel = new FedChannel();
      const linking = sealLink(channel, options).catch((error: unknown) => error as Error);
      const begun = greeting === undefined ? beginHandshake(sealing) : undefined;
      for (const piece of inPieces(greeting ?? record(1, defined(begun, 'a handshake').message), seed))
        channel.feed(piece);
      if (begun === undefined) {
        channel.end();
        const outcome = await linking;
        if (outcome instanceof Error) throw new Refused(outcome.message);
        return;
      }
      const link = (await linking) as Link;
      const { seal } = begun.finish(channel.sent().subarray(recordHeadBytes));
      const frames: Frame[] = [];
      link.receive((frame) => frames.push(frame));
      const isWrong = feedFrame(channel, seal, seed);
      if (!isWrong) assert.equal(frames.length, 1);
      channel.end();
      const { reason } = await link.ended;
      if (!isWrong) return;
      assert.equal(frames.length, 0, reason);
      throw new Refused(reason);
    },
  };
}

const sealing = { secret: 'secret', context: JSON.stringify(['asteroid 1', 'a', 'b']), aead: nativeAead };

/** Most inputs damage one and the same beginning: making keys takes longest. */
const greetingBytes = record(1, beginHandshake(sealing).message);

/** Sends a frame in sealed records, one of them wrong or not; returns whether. */
function feedFrame(
  channel: FedChannel,
  seal: ReturnType<ReturnType<typeof beginHandshake>['finish']>['seal'],
  random: Random,
): boolean {
  const parts = encodeFrame(oneOf(sampleFrames, random), { checksum: false });
  const messages = encodePiece({ lane: 'control', first: true, last: true, inline: parts }, 0, { isProven: true });
  const isWrong = random.integer(3) > 0;
  const wrong = isWrong ? random.integer(4) : -1;
  for (const message of messages) {
    const kind = wrong === 0 ? 4 + random.integer(200) : 2;
    const head = recordHead(kind, message.length + 16);
    const sealed = seal(wrong === 1 ? randomBytes(random) : message, head);
    const bytes = Buffer.concat([wrong === 1 ? recordHead(2, sealed.length) : head, sealed]);
    const at = recordHeadBytes + random.integer(sealed.length);
    if (wrong === 2) bytes[at] = (bytes[at] as number) ^ (1 + random.integer(255));
    if (wrong === 3) bytes.writeUInt32BE(maxRecordBytes + 1 + random.integer(2 ** 31), 1);
    for (const piece of inPieces(bytes, random)) channel.feed(piece);
  }
  return isWrong;
}

/** A channel whose other end is the fuzzer. */
class FedChannel implements ByteChannel {
  #receiver: ChannelReceiver | undefined;
  readonly #sent: Uint8Array[] = [];

  write(bytes: Uint8Array): void {
    this.#sent.push(Uint8Array.from(bytes));
  }

  receive(receiver: ChannelReceiver): void {
    this.#receiver = receiver;
  }

  close(): void {}

  feed(bytes: Uint8Array): void {
    this.#receiver?.bytes(bytes);
  }

  end(): void {
    this.#receiver?.ended('it was closed');
  }

  sent(): Uint8Array {
    return Buffer.concat(this.#sent);
  }
}
