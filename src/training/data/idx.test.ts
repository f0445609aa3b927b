import assert from 'node:assert/strict';
import test from 'node:test';
import { gzipSync } from 'node:zlib';
import { InputError } from '../../errors.ts';
import { tensor, toNumbers } from '../../graph/tensor.ts';
import { inflate } from '../../storage/node/inflate.ts';
import { fuzz } from '../../testing/mutations.ts';
import { readIdx, writeIdx } from './idx.ts';
import { gunzip } from './source.ts';

// Two images of 1x3 bytes, as MNIST has them; and two int16.
const images = Uint8Array.of(0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255);
const shorts = Uint8Array.of(0, 0, 0x0b, 1, 0, 0, 0, 2, 0xff, 0xfe, 0x01, 0x00);

test('bytes and big-endian numbers are read', () => {
  const read = readIdx({ name: 'x', bytes: images });
  assert.deepEqual([read.type, read.shape, toNumbers(read)], ['uint8', [2, 1, 3], [1, 2, 3, 4, 5, 255]]);
  const wide = readIdx({ name: 'x', bytes: shorts });
  assert.deepEqual([wide.type, wide.shape, toNumbers(wide)], ['int16', [2], [-2, 256]]);
});

test('writing gives exactly these bytes, for every type that idx has', () => {
  assert.deepEqual(writeIdx(tensor('uint8', [2, 1, 3], [1, 2, 3, 4, 5, 255])), images);
  assert.deepEqual(writeIdx(tensor('int16', [2], [-2, 256])), shorts);
  for (const type of ['int8', 'int32', 'float32', 'float64'] as const) {
    const value = tensor(type, [2, 2], [1, -2, 100, 0]);
    assert.deepEqual(readIdx({ name: 'x', bytes: writeIdx(value) }), value);
  }
});

test('a .gz file is unpacked, any other is unchanged', () => {
  const source = { name: 'x', bytes: images };
  assert.equal(gunzip(source, inflate), source);
  assert.deepEqual(
    toNumbers(readIdx(gunzip({ name: 'x.gz', bytes: gzipSync(images) }, inflate))),
    [1, 2, 3, 4, 5, 255],
  );
});

test('damage is reported with its position', () => {
  const cases: [Uint8Array, string][] = [
    [Uint8Array.of(), 'x is not a valid idx file: at byte 0 two zero bytes are expected; write or download it again.'],
    [
      Uint8Array.of(0, 0, 7, 1),
      'x is not a valid idx file: at byte 2 the element type 0x7 is unknown; write or download it again.',
    ],
    [
      Uint8Array.of(0, 0, 8, 0),
      'x is not a valid idx file: at byte 3 0 dimensions were found, but 1 to 8 are expected; write or ' +
        'download it again.',
    ],
    [
      images.slice(0, 15),
      'x is not a valid idx file: at byte 15 the file ends inside the header; write or download it again.',
    ],
    [
      images.slice(0, 21),
      'x is not a valid idx file: at byte 16 6 bytes are expected for [2, 1, 3] of uint8, but 5 follow; write ' +
        'or download it again.',
    ],
  ];
  for (const [bytes, message] of cases) assert.throws(() => readIdx({ name: 'x', bytes }), new InputError(message));
});

test('a damaged .gz file is reported, and an impossible length is refused before unpacking', () => {
  const packed = gzipSync(images);
  const flipped = Uint8Array.from(packed, (byte, index) => (index === 14 ? byte ^ 4 : byte));
  assert.throws(
    () => gunzip({ name: 'x.gz', bytes: flipped }, inflate),
    /^InputError: x.gz is not a valid gzip file: at byte 0 decompression failed/,
  );
  const huge = Uint8Array.from(packed);
  huge.fill(0xff, packed.length - 4);
  const never = (): never => assert.fail('unpacked');
  assert.throws(() => gunzip({ name: 'x.gz', bytes: huge }, never), /the length 4294967295 is impossible/);
});

test('6,000 mutations give arrays or InputError', () => {
  const { refusedCount } = fuzz([images, shorts, gzipSync(images)], 2000, (bytes) =>
    readIdx(gunzip({ name: 'x', bytes }, inflate)),
  );
  assert.ok(refusedCount > 3000, `${refusedCount} refused`);
});
