// Makes the example's data of the handwritten digits: nine tenths of those for training are the old data, a tenth the
// new, photographed as negatives (dark on light). Each has pictures to test on of its own kind: all test digits.
// Usage: node make-data.mjs [FOLDER]

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadDataset } from '../../dist/node.js';

const pixelCount = 28 * 28;

/** A NumPy file; `descr` is its element type. */
function npy(descr, shape, data) {
  const text = `{'descr': '${descr}', 'fortran_order': False, 'shape': (${shape.join(', ')},), }`;
  const header = `${text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11)}\n`;
  const start = Buffer.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  return Buffer.concat([start, Buffer.from(header, 'latin1'), Buffer.from(data.buffer)]);
}

const [folder = 'data'] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });

/** Writes the chosen samples of a part, as they are or as negatives. */
function write(name, { inputs, labels, rows }, choose, isNegative) {
  const chosen = Array.from(rows ?? labels.values.data, (row, index) => (rows ? row : index)).filter(choose);
  const pixels = new Uint8Array(chosen.length * pixelCount);
  for (const [index, row] of chosen.entries()) {
    const picture = inputs[0].values.data.subarray(row * pixelCount, (row + 1) * pixelCount);
    pixels.set(isNegative ? picture.map((level) => 255 - level) : picture, index * pixelCount);
  }
  const numbers = Uint8Array.from(chosen, (row) => Number(labels.values.data[row]));
  writeFileSync(join(folder, `${name}-pictures.npy`), npy('|u1', [chosen.length, 1, 28, 28], pixels));
  writeFileSync(join(folder, `${name}-digits.npy`), npy('|u1', [chosen.length], numbers));
  console.log(`${name}: ${chosen.length} pictures`);
}

const { train, test } = await loadDataset('mnist');
write('old', train, (_, index) => index % 10 !== 0, false);
write('new', train, (_, index) => index % 10 === 0, true);
write('old-test', test, () => true, false);
write('new-test', test, () => true, true);
