// Makes the example's data: strips of handwritten digits as the text-direction classifier takes them, 3x48x192 with
// values −1 to 1. The task `directions` turns half of them upside down (label 1); `digits` has strips of one digit by
// several hands, whose label is the digit. Training strips are made of the training digits, test strips of the test
// digits.
// Usage: node make-data.mjs [directions|digits [FOLDER [TRAINING-STRIPS [TEST-STRIPS]]]]

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { loadDataset } from '../../dist/node.js';

const [height, width] = [48, 192];

/** Mulberry32: the same strips on every machine. */
function randomOf(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Draws one digit of 28x28 into the strip, `size` pixels high and wide, ink as the darker value wins. */
function drawDigit(strip, pixels, left, top, size) {
  const scale = 28 / size;
  for (let y = 0; y < size; y++) {
    for (let x = 0; x < size; x++) {
      if (left + x >= width || top + y >= height) continue;
      const [sy, sx] = [Math.min(26.999, y * scale), Math.min(26.999, x * scale)];
      const [y0, x0] = [Math.floor(sy), Math.floor(sx)];
      const [fy, fx] = [sy - y0, sx - x0];
      const at = (row, column) => pixels[row * 28 + column];
      const ink =
        (1 - fy) * ((1 - fx) * at(y0, x0) + fx * at(y0, x0 + 1)) +
        fy * ((1 - fx) * at(y0 + 1, x0) + fx * at(y0 + 1, x0 + 1));
      const place = (top + y) * width + left + x;
      strip[place] = Math.min(strip[place], 255 - ink);
    }
  }
}

/** Four to six of these digits in a row, dark on light. */
function strip(images, choices, random) {
  const result = new Float32Array(height * width).fill(255);
  const digitCount = 4 + Math.floor(random() * 3);
  for (let index = 0, left = 2; index < digitCount; index++) {
    const size = 34 + Math.floor(random() * 8);
    const digit = choices[Math.floor(random() * choices.length)];
    drawDigit(
      result,
      images.subarray(digit * 784, digit * 784 + 784),
      left,
      Math.floor(random() * (height - size)),
      size,
    );
    left += Math.floor(size * 0.78);
  }
  return result;
}

/** The bits of a half-precision number; enough for −1 to 1. */
function half(value) {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size < 2 ** -14) return sign | Math.round(size * 2 ** 24);
  const exponent = Math.floor(Math.log2(size));
  return sign | Math.round((exponent + 15 + size / 2 ** exponent - 1) * 1024);
}

function writeNpy(path, descr, shape, data) {
  const dimensions = `${shape.join(', ')}${shape.length === 1 ? ',' : ''}`;
  const text = `{'descr': '${descr}', 'fortran_order': False, 'shape': (${dimensions}), }`;
  const header = `${text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11)}\n`;
  const start = Buffer.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  writeFileSync(path, Buffer.concat([start, Buffer.from(header, 'latin1'), Buffer.from(data.buffer)]));
}

const [task = 'directions', folder = 'data', trainCount = '1600', testCount = '400'] = process.argv.slice(2);
if (!['directions', 'digits'].includes(task)) throw new Error(`The task ${task} must be directions or digits.`);
const counts = { train: Number(trainCount), test: Number(testCount) };
mkdirSync(folder, { recursive: true });
const halves = Uint16Array.from({ length: 256 }, (_, level) => half(level / 127.5 - 1));
const digits = await loadDataset('mnist');
for (const [part, seed] of [
  ['train', 1],
  ['test', 2],
]) {
  const random = randomOf(seed);
  const { inputs, labels: numbers } = digits[part];
  const images = inputs[0].values.data;
  const all = Array.from(numbers.values.data, (_, index) => index);
  const byDigit = Array.from({ length: 10 }, (_, digit) =>
    all.filter((index) => Number(numbers.values.data[index]) === digit),
  );
  const count = counts[part];
  const pixels = new Uint16Array(count * 3 * height * width);
  const labels = new BigInt64Array(count);
  for (let index = 0; index < count; index++) {
    const label = task === 'digits' ? index % 10 : index % 2;
    const pixelsOf = strip(images, task === 'digits' ? byDigit[label] : all, random);
    if (task === 'directions' && label === 1) pixelsOf.reverse();
    const plane = Uint16Array.from(pixelsOf, (level) => halves[Math.round(level)]);
    for (let channel = 0; channel < 3; channel++) pixels.set(plane, (index * 3 + channel) * height * width);
    labels[index] = BigInt(label);
  }
  writeNpy(join(folder, `${part}-strips.npy`), '<f2', [count, 3, height, width], pixels);
  writeNpy(join(folder, `${part}-${task}.npy`), '<i8', [count], labels);
}
console.log(`${counts.train} strips to train and ${counts.test} to test in ${folder}`);
