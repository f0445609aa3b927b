import assert from 'node:assert/strict';
import { test } from 'node:test';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { ProtocolError, RunError } from '../errors.ts';
import { allocate, type ElementType, elementTypes, scalar, type Tensor, tensor, tensorBytes } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { decodeFrame, defaultFrameLimits, encodeFrame } from './frame.ts';
import type { Frame } from './link.ts';

const plain: Frame = { kind: 'commit', epoch: 7, round: 3, microBatch: -1 };

/** Puts a frame's parts into one buffer, at an offset that is a multiple of 8. */
function bytesOf(frame: Frame, checksum = true): Uint8Array {
  return Uint8Array.from(Buffer.concat(encodeFrame(frame, { checksum })));
}

test('a frame without content is one head of 56 bytes, in the documented layout', () => {
  const bytes = bytesOf(plain);
  assert.equal(bytes.length, 56);
  assert.equal(Buffer.from(bytes.subarray(0, 4)).toString(), 'AST1');
  assert.deepEqual([...bytes.subarray(4, 8)], [1, 6, 0, 0]);
  assert.deepEqual([...new Int32Array(bytes.buffer, 8, 3)], [7, 3, -1]);
  assert.deepEqual([...new Uint32Array(bytes.buffer, 20, 4)], [56, 0, 1, 56]);
  assert.equal(Buffer.from(bytes.subarray(48, 56)).toString(), 'commit\0\0');
  assert.deepEqual(decodeFrame(bytes), plain);
});

test('control data is any JSON; none, null and false are different', () => {
  for (const control of [null, false, 0, '', [], {}, { a: [1, { b: 'ü' }] }])
    assert.deepEqual(decodeFrame(bytesOf({ ...plain, control })), { ...plain, control });
  assert.equal('control' in decodeFrame(bytesOf(plain)), false);
});

test('all element types travel, empty and of every rank, at multiples of 8, as views', () => {
  const tensors = elementTypes.flatMap((type): Tensor[] => [
    scalar(type, 1),
    tensor(type, [3], [0, 1, 1]),
    { type, shape: [2, 0, 5], data: allocate(type, 0) },
    tensor(type, [1, 1, 1, 1, 1, 1, 1, 2], [1, 0]),
  ]);
  const bytes = bytesOf({ ...plain, tensors });
  const decoded = decodeFrame(bytes);
  assert.deepEqual(decoded.tensors, tensors);
  for (const { data } of decoded.tensors ?? []) {
    assert.equal(data.buffer, bytes.buffer);
    assert.equal(data.byteOffset % 8, 0);
  }
});

test('encoding copies no tensor: the parts are its own memory', () => {
  const value = tensor('float32', [2], [1, 2]);
  const parts = encodeFrame({ ...plain, tensors: [value, value] });
  assert.deepEqual(
    parts.map(({ length }) => length),
    [72, 8, 8],
  );
  assert.equal(parts[1]?.buffer, value.data.buffer);
  assert.equal(parts[2]?.buffer, value.data.buffer);
});

test('bytes at an odd address are decoded too, by copying', () => {
  const frame = { ...plain, tensors: [tensor('float64', [2], [1.5, -2.5])] };
  const bytes = bytesOf(frame);
  const shifted = new Uint8Array(bytes.length + 3);
  shifted.set(bytes, 3);
  assert.deepEqual(decodeFrame(shifted.subarray(3)), frame);
});

test('any frame survives the round trip', () => {
  const shapes = fc.array(fc.integer({ min: 0, max: 4 }), { maxLength: 4 });
  const tensors = fc.array(
    fc
      .tuple(fc.constantFrom(...elementTypes), shapes, fc.integer())
      .map(([type, shape, seed]) => randomTensor(type, shape, seed)),
    { minLength: 1, maxLength: 5 },
  );
  const frames = fc.record(
    {
      kind: fc.stringMatching(/^[a-z][a-z0-9-]{0,31}$/),
      epoch: fc.nat({ max: 2 ** 32 - 1 }),
      round: fc.integer({ min: -1, max: 2 ** 31 - 1 }),
      microBatch: fc.integer({ min: -1, max: 2 ** 31 - 1 }),
      control: fc.jsonValue({ maxDepth: 4 }),
      tensors,
    },
    { requiredKeys: ['kind', 'epoch', 'round', 'microBatch'] },
  );
  const check = (frame: Frame, checksum: boolean): void => {
    // JSON knows no −0.
    const expected =
      frame.control === undefined ? frame : { ...frame, control: JSON.parse(JSON.stringify(frame.control)) as unknown };
    assert.deepEqual(decodeFrame(bytesOf(frame, checksum)), { ...expected });
  };
  fc.assert(fc.property(frames, fc.boolean(), check), { seed: 20261121, numRuns: 500 });
});

function randomTensor(type: ElementType, shape: readonly number[], seed: number): Tensor {
  const data = allocate(
    type,
    shape.reduce((product, dimension) => product * dimension, 1),
  );
  const value = { type, shape, data };
  const bytes = tensorBytes(value);
  const random = createRandom(seed);
  for (let index = 0; index < bytes.length; index++) bytes[index] = random.integer(256);
  return value;
}

test('each flipped bit of a frame is found', () => {
  const bytes = bytesOf({
    ...plain,
    control: { loss: 0.5 },
    tensors: [tensor('float32', [3], [1, 2, 3]), tensor('uint8', [3], [1, 2, 3])],
  });
  for (let bit = 0; bit < bytes.length * 8; bit++) {
    const flipped = bytes.slice();
    flipped[bit >> 3] = (flipped[bit >> 3] as number) ^ (1 << (bit & 7));
    const inPadding = bit >> 3 >= bytes.length - 3 - 4 && bit >> 3 < bytes.length - 3;
    if (inPadding) decodeFrame(flipped);
    else assert.throws(() => decodeFrame(flipped), ProtocolError, `bit ${bit}`);
  }
});

test('the tensors’ checksum is optional on both sides', () => {
  const frame = { ...plain, tensors: [tensor('uint8', [1], [7])] };
  const damaged = { ...plain, tensors: [tensor('uint8', [1], [6])] };
  for (const [checksum, verify] of [
    [false, true],
    [true, false],
  ] as const) {
    const bytes = bytesOf(frame, checksum);
    bytes[bytes.length - 1] = 6;
    assert.deepEqual(decodeFrame(bytes, defaultFrameLimits, { verify }), damaged);
  }
});

/** A head with its checksum made right again after a change. */
function forged(frame: Frame, change: (view: DataView) => void): Uint8Array {
  const bytes = bytesOf(frame, false);
  const view = new DataView(bytes.buffer);
  const headBytes = view.getUint32(20, true);
  change(view);
  view.setUint32(44, crc32(bytes.subarray(48, headBytes), crc32(bytes.subarray(0, 44))), true);
  return bytes;
}

test('every wrong field has its own sentence', () => {
  const frame = { ...plain, control: [], tensors: [tensor('float32', [2], [1, 2])] };
  const cases: readonly (readonly [RegExp, (view: DataView) => void])[] = [
    [/^the bytes are no frame/, (view) => view.setUint8(0, 0)],
    [/^the frame has version 2, this program speaks 1/, (view) => view.setUint8(4, 2)],
    [/^the frame has \d+ bytes, more than the limit/, (view) => view.setUint32(36, 1, true)],
    [/^the frame has 65535 tensors, more than the limit of 4096$/, (view) => view.setUint16(6, 65_535, true)],
    [
      /^the frame has 4294967295 bytes of control data, more than the limit/,
      (view) => view.setUint32(24, 0xffffffff, true),
    ],
    [/^the frame's head cannot have 8 bytes$/, (view) => view.setUint32(20, 8, true)],
    [/^the frame's head cannot have 4294967288 bytes$/, (view) => view.setUint32(20, 0xfffffff8, true)],
    [/^the frame has the unknown flags 2$/, (view) => view.setUint32(28, 2, true)],
    [/^the frame's kind is not made of/, (view) => view.setUint8(48, 0x41)],
    [/^the commit frame has round -2 and micro-batch -1$/, (view) => view.setInt32(12, -2, true)],
    [/^tensor 0 of the frame has the unknown element type 8$/, (view) => view.setUint8(54, 8)],
    [/^tensor 0 of the frame has rank 9, more than 8$/, (view) => view.setUint8(55, 9)],
    [/^the frame's head is cut short$/, (view) => view.setUint8(55, 8)],
    [/^tensor 0 of the frame, of shape \[3\], reaches beyond the frame's end$/, (view) => view.setUint32(56, 3, true)],
    [/^the frame has 72 bytes where its tensors end at 68$/, (view) => view.setUint32(56, 1, true)],
    [/^the control data of the commit frame is no valid JSON$/, (view) => view.setUint8(60, 0x7b)],
    [/^the control data of the commit frame is no valid JSON$/, (view) => view.setUint8(61, 0xff)],
  ];
  for (const [message, change] of cases) {
    const bytes = forged(frame, change);
    assert.throws(
      () => decodeFrame(bytes),
      (error) => error instanceof ProtocolError && message.test(error.message),
      `${message}`,
    );
  }
  const bytes = bytesOf(frame);
  assert.throws(
    () => decodeFrame(bytes.subarray(0, 71)),
    /^ProtocolError: the frame has 71 bytes where it announces 72$/,
  );
  assert.throws(() => decodeFrame(bytes.subarray(0, 50)), /^ProtocolError: the frame's head is cut short$/);
  assert.throws(
    () => decodeFrame(bytes.subarray(0, 47)),
    /^ProtocolError: a frame of 47 bytes is shorter than its head$/,
  );
});

test('deep nesting is refused before it is parsed; brackets in strings do not count', () => {
  const nested = (depth: number): unknown => (depth === 0 ? '[[["\\"[[[{{{' : [nested(depth - 1)]);
  const frame = { ...plain, control: nested(32) };
  assert.deepEqual(decodeFrame(bytesOf(frame)), frame);
  assert.throws(() => decodeFrame(bytesOf({ ...plain, control: nested(33) })), /nests deeper than 32 levels$/);
});

test('a dimension of zero among huge ones allocates nothing', () => {
  const bytes = forged(
    { ...plain, tensors: [{ type: 'float32', shape: [0, 0, 0], data: new Float32Array(0) }] },
    (view) => {
      view.setUint32(56, 0xffffffff, true);
      view.setUint32(60, 0xffffffff, true);
    },
  );
  assert.deepEqual(decodeFrame(bytes).tensors, [
    { type: 'float32', shape: [4294967295, 4294967295, 0], data: new Float32Array(0) },
  ]);
});

test('what cannot be sent is an error of the sender', () => {
  const data = new Float32Array(3);
  assert.throws(() => encodeFrame({ ...plain, kind: 'Commit' }), /is no frame kind/);
  assert.throws(() => encodeFrame({ ...plain, epoch: -1 }), /has epoch -1/);
  assert.throws(() => encodeFrame({ ...plain, round: 1.5 }), /round or micro-batch of 1.5/);
  assert.throws(
    () => encodeFrame({ ...plain, tensors: [{ type: 'float32', shape: [2], data }] }),
    /float32 tensor of shape \[2\] with 3 elements/,
  );
  assert.throws(
    () => encodeFrame({ ...plain, tensors: [{ type: 'float32', shape: [3, 1, 1, 1, 1, 1, 1, 1, 1], data }] }),
    /rank 9/,
  );
  const limits = { ...defaultFrameLimits, frameBytes: 64, controlBytes: 4, tensorCount: 1 };
  const wrapped: Tensor = { type: 'float32', shape: [3], data };
  assert.throws(() => encodeFrame({ ...plain, control: 'abc' }, { limits }), RunError);
  assert.throws(
    () => encodeFrame({ ...plain, tensors: [wrapped] }, { limits }),
    /76 bytes, more than the 64 a link takes/,
  );
  assert.throws(() => encodeFrame({ ...plain, tensors: [wrapped, wrapped] }, { limits }), /2 tensors, more than the 1/);
});

test('20,000 random and mutated frames: decoded or refused, nothing else', () => {
  const random = createRandom(20261121, 6);
  const samples = [
    bytesOf(plain),
    bytesOf(
      {
        ...plain,
        control: {
          plan: [
            [0, 3],
            [3, 9],
          ],
          text: '\\"[',
        },
      },
      false,
    ),
    bytesOf({
      ...plain,
      tensors: [tensor('float32', [2, 2], [1, 2, 3, 4]), scalar('int64', 3), tensor('bool', [3], [1, 0, 1])],
    }),
    bytesOf({ ...plain, control: [null], tensors: [tensor('float16', [0, 4], [])] }, false),
  ];
  let decodedCount = 0;
  for (let run = 0; run < 20_000; run++) {
    const sample = samples[random.integer(samples.length)] as Uint8Array;
    const bytes =
      run % 4 === 0
        ? Uint8Array.from({ length: random.integer(200) }, () => random.integer(256))
        : mutate(sample, random);
    if (run % 8 === 1) repairChecksum(bytes);
    try {
      decodeFrame(bytes);
      decodedCount++;
    } catch (error) {
      if (!(error instanceof ProtocolError))
        throw new Error(`run ${run}: ${Buffer.from(bytes).toString('hex')}`, { cause: error });
      assert.match(error.message, /^[^\n]{10,300}$/);
    }
  }
  // Some mutations repair themselves or hit padding; nearly all must be refused.
  assert.ok(decodedCount > 0 && decodedCount < 2_000, `${decodedCount} decoded`);
});

function mutate(sample: Uint8Array, random: ReturnType<typeof createRandom>): Uint8Array {
  let bytes = sample.slice();
  for (let count = 1 + random.integer(4); count > 0; count--) {
    const at = random.integer(bytes.length);
    const choice = random.integer(5);
    if (choice === 0) bytes[at] = random.integer(256);
    else if (choice === 1) bytes[at] = (bytes[at] as number) ^ (1 << random.integer(8));
    else if (choice === 2) bytes = bytes.slice(0, Math.max(1, at));
    else if (choice === 3)
      bytes = Uint8Array.from([...bytes.slice(0, at), ...bytes.slice(random.integer(bytes.length))]);
    else
      new DataView(bytes.buffer).setUint32(
        Math.min(at, Math.max(0, bytes.length - 4)) & ~3,
        [0, 0xffffffff, 0x7fffffff, 0x80000000][random.integer(4)] as number,
        true,
      );
    if (bytes.length < 4) return bytes;
  }
  return bytes;
}

/** Makes the head's checksum right, so that the checks behind it are reached. */
function repairChecksum(bytes: Uint8Array): void {
  if (bytes.length < 48) return;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const headBytes = Math.min(view.getUint32(20, true), bytes.length);
  view.setUint32(44, crc32(bytes.subarray(48, headBytes), crc32(bytes.subarray(0, 44))), true);
}
