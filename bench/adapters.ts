// LoRA over three worker processes beside PEFT on one device: losses step by step, the workers' peaks of memory beside
// the plan's prediction, tokens a second:
//   npm run bench -- adapters [--models minilm,gpt2,smollm] [--python FILE] [--steps 50] [--limits 230,450,450]
//     [--batch 4] [--sequence 32] [--checkpoint DIR --texts FILE.csv] [--no-copies] [--micro-batch N] [--folder DIR]
//     [--json]
// `--limits`: MiB of each worker (--max-memory), by model; the last one is that of the others, too. `--checkpoint`:
// weights for the first model, instead of random ones; `--texts`: its data, a CSV with the columns text and label.
// `--no-copies`: no stage is copied to another device (--replicate-every 0). Each model's result is a file of its own
// in bench/results/. Exit code 1 where losses differ by more than 1e-3, a worker takes more than the prediction and
// 10 % and 30 MiB, or one worker alone would do.

import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import type { Plan } from '../dist/cluster/cluster.js';
import { median } from '../dist/statistics.js';
import { machine } from './common/numbers.ts';
import { freePort, listening, startAsteroid, startWorker } from './common/remote-workers.ts';
import { table, writeResult } from './common/table.ts';

const { values } = parseArgs({
  options: {
    models: { type: 'string', default: 'minilm,gpt2,smollm' },
    limits: { type: 'string', default: '230,450,450' },
    python: { type: 'string', default: process.env['PYTHON'] ?? 'python3' },
    steps: { type: 'string', default: '50' },
    batch: { type: 'string', default: '4' },
    sequence: { type: 'string', default: '32' },
    threads: { type: 'string', default: '2' },
    checkpoint: { type: 'string' },
    texts: { type: 'string' },
    'no-copies': { type: 'boolean', default: false },
    'micro-batch': { type: 'string' },
    folder: { type: 'string', default: tmpdir() },
    json: { type: 'boolean', default: false },
  },
});
const [steps, batch, threads] = [values.steps, values.batch, values.threads].map(Number) as [number, number, number];
const learningRate = 0.001;

/** What PEFT did. */
interface Theirs {
  readonly losses: readonly number[];
  readonly samplesPerS: number;
  readonly sequence: number;
  readonly peakMiB: number;
  readonly parameters: number;
  readonly trained: number;
}

interface Worker {
  readonly name: string;
  readonly layers: string;
  readonly peakMiB: number;
  /** The process and its part of the model. */
  readonly predictedMiB: number;
}

interface Ours {
  readonly losses: readonly number[];
  readonly samplesPerS: number;
  readonly workers: readonly Worker[];
  /** What a plan for one such worker says; undefined: it would do. */
  readonly alone: string | undefined;
}

/** What came of a model. */
interface Result {
  readonly model: string;
  readonly limitMiB: number;
  /** The most by which the losses of a step differ. */
  readonly difference: number;
  readonly theirs: Theirs;
  readonly ours: Ours;
}

type Line = Readonly<Record<string, unknown>> & { readonly event: string };

const results: Result[] = [];
const models = values.models.split(',');
for (const [index, model] of models.entries()) {
  const folder = mkdtempSync(join(values.folder, 'asteroid-adapters-'));
  try {
    const limitMiB = Number(values.limits.split(',').at(index) ?? values.limits.split(',').at(-1));
    const given = index === 0 ? texts() : {};
    const theirs = peft(folder, model, given);
    const ours = await train(folder, { theirs, limitMiB, data: 'texts' in given ? `text:${given.texts}` : undefined });
    const difference = ours.losses.reduce(
      (most, loss, step) => Math.max(most, Math.abs(loss - (theirs.losses[step] ?? Number.NaN))),
      0,
    );
    const result = { model, limitMiB, difference, theirs, ours };
    results.push(result);
    report(result);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

process.exitCode = results.every(isMet) ? 0 : 1;

function texts(): Readonly<Record<string, string>> {
  const { checkpoint, texts: file } = values;
  return {
    ...(checkpoint === undefined ? {} : { checkpoint: resolve(checkpoint) }),
    ...(file === undefined ? {} : { texts: resolve(file) }),
  };
}

function peft(folder: string, model: string, given: Readonly<Record<string, string>>): Theirs {
  const script = fileURLToPath(new URL('../bench/adapters_pytorch.py', import.meta.url));
  const settings = { model, steps, batch, sequence: Number(values.sequence), threads, lr: learningRate, ...given };
  const ended = spawnSync(values.python, [script, folder, JSON.stringify(settings)], { encoding: 'utf8' });
  if (ended.status !== 0) throw new Error(`${ended.error?.message ?? ''}${ended.stderr}`);
  return JSON.parse(ended.stdout.trim().split('\n').at(-1) ?? '') as Theirs;
}

interface Subject {
  readonly theirs: Theirs;
  readonly limitMiB: number;
  readonly data: string | undefined;
}

/** The same training by `asteroid train` and three workers. */
async function train(folder: string, { theirs, limitMiB, data = 'npz:data.npz' }: Subject): Promise<Ours> {
  const port = await freePort();
  const model = ['--model', `net:sequence=${theirs.sequence},dropout=0`, '--data', data, '--adapter', 'start'];
  const length = data.startsWith('text:') ? ['--max-length', `${theirs.sequence}`] : [];
  const sizes = ['--batch', `${batch}`, '--steps', `${steps}`, '--no-shuffle', '--seed', '0', '--out', 'run', '--json'];
  const rule = ['--optimizer', 'adamw', '--lr', `${learningRate}`, '--weight-decay', '0.01', '--eval-every', '0'];
  const place = ['--workers', '0', '--remote', '3', '--port', `${port}`, '--code-file', 'code', '--insecure'];
  const copies = values['no-copies'] ? ['--replicate-every', '0'] : [];
  const micro = values['micro-batch'] === undefined ? [] : ['--micro-batch', values['micro-batch']];
  const coordinator = startAsteroid(folder, [
    'train',
    ...model,
    ...length,
    ...sizes,
    ...rule,
    ...place,
    ...copies,
    ...micro,
  ]);
  await listening(folder, coordinator);
  const names = ['a', 'b', 'c'];
  const devices = names.map((name) =>
    startWorker(folder, port, name, ['--max-memory', `${limitMiB}`, '--threads', '1']),
  );
  const lines = await coordinator.ended.finally(() => {
    for (const { child } of devices) child.kill('SIGTERM');
  });
  await Promise.all(devices.map(({ ended }) => ended));
  const events = lines.map((line) => JSON.parse(line) as Line);
  const rounds = events.filter(({ event }) => event === 'round');
  return {
    losses: rounds.map(({ loss }) => loss as number),
    samplesPerS: median(rounds.slice(1).map(({ samplesPerS }) => samplesPerS as number)),
    workers: workersOf(folder, events),
    alone: alone(folder, limitMiB),
  };
}

/** What each worker took, beside what the last plan predicted for it. */
function workersOf(folder: string, events: readonly Line[]): readonly Worker[] {
  const plan = JSON.parse(readFileSync(join(folder, 'run/plan.json'), 'utf8')) as Plan;
  const peaks = new Map(
    events.filter(({ event }) => event === 'statistics').map((line) => [line['device'], line['peakMemoryMiB']]),
  );
  return plan.stages.flatMap(({ devices, layers }) =>
    devices.map((name) => ({
      name,
      layers: `${layers[0]}–${layers[1] - 1}`,
      peakMiB: Number(peaks.get(name)),
      predictedMiB: 160 + (plan.predicted?.peakMemoryMiB[name] ?? Number.NaN),
    })),
  );
}

/** Whether one worker with this limit could have trained it. */
function alone(folder: string, limitMiB: number): string | undefined {
  const cluster = { devices: [{ name: 'a', memoryMiB: limitMiB - 160 }], links: { default: { bandwidthMbps: 1000 } } };
  mkdirSync(join(folder, 'alone'), { recursive: true });
  writeFileSync(join(folder, 'alone/cluster.json'), JSON.stringify(cluster));
  const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
  const args = ['plan', '--profile', 'run/profile.json', '--cluster', 'alone/cluster.json', '--batch', `${batch}`];
  const ended = spawnSync(process.execPath, [main, ...args], { cwd: folder, encoding: 'utf8' });
  return ended.status === 0 ? undefined : ended.stderr.trim().replace(/^asteroid: /, '');
}

/** What a worker may take at most, where so much is predicted. */
function mostMiB({ predictedMiB }: Worker): number {
  return 1.1 * predictedMiB + 30;
}

function isMet({ difference, ours: { workers, alone: refusal } }: Result): boolean {
  return difference <= 1e-3 && workers.every((worker) => worker.peakMiB <= mostMiB(worker)) && refusal !== undefined;
}

function textOf(result: Result): string {
  const { model, limitMiB, difference, theirs, ours } = result;
  const row = [
    model,
    `${(theirs.parameters / 1e6).toFixed(1)} M`,
    theirs.trained.toLocaleString('en'),
    difference.toExponential(1),
    (ours.samplesPerS * theirs.sequence).toFixed(0),
    (theirs.samplesPerS * theirs.sequence).toFixed(0),
    (ours.samplesPerS / theirs.samplesPerS).toFixed(2),
    theirs.peakMiB.toFixed(0),
  ];
  const peaks = ours.workers.map((worker) => [
    ...[worker.name, worker.layers, worker.peakMiB.toFixed(0), worker.predictedMiB.toFixed(0)],
    ...[(worker.peakMiB / worker.predictedMiB).toFixed(2), mostMiB(worker).toFixed(0)],
  ]);
  const head = [
    'model',
    'weights',
    'trained',
    'losses differ by',
    'tokens/s, 3 workers',
    'PEFT',
    'ratio',
    'PEFT, peak MiB',
  ];
  return [
    table(head, [row]),
    `Workers of ${limitMiB} MiB${values['no-copies'] ? ', without copies for the case of a loss' : ''}:`,
    table(['worker', 'layers', 'peak MiB', 'predicted', 'ratio', 'may take'], peaks),
    `One such worker alone: ${ours.alone ?? 'it would do'}`,
    isMet(result) ? 'As planned.' : '**Not as planned.**',
  ].join('\n\n');
}

/** Prints and writes a model's result. */
function report(result: Result): void {
  const text = textOf(result);
  console.log(values.json ? JSON.stringify(result) : `${text}\n`);
  const what = `${steps} steps of ${batch} samples, PEFT with ${threads} threads on one device`;
  const size = values['micro-batch'];
  const apart = [values['no-copies'] ? '-no-copies' : '', size === undefined ? '' : `-micro-batch-${size}`].join('');
  const title = `Adapters of ${result.model} over three workers, beside PEFT`;
  writeResult(
    `adapters-${result.model}${apart}`,
    (date) => `# ${title} (${date})\n\n${machine()}. ${what}.\n\n${text}\n`,
  );
}
