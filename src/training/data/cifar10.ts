// CIFAR-10's "binary version": records of one label byte and 3,072 pixel bytes (3x32x32). Source:
// cs.toronto.edu/~kriz/cifar.html.

import { wrap } from '../../graph/tensor.ts';
import { createDataset, type Dataset, inputField, labelField } from './dataset.ts';
import { damaged, type Source } from './source.ts';

const imageBytes = 3 * 32 * 32;
const recordBytes = 1 + imageBytes;

/**
 * Reads the files as one data set, in order: inputs uint8 [n, 3, 32, 32] gathered as value / 255. Throws InputError.
 */
export function readCifar10(files: readonly Source[]): Dataset {
  const sampleCount = files.reduce((sum, file) => sum + recordCount(file), 0);
  const images = new Uint8Array(sampleCount * imageBytes);
  const labels = new Uint8Array(sampleCount);
  let row = 0;
  for (const file of files) {
    for (let offset = 0; offset < file.bytes.length; offset += recordBytes, row++) {
      const label = file.bytes[offset] as number;
      if (label > 9) throw damaged(file, 'CIFAR-10', offset, `the label is ${label}, not 0…9`);
      labels[row] = label;
      images.set(file.bytes.subarray(offset + 1, offset + recordBytes), row * imageBytes);
    }
  }
  const source = files.map((file) => file.name).join(', ');
  const inputs = inputField('input', wrap('uint8', [sampleCount, 3, 32, 32], images), source);
  return createDataset('cifar10', [inputs], labelField(wrap('uint8', [sampleCount], labels), source), 10);
}

function recordCount(file: Source): number {
  const { length } = file.bytes;
  if (length === 0 || length % recordBytes !== 0) {
    throw damaged(file, 'CIFAR-10', length, `${length} bytes are not a whole number of records of ${recordBytes}`);
  }
  return length / recordBytes;
}
