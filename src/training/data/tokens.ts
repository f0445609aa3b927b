// Text for next-token training: blocks of `blockLength` tokens, each with the same block shifted by one token as its
// labels. Tokens are the integers of a one-dimensional .npy file, or the bytes of a text. The last tenth of the blocks
// is for testing (a random choice would leak).

import { InputError } from '../../errors.ts';
import { type ElementArray, isFloat, type Tensor, wrap } from '../../graph/tensor.ts';
import type { Datasets } from './arrays.ts';
import { createDataset, type Dataset, inferClassCount, labelField, subset } from './dataset.ts';
import { readNpy } from './npy.ts';
import type { Source } from './source.ts';

/** Default block length. */
export const defaultBlockLength = 128;

/** Inputs and labels int64 [blocks, blockLength], views of one array. Throws InputError. */
export function readTokens(source: Source, blockLength: number): Datasets {
  const tokens = source.bytes[0] === 0x93 ? readNpy(source) : wrap('uint8', [source.bytes.length], source.bytes);
  if (tokens.shape.length !== 1 || isFloat(tokens.type) || tokens.type === 'bool') {
    throw new InputError(
      `${source.name} holds [${tokens.shape.join(', ')}] of ${tokens.type}; tokens are one row of integers.`,
    );
  }
  const blockCount = Math.floor((tokens.data.length - 1) / blockLength);
  if (blockCount < 2) {
    throw new InputError(
      `${source.name} has ${tokens.data.length} tokens, too few for two blocks of ${blockLength}; take a ` +
        'longer text or a shorter block.',
    );
  }
  const all = blocksOf(source, tokens, blockCount, blockLength);
  const testCount = Math.max(1, Math.floor(blockCount / 10));
  const range = (start: number, end: number): Uint32Array =>
    Uint32Array.from({ length: end - start }, (_, index) => start + index);
  return {
    train: subset(all, range(0, blockCount - testCount)),
    test: subset(all, range(blockCount - testCount, blockCount)),
  };
}

function blocksOf(source: Source, tokens: Tensor, blockCount: number, blockLength: number): Dataset {
  const shape = [blockCount, blockLength];
  const from = (start: number): Tensor =>
    wrap(tokens.type, shape, tokens.data.subarray(start, start + blockCount * blockLength) as ElementArray);
  const labels = labelField(from(1), source.name);
  const input = { name: 'input_ids', values: from(0), type: 'int64', divisor: 1, source: source.name } as const;
  const classCount = source.bytes[0] === 0x93 ? inferClassCount(labels) : 256;
  return createDataset(source.name, [input], labels, classCount);
}
