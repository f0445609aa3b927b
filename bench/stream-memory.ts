// Memory of workers, predicted and measured, in asynchronous runs and synchronous ones beside them: three workers run a
// given plan for some rounds; each says at its end what its process took at most (VmHWM, Linux). Held against the
// prediction, 160 MiB for the process included, plus 10 % and 30 MiB; exit code 1 where a worker takes more.
//   npm run bench -- stream-memory [--steps 20] [--only 224] [--json]

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { processMiB } from '../dist/cluster/memory.js';
import { table } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    steps: { type: 'string', default: '20' },
    only: { type: 'string', default: '' },
    json: { type: 'boolean', default: false },
  },
});

interface Model {
  readonly flags: readonly string[];
  readonly batch: number;
  /** Where stages end. */
  readonly ends: readonly number[];
}

const models = {
  digits: { flags: ['--model', 'digits', '--data', 'mnist'], batch: 32, ends: [2, 4, 6] },
  'mobilenet-v2, 28 pixels': {
    flags: ['--model', 'mobilenet-v2:input=28,channels=1', '--data', 'mnist'],
    batch: 32,
    ends: [36, 51, 54],
  },
  'mobilenet-v2, 224 pixels': {
    flags: ['--model', 'mobilenet-v2:classes=10', '--data', 'synthetic:3x224x224:10:64'],
    batch: 8,
    ends: [12, 30, 54],
  },
  '31 M weights': {
    flags: [
      '--model',
      `mlp:features=784,hidden=${Array(8).fill(2048).join('-')},classes=10`,
      '--data',
      'synthetic:784:10:640',
    ],
    batch: 32,
    ends: [3, 6, 9],
  },
} as const satisfies Readonly<Record<string, Model>>;

interface Case {
  readonly model: keyof typeof models;
  readonly schedule: 'async' | '1f1b';
  readonly microBatchCount: number;
  /** The second and the third worker share one stage. */
  readonly isReplicated?: boolean;
  readonly more?: readonly string[];
}

const [small, large] = ['mobilenet-v2, 28 pixels', 'mobilenet-v2, 224 pixels'] as const;
const heavy = '31 M weights';
const none = ['--staleness-correction', 'none'];
const cases: readonly Case[] = [
  { model: 'digits', schedule: 'async', microBatchCount: 1, more: none },
  { model: small, schedule: '1f1b', microBatchCount: 1 },
  { model: small, schedule: 'async', microBatchCount: 1, more: none },
  { model: small, schedule: 'async', microBatchCount: 1, more: [...none, '--staleness', '4'] },
  { model: small, schedule: 'async', microBatchCount: 1, more: ['--staleness-correction', 'predict'] },
  { model: small, schedule: 'async', microBatchCount: 1, more: ['--staleness-correction', 'nesterov'] },
  {
    model: small,
    schedule: 'async',
    microBatchCount: 1,
    isReplicated: true,
    more: [...none, '--replicate-batch-norm'],
  },
  { model: small, schedule: 'async', microBatchCount: 1, more: [...none, '--replicate-every', '0'] },
  { model: small, schedule: 'async', microBatchCount: 4, more: none },
  { model: large, schedule: '1f1b', microBatchCount: 1 },
  { model: large, schedule: '1f1b', microBatchCount: 4 },
  { model: large, schedule: 'async', microBatchCount: 1, more: none },
  { model: large, schedule: 'async', microBatchCount: 4, more: none },
  { model: large, schedule: 'async', microBatchCount: 1, more: ['--staleness-correction', 'nesterov'] },
  { model: heavy, schedule: '1f1b', microBatchCount: 4 },
  { model: heavy, schedule: '1f1b', microBatchCount: 4, more: ['--replicate-every', '1'] },
  { model: heavy, schedule: '1f1b', microBatchCount: 4, more: ['--replicate-every', '0'] },
  { model: heavy, schedule: '1f1b', microBatchCount: 4, isReplicated: true },
  { model: heavy, schedule: 'async', microBatchCount: 4, more: none },
];

/** What a worker took at most, and what was predicted, MiB. */
interface Worker {
  readonly device: string;
  readonly measuredMiB: number;
  readonly predictedMiB: number;
}

function planOf({ model, schedule, microBatchCount, isReplicated = false }: Case): unknown {
  const { batch, ends } = models[model];
  const microBatchSize = batch / microBatchCount;
  const groups = isReplicated ? [['worker-1'], ['worker-2', 'worker-3']] : [['worker-1'], ['worker-2'], ['worker-3']];
  const last = groups.length - 1;
  const stages = groups.map((devices, stage) => ({
    layers: [stage === 0 ? 0 : ends[stage - 1], stage === last ? ends[2] : ends[stage]],
    devices,
    samples: devices.map(() => microBatchSize / devices.length),
    inFlight: last - stage + 1,
  }));
  return { planner: 'by hand', schedule, batchSize: batch, microBatchSize, microBatchCount, stages };
}

type Event = Readonly<Record<string, unknown>> & { readonly event: string };

function measured(one: Case): readonly Worker[] {
  const folder = mkdtempSync(join(tmpdir(), 'stream-memory-'));
  try {
    const plan = join(folder, 'plan.json');
    writeFileSync(plan, JSON.stringify(planOf(one)));
    const { batch, flags: modelFlags } = models[one.model];
    const args = [
      ...['train', ...modelFlags, '--workers', '3', '--plan', plan, '--batch', String(batch), '--steps', flags.steps],
      ...['--micro-batch', String(batch / one.microBatchCount), '--optimizer', 'adam', '--lr', '0.001', '--json'],
      ...['--eval-every', '0', '--out', join(folder, 'run'), ...(one.more ?? [])],
    ];
    const command = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
    const ended = spawnSync(process.execPath, [command, ...args], { encoding: 'utf8', maxBuffer: 2 ** 30 });
    if (ended.status !== 0) throw new Error(ended.stderr);
    const events = ended.stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Event);
    const deployed = events.find(({ event }) => event === 'deployment') as
      | { readonly plan: { readonly predicted: { readonly peakMemoryMiB: Readonly<Record<string, number>> } } }
      | undefined;
    return Object.entries(deployed?.plan.predicted.peakMemoryMiB ?? {}).map(([device, stageMiB]) => {
      const own = events.filter((each) => each.event === 'statistics' && each['device'] === device);
      const measuredMiB = Math.max(...own.map(({ peakMemoryMiB }) => Number(peakMemoryMiB)));
      return { device, measuredMiB, predictedMiB: processMiB + stageMiB };
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const title = ({ model, schedule, microBatchCount, isReplicated = false, more = [] }: Case): string =>
  [model, schedule, `M = ${microBatchCount}`, ...(isReplicated ? ['last stage replicated'] : []), ...more].join(' ');

const limitMiB = ({ predictedMiB }: Worker): number => 1.1 * predictedMiB + 30;

const listed = (workers: readonly Worker[], value: (worker: Worker) => number): string =>
  workers.map((worker) => value(worker).toFixed(0)).join(', ');

const results = cases
  .filter((one) => title(one).includes(flags.only))
  .map((one) => {
    const workers = measured(one).toSorted((a, b) => (a.device < b.device ? -1 : 1));
    const isWithin = workers.length === 3 && workers.every((each) => each.measuredMiB <= limitMiB(each));
    console.error(
      `${title(one)}: ${listed(workers, ({ measuredMiB }) => measuredMiB)} MiB${isWithin ? '' : ', TOO MUCH'}`,
    );
    return { title: title(one), workers, isWithin };
  });
if (flags.json) console.log(JSON.stringify(results));
else {
  const rows = results.map(({ title: name, workers, isWithin }) => [
    name,
    listed(workers, ({ measuredMiB }) => measuredMiB),
    listed(workers, ({ predictedMiB }) => predictedMiB),
    listed(workers, limitMiB),
    isWithin ? 'yes' : 'NO',
  ]);
  console.log(table(['run', 'measured', 'predicted', 'limit', 'within'], rows));
}
if (results.some(({ isWithin }) => !isWithin)) process.exitCode = 1;
