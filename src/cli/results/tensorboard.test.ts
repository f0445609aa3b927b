// Event files, read back by the description of their format, and against a record of TensorBoard's own writer.

import assert from 'node:assert/strict';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '../../testing/command.ts';
import { boardRecord, maskedCrc32c, openBoard } from './tensorboard.ts';

test('sums are CRC-32C, masked', () => {
  // CRC-32C of "123456789" is 0xE3069283 (RFC 3720), which is turned by 15 bits and raised by 0xA282EAD8.
  const crc = 0xe3069283;
  const masked = (((crc >>> 15) | (crc << 17)) + 0xa282ead8) >>> 0;
  assert.equal(maskedCrc32c(new TextEncoder().encode('123456789')), masked);
});

const expectedRecord =
  '2100000000000000017becf609000000000000f83f10ac022a130a110a0a6c6f73732f747261696e150000803e6c5611a4';

test('an event is the record that TensorBoard 2.21 writes', () => {
  const event = { wallTime: 1.5, step: 300, scalars: { 'loss/train': 0.25 } };
  assert.equal(Buffer.from(boardRecord(event)).toString('hex'), expectedRecord);
});

test('a run of two rounds and a test is a file with a version and three events', async () => {
  const folder = temporaryFolder();
  const board = await openBoard(folder, () => 2000);
  for (const round of [0, 1])
    board.observe({
      kind: 'round',
      metrics: { round, epoch: 0, loss: 2 - round, samplesPerS: 8, lr: 0.5, accuracy: null },
      endRound: 2,
      busyFraction: {},
      work: {},
    });
  board.observe({ kind: 'phase', phase: 'training' });
  board.observe({ kind: 'evaluated', round: 2, accuracy: 0.5, loss: 1, sampleCount: 4 });
  await board.close();
  const [name = ''] = await readdir(join(folder, 'tensorboard'));
  assert.match(name, /^events\.out\.tfevents\.2\./);
  const bytes = await readFile(join(folder, 'tensorboard', name));
  const texts: string[] = [];
  for (let at = 0; at < bytes.length; ) {
    const length = Number(bytes.readBigUInt64LE(at));
    const data = bytes.subarray(at + 12, at + 12 + length);
    assert.equal(bytes.readUInt32LE(at + 8), maskedCrc32c(bytes.subarray(at, at + 8)));
    assert.equal(bytes.readUInt32LE(at + 12 + length), maskedCrc32c(data));
    assert.equal(data.readDoubleLE(1), 2);
    texts.push(data.subarray(9).toString('latin1'));
    at += 16 + length;
  }
  assert.equal(texts.length, 4);
  assert.ok(texts[0]?.includes('brain.Event:2'));
  for (const [index, tag] of [
    [1, 'loss/train'],
    [2, 'learning_rate'],
    [3, 'accuracy/test'],
  ] as const)
    assert.ok(texts[index]?.includes(tag), tag);
  assert.ok(!texts[1]?.includes('accuracy'), 'no accuracy where there is none');
});
