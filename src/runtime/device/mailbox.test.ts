import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ProtocolError } from '../../errors.ts';
import { tensor } from '../../graph/tensor.ts';
import type { Frame } from '../../transport/link.ts';
import { Mailbox, type MailKey } from './mailbox.ts';

const key = (microBatch: number): MailKey => ({ kind: 'activation', round: 0, microBatch, from: 'a' });
const frame = (microBatch: number): Frame => ({
  kind: 'activation',
  epoch: 0,
  round: 0,
  microBatch,
  tensors: [tensor('float32', [4], [1, 2, 3, 4])],
});

test('a frame waits for its taker, and a taker for its frame', async () => {
  const mailbox = new Mailbox(1000);
  mailbox.put(key(0), frame(0));
  assert.equal(mailbox.bytes, 16);
  assert.equal((await mailbox.take(key(0))).microBatch, 0);
  assert.equal(mailbox.bytes, 0);
  const later = mailbox.take(key(1));
  mailbox.put(key(1), frame(1));
  assert.equal((await later).microBatch, 1);
});

test('a frame that came twice, or beyond the limit, is refused', () => {
  const mailbox = new Mailbox(40);
  mailbox.put(key(0), frame(0));
  assert.throws(() => mailbox.put(key(0), frame(0)), ProtocolError);
  mailbox.put(key(1), frame(1));
  assert.throws(() => mailbox.put(key(2), frame(2)), ProtocolError);
});

test('a failure reaches all who wait, now and later', async () => {
  const mailbox = new Mailbox(40);
  const waiting = mailbox.take(key(0));
  mailbox.fail(new Error('link lost'));
  await assert.rejects(waiting, /link lost/);
  await assert.rejects(mailbox.take(key(1)), /link lost/);
});

test('a sender has room while few frames lie here, or while somebody waits for one that does not', async () => {
  const mailbox = new Mailbox(1000);
  mailbox.put(key(0), frame(0));
  assert.equal(mailbox.room(2), undefined);
  mailbox.put(key(1), frame(1));
  let isThere = false;
  const send = async (): Promise<void> => {
    isThere = false;
    await mailbox.room(2);
    isThere = true;
  };
  const first = send();
  await new Promise(setImmediate);
  assert.equal(isThere, false);
  await mailbox.take(key(0));
  await first;
  mailbox.put(key(2), frame(2));
  const second = send();
  await new Promise(setImmediate);
  assert.equal(isThere, false);
  const later = mailbox.take(key(3));
  await second;
  mailbox.put(key(3), frame(3));
  assert.equal((await later).microBatch, 3);
});
