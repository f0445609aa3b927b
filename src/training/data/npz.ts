// NumPy's .npz: a zip of .npy files. datasetsFromArrays (arrays.ts) determines the arrays' meaning.

import type { Tensor } from '../../graph/tensor.ts';
import { readNpy } from './npy.ts';
import { type Inflate, type Source, shownName } from './source.ts';
import { readZip } from './zip.ts';

/** All arrays by name (without ".npy"), in the file's order. Throws InputError. */
export function readNpz(source: Source, inflate: Inflate): Map<string, Tensor> {
  const arrays = new Map<string, Tensor>();
  for (const [name, bytes] of readZip(source, inflate)) {
    if (!name.endsWith('.npy')) continue;
    arrays.set(name.slice(0, -4), readNpy({ name: `${source.name} (${shownName(name)})`, bytes }));
  }
  return arrays;
}
