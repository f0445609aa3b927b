// Loading of pictures: JPEGs of 500x375 to augmented inputs of 3x224x224, beside torchvision's DataLoader on the same
// cores; and how much longer rounds of MobileNetV2 are than on data that are in memory.
// Usage: npm run bench -- loading [--json] [--python FILE] [--threads 2] [--epochs 3]
//   [--pictures 320] [--steps 12] [--skip-training]
// Writes bench/results/. Rates are medians over epochs; cached: the second and later epochs with everything decoded.

import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import sharp from 'sharp';
import { createRandom } from '../dist/random.js';
import { median } from '../dist/statistics.js';
import { loadDataset } from '../dist/storage/node/datasets.js';
import { batchOf } from '../dist/training/data/batch.js';
import { defaultDataSettings } from '../dist/training/data/data-settings.js';
import { writeNpy } from '../dist/training/data/npy.js';
import { batchIndices, roundsPerEpoch } from '../dist/training/data/order.js';
import { machine, percent } from './common/numbers.ts';
import { table, writeResult } from './common/table.ts';

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    python: { type: 'string', default: process.env['PYTHON'] ?? 'python3' },
    threads: { type: 'string', default: '2' },
    epochs: { type: 'string', default: '3' },
    pictures: { type: 'string', default: '320' },
    steps: { type: 'string', default: '12' },
    'skip-training': { type: 'boolean', default: false },
  },
});
const [threads, epochs, batch] = [Number(options.threads), Number(options.epochs), 32];
const [pictureCount, classCount] = [Number(options.pictures), 4];
const augment = 'random-resized-crop,flip,color-jitter';

/** Photographs' sizes and spectrum: noise at three scales, enlarged smoothly. */
async function writePhotos(folder: string): Promise<void> {
  for (let index = 0; index < pictureCount; index++) {
    const random = createRandom(index);
    const [width, height] = [125, 94];
    const pixels = Uint8Array.from({ length: width * height * 3 }, (_, at) => {
      const wave = 60 * Math.sin(at / 97 + index) + 40 * Math.cos(at / (31 * width));
      return Math.max(0, Math.min(255, 128 + wave + 40 * random.normal()));
    });
    const place = join(folder, `class-${index % classCount}`);
    mkdirSync(place, { recursive: true });
    const raw = { width, height, channels: 3 as const };
    await sharp(pixels, { raw })
      .resize(500, 375, { kernel: 'cubic' })
      .jpeg({ quality: 90 })
      .toFile(join(place, `${index}.jpg`));
  }
}

/** Samples a second of each epoch but the first, which starts the threads and, with a cache, fills it. */
async function ourRate(folder: string, dataCache: number): Promise<number> {
  const settings = { ...defaultDataSettings, augment, dataThreads: threads, dataCache };
  const { train } = await loadDataset(`images:${folder}`, { settings });
  const order = { sampleCount: train.sampleCount, batchSize: batch, seed: 0, shuffle: true };
  const rounds = roundsPerEpoch(order);
  const rates: number[] = [];
  for (let epoch = 0; epoch <= epochs; epoch++) {
    const start = performance.now();
    // Two batches at a time, as a run reads ahead.
    for (let round = 0; round < rounds; round += 2)
      await Promise.all(
        [round, round + 1]
          .filter((each) => each < rounds)
          .map((each) => batchOf(train, batchIndices(order, epoch * rounds + each), { round: each, epoch })),
      );
    rates.push((rounds * batch * 1000) / (performance.now() - start));
  }
  return median(rates.slice(1));
}

function torchRate(folder: string): number | undefined {
  const script = fileURLToPath(new URL('../bench/loading_pytorch.py', import.meta.url));
  const ended = spawnSync(options.python, [script, folder, `${threads}`, `${batch}`, `${epochs}`], {
    encoding: 'utf8',
  });
  if (ended.status !== 0) return undefined;
  return (JSON.parse(ended.stdout) as { samplesPerS: number }).samplesPerS;
}

/** A few samples in arrays: made-up data of a spec `synthetic:` would be drawn while the run waits for them. */
function writeArrays(folder: string): string {
  const random = createRandom(0);
  const [count, size] = [4 * 16, 3 * 224 * 224];
  const [x, y] = [join(folder, 'x.npy'), join(folder, 'y.npy')];
  const data = Float32Array.from({ length: count * size }, () => random.normal());
  writeFileSync(x, writeNpy({ type: 'float32', shape: [count, 3, 224, 224], data }));
  const labels = BigInt64Array.from({ length: count }, (_, index) => BigInt(index % classCount));
  writeFileSync(y, writeNpy({ type: 'int64', shape: [count], data: labels }));
  return `npy:${x},${y}`;
}

/** Of MobileNetV2 in one process: median seconds of a round, and the part of all rounds that waited for data. */
function rounds(data: readonly string[], out: string): { readonly seconds: number; readonly waiting: number } {
  const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
  const model = `mobilenet-v2:classes=${classCount}`;
  const args = ['train', '--model', model, '--batch', '16', '--steps', options.steps, '--json', '--out', out, ...data];
  const ended = spawnSync(process.execPath, [main, ...args], { encoding: 'utf8' });
  if (ended.status !== 0) throw new Error(ended.stderr);
  const lines = ended.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as { event: string; samplesPerS: number; dataWaitMs?: number })
    .filter(({ event }) => event === 'round')
    .slice(2);
  const seconds = lines.map(({ samplesPerS }) => 16 / samplesPerS);
  const waited = lines.reduce((sum, { dataWaitMs = 0 }) => sum + dataWaitMs / 1000, 0);
  return { seconds: median(seconds), waiting: waited / seconds.reduce((sum, each) => sum + each, 0) };
}

const folder = mkdtempSync(join(tmpdir(), 'asteroid-loading-'));
try {
  const photos = join(folder, 'photos');
  await writePhotos(photos);
  const [fresh, cached, theirs] = [await ourRate(photos, 0), await ourRate(photos, 1024), torchRate(photos)];
  const training = options['skip-training']
    ? undefined
    : {
        inMemory: rounds(['--data', writeArrays(folder)], join(folder, 'a')),
        fromFiles: rounds(['--data', `images:${photos}`, '--augment', augment], join(folder, 'b')),
      };
  const slower = training && training.fromFiles.seconds / training.inMemory.seconds - 1;
  const result = { machine: machine(), threads, fresh, cached, torchvision: theirs, training, slower };
  if (options.json) console.log(JSON.stringify(result));
  const ratio = (rate: number): string => (theirs === undefined ? '' : (rate / theirs).toFixed(2));
  const rows = [
    ['decoded each time', fresh.toFixed(0), ratio(fresh)],
    ['from the cache', cached.toFixed(0), ratio(cached)],
    ['torchvision, DataLoader', theirs?.toFixed(0) ?? 'not measured', ''],
  ];
  const rates = table([`loader, ${threads} threads`, 'samples/s', 'over torchvision'], rows);
  const summary =
    training === undefined
      ? ''
      : `\nA round of MobileNetV2 with 16 samples takes ${training.inMemory.seconds.toFixed(2)} s on data in memory ` +
        `and ${training.fromFiles.seconds.toFixed(2)} s on pictures, ${percent(slower ?? 0)} longer: ` +
        `${percent(training.fromFiles.waiting)} of the time devices wait for data.\n`;
  if (!options.json) console.log(`${rates}\n${summary}`);
  writeResult('loading', (date) => `# Loading of pictures (${date})\n\n${machine()}.\n\n${rates}\n${summary}`);
} finally {
  rmSync(folder, { recursive: true });
}
