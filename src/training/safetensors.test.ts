// Literal files, the rules of the format one by one, and mutations.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import fc from 'fast-check';
import { InputError } from '../errors.ts';
import { allocate, elementCount, elementTypes, type Tensor, tensor, tensorBytes } from '../graph/tensor.ts';
import { fuzz } from '../testing/mutations.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';
import { readSafetensors, writeSafetensors } from './safetensors.ts';

/** A file with this header and these data bytes. */
function file(header: string, data: readonly number[] = []): Uint8Array {
  const text = Buffer.from(header);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return new Uint8Array(Buffer.concat([length, text, Uint8Array.from(data)]));
}

const join = (pieces: readonly Uint8Array[]): Uint8Array => new Uint8Array(Buffer.concat(pieces));
const read = (bytes: Uint8Array): ReadonlyMap<string, Tensor> => readSafetensors({ name: 'w', bytes }).tensors;

test('a file in the form that other tools write is read', () => {
  const header =
    '{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1,2],"data_offsets":[1,9]},' +
    '"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}';
  const { tensors, metadata } = readSafetensors({
    name: 'w',
    bytes: file(header, [7, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]),
  });
  assert.deepEqual(
    [...tensors],
    [
      ['a', tensor('uint8', [], [7])],
      ['b', tensor('float32', [1, 2], [1, -2])],
    ],
  );
  assert.deepEqual([...metadata], [['format', 'pt']]);
});

test('the reference library’s file is read, and written byte for byte the same', () => {
  const bytes = new Uint8Array(readFileSync(path.join(fixtureFolder('safetensors'), 'reference.safetensors')));
  const { tensors, metadata } = readSafetensors({ name: 'w', bytes });
  const expected = new Map([
    ['layer.weight', tensor('float32', [2, 3], [0, 0.25, 0.5, 0.75, 1, 1.25])],
    ['layer.bias', tensor('float32', [2], [-1.5, 2.5])],
    ['step', tensor('int64', [], [12])],
    ['half', tensor('float16', [1], [0x3e00])],
    ['mask', tensor('bool', [3], [1, 0, 1])],
    ['empty', tensor('float32', [0, 4], [])],
  ]);
  assert.deepEqual(tensors, expected);
  assert.deepEqual(join(writeSafetensors(expected, metadata)), bytes);
});

test('the written file: header padded to 8 bytes, wide elements first, then by name', () => {
  const tensors = new Map([
    ['b', tensor('uint8', [3], [1, 2, 3])],
    ['z', tensor('float32', [1], [1])],
    ['a', tensor('float32', [1], [2])],
    ['w', tensor('float64', [1], [0.5])],
  ]);
  const bytes = join(writeSafetensors(tensors, new Map([['k "1"', 'v']])));
  const header =
    '{"__metadata__":{"k \\"1\\"":"v"},"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},' +
    '"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},' +
    '"z":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},"b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}}';
  const padded = header.padEnd(Math.ceil(header.length / 8) * 8);
  const data = [0, 0, 0, 0, 0, 0, 0xe0, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x80, 0x3f, 1, 2, 3];
  assert.deepEqual(bytes, file(padded, data));
});

const anyTensor: fc.Arbitrary<Tensor> = fc
  .record({
    type: fc.constantFrom(...elementTypes),
    shape: fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 3 }),
    fill: fc.integer({ min: 0, max: 255 }),
  })
  .map(({ type, shape, fill }) => {
    const value = { type, shape, data: allocate(type, elementCount(shape)) };
    tensorBytes(value).forEach((_, index, bytes) => {
      bytes[index] = type === 'bool' ? index % 2 : (fill + index) % 256;
    });
    return value;
  });

test('written files are read again, without copies, in any order given', () => {
  fc.assert(
    fc.property(
      fc.uniqueArray(
        fc.tuple(
          fc.string().filter((name) => name !== '__metadata__'),
          anyTensor,
        ),
        { selector: ([name]) => name, maxLength: 6 },
      ),
      fc.dictionary(fc.string(), fc.string()),
      (entries, pairs) => {
        const metadata = new Map(Object.entries(pairs));
        const bytes = join(writeSafetensors(new Map(entries), metadata));
        assert.deepEqual(join(writeSafetensors(new Map([...entries].reverse()), metadata)), bytes);
        const found = readSafetensors({ name: 'w', bytes });
        assert.deepEqual(found.metadata, metadata);
        assert.equal(found.tensors.size, entries.length);
        for (const [name, { type, shape, data }] of entries) {
          const value = found.tensors.get(name);
          assert.ok(value !== undefined && value.data.buffer === bytes.buffer);
          // Compared by bytes: a NaN is a value like any other.
          assert.deepEqual(
            [value.type, value.shape, tensorBytes(value)],
            [type, shape, tensorBytes({ type, shape, data })],
          );
        }
      },
    ),
    { seed: 3, numRuns: 300 },
  );
});

test('names of JavaScript’s own properties are ordinary names', () => {
  const tensors = new Map(
    ['__proto__', 'constructor', 'toString'].map((name, index) => [name, tensor('int8', [1], [index])]),
  );
  assert.deepEqual(read(join(writeSafetensors(tensors))), tensors);
});

function entry(dtype: string, shape: string, offsets: string): string {
  return `{"dtype":"${dtype}","shape":${shape},"data_offsets":${offsets}}`;
}

test('every rule of the format is checked', () => {
  const huge = Uint8Array.from([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7b, 0x7d]);
  const cases: [Uint8Array, string][] = [
    [Uint8Array.of(), 'at byte 0 the file ends inside the header'],
    [huge, "at byte 0 the header's length 18446744073709551615 is more than the file holds or than 100000000"],
    [file('{"a":1'), 'at byte 8 the header is not JSON'],
    [file('[[[[]]]]'), 'at byte 8 the header is not a JSON object'],
    [file('{"a": 1}'), 'at byte 8 the entry of the tensor a is not an object'],
    [file('{"__metadata__":{"a":1}}'), 'at byte 8 __metadata__ is not an object of strings'],
    [
      file(`{"a":${entry('U8', '[-1]', '[0,1]')}}`, [0]),
      'at byte 8 the entry of the tensor a does not have a dtype, a shape and two data_offsets',
    ],
    [
      file(`{"a":${entry('U8', '[1]', '[0,1,2]')}}`, [0]),
      'at byte 8 the entry of the tensor a does not have a dtype, a shape and two data_offsets',
    ],
    [
      file(`{"a":${entry('U8', '[1]', '[0.5,1.5]')}}`, [0]),
      'at byte 8 the entry of the tensor a does not have a dtype, a shape and two data_offsets',
    ],
    [file(`{"a":${entry('F32', '[1]', '[0,3]')}}`, [0, 0, 0]), 'at byte 8 the tensor a, [1] of float32, has 3 bytes'],
    [file(`{"a":${entry('U8', '[1]', '[1,0]')}}`, [0]), 'at byte 8 the tensor a, [1] of uint8, has -1 bytes'],
    [file(`{"a":${entry('F32', '[4294967296,4294967296]', '[0,0]')}}`), 'has 0 bytes'],
    [file(`{"a":${entry('U8', '[2]', '[0,2]')}}`, [0]), 'the file ends inside the tensor a'],
    [
      file(`{"a":${entry('U8', '[1]', '[1,2]')}}`, [0, 0]),
      'the tensor a starts at 1 of the data, not at 0: tensors overlap or leave a hole',
    ],
    [
      file(`{"a":${entry('U8', '[2]', '[0,2]')},"b":${entry('U8', '[2]', '[1,3]')}}`, [0, 0, 0]),
      'the tensor b starts at 1 of the data, not at 2',
    ],
    [file(`{"a":${entry('U8', '[1]', '[0,1]')}}`, [0, 0]), '1 bytes belong to no tensor'],
    [file(`{"a":${entry('BOOL', '[1]', '[0,1]')}}`, [2]), 'the tensor a of truth values holds others than 0 and 1'],
  ];
  for (const [bytes, problem] of cases) {
    assert.throws(
      () => read(bytes),
      (error) => {
        assert.ok(
          error instanceof InputError && error.message.startsWith('w is not a valid safetensors file: at byte '),
        );
        assert.ok(error.message.includes(problem), `${error.message} lacks ${problem}`);
        return true;
      },
    );
  }
  assert.throws(
    () => read(file(`{"a":${entry('F8_E4M3', '[1]', '[0,1]')}}`, [0])),
    new InputError('w holds the tensor a of type F8_E4M3, which is not supported; convert it to F32.'),
  );
});

test('bfloat16 is read as float32', () => {
  // 1.5 is 0x3fc0, −2 is 0xc000
  const tensors = read(file(`{"a":${entry('BF16', '[2]', '[0,4]')}}`, [0xc0, 0x3f, 0x00, 0xc0]));
  assert.deepEqual(tensors.get('a'), tensor('float32', [2], [1.5, -2]));
});

test('deep nesting and long names give short errors', () => {
  assert.throws(() => read(file(`${'['.repeat(200_000)}`)), InputError);
  assert.throws(
    () => read(file(`{"${'n'.repeat(100_000)}":1}`)),
    (error) => error instanceof InputError && error.message.length < 300,
  );
});

test('6,000 mutations give tensors or InputError; tensors lie inside the file', () => {
  const original = join(
    writeSafetensors(
      new Map([
        ['a', tensor('float32', [2, 2], [1, 2, 3, 4])],
        ['b', tensor('bool', [2], [1, 0])],
        ['e', tensor('int64', [0], [])],
      ]),
      new Map([['k', 'v']]),
    ),
  );
  const { refusedCount } = fuzz([original], 6000, (bytes) => {
    for (const value of read(bytes).values()) assert.ok(value.data.length === elementCount(value.shape));
  });
  assert.ok(refusedCount > 4000, `${refusedCount} refused`);
});
