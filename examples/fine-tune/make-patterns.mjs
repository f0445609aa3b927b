// Makes made-up data for a classifier of sequences (docs/first-models.md): a random pattern for each class under four
// times as much noise, as NAME-train-x.npy, NAME-train-y.npy, NAME-test-x.npy and NAME-test-y.npy.
// Usage: node make-patterns.mjs NAME CLASSES STEPSxFEATURES TRAINING-SAMPLES TEST-SAMPLES

import { writeFileSync } from 'node:fs';

const noise = 4;

/** Mulberry32: the same numbers on every machine. */
function randomOf(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

const uniform = randomOf(1);
const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());

function writeNpy(path, descr, shape, data) {
  const dimensions = `${shape.join(', ')}${shape.length === 1 ? ',' : ''}`;
  const text = `{'descr': '${descr}', 'fortran_order': False, 'shape': (${dimensions}), }`;
  const header = `${text.padEnd(Math.ceil((text.length + 11) / 64) * 64 - 11)}\n`;
  const start = Buffer.from([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  writeFileSync(path, Buffer.concat([start, Buffer.from(header, 'latin1'), Buffer.from(data.buffer)]));
}

const [name, classes, sizes, trainCount, testCount] = process.argv.slice(2);
if (testCount === undefined) throw new Error('Give NAME CLASSES STEPSxFEATURES TRAINING-SAMPLES TEST-SAMPLES.');
const [steps, features] = sizes.split('x').map(Number);
const size = steps * features;
const patterns = Array.from({ length: Number(classes) }, () => Float32Array.from({ length: size }, normal));
for (const [part, count] of [
  ['train', Number(trainCount)],
  ['test', Number(testCount)],
]) {
  const samples = new Float32Array(count * size);
  const labels = new BigInt64Array(count);
  for (let sample = 0; sample < count; sample++) {
    const label = sample % patterns.length;
    labels[sample] = BigInt(label);
    for (let index = 0; index < size; index++)
      samples[sample * size + index] = patterns[label][index] + noise * normal();
  }
  writeNpy(`${name}-${part}-x.npy`, '<f4', [count, steps, features], samples);
  writeNpy(`${name}-${part}-y.npy`, '<i8', [count], labels);
}
