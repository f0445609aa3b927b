// Weights from files: safetensors.

import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import { scalar, type Tensor, tensor } from '../../graph/tensor.ts';
import { readSafetensors, writeSafetensors } from '../../training/safetensors.ts';
import { damagedBytes, damagedText, damagedValue, oneOf } from '../inputs.ts';
import type { Target } from '../target.ts';

/** Tensors of all types. */
export const sampleTensors: ReadonlyMap<string, Tensor> = new Map([
  ['conv.weight', tensor('float32', [2, 1, 2], [1, -2, 3, 0.5])],
  ['conv.bias', tensor('float32', [2], [0.25, -0.25])],
  ['steps', scalar('int64', 7)],
  ['mask', tensor('bool', [3], [1, 0, 1])],
  ['half', tensor('float16', [2, 2], [0, 15360, 1, 2])],
  ['empty', tensor('uint8', [0, 4], [])],
]);

/** A file's header, followed by its bytes. */
function fileOf(header: Uint8Array, data: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(8 + header.length + data.length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(header.length), true);
  bytes.set(header, 8);
  bytes.set(data, 8 + header.length);
  return bytes;
}

/** A safetensors file contains what was written. */
export function safetensorsTarget(): Target<Uint8Array> {
  const originals = [
    writeSafetensors(sampleTensors, new Map([['format', 'pt']])),
    writeSafetensors(new Map([...sampleTensors].slice(0, 2))),
  ].map((pieces) => Uint8Array.from(Buffer.concat(pieces)));
  const encoder = new TextEncoder();
  return {
    input(random) {
      const original = oneOf(originals, random);
      if (random.integer(2) === 0) return damagedBytes([original], random);
      const end = 8 + Number(new DataView(original.buffer).getBigUint64(0, true));
      const text = new TextDecoder().decode(original.subarray(8, end));
      const damaged =
        random.integer(4) === 0 ? damagedText(text, random) : JSON.stringify(damagedValue(JSON.parse(text), random));
      return fileOf(encoder.encode(damaged), original.subarray(end));
    },
    take(bytes) {
      const { tensors, metadata } = readSafetensors({ name: 'x.safetensors', bytes });
      const again = readSafetensors({
        name: 'x',
        bytes: Uint8Array.from(Buffer.concat(writeSafetensors(tensors, metadata))),
      });
      assert.ok(
        isDeepStrictEqual(again.metadata, metadata) && sameTensors(again.tensors, tensors),
        'a file that was written again is another',
      );
    },
  };
}

/** True if both have the same tensors by name, in any order. */
export function sameTensors(a: ReadonlyMap<string, Tensor>, b: ReadonlyMap<string, Tensor>): boolean {
  return a.size === b.size && [...a].every(([name, value]) => isDeepStrictEqual(value, b.get(name)));
}
