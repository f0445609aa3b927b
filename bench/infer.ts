// `asteroid infer` beside stock ONNX Runtime (full optimization, one thread) on the whole model, for ten models: how
// far outputs are from stock's by plans of every form (cuts at random places, replicas, micro-batches, a smaller last
// batch), and how fast one worker is. Stock and worker take turns.
//   python bench/infer_models.py FOLDER          (four models by timm and transformers)
//   npm run bench -- infer --exported FOLDER [--json] [--samples 11] [--timed 48] [--batch 8] [--repeats 3] [MODEL …]
// MODEL: a built-in model or an .onnx file, instead of the ten. --repeats 0 times nothing. Wanted: differences of at
// most 1e-5 of the largest output, and a ratio of at least 0.95. Exits with 1 where a difference is larger.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import * as runtime from 'onnxruntime-node';
import { defined } from '../dist/assert.js';
import { layers } from '../dist/graph/layers.js';
import { exportGraph } from '../dist/graph/onnx/export.js';
import { elementCount, type Tensor } from '../dist/graph/tensor.js';
import { loadInferenceModel } from '../dist/runtime/host/models.js';
import { median } from '../dist/statistics.js';
import { readNpy } from '../dist/training/data/npy.js';
import { builtIn, exported, plansOf, samplesOf } from './common/inference-cases.ts';
import { writeNpz } from './common/npz.ts';
import { table } from './common/table.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    json: { type: 'boolean', default: false },
    exported: { type: 'string' },
    samples: { type: 'string', default: '11' },
    timed: { type: 'string', default: '48' },
    batch: { type: 'string', default: '8' },
    repeats: { type: 'string', default: '3' },
  },
});
const folderOfExported = values.exported;
const models =
  positionals.length > 0
    ? positionals
    : [
        ...builtIn,
        ...(folderOfExported === undefined ? [] : exported.map((name) => join(folderOfExported, `${name}.onnx`))),
      ];
const batch = Number(values.batch);
const tolerance = 1e-5;
const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'asteroid-bench-infer-'));

type Samples = ReadonlyMap<string, Tensor>;

interface Row {
  readonly model: string;
  readonly layerCount: number;
  /** By plan: the largest difference over the largest output. */
  readonly differences: Readonly<Record<string, number>>;
  /** Null where nothing was timed. */
  readonly samplesPerS: number | null;
  /** Of one worker to stock, for each turn. */
  readonly ratios: readonly number[];
}

try {
  const rows: Row[] = [];
  for (const model of models) {
    const row = await compare(model);
    rows.push(row);
    console.error(`${row.model}: ${worst(row).toExponential(1)}`);
  }
  if (values.json) console.log(JSON.stringify(rows));
  else print(rows);
  if (!rows.every((row) => worst(row) <= tolerance)) process.exitCode = 1;
} finally {
  rmSync(folder, { recursive: true, force: true });
}

/** NaN where an output is. */
function worst({ differences }: Row): number {
  return Math.max(...Object.values(differences));
}

async function compare(spec: string): Promise<Row> {
  const { graph, name } = await loadInferenceModel(spec);
  const sequence = layers(graph);
  const path = spec.endsWith('.onnx') ? resolve(spec) : join(folder, 'model.onnx');
  if (!spec.endsWith('.onnx')) writeFileSync(path, exportGraph(graph));
  const session = await runtime.InferenceSession.create(path, { intraOpNumThreads: 1, graphOptimizationLevel: 'all' });
  const samples = samplesOf(sequence.inputs, Number(values.samples), 5);
  const { output } = await stock(session, samples);
  writeFileSync(join(folder, 'x.npz'), writeNpz(samples));
  const differences: Record<string, number> = {};
  for (const { name: form, plan } of plansOf(sequence.layers.length, 7)) {
    writeFileSync(join(folder, 'plan.json'), JSON.stringify(plan));
    const workerCount = plan.stages.flatMap(({ devices }) => devices).length;
    infer(path, ['--plan', 'plan.json', '--workers', String(workerCount), '-o', 'y.npy']);
    differences[form] = difference(readNpy({ name: 'y.npy', bytes: readFileSync(join(folder, 'y.npy')) }), output);
  }
  const timed = samplesOf(sequence.inputs, Number(values.timed), 6);
  writeFileSync(join(folder, 'x.npz'), writeNpz(timed));
  const turns: (readonly [stock: number, ours: number])[] = [];
  for (let turn = 0; turn < Number(values.repeats); turn++) {
    const { samplesPerS } = await stock(session, timed);
    const sizes = ['--batch', String(batch), '--micro-batch', String(batch)];
    turns.push([samplesPerS, infer(path, ['--workers', '1', '--planner', 'unmeasured', ...sizes])]);
  }
  await session.release();
  return {
    ...{ model: name, layerCount: sequence.layers.length, differences },
    samplesPerS: turns.length === 0 ? null : median(turns.map(([, ours]) => ours)),
    ratios: turns.map(([theirs, ours]) => ours / theirs),
  };
}

/** The first output of stock ONNX Runtime over batches, after one that warms up. */
async function stock(
  session: runtime.InferenceSession,
  samples: Samples,
): Promise<{ output: Float32Array; samplesPerS: number }> {
  const sampleCount = defined([...samples.values()][0]?.shape[0], 'samples');
  const outputs: Float32Array[] = [];
  const run = async (first: number): Promise<void> => {
    const feeds: Record<string, runtime.Tensor> = {};
    for (const [name, { type, shape, data }] of samples) {
      const size = elementCount(shape.slice(1));
      const part = data.slice(first * size, (first + batch) * size);
      feeds[name] = new runtime.Tensor(type as 'float32', part as Float32Array, [
        part.length / size,
        ...shape.slice(1),
      ]);
    }
    const found = await session.run(feeds);
    outputs.push(defined(found[defined(session.outputNames[0], 'an output')], 'its values').data as Float32Array);
  };
  await run(0);
  outputs.pop();
  const startMs = performance.now();
  for (let first = 0; first < sampleCount; first += batch) await run(first);
  const samplesPerS = (1000 * sampleCount) / (performance.now() - startMs);
  const output = new Float32Array(outputs.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of outputs) {
    output.set(part, at);
    at += part.length;
  }
  return { output, samplesPerS };
}

/** The largest difference over the largest value; NaN where a value is. */
function difference({ data }: Tensor, wanted: Float32Array): number {
  if (data.length !== wanted.length) throw new Error(`${data.length} outputs instead of ${wanted.length}`);
  const scale = wanted.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return wanted.reduce((most, value, at) => Math.max(most, Math.abs(value - Number(data[at]))), 0) / scale;
}

/** Samples a second of a run over x.npz. */
function infer(path: string, options: readonly string[]): number {
  const args = ['infer', '--model', path, '--data', 'npz:x.npz', '--json', ...options];
  const { stdout, status, stderr } = spawnSync(process.execPath, [main, ...args], {
    cwd: folder,
    encoding: 'utf8',
    maxBuffer: 2 ** 28,
  });
  if (status !== 0) throw new Error(stderr);
  return (JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as { samplesPerS: number }).samplesPerS;
}

function print(rows: readonly Row[]): void {
  const forms = Object.keys(rows[0]?.differences ?? {});
  console.log(
    table(
      ['model', 'layers', ...forms, 'samples/s of one worker', 'of stock'],
      rows.map(({ model, layerCount, differences, samplesPerS, ratios }) => [
        ...[model, layerCount],
        ...forms.map((form) => defined(differences[form], form).toExponential(1)),
        samplesPerS?.toFixed(1) ?? '',
        ratios.length === 0 ? '' : `${median(ratios).toFixed(3)} (${ratios.map((each) => each.toFixed(2)).join(', ')})`,
      ]),
    ),
  );
}
