// Against files that NumPy wrote (test/fixtures/npy/make_fixtures.py).

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { InputError } from '../../errors.ts';
import { halfToNumber } from '../../graph/operators/numbers.ts';
import { elementTypes, tensor } from '../../graph/tensor.ts';
import { fuzz } from '../../testing/mutations.ts';
import { fixtureFolder } from '../../testing/pytorch-fixtures.ts';
import { readNpy, writeNpy } from './npy.ts';

interface Expected {
  readonly type: string;
  readonly shape: readonly number[];
  readonly values: readonly string[];
}

const folder = fixtureFolder('npy');
const fixture = (name: string): Uint8Array => readFileSync(join(folder, name));
const expected = JSON.parse(readFileSync(join(folder, 'expected.json'), 'utf8')) as Record<string, Expected>;

/** A file with this header text, version 1, and these data bytes. */
function npy(header: string, data: readonly number[] = []): Uint8Array {
  return Uint8Array.from([
    0x93,
    ...Buffer.from('NUMPY'),
    1,
    0,
    header.length & 0xff,
    header.length >> 8,
    ...Buffer.from(header),
    ...data,
  ]);
}

for (const [name, { type, shape, values }] of Object.entries(expected)) {
  test(`NumPy's ${name} is read`, () => {
    const read = readNpy({ name, bytes: fixture(`${name}.npy`) });
    assert.equal(read.type, type);
    assert.deepEqual(read.shape, shape);
    if (read.type === 'float16') {
      assert.deepEqual(Array.from(read.data as Uint16Array, halfToNumber), values.map(Number));
    } else if (read.data instanceof BigInt64Array || read.data instanceof BigUint64Array) {
      assert.deepEqual([...read.data], values.map(BigInt));
    } else {
      assert.deepEqual([...read.data], values.map(Number));
    }
  });
}

test('every element type has a fixture of NumPy', () => {
  assert.deepEqual(new Set(Object.values(expected).map(({ type }) => type)), new Set(elementTypes));
});

test('writing gives, byte for byte, what NumPy writes', () => {
  for (const name of [...elementTypes.map((type) => `${type}-little`), 'scalar', 'empty', 'vector']) {
    const bytes = fixture(`${name}.npy`);
    assert.deepEqual(Buffer.from(writeNpy(readNpy({ name, bytes }))), bytes, name);
  }
});

test('an aligned file is read without a copy', () => {
  const bytes = writeNpy(tensor('float32', [2], [1, 2]));
  assert.equal(readNpy({ name: 'x', bytes }).data.buffer, bytes.buffer);
});

test("Python 2's long integers and any spacing are accepted in a header", () => {
  const read = readNpy({ name: 'x', bytes: npy(`{"shape":(2L,1L) ,'descr':'|u1','fortran_order':False}  \n`, [7, 8]) });
  assert.deepEqual(
    [read.shape, [...read.data]],
    [
      [2, 1],
      [7, 8],
    ],
  );
});

test('non-numeric dtypes are refused by name', () => {
  const message = (name: string): string => {
    try {
      readNpy({ name: 'x.npy', bytes: fixture(`refused-${name}.npy`) });
    } catch (error) {
      assert.ok(error instanceof InputError);
      return error.message;
    }
    return 'accepted';
  };
  const of = (dtype: string): string =>
    `x.npy holds the NumPy dtype ${dtype}, which is not a number type; save it with .astype('float32') or an ` +
    'integer type.';
  assert.equal(message('text'), of("'<U3'"));
  assert.equal(message('complex'), of("'<c16'"));
  assert.equal(message('object'), of("'|O'"));
  assert.equal(message('structured'), of("[('a', '<i4'), ('b', '<f8')]"));
});

test('damage is reported with its position', () => {
  const good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
  const cases: [Uint8Array, string][] = [
    [Uint8Array.of(), 'at byte 0 the mark "\\x93NUMPY" is missing'],
    [Uint8Array.from([...npy(good).slice(0, 6), 4, 0, 0, 0]), 'at byte 6 version 4 is not 1, 2 or 3'],
    [npy(good).slice(0, 40), 'at byte 40 the file ends inside the header'],
    [npy(good, [0, 0, 0, 0, 0, 0, 0]), 'at byte 68 8 bytes are expected for [2] of float32, but 7 follow'],
    [npy(good, [0, 0, 0, 0, 0, 0, 0, 0, 0]), 'at byte 68 8 bytes are expected for [2] of float32, but 9 follow'],
    [npy(good.replace('(2,)', `(${'9'.repeat(12)}, ${'9'.repeat(12)})`)), 'too many bytes are expected'],
    [npy(good.replace('(2,)', `(${'9'.repeat(40)},)`)), 'is too large'],
    [npy(good.replace('False', 'None')), 'the header is not a dict of descr, fortran_order and shape'],
    [npy(good.replace("'shape': (2,), ", '')), 'the header is not a dict of descr, fortran_order and shape'],
    [npy(good.replace('(2,)', '(2, -1)')), 'the header is not a dict'],
    [npy(`{"descr": "<f4"${' '.repeat(60_000)}`), 'the header is not a Python dict'],
    [npy(`{'shape': (${' '.repeat(60_000)}L)}`), 'the header is not a dict'],
  ];
  for (const [bytes, problem] of cases) {
    assert.throws(
      () => readNpy({ name: 'x.npy', bytes }),
      (error) => {
        assert.ok(error instanceof InputError);
        assert.ok(error.message.startsWith('x.npy is not a valid npy file: at byte '), error.message);
        assert.ok(error.message.includes(problem), `${error.message} lacks ${problem}`);
        return true;
      },
    );
  }
});

test('4,000 mutations give arrays or InputError', () => {
  const originals = ['float32-little', 'fortran', 'bool-little', 'version2'].map((name) => fixture(`${name}.npy`));
  const { refusedCount } = fuzz(originals, 1000, (bytes) => readNpy({ name: 'x', bytes }));
  assert.ok(refusedCount > 1000, `${refusedCount} refused`);
});
