import assert from 'node:assert/strict';
import { test } from 'node:test';
import { linkSuite } from '../testing/link-suite.ts';
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

const frame: Frame = { kind: 'activation', epoch: 1, round: 0, microBatch: 0, tensors: [{ type: 'uint8', shape: [50], data: new Uint8Array(50) }] };

test('a lost, doubled, cut or stray message ends the link', async () => {
  const cases: readonly (readonly [RegExp, NonNullable<MemoryLinkOptions['tamper']>])[] = [
    [/^message 3 came in the place of message 2$/, (message) => (message[4] === 2 ? [] : [message])],
    [/^message 2 came in the place of message 3$/, (message) => (message[4] === 2 ? [message, message] : [message])],
    [/^the checksum of a message is wrong/, (message) => [message[4] === 2 ? message.subarray(0, 40) : message]],
    [/^a message of 15 bytes is shorter than its header$/, (message) => [message[4] === 2 ? message.subarray(0, 15) : message]],
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
