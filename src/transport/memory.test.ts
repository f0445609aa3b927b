import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRandom, type Random } from '../random.ts';
import { linkSuite } from '../testing/link-suite.ts';
import { createVirtualClock } from '../testing/virtual-clock.ts';
import type { Frame } from './link.ts';
import { createMemoryLinks, type MemoryLinkOptions } from './memory.ts';

linkSuite('memory links', async (options) => {
  let corrupting = false;
  const tamper = (message: Uint8Array, from: string): Uint8Array[] => {
    const middle = message.length >> 1;
    if (corrupting && from === 'a') message[middle] = (message[middle] as number) ^ 4;
    return [message];
  };
  const [a, b] = createMemoryLinks('a', 'b', { ...options, tamper });
  return {
    a,
    b,
    corrupt: () => {
      corrupting = true;
    },
    release: async () => {
      await a.close('released');
    },
  };
});

const frame: Frame = {
  kind: 'activation',
  epoch: 1,
  round: 0,
  microBatch: 0,
  tensors: [{ type: 'uint8', shape: [50], data: new Uint8Array(50) }],
};

test('a lost, doubled, cut or stray message ends the link', async () => {
  const cases: readonly (readonly [RegExp, NonNullable<MemoryLinkOptions['tamper']>])[] = [
    [/^message 3 came in the place of message 2$/, (message) => (message[4] === 2 ? [] : [message])],
    [/^message 2 came in the place of message 3$/, (message) => (message[4] === 2 ? [message, message] : [message])],
    [/^the checksum of a message is wrong/, (message) => [message[4] === 2 ? message.subarray(0, 40) : message]],
    [
      /^a message of 15 bytes is shorter than its header$/,
      (message) => [message[4] === 2 ? message.subarray(0, 15) : message],
    ],
    [/^a message of 0 bytes is shorter than its header$/, (message) => [new Uint8Array(0), message]],
    [/^a message does not begin with the header of this protocol$/, (message) => [new Uint8Array(20), message]],
  ];
  for (const [expected, tamper] of cases) {
    const [a, b] = createMemoryLinks('a', 'b', { tamper });
    let received = 0;
    b.receive(() => received++);
    for (let index = 0; index < 5; index++) void a.send(frame);
    assert.match((await b.ended).reason, expected);
    assert.equal((await a.ended).clean, false);
    assert.ok(received <= 3);
  }
});

test('9,000 links that change, lose, double or swap bytes: a right frame arrives, or the link ends', async () => {
  const random = createRandom(20261121, 8);
  const frames = [0, 50, 20_000, 300].map(
    (byteCount, index): Frame => ({
      kind: 'activation',
      epoch: 1,
      round: 0,
      microBatch: index,
      control: { index },
      tensors: [
        { type: 'uint8', shape: [byteCount], data: Uint8Array.from({ length: byteCount }, () => random.integer(256)) },
      ],
    }),
  );
  let brokenCount = 0;
  for (let run = 0; run < 9_000; run++) {
    const victim = random.integer(5);
    const fault = createFault(random);
    let sentCount = 0;
    const [a, b] = createMemoryLinks('a', 'b', {
      tamper: (message, from) => (from === 'a' && sentCount++ === victim ? fault(message) : [message]),
    });
    const received: Frame[] = [];
    b.receive((arrived) => received.push(arrived));
    for (const sent of frames) void a.send(sent);
    void a.close('done');
    const end = await b.ended;
    assert.deepEqual(received, frames.slice(0, received.length), `run ${run}`);
    // Unseen are only faults of the very last message, which carries no frame, and garbage that happens to be the
    // message itself.
    if (end.clean) assert.equal(received.length, frames.length, `run ${run}`);
    else {
      assert.match(end.reason, /^[a-z][^\n]{10,200}$/);
      brokenCount++;
    }
  }
  assert.ok(brokenCount > 8_800, `${brokenCount} of 9,000 faults ended the link`);
});

function createFault(random: Random): (message: Uint8Array) => Uint8Array[] {
  const at = (length: number): number => random.integer(Math.max(1, length));
  const faults: readonly ((message: Uint8Array) => Uint8Array[])[] = [
    (message) => {
      const index = at(message.length);
      message[index] = (message[index] as number) ^ (1 << random.integer(8));
      return [message];
    },
    (message) => [message.slice(0, at(message.length))],
    (message) => [message, message.slice()],
    () => [],
    (message) => [Uint8Array.from({ length: 1 + random.integer(100) }, () => random.integer(256)), message],
    (message) => [Uint8Array.from([...message, 0])],
    (message) => [message.slice(0, 16), message.slice(16)],
  ];
  return faults[random.integer(faults.length)] as (message: Uint8Array) => Uint8Array[];
}

test('close waits for a slow link as long as it takes, and for a peer that takes nothing 10 s', async () => {
  const clock = createVirtualClock();
  const long: Frame = { ...frame, tensors: [{ type: 'uint8', shape: [12_500_000], data: new Uint8Array(12_500_000) }] };
  const [a, b] = createMemoryLinks('a', 'b', { clock, bandwidthMbps: 5 });
  let received = 0;
  b.receive(() => received++);
  void a.send(long);
  await clock.runUntil(a.close('done'));
  assert.deepEqual(await b.ended, { clean: true, reason: 'done' });
  assert.equal(received, 1);
  assert.ok(clock.now() > 20_000 && clock.now() < 21_000, `${clock.now()} ms`);

  const startMs = clock.now();
  const [c, d] = createMemoryLinks('c', 'd', { clock, bandwidthMbps: 1000 });
  for (let index = 0; index < 3; index++) void c.send(long);
  await clock.runUntil(c.close('done'));
  const expected = { clean: false, reason: 'd took nothing of the rest of the queue for 10 s' };
  assert.deepEqual([await c.ended, await d.ended], [expected, expected]);
  assert.ok(clock.now() - startMs < 21_000, `${clock.now() - startMs} ms`);
});
