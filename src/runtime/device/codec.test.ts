import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ProtocolError } from '../../errors.ts';
import { halfToNumber, numberToHalf } from '../../graph/operators/numbers.ts';
import { elementCount, type Tensor, tensor } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { decodeByte, decodeHalf, decodeTensors, encodeByte, encodeHalf, encodeTensors, pieceCodec } from './codec.ts';

const random = createRandom(20261121, 31);

/** Normal numbers over many powers of two, a third of them zeros. */
function spread(count: number, powers: number, largest: number): Float32Array {
  return Float32Array.from({ length: count }, () =>
    random.integer(3) === 0
      ? random.integer(2) === 0
        ? 0
        : -0
      : random.normal() * largest * 2 ** -random.integer(powers),
  );
}

test('halves are those of IEEE 754 after scaling, and come back exactly', () => {
  for (const values of [
    spread(20_000, 1, 1),
    spread(20_000, 45, 1),
    spread(20_000, 20, 1e-9),
    spread(20_000, 20, 1e30),
    spread(20_000, 10, 1e-36),
    spread(5_000, 3, 3e38).map((value) => (Number.isFinite(value) ? value : 3.4028234663852886e38)),
    Float32Array.of(3.4028234663852886e38, -3.4028234663852886e38, 1e38, 1e30, 0),
    Float32Array.of(Number.NaN, Number.POSITIVE_INFINITY, 1, -2, 0.1, 1e-9),
    Float32Array.of(0, -0),
    new Float32Array(0),
  ]) {
    const { data, scale } = encodeHalf(values);
    assert.ok(Number.isInteger(Math.log2(scale)));
    // Denormal float32 count as zero; a finite number never becomes infinite.
    const expected = Array.from(values, (value) =>
      Number.isFinite(value)
        ? numberToHalf(
            Math.sign(value) * Math.min(Math.abs(value) / scale, scale === 2 ** 113 ? 32_752 : 65_504) || value * 0,
          )
        : numberToHalf(value),
    ).map((half, index) => (Math.abs(values[index] as number) < 2 ** -126 ? half & 0x8000 : half));
    assert.deepEqual(Array.from(data), expected);
    assert.deepEqual(
      Array.from(decodeHalf(data as Uint16Array, scale)),
      expected.map((half) => Math.fround(halfToNumber(half) * scale)),
    );
  }
});

test('a half is within 2^-11 of its value, down to 2^-28 of the largest', () => {
  const values = spread(50_000, 27, 1e-3);
  const { data, scale } = encodeHalf(values);
  decodeHalf(data as Uint16Array, scale).forEach((found, index) => {
    const value = values[index] as number;
    assert.ok(Math.abs(found - value) <= Math.abs(value) * 2 ** -11 + scale * 2 ** -25, `${value} became ${found}`);
  });
});

test('8 bits: at most half a step is lost, and what is lost comes later', () => {
  const residual = new Float32Array(1_000);
  const wanted = new Float64Array(1_000);
  const sent = new Float64Array(1_000);
  for (let round = 0; round < 60; round++) {
    const values = spread(1_000, 6, 10 ** -(round % 4));
    const before = residual.slice();
    const { data, scale } = encodeByte(values, residual);
    const found = decodeByte(data as Int8Array, scale);
    values.forEach((value, index) => {
      wanted[index] = (wanted[index] as number) + value;
      sent[index] = (sent[index] as number) + (found[index] as number);
      const error = (found[index] as number) - (value + (before[index] as number));
      assert.ok(Math.abs(error) <= scale * 0.501, `round ${round}: ${error} of steps of ${scale}`);
      assert.ok(Math.abs((wanted[index] as number) - (sent[index] as number) - (residual[index] as number)) < 1e-4);
    });
  }
});

test('8 bits: nothing, zeros, and what is not finite', () => {
  const residual = new Float32Array(3);
  assert.deepEqual(encodeByte(new Float32Array(3), residual), { data: new Int8Array(3), scale: 0 });
  assert.deepEqual(encodeByte(Float32Array.of(127, -127, 63.6), residual), {
    data: Int8Array.of(127, -127, 64),
    scale: 1,
  });
  const { data, scale } = encodeByte(Float32Array.of(1, Number.POSITIVE_INFINITY, 2), new Float32Array(3));
  assert.ok(decodeByte(data as Int8Array, scale).every(Number.isNaN));
});

test('tensors of other types travel as they are; scales come last and are checked', () => {
  const tensors = [tensor('float32', [2, 1], [1, -3]), tensor('int64', [1], [7]), tensor('float32', [], [0.5])];
  const sent = encodeTensors(tensors);
  assert.deepEqual(
    sent.map(({ type, shape }) => [type, shape]),
    [
      ['float16', [2, 1]],
      ['int64', [1]],
      ['float16', []],
      ['float32', [2]],
    ],
  );
  const expected = tensors.map(({ type, shape }) => ({ type, shape }));
  assert.deepEqual(decodeTensors(sent, expected), tensors);
  const others = [tensor('int64', [1], [7]), tensor('float16', [1], [0.5])];
  assert.deepEqual(decodeTensors(encodeTensors(others), others), others);
  for (const scale of [3, -1, 0, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 120])
    assert.throws(
      () => decodeTensors([...sent.slice(0, 3), tensor('float32', [2], [1, scale])], expected),
      ProtocolError,
      `${scale}`,
    );
  assert.throws(() => decodeTensors(sent.slice(0, 3), expected), /lacks a scale/);
  assert.throws(() => decodeTensors([...sent, sent[1] as Tensor], expected), /should hold 3 tensors, not 5/);
  const long = [...sent.slice(0, 3), tensor('float32', [3], [1, 1, 1])];
  assert.throws(() => decodeTensors(long, expected), /should end with 2 scales and ends, not 3/);
});

test('tensors of a cut travel as levels for each sample where that pays, and say so themselves', () => {
  const many = (shape: readonly number[], at = 0): Tensor =>
    tensor(
      'float32',
      shape,
      Array.from({ length: elementCount(shape) }, (_, index) => Math.sin(index + at)),
    );
  const tensors = [many([3, 4, 20]), many([3, 5]), tensor('int64', [3], [1, 2, 3]), many([80, 3], 7)];
  const axes = [0, 0, 0, 1];
  for (const [encoding, bits] of [
    ['uint8', 8],
    ['uint6', 6],
    ['uint4', 4],
    ['uint2', 2],
  ] as const) {
    const sent = encodeTensors(tensors, encoding, axes);
    assert.deepEqual(
      sent.map(({ type, shape }) => [type, shape]),
      [
        ['uint8', [30 * bits]],
        ['float16', [3, 5]],
        ['int64', [3]],
        ['uint8', [30 * bits]],
        ['float32', [2 + 6 + 1 + 2 + 2]],
      ],
    );
    const back = decodeTensors(sent, tensors);
    for (const [index, { data }] of tensors.entries())
      if (index !== 2)
        for (const [at, found] of (back as readonly Tensor[])[index]?.data.entries() ?? [])
          assert.ok(Math.abs(Number(found) - Number(data[at])) <= 2 / (2 ** bits - 1), `${encoding}: ${found}`);
    // Of whatever encoding the last message was, the next may be another, or none.
    assert.deepEqual(decodeTensors(tensors, tensors), tensors);
    assert.throws(() => decodeTensors([sent[3] as Tensor, ...sent.slice(1)], tensors.slice(1)), ProtocolError);
  }
  const masked = many([2, 70]);
  (masked.data as Float32Array)[3] = Number.NEGATIVE_INFINITY;
  const sent = encodeTensors([masked], 'uint4');
  assert.equal(sent[0]?.type, 'float16');
  assert.equal(decodeTensors(sent, [masked])[0]?.data[3], Number.NEGATIVE_INFINITY);
});

test('pieces that are not as they should be are refused', () => {
  for (const encoding of [undefined, 'float16', 'int8'] as const) {
    const codec = pieceCodec(encoding, () => new Float32Array(4));
    const sent = codec.encode(Float32Array.of(1, 2, 3, 4), 0);
    assert.equal(codec.decode(sent, 4).length, 4);
    assert.throws(() => codec.decode(sent, 5), /should hold 5 (float32|float16|int8) elements, not 4 of/);
    assert.throws(() => codec.decode(undefined, 4), /not none/);
    assert.throws(() => codec.decode([tensor('uint8', [4], [1, 2, 3, 4]), ...sent.slice(1)], 4), /not 4 of uint8/);
    if (encoding !== undefined) assert.throws(() => codec.decode(sent.slice(0, 1), 4), ProtocolError);
    if (encoding !== undefined)
      assert.throws(
        () => codec.decode([...sent.slice(0, 1), tensor('float32', [1], [-1])], 4),
        /a scale of -1, which is out of range/,
      );
  }
});
