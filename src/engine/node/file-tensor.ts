// Tensors whose elements lie in a file, in this machine's byte order.

import { closeSync, openSync, readSync } from 'node:fs';
import { join } from 'node:path';
import { RunError } from '../../errors.ts';
import {
  byteLength,
  type FilePlace,
  rereadTensor,
  type Tensor,
  type ValueType,
  viewBytes,
} from '../../graph/tensor.ts';

/** Each look at `data` reads the elements, and throws RunError where the file has become shorter. */
export function fileTensor({ type, shape }: ValueType, place: FilePlace): Tensor {
  return rereadTensor(type, shape, () => viewBytes(type, read(place, byteLength({ type, shape }))), place);
}

function read({ folder, file, offset }: FilePlace, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  const handle = openSync(join(folder, file), 'r');
  try {
    for (let filled = 0; filled < length; ) {
      const count = readSync(handle, bytes, filled, length - filled, offset + filled);
      if (count === 0)
        throw new RunError(`The weights in ${join(folder, file)} are cut off: somebody changed the file.`);
      filled += count;
    }
  } finally {
    closeSync(handle);
  }
  return bytes;
}
