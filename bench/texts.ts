// What batches of texts of like length spare: seconds of an epoch with and without --group-by-length, of an encoder of
// MiniLM's shape with random weights, on texts of random lengths (by default log-normal: most short, few long).
//   npm run bench -- texts [--workers 0,3] [--samples 480] [--median 14] [--spread 0.6] [--max-length 64] [--batch 16]
//     [--layers 6] [--width 384] [--checkpoint DIR --texts FILE.csv] [--json]
// `--checkpoint` and `--texts`: real ones, with a tokenizer in the folder. The first of two epochs is left out: it
// compiles. Writes bench/results/.

import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { buildCheckout } from '../dist/models/checkout/build.js';
import { createRandom } from '../dist/random.js';
import { writeSafetensors } from '../dist/training/safetensors.js';
import { machine, sum } from './common/numbers.ts';
import { table, writeResult } from './common/table.ts';

const { values: options } = parseArgs({
  options: {
    workers: { type: 'string', default: '0,3' },
    samples: { type: 'string', default: '480' },
    median: { type: 'string', default: '14' },
    spread: { type: 'string', default: '0.6' },
    'max-length': { type: 'string', default: '64' },
    batch: { type: 'string', default: '16' },
    layers: { type: 'string', default: '6' },
    width: { type: 'string', default: '384' },
    checkpoint: { type: 'string' },
    texts: { type: 'string' },
    json: { type: 'boolean', default: false },
  },
});
const [layers, width, batch] = [Number(options.layers), Number(options.width), Number(options.batch)];
const source = (path: string): string => fileURLToPath(new URL(`../${path}`, import.meta.url));

/** A checkout with random weights. */
function writeCheckout(folder: string): void {
  const config = {
    ...{ model_type: 'bert', vocab_size: 30_522, hidden_size: width, num_hidden_layers: layers },
    ...{ num_attention_heads: width / 32, intermediate_size: 4 * width, max_position_embeddings: 512 },
  };
  mkdirSync(folder);
  writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
  const { initializers, parameters } = buildCheckout(config, 'config.json', { classes: 4, sequence: 8 }).graph;
  const weights = new Map([...initializers].filter(([name]) => parameters.includes(name)));
  const pieces = writeSafetensors(weights);
  writeFileSync(join(folder, 'model.safetensors'), Buffer.concat(pieces.map((piece) => Buffer.from(piece))));
  copyFileSync(source('test/fixtures/texts/tokenizer.json'), join(folder, 'tokenizer.json'));
}

/** Texts of so many words, each of one token. */
function writeTexts(file: string): void {
  const random = createRandom(1);
  const rows = Array.from({ length: Number(options.samples) }, (_, index) => {
    const count = Math.round(Number(options.median) * Math.exp(Number(options.spread) * random.normal()));
    return `${Array.from({ length: Math.max(1, count) }, () => 'film').join(' ')},${index % 4}`;
  });
  writeFileSync(file, `text,label\n${rows.join('\n')}\n`);
}

interface Line {
  readonly event: string;
  readonly round: number;
  readonly samplesPerS: number;
  readonly message: string;
}

/** Seconds of the second epoch, and what was said of lengths. */
function epoch(folder: string, workers: number, flags: readonly string[]): { seconds: number; notes: string[] } {
  const model = options.checkpoint === undefined ? join(folder, 'model') : resolve(options.checkpoint);
  const texts = options.texts === undefined ? join(folder, 'texts.csv') : resolve(options.texts);
  const args = ['train', '--model', model, '--data', `text:${texts}`, '--batch', `${batch}`, '--epochs', '2', '--json'];
  args.push('--max-length', options['max-length'], '--lora', 'query', '--lora', 'value', '--optimizer', 'adamw');
  args.push(
    '--workers',
    `${workers}`,
    '--drop-last',
    '--out',
    join(folder, `run-${workers}-${flags.length}`),
    ...flags,
  );
  const ended = spawnSync(process.execPath, [source('dist/cli/main.js'), ...args], { encoding: 'utf8' });
  if (ended.status !== 0) throw new Error(ended.stderr);
  const lines = ended.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Line);
  const rounds = lines.filter(({ event }) => event === 'round');
  const notes = lines
    .filter(({ event, message }) => event === 'note' && /tokens/.test(message))
    .map((line) => line.message);
  return { seconds: sum(rounds.slice(rounds.length / 2).map(({ samplesPerS }) => batch / samplesPerS)), notes };
}

const folder = mkdtempSync(join(tmpdir(), 'asteroid-texts-'));
try {
  if (options.checkpoint === undefined) writeCheckout(join(folder, 'model'));
  if (options.texts === undefined) writeTexts(join(folder, 'texts.csv'));
  const results = options.workers.split(',').map((workers) => {
    const [whole, grouped] = [
      epoch(folder, Number(workers), []),
      epoch(folder, Number(workers), ['--group-by-length']),
    ];
    return { workers, whole: whole.seconds, grouped: grouped.seconds, notes: grouped.notes };
  });
  const rows = results.map(({ workers, whole, grouped }) => [
    ...[workers, whole.toFixed(1), grouped.toFixed(1), (whole / grouped).toFixed(2)],
  ]);
  const head = ['workers', 'padded to the longest, s', '--group-by-length, s', 'times as fast'];
  const text = `${table(head, rows)}\n\n${(results[0]?.notes ?? []).map((note) => `- ${note}`).join('\n')}\n`;
  console.log(options.json ? JSON.stringify(results) : text);
  const what = options.texts ?? `${options.samples} texts of ${options.median} tokens in the median`;
  writeResult('texts', (date) => `# An epoch of short texts (${date})\n\n${machine()}. Data: ${what}.\n\n${text}`);
} finally {
  rmSync(folder, { recursive: true });
}
