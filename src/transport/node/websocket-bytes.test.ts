import assert from 'node:assert/strict';
import { EventEmitter, once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { PassThrough, type Writable } from 'node:stream';
import { test } from 'node:test';
import * as ws from 'ws';
import { createRandom, type Random } from '../../random.ts';
import { frameMessages, readInto, WebSocketBytes } from './websocket-bytes.ts';

/** Parts of `ws` that its types leave out: the reader and the writer to compare with. */
interface WebSocketParts {
  readonly Receiver: new (options: { readonly isServer: boolean }) => Writable;
  readonly Sender: { frame(data: Buffer, options: Readonly<Record<string, unknown>>): Buffer[] };
}
const { Receiver, Sender } = ws as unknown as WebSocketParts;
const { WebSocket } = ws;

const maxMessageBytes = 2 ** 20;
const [text, ping, close] = [1, 9, 8];

function randomBytes(random: Random, byteCount: number): Buffer {
  return Buffer.from(Uint8Array.from({ length: byteCount }, () => random.integer(256)));
}

/** One message as `ws` writes it. */
function encoded(data: Buffer, opcode: number, mask: readonly number[] | undefined, fin = true): Buffer {
  const generateMask = (target: Buffer): void => void target.set(mask ?? []);
  const options = { fin, opcode, rsv1: false, mask: mask !== undefined, readOnly: true, generateMask };
  return Buffer.concat(Sender.frame(Buffer.from(data), options));
}

/** What a server makes of the caller's bytes: messages that it took itself, and all that it left to `ws`. */
function createTap(): {
  feed(bytes: Buffer): Promise<void>;
  divert(): void;
  received: Buffer[];
  left(): Buffer;
  fail(): void;
} {
  const socket = Object.assign(new EventEmitter(), { readyState: WebSocket.OPEN });
  const stream = new PassThrough();
  const left: Buffer[] = [];
  stream.on('data', (bytes: Buffer) => left.push(bytes));
  const tap = new WebSocketBytes(socket as unknown as ws.WebSocket, stream as unknown as Socket, {
    isServer: true,
    maxMessageBytes,
  });
  const received: Buffer[] = [];
  return {
    // A stream hands on what is written to it before it says so.
    feed: (bytes) => new Promise((resolve) => stream.write(bytes, () => resolve())),
    divert: () =>
      tap.divert({
        room: (byteCount) => Buffer.alloc(byteCount),
        message: (bytes) => received.push(Buffer.from(bytes)),
        seen: () => {},
      }),
    received,
    left: () => Buffer.concat(left),
    fail: () => socket.emit('error', new Error('what came is no WebSocket')),
  };
}

async function feedInParts(feed: (bytes: Buffer) => Promise<void>, bytes: Buffer, random: Random): Promise<void> {
  for (let at = 0; at < bytes.length; ) {
    const end = Math.min(bytes.length, at + 1 + random.integer(random.integer(3) === 0 ? 3 : 100_000));
    await feed(bytes.subarray(at, end));
    at = end;
  }
}

test('binary messages of all lengths, masks and cuts of the bytes are taken; pings are left to ws', async () => {
  const random = createRandom(20261121, 5);
  for (let round = 0; round < 20; round++) {
    const { feed, divert, received, left } = createTap();
    divert();
    const lengths = [0, 1, 125, 126, 127, 65_535, 65_536, 1 + random.integer(200_000)];
    const [messages, parts, pings]: [Buffer[], Buffer[], Buffer[]] = [[], [], []];
    for (const length of lengths) {
      const [message, mask] = [
        randomBytes(random, length),
        random.integer(2) === 0 ? [0, 0, 0, 0] : [...randomBytes(random, 4)],
      ];
      const between = encoded(randomBytes(random, random.integer(20)), ping, [1, 2, 3, 4]);
      messages.push(message);
      pings.push(between);
      parts.push(encoded(message, 2, mask), between);
    }
    await feedInParts(feed, Buffer.concat(parts), random);
    assert.deepEqual(received, messages);
    assert.deepEqual(left(), Buffer.concat(pings));
  }
});

test('before it is asked to take messages, all bytes are left to ws, and it begins with a whole message', async () => {
  const { feed, divert, received, left } = createTap();
  const mask = [9, 8, 7, 6];
  const [first, second, third] = [1, 2, 3].map((length) => encoded(Buffer.alloc(length * 100, length), 2, mask)) as [
    Buffer,
    Buffer,
    Buffer,
  ];
  await feed(Buffer.concat([first, second.subarray(0, 30)]));
  divert();
  await feed(Buffer.concat([second.subarray(30), third]));
  assert.deepEqual(left(), Buffer.concat([first, second]));
  assert.deepEqual(received, [Buffer.alloc(300, 3)]);
});

for (const [title, first] of [
  ['a text', encoded(Buffer.from('hello'), text, [1, 2, 3, 4])],
  ['a fragment', encoded(Buffer.from('hello'), 2, [1, 2, 3, 4], false)],
  ['a message without a mask', encoded(Buffer.from('hello'), 2, undefined)],
  ['a ping in two parts', encoded(Buffer.from('hello'), ping, [1, 2, 3, 4], false)],
  ['a ping that is too long', encoded(Buffer.alloc(126), ping, [1, 2, 3, 4])],
  ['a message beyond the limit', encoded(Buffer.alloc(maxMessageBytes + 1), 2, [0, 0, 0, 0])],
] as const) {
  test(`${title} is left to ws, and all behind it`, async () => {
    const { feed, divert, received, left } = createTap();
    divert();
    const all = Buffer.concat([first, encoded(Buffer.from('later'), 2, [0, 0, 0, 0])]);
    await feed(all);
    assert.deepEqual(received, []);
    assert.deepEqual(left(), all);
  });
}

test('nothing counts after a close, nor after an error of ws', async () => {
  const message = encoded(Buffer.from('late'), 2, [0, 0, 0, 0]);
  const closing = encoded(Buffer.from([3, 232]), close, [5, 6, 7, 8]);
  const [closed, failed] = [createTap(), createTap()];
  for (const tap of [closed, failed]) tap.divert();
  await closed.feed(Buffer.concat([closing, message]));
  failed.fail();
  await failed.feed(message);
  assert.deepEqual([closed.received, failed.received], [[], []]);
  assert.deepEqual(closed.left(), closing);
  assert.deepEqual(failed.left(), Buffer.alloc(0));
});

test('what is written is what ws reads, masked or not; long messages are not copied', async () => {
  const random = createRandom(20261121, 6);
  const messages = [0, 1, 125, 126, 4_095, 4_096, 65_535, 65_536, 300_000].map((length) => randomBytes(random, length));
  for (const isMasked of [false, true]) {
    const parts = frameMessages(messages, isMasked);
    for (const message of messages.filter(({ length }) => length >= 4_096)) assert.ok(parts.includes(message));
    const receiver = new Receiver({ isServer: isMasked });
    const read: Buffer[] = [];
    receiver.on('message', (data: Buffer, isBinary: boolean) => {
      assert.ok(isBinary);
      read.push(data);
    });
    for (const part of parts) receiver.write(part);
    assert.deepEqual(read, messages);
  }
});

test('a socket that a server accepted reads into the one buffer it is given, and still ends', async () => {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const caller = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const [accepted] = (await once(server, 'connection')) as [Socket];
  const buffer = Buffer.alloc(8);
  const read: string[] = [];
  accepted.on('data', () => assert.fail('no memory of its own'));
  // Node's own places for it are there, in every version that this test runs on.
  assert.ok(
    readInto(accepted, buffer, (bytes) => read.push(bytes.buffer === buffer.buffer ? bytes.toString() : 'elsewhere')),
  );
  caller.end('0123456789abcdefghij');
  await once(accepted, 'end');
  assert.equal(read.join(''), '0123456789abcdefghij');
  accepted.end();
  await new Promise((resolve) => server.close(resolve));
});

test('a stream without such places is left as it is', () => {
  assert.equal(
    readInto(new PassThrough() as unknown as Socket, Buffer.alloc(8), () => {}),
    false,
  );
});
