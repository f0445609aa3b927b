// What compressed links do to the loss: the same run with plain links, halves, and halves with 8-bit sums; and what
// the codec costs.
// Usage: npm run bench -- compression [--steps N]

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { PlanLayout } from '../dist/cluster/cluster.js';
import type { Compression } from '../dist/cluster/compression.js';
import { loadFrom } from './common/build.ts';
import { percent, sum } from './common/numbers.ts';
import { tableHead, tableRow } from './common/table.ts';

const { values: flags } = parseArgs({
  options: { dist: { type: 'string', default: 'dist' }, steps: { type: 'string', default: '100' } },
});
const load = loadFrom(flags.dist);
const folder = mkdtempSync(join(tmpdir(), 'asteroid-compression-'));
const steps = Number(flags.steps);

/** Two stages, the second on two devices: activations, gradients and sums all travel. */
function planOf(layers: number, batch: number, compression: Compression | undefined): Omit<PlanLayout, 'planner'> {
  const stages: PlanLayout['stages'] = [
    { layers: [0, layers >> 1], devices: ['a'], samples: [batch / 4], inFlight: 3 },
    { layers: [layers >> 1, layers], devices: ['b', 'c'], samples: [batch / 8, batch / 8], inFlight: 1 },
  ];
  return {
    schedule: '1f1b',
    batchSize: batch,
    microBatchSize: batch / 4,
    microBatchCount: 4,
    stages,
    ...(compression && { compression }),
  };
}

interface TrainEvent {
  readonly event: string;
  readonly loss: number;
  readonly accuracy: number;
}

function train(name: string, args: readonly string[], plan: Omit<PlanLayout, 'planner'>) {
  const [planFile, out] = [join(folder, `${name}.json`), join(folder, name)];
  writeFileSync(planFile, JSON.stringify(plan));
  const command = [
    'train',
    ...args,
    '--plan',
    planFile,
    '--batch',
    String(plan.batchSize),
    '--workers',
    '3',
    '--steps',
    String(steps),
    '--out',
    out,
    '--json',
  ];
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(flags.dist, 'cli/main.js'), ...command], {
    encoding: 'utf8',
    maxBuffer: 2 ** 30,
  });
  if (status !== 0) throw new Error(stderr);
  const events = stdout
    .split('\n')
    .filter(Boolean)
    .map((line) => JSON.parse(line) as TrainEvent);
  const losses = events.flatMap((event) => (event.event === 'round' ? [event.loss] : []));
  return { losses, evaluation: events.findLast((event) => event.event === 'evaluated') };
}

const half = { activation: 'float16', gradient: 'float16' } as const;
const modes: (readonly [string, Compression | undefined])[] = [
  ['none', undefined],
  ['float16', { ...half, allReduce: 'float16' }],
  ['int8', { ...half, allReduce: 'int8' }],
  ['int8, sums only', { allReduce: 'int8' }],
];
const cases: (readonly [string, readonly string[], string, number])[] = [
  [
    'digits (MNIST), Adam 0.002',
    ['--model', 'digits', '--data', 'mnist', '--optimizer', 'adam', '--lr', '0.002', '--eval-every', '0'],
    'digits',
    64,
  ],
  [
    'small CNN (fashion on MNIST), SGD 0.05, momentum 0.9',
    [
      '--model',
      'fashion',
      '--data',
      'mnist',
      '--optimizer',
      'sgd',
      '--lr',
      '0.05',
      '--momentum',
      '0.9',
      '--eval-every',
      '0',
    ],
    'fashion',
    64,
  ],
];
try {
  const { buildModel } = await load('models/zoo.js');
  const { layers } = await load('graph/layers.js');
  console.log(
    tableHead([
      'run',
      'links',
      'mean loss of the last 20 steps',
      'largest difference of a step to plain links',
      'accuracy on test data',
    ]),
  );
  for (const [title, args, model, batch] of cases) {
    const layerCount = layers(buildModel(model).graph).layers.length;
    let plain: readonly number[] | undefined;
    for (const [index, [mode, compression]] of modes.entries()) {
      const { losses, evaluation } = train(`${model}-${index}`, args, planOf(layerCount, batch, compression));
      plain ??= losses;
      const last = sum(losses.slice(-20)) / Math.min(20, losses.length);
      const worst = Math.max(...losses.map((loss, step) => Math.abs(loss - (plain?.[step] ?? Number.NaN))));
      const accuracy = evaluation === undefined ? '' : percent(evaluation.accuracy);
      const cells = [`${title}, ${losses.length} steps`, mode, last.toFixed(4), worst.toExponential(1), accuracy];
      console.log(tableRow(cells));
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}

const { encodeHalf, decodeHalf, encodeByte, decodeByte } = await load('runtime/device/codec.js');
const count = 2 ** 20;
const values = Float32Array.from({ length: count }, (_, index) =>
  index % 2 === 0 ? 0 : Math.sin(index) * Math.exp(-(index % 97) / 10),
);
const residual = new Float32Array(count);
const [halves, bytes] = [encodeHalf(values), encodeByte(values, residual)];
console.log('\n| codec | ns an element, best of 30 |\n| --- | --- |');
for (const [name, run] of [
  ['float32 to half', () => encodeHalf(values)],
  ['half to float32', () => decodeHalf(halves.data as Uint16Array, halves.scale)],
  ['float32 to 8 bits with residual', () => encodeByte(values, residual)],
  ['8 bits to float32', () => decodeByte(bytes.data as Int8Array, bytes.scale)],
] as const) {
  let best = Number.POSITIVE_INFINITY;
  for (let turn = 0; turn < 30; turn++) {
    const startMs = performance.now();
    run();
    best = Math.min(best, performance.now() - startMs);
  }
  console.log(`| ${name} | ${((best * 1e6) / count).toFixed(1)} |`);
}
