// Writes .npz files: arrays by name, stored as they are.

import { crc32 } from '../../dist/checksum.js';
import type { Tensor } from '../../dist/graph/tensor.js';
import { writeNpy } from '../../dist/training/data/npy.js';

/** The bytes of an .npz file. */
export function writeNpz(arrays: ReadonlyMap<string, Tensor>): Buffer {
  const [local, central]: [Buffer[], Buffer[]] = [[], []];
  let offset = 0;
  for (const [name, array] of arrays) {
    const file = Buffer.from(`${name}.npy`);
    const bytes = Buffer.from(writeNpy(array));
    // Version, flags, method (stored), time, date, checksum, both sizes, the name's length, none of more fields.
    const common = Buffer.alloc(26);
    common.writeUInt16LE(20, 0);
    common.writeUInt32LE(crc32(bytes), 10);
    common.writeUInt32LE(bytes.length, 14);
    common.writeUInt32LE(bytes.length, 18);
    common.writeUInt16LE(file.length, 22);
    const place = Buffer.alloc(14);
    place.writeUInt32LE(offset, 10);
    const entry = Buffer.concat([signature(0x04034b50), common, file, bytes]);
    central.push(Buffer.concat([signature(0x02014b50), Buffer.from([20, 0]), common, place, file]));
    local.push(entry);
    offset += entry.length;
  }
  const directory = Buffer.concat(central);
  const end = Buffer.alloc(18);
  end.writeUInt16LE(arrays.size, 4);
  end.writeUInt16LE(arrays.size, 6);
  end.writeUInt32LE(directory.length, 8);
  end.writeUInt32LE(offset, 12);
  return Buffer.concat([...local, directory, signature(0x06054b50), end]);
}

function signature(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}
