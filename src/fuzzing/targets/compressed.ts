// Tensors that arrive over a link in fewer bits.

import assert from 'node:assert/strict';
import { type ActivationEncoding, activationEncodingNames, type SumEncoding } from '../../cluster/compression.ts';
import type { CutTensor } from '../../graph/layers.ts';
import { type ElementType, type Tensor, tensor, viewBytes } from '../../graph/tensor.ts';
import type { Random } from '../../random.ts';
import { encodeTensors, pieceCodec } from '../../runtime/device/codec.ts';
import { checkPiece, decodedPiece } from '../../runtime/device/pieces.ts';
import { oneOf, randomBytes } from '../inputs.ts';
import type { Target } from '../target.ts';

interface CompressedInput {
  /** Of a piece of a sum; absent: an activation of three float tensors and one of integers, for two samples. */
  readonly encoding?: SumEncoding;
  readonly tensors: readonly Tensor[];
}

const cuts: readonly CutTensor[] = [
  { name: 'x', type: 'float32', shape: ['N', 3], batchAxis: 0, differentiable: true },
  { name: 'ids', type: 'int64', shape: ['N', 2], batchAxis: 0, differentiable: false },
  { name: 'y', type: 'float32', shape: [2, 'N'], batchAxis: 1, differentiable: true },
  { name: 'z', type: 'float32', shape: ['N', 65], batchAxis: 0, differentiable: true },
];
const pieceLength = 16;
const strange: readonly number[] = [
  0,
  -0,
  1,
  -1,
  1e-45,
  1e-38,
  3.4e38,
  -3.4e38,
  65504,
  2 ** -24,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
];
const types: readonly ElementType[] = ['float32', 'float16', 'int8', 'uint8', 'int64'];

function values(count: number, random: Random): number[] {
  const isStrange = random.integer(3) === 0;
  return Array.from({ length: count }, () => (isStrange ? oneOf(strange, random) : random.normal()));
}

function encoded(encoding: SumEncoding | undefined, random: Random): readonly Tensor[] {
  const floats = (shape: readonly number[]): Tensor =>
    tensor(
      'float32',
      shape,
      values(
        shape.reduce((product, size) => product * size, 1),
        random,
      ),
    );
  if (encoding === undefined)
    return encodeTensors(
      [floats([2, 3]), tensor('int64', [2, 2], [1, 2, 3, 4]), floats([2, 2]), floats([2, 65])],
      oneOf<ActivationEncoding>(activationEncodingNames, random),
      [0, 0, 1, 0],
    );
  return pieceCodec(encoding, () => new Float32Array(pieceLength)).encode(
    Float32Array.from(values(pieceLength, random)),
    0,
  );
}

/** A tensor with other bytes, another type, another length. */
function damaged(original: Tensor, random: Random): Tensor {
  const { type, shape, data } = original;
  switch (random.integer(4)) {
    case 0: {
      const bytes = Uint8Array.from({ length: data.byteLength }, () => random.integer(256));
      return { type, shape, data: viewBytes(type, bytes) } as Tensor;
    }
    case 1: {
      const other = oneOf(types, random);
      return tensor(other, shape, new Array(data.length).fill(1));
    }
    case 2: {
      const bytes = randomBytes(random, 40);
      return { type: 'uint8', shape: [bytes.length], data: bytes };
    }
    default:
      return type === 'float32'
        ? tensor('float32', shape, values(data.length, random))
        : tensor(type, [data.length + 1], new Array(data.length + 1).fill(0));
  }
}

/** An arrival is refused, or has the expected length, and is finite if its scale and its numbers are. */
export function compressedTarget(): Target<CompressedInput> {
  return {
    input(random) {
      const encoding = oneOf(['float16', 'int8', undefined] as const, random);
      const tensors = [...encoded(encoding, random)];
      const at = random.integer(tensors.length);
      const kind = random.integer(8);
      if (kind === 0) tensors.splice(at, 1);
      else if (kind === 1) tensors.push(tensors[at] as Tensor);
      else if (kind < 6) tensors[at] = damaged(tensors[at] as Tensor, random);
      return { tensors, ...(encoding === undefined ? {} : { encoding }) };
    },
    take({ encoding, tensors }) {
      if (encoding !== undefined) {
        const decoded = pieceCodec(encoding, () => new Float32Array(pieceLength)).decode(tensors, pieceLength);
        assert.equal(decoded.length, pieceLength);
        return;
      }
      const what = { what: 'activation 0', from: 'b' };
      const decoded = decodedPiece(tensors, cuts, [0, 2]);
      checkPiece(decoded, cuts, [0, 2], what);
      // A decoded tensor can be sent again.
      for (const again of activationEncodingNames)
        checkPiece(decodedPiece(encodeTensors(decoded, again), cuts, [0, 2]), cuts, [0, 2], what);
    },
  };
}
