// Input from a link's peer: bytes of a WebSocket, messages with pieces of frames, acknowledgements.

import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import type { Writable } from 'node:stream';
import { isDeepStrictEqual } from 'node:util';
import { crc32 } from 'node:zlib';
import * as ws from 'ws';
import type { Clock } from '../../clock.ts';
import type { Random } from '../../random.ts';
import { mutate } from '../../testing/mutations.ts';
import { encodeFrame } from '../../transport/frame.ts';
import type { Frame, Priority } from '../../transport/link.ts';
import { frameMessages, WebSocketBytes } from '../../transport/node/websocket-bytes.ts';
import { maxWindowBytes, Pacer } from '../../transport/pacer.ts';
import { type Carrier, decodeMessage, encodeAcknowledgement, encodePiece, lanes } from '../../transport/piece.ts';
import { WireLink } from '../../transport/wire-link.ts';
import { oneOf, randomBytes } from '../inputs.ts';
import type { Target } from '../target.ts';
import { repairHead, sampleFrames } from './frames.ts';

/** A clock that stands still and never calls back. */
const frozen: Clock = { now: () => 1000, after: () => () => {} };

/**
 * Messages as a peer sends them: a few frames on different lanes, each in one or two pieces, and an acknowledgement.
 */
function conversation(random: Random, carrier: Carrier): Uint8Array[] {
  const messages: Uint8Array[] = [];
  let sequence = 0;
  for (let count = 1 + random.integer(3); count > 0; count--) {
    const lane = oneOf(lanes, random);
    const [head, ...tensors] = encodeFrame(oneOf(sampleFrames, random), { checksum: false });
    const bytes = Buffer.concat(tensors);
    const isTogether = bytes.length === 0 || random.integer(2) === 0;
    const headBytes = random.integer(4) === 0 ? damagedHead(head as Uint8Array, random) : (head as Uint8Array);
    if (isTogether) {
      const [first = headBytes, ...rest] = bytes.length === 0 ? [headBytes] : [headBytes, bytes];
      messages.push(...encodePiece({ lane, first: true, last: true, inline: [first, ...rest] }, sequence++, carrier));
    } else {
      messages.push(...encodePiece({ lane, first: true, last: false, inline: [headBytes] }, sequence++, carrier));
      messages.push(
        ...encodePiece({ lane, first: false, last: true, inline: [], trailing: bytes }, sequence++, carrier),
      );
    }
    if (random.integer(3) === 0)
      messages.push(
        encodeAcknowledgement({ byteCount: random.integer(3) * 100, atMs: random.integer(2000) }, sequence++),
      );
  }
  return messages;
}

function damagedHead(head: Uint8Array, random: Random): Uint8Array {
  const damaged = mutate(head, random);
  repairHead(damaged);
  return damaged;
}

/** Messages with wrong bytes, with or without a right checksum, or lost, doubled or replaced. */
function damagedMessages(messages: readonly Uint8Array[], random: Random): readonly Uint8Array[] {
  const copy = [...messages];
  const at = random.integer(copy.length);
  const message = copy[at] as Uint8Array;
  switch (random.integer(8)) {
    case 0:
      copy.splice(at, 1);
      break;
    case 1:
      copy.splice(at, 0, oneOf(messages, random));
      break;
    case 2:
      copy[at] = randomBytes(random);
      break;
    case 3:
      break; // as they are: a head may be wrong in itself
    case 4:
      copy[at] = mutate(message, random);
      break;
    default: {
      const damaged = mutate(message, random);
      if (damaged.length >= 8)
        new DataView(damaged.buffer, damaged.byteOffset).setUint32(0, crc32(damaged.subarray(4)), true);
      copy[at] = damaged;
    }
  }
  return copy;
}

/** How transport's sentences about a peer begin; V8's about our own mistakes do not. */
const sentence = /^(an? |the |message |tensor \d|peer sends more )/;

interface LinkInput {
  readonly isProven: boolean;
  readonly messages: readonly Uint8Array[];
}

/** A link takes messages until one is wrong: then it ends, with a reason; else it works as before. */
export function linkTarget(): Target<LinkInput> {
  return {
    input(random) {
      const isProven = random.integer(3) === 0;
      return { isProven, messages: damagedMessages(conversation(random, { isProven }), random) };
    },
    take({ isProven, messages }) {
      const [sent, frames]: [Uint8Array[], Frame[]] = [[], []];
      let reason: string | undefined;
      const link = new WireLink(
        { isProven, send: (parts) => void sent.push(...parts), close: (end) => (reason ??= end.reason) },
        { peer: 'peer', clock: frozen },
      );
      link.receive((frame) => frames.push(frame));
      // Something to acknowledge.
      void link.send({ kind: 'heartbeat', epoch: 0, round: -1, microBatch: -1, tensors: [sampleTensor] }, 'control');
      for (const message of messages) {
        const room = link.room(message.length);
        room?.set(message);
        link.message(room ?? message);
      }
      for (const frame of frames) assert.ok(Buffer.concat(encodeFrame(frame)).length > 0);
      if (reason !== undefined) {
        assert.match(reason, sentence);
        throw new Refused(`the link ended: ${reason}`);
      }
      const count = sent.length;
      void link.send({ kind: 'heartbeat', epoch: 0, round: -1, microBatch: -1 }, 'control');
      assert.equal(sent.length, count + 1, 'a link that has not ended sends nothing');
    },
  };
}

const sampleTensor = { type: 'uint8', shape: [1000], data: new Uint8Array(1000) } as const;

/** A link has ended because of its input. */
export class Refused extends Error {}

interface PacerInput {
  readonly steps: readonly (readonly [
    lane: Priority,
    sentBytes: number,
    acknowledged: number,
    atMs: number,
    nowMs: number,
  ])[];
}

const strangeNumbers: readonly number[] = [
  0,
  -1,
  1,
  0.5,
  1e3,
  1e6,
  1e9,
  2 ** 53,
  1e308,
  -1e308,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
];

/** After any acknowledgement, the pacer's waits and pieces stay within their limits. */
export function acknowledgementTarget(): Target<PacerInput> {
  return {
    input(random) {
      let [sent, nowMs, atMs] = [0, 0, 0];
      const steps = Array.from({ length: 1 + random.integer(12) }, () => {
        const bytes = 1 + random.integer(100_000);
        nowMs += random.uniform() * 20;
        atMs = nowMs + 50 + random.uniform();
        sent += bytes;
        const isStrange = random.integer(12) === 0;
        const [acknowledged, time] = isStrange
          ? [oneOf(strangeNumbers, random), oneOf(strangeNumbers, random)]
          : [sent - random.integer(bytes), atMs];
        return [oneOf(lanes, random), bytes, random.integer(2) === 0 ? acknowledged : sent, time, nowMs] as const;
      });
      return { steps };
    },
    take({ steps }) {
      const pacer = new Pacer();
      for (const [lane, bytes, byteCount, atMs, nowMs] of steps) {
        pacer.sent(bytes, nowMs);
        const decoded = decodeMessage(encodeAcknowledgement({ byteCount, atMs }, 0), 0, { isProven: false });
        assert.equal(decoded.kind, 'acknowledgement');
        if (decoded.kind === 'acknowledgement') pacer.acknowledge(decoded, nowMs);
        const [waitMs, pieceBytes] = [pacer.waitMs(lane, nowMs), pacer.pieceBytes(lane)];
        assert.ok(waitMs >= 0, `a wait of ${waitMs} ms`);
        assert.ok(pieceBytes >= 4096 && pieceBytes <= 2 ** 20, `a piece of ${pieceBytes} bytes`);
        assert.ok(
          pacer.underWayBytes >= 0 && pacer.underWayBytes <= maxWindowBytes + 1e7,
          `${pacer.underWayBytes} bytes under way`,
        );
      }
    },
  };
}

/** Parts of `ws` that its types leave out. */
interface WebSocketParts {
  readonly Receiver: new (options: Readonly<Record<string, unknown>>) => Writable;
  readonly Sender: { frame(data: Buffer, options: Readonly<Record<string, unknown>>): Buffer[] };
}
const { Receiver, Sender } = ws as unknown as WebSocketParts;
const maxMessageBytes = 4096;

interface SocketInput {
  readonly bytes: Uint8Array;
  readonly pieces: readonly number[];
}

/** The messages that a reader found up to the first mistake. */
interface Reading {
  readonly messages: readonly Uint8Array[];
  readonly isWrong: boolean;
}

/** A reader of `ws` as in a server, and what it has found. */
function createReader(): { readonly receiver: Writable; readonly messages: Uint8Array[]; isWrong(): boolean } {
  const receiver = new Receiver({ isServer: true, maxPayload: maxMessageBytes, binaryType: 'nodebuffer' });
  const messages: Uint8Array[] = [];
  let isWrong = false;
  receiver.on('message', (data: Buffer, isBinary: boolean) =>
    messages.push(isBinary ? Uint8Array.from(data) : textMark(data)),
  );
  receiver.on('error', () => {
    isWrong = true;
  });
  return { receiver, messages, isWrong: () => isWrong };
}

/** Texts are no messages of ours: they get first bytes that the others do not have. */
function textMark(data: Buffer): Uint8Array {
  return Uint8Array.from([255, 255, 255, ...data]);
}

/** Reads the bytes with `ws` alone. */
async function readByWs(bytes: Uint8Array): Promise<Reading> {
  const { receiver, messages, isWrong } = createReader();
  receiver.write(Buffer.from(bytes));
  await new Promise(setImmediate); // errors come a tick later
  return { messages, isWrong: isWrong() };
}

/** Reads the bytes, in pieces of these lengths and a rest, with our reader in front of `ws`, as in a server. */
async function readByTap({ bytes, pieces }: SocketInput): Promise<Reading> {
  const socket = Object.assign(new EventEmitter(), { readyState: ws.WebSocket.OPEN });
  const stream = Object.assign(new EventEmitter(), { readableLength: 0 });
  const { receiver, messages, isWrong } = createReader();
  receiver.on('error', (error: Error) => socket.emit('error', error));
  // Behind a close `ws` takes nothing; alone, it had all bytes at once.
  let isConcluded = false;
  receiver.on('conclude', () => {
    isConcluded = true;
  });
  stream.on('data', (part: Buffer) => {
    if (!isConcluded) receiver.write(part);
  });
  const tap = new WebSocketBytes(socket as unknown as ws.WebSocket, stream as unknown as Socket, {
    isServer: true,
    maxMessageBytes,
  });
  tap.divert({
    room: (byteCount) => new Uint8Array(byteCount),
    message: (data) => messages.push(data),
    seen: () => {},
  });
  let at = 0;
  for (const length of [...pieces, bytes.length]) {
    stream.emit('data', Buffer.from(bytes.subarray(at, at + length)));
    at += length;
  }
  await new Promise(setImmediate);
  return { messages, isWrong: isWrong() };
}

/** A frame of our own, or of any kind that a WebSocket has. */
function randomFrame(random: Random): Uint8Array[] {
  const data = Buffer.from(randomBytes(random, oneOf([0, 20, 130, 400], random)));
  if (random.integer(3) > 0) return frameMessages([data], true);
  const opcode = oneOf([0, 1, 2, 2, 8, 9, 10], random);
  const mask = Buffer.from([1, 2, 3, 4]);
  const generateMask = (target: Buffer): void => void target.set(mask);
  const fin = random.integer(4) > 0;
  const options = { fin, opcode, rsv1: false, mask: true, readOnly: true, generateMask };
  return Sender.frame(data.subarray(0, 120), options);
}

/**
 * Our reader of WebSocket bytes, in front of `ws` as in a server, finds the messages that `ws` alone finds, however the
 * bytes are cut.
 */
export function webSocketTarget(): Target<SocketInput> {
  return {
    input(random) {
      const parts: Uint8Array[] = [];
      for (let count = 1 + random.integer(5); count > 0; count--) parts.push(...randomFrame(random));
      const bytes = Uint8Array.from(Buffer.concat(parts));
      return {
        bytes: random.integer(3) === 0 ? bytes : mutate(bytes, random),
        pieces: Array.from({ length: random.integer(6) }, () => random.integer(60)),
      };
    },
    async take(input) {
      const expected = await readByWs(input.bytes);
      const { messages, isWrong } = await readByTap(input);
      assert.ok(
        isDeepStrictEqual(messages, expected.messages),
        `other messages than ws alone: ${messages.length}, ${expected.messages.length}`,
      );
      // In a header that is cut off, `ws` alone sees earlier what is wrong.
      assert.ok(expected.isWrong || !isWrong, 'ws refuses what it does not refuse alone');
      if (expected.isWrong) throw new Refused('ws has refused the bytes');
    },
  };
}
