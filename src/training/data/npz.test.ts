// Against archives that NumPy wrote, and the rules by which arrays become data sets.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { deflateRawSync } from 'node:zlib';
import { crc32 } from '../../checksum.ts';
import { InputError } from '../../errors.ts';
import { tensor, toNumbers } from '../../graph/tensor.ts';
import { inflate } from '../../storage/node/inflate.ts';
import { fuzz } from '../../testing/mutations.ts';
import { fixtureFolder } from '../../testing/pytorch-fixtures.ts';
import { datasetsFromArrays } from './arrays.ts';
import { gather } from './dataset.ts';
import { writeNpy } from './npy.ts';
import { readNpz } from './npz.ts';
import { readZip } from './zip.ts';

const fixture = (name: string): Uint8Array => readFileSync(join(fixtureFolder('npy'), name));

test('the CRC-32 of the check text is the published one', () => {
  assert.equal(crc32(Buffer.from('123456789')), 0xcbf43926);
});

for (const name of ['stored.npz', 'zip64.npz']) {
  test(`${name} gives x and y`, () => {
    const arrays = readNpz({ name, bytes: fixture(name) }, inflate);
    assert.deepEqual([...arrays.keys()], ['x', 'y']);
    assert.deepEqual(arrays.get('x')?.shape, [3, 4]);
    assert.deepEqual(toNumbers(arrays.get('y') ?? tensor('int8', [0], [])), [0, 2, 1]);
  });
}

test('x_train, y_train, x_test and y_test give both parts', () => {
  const { train, test: held } = datasetsFromArrays(
    'f.npz',
    readNpz({ name: 'f.npz', bytes: fixture('deflated.npz') }, inflate),
  );
  assert.deepEqual([train.sampleCount, held?.sampleCount, train.classCount], [3, 2, 3]);
  const batch = gather(held ?? train, Uint32Array.of(1, 0));
  assert.deepEqual(toNumbers(batch.inputs[0] ?? batch.labels), [104, 105, 106, 107, 100, 101, 102, 103]);
  assert.deepEqual([batch.labels.type, toNumbers(batch.labels)], ['int64', [2, 0]]);
});

test('two unnamed arrays are inputs and labels', () => {
  const { train } = datasetsFromArrays('f.npz', readNpz({ name: 'f.npz', bytes: fixture('unnamed.npz') }, inflate));
  assert.deepEqual([train.inputs.map((field) => field.values.shape), train.labels.values.shape], [[[3, 4]], [3]]);
});

test('all arrays but the labels are inputs, by name', () => {
  const { train } = datasetsFromArrays('f.npz', readNpz({ name: 'f.npz', bytes: fixture('two-inputs.npz') }, inflate));
  assert.deepEqual(
    train.inputs.map((field) => [field.name, field.type]),
    [
      ['input_ids', 'int64'],
      ['mask', 'float32'],
    ],
  );
  assert.equal(train.labels.source, 'f.npz (Labels)');
});

test('if no array can be identified as the labels, the arrays are listed', () => {
  const arrays = new Map([
    ['a', tensor('float32', [1], [0])],
    ['b', tensor('float32', [1], [0])],
  ]);
  assert.throws(
    () => datasetsFromArrays('f.npz', arrays),
    new InputError(
      'f.npz holds the arrays a, b, none of which can be identified as the labels; name the arrays x and y, or ' +
        'x_train, y_train, x_test and y_test.',
    ),
  );
  assert.throws(() => datasetsFromArrays('f.npz', new Map()), /holds the arrays \(none\)/);
});

/** An archive with one entry whose directory contains `claim` instead of the true values. */
function zip(
  contents: Uint8Array,
  claim: { method?: number; bytes?: number; crc?: number; name?: string; copies?: number } = {},
): Uint8Array {
  const packed = claim.method === 8 ? deflateRawSync(contents) : contents;
  const name = Buffer.from(claim.name ?? 'x.npy');
  const local = Buffer.alloc(30);
  local.writeUInt32LE(0x04034b50);
  local.writeUInt16LE(name.length, 26);
  const central = Buffer.alloc(46);
  central.writeUInt32LE(0x02014b50);
  central.writeUInt16LE(claim.method ?? 0, 10);
  central.writeUInt32LE(claim.crc ?? crc32(contents), 16);
  central.writeUInt32LE(packed.length, 20);
  central.writeUInt32LE(claim.bytes ?? contents.length, 24);
  central.writeUInt16LE(name.length, 28);
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50);
  end.writeUInt16LE(claim.copies ?? 1, 10);
  end.writeUInt32LE(30 + name.length + packed.length, 16);
  const directory = Array.from({ length: claim.copies ?? 1 }, (_, index) =>
    Buffer.concat([central, index === 0 ? name : Buffer.from(`${index}.npy`)]),
  );
  return Buffer.concat([local, name, packed, ...directory, end]);
}

test('array names are shown on one line, and only some of many', () => {
  const array = tensor('float32', [1], [0]);
  const arrays = new Map(Array.from({ length: 500 }, (_, index) => [`${index}\n`, array]));
  assert.throws(
    () => datasetsFromArrays('f.npz', arrays),
    /^InputError: f\.npz holds the arrays 0\ufffd, 1\ufffd, .*, 9\ufffd and 490 others, none of which /,
  );
  const broken = zip(Uint8Array.of(1, 2, 3), { name: 'a\n.npy' });
  assert.throws(
    () => readNpz({ name: 'f.npz', bytes: broken }, inflate),
    /^InputError: f\.npz \(a\ufffd\.npy\) is not a valid npy file/,
  );
});

test('a wrong checksum, a wrong length, an impossible length and an unknown method are refused', () => {
  const contents = writeNpy(tensor('float32', [3], [1, 2, 3]));
  assert.deepEqual(readZip({ name: 'f', bytes: zip(contents, { method: 8 }) }, inflate).get('x.npy'), contents);
  const refused = (bytes: Uint8Array, problem: RegExp): void =>
    assert.throws(
      () => readZip({ name: 'f.npz', bytes }, inflate),
      (error) => error instanceof InputError && problem.test(error.message),
    );
  refused(zip(contents, { crc: 1 }), /the checksum of the entry x.npy is wrong/);
  refused(zip(contents, { bytes: 7 }), /the entry x.npy has 140 bytes, not 7/);
  refused(zip(contents, { method: 8, bytes: 7 }), /the entry x.npy cannot be decompressed/);
  refused(
    zip(contents, { method: 8, bytes: 4_000_000_000 }),
    /the entry x.npy claims 4000000000 bytes, which is impossible/,
  );
  refused(zip(contents, { method: 12 }), /compressed by method 12, not by deflate/);
  refused(zip(contents, { copies: 3 }), /the entries overlap/);
  refused(
    zip(contents, { crc: 1, name: `a\n${'b'.repeat(200)}` }),
    /^f\.npz is not a valid zip file: at byte \d+ the checksum of the entry a\ufffdb{98}… is wrong;/,
  );
  refused(zip(contents).slice(0, -1), /the directory is missing \(is the file cut off\?\)/);
});

test('4,500 mutations give arrays or InputError', () => {
  const originals = ['stored.npz', 'deflated.npz', 'zip64.npz'].map(fixture);
  const { refusedCount } = fuzz(originals, 1500, (bytes) => readNpz({ name: 'x', bytes }, inflate));
  assert.ok(refusedCount > 2000, `${refusedCount} refused`);
});
