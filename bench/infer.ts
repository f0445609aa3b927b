// `asteroid infer` beside stock ONNX Runtime (full optimization, one thread) on the whole model: how fast one worker
// is, and how far outputs are from stock's, over one worker and over several. Both run in turn, several times:
//   npm run bench -- infer [--json] [--samples 64] [--batch 8] [--repeats 3] [--workers 1,3] [MODEL …]
// MODEL: a built-in model or an .onnx file. Wanted: a ratio of at least 0.95 with one worker, differences of at most
// 1e-5 of the largest output. Over devices of a lab (root), measured beside predicted:
//   asteroid lab run clusters/FOUR-EQUAL.yaml -- infer --model vit-base --data synthetic:3x224x224:1000:640 --json

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import * as runtime from 'onnxruntime-node';
import { defined } from '../dist/assert.js';
import { layers } from '../dist/graph/layers.js';
import { exportGraph } from '../dist/graph/onnx/export.js';
import { allocate, elementCount, type Tensor } from '../dist/graph/tensor.js';
import { createRandom } from '../dist/random.js';
import { loadInferenceModel } from '../dist/runtime/host/models.js';
import { median } from '../dist/statistics.js';
import { readNpy, writeNpy } from '../dist/training/data/npy.js';
import { table } from './common/table.ts';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    json: { type: 'boolean', default: false },
    samples: { type: 'string', default: '64' },
    batch: { type: 'string', default: '8' },
    repeats: { type: 'string', default: '3' },
    workers: { type: 'string', default: '1,3' },
  },
});
const models = positionals.length > 0 ? positionals : ['mobilenet-v2', 'resnet-50', 'efficientnet-b1', 'vit-tiny'];
const [sampleCount, batch, repeats] = [values.samples, values.batch, values.repeats].map(Number) as [
  number,
  number,
  number,
];
const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'asteroid-bench-infer-'));

interface Row {
  readonly model: string;
  readonly workers: number;
  readonly samplesPerS: number;
  readonly ratio: number;
  /** Largest difference over the largest output. */
  readonly difference: number;
}

try {
  const rows: Row[] = [];
  for (const model of models) rows.push(...(await compare(model)));
  if (values.json) console.log(JSON.stringify(rows));
  else
    console.log(
      table(
        ['model', 'workers', 'samples/s', 'of stock', 'difference'],
        rows.map((row) => [
          row.model,
          String(row.workers),
          row.samplesPerS.toFixed(1),
          row.ratio.toFixed(3),
          row.difference.toExponential(1),
        ]),
      ),
    );
} finally {
  rmSync(folder, { recursive: true, force: true });
}

async function compare(spec: string): Promise<Row[]> {
  const { graph } = await loadInferenceModel(spec);
  const [input] = layers(graph).inputs;
  const shape = defined(input, 'an input').shape.map((size) => (size === 'N' ? sampleCount : size));
  const random = createRandom(5);
  const data = allocate('float32', elementCount(shape));
  for (let index = 0; index < data.length; index++) data[index] = random.normal();
  const x: Tensor = { type: 'float32', shape, data };
  const path = join(folder, 'model.onnx');
  writeFileSync(path, exportGraph(graph));
  writeFileSync(join(folder, 'x.npy'), writeNpy(x));
  const stock = await stockOf(path, x);
  return values.workers.split(',').map((text): Row => {
    const runs = Array.from({ length: repeats }, () => infer(path, Number(text)));
    const found = readNpy({ name: 'y.npy', bytes: readFileSync(join(folder, 'y.npy')) }).data as Float32Array;
    const scale = stock.output.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const difference = stock.output.reduce((most, value, at) => Math.max(most, Math.abs(value - (found[at] ?? 0))), 0);
    const samplesPerS = median(runs);
    return {
      model: spec,
      workers: Number(text),
      samplesPerS,
      ratio: samplesPerS / stock.samplesPerS,
      difference: difference / scale,
    };
  });
}

/** Stock ONNX Runtime over the same batches, after one that warms up. */
async function stockOf(path: string, { shape, data }: Tensor): Promise<{ output: Float32Array; samplesPerS: number }> {
  const session = await runtime.InferenceSession.create(path, { intraOpNumThreads: 1, graphOptimizationLevel: 'all' });
  const [name] = session.inputNames;
  const size = elementCount(shape.slice(1));
  const outputs: Float32Array[] = [];
  const run = async (first: number): Promise<void> => {
    const part = (data as Float32Array).slice(first * size, (first + batch) * size);
    const feeds = { [name as string]: new runtime.Tensor('float32', part, [part.length / size, ...shape.slice(1)]) };
    outputs.push(Object.values(await session.run(feeds))[0]?.data as Float32Array);
  };
  await run(0);
  outputs.pop();
  const startMs = performance.now();
  for (let first = 0; first < sampleCount; first += batch) await run(first);
  const samplesPerS = (1000 * sampleCount) / (performance.now() - startMs);
  await session.release();
  const output = new Float32Array(outputs.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of outputs) {
    output.set(part, at);
    at += part.length;
  }
  return { output, samplesPerS };
}

/** Samples a second of a run that writes y.npy. */
function infer(path: string, workers: number): number {
  const args = ['infer', '--model', path, '--data', 'npy:x.npy', '-o', 'y.npy', '--json', '--planner', 'unmeasured'];
  const own = ['--workers', String(workers), '--batch', String(batch), '--micro-batch', String(batch)];
  const { stdout, status, stderr } = spawnSync(process.execPath, [main, ...args, ...own], {
    cwd: folder,
    encoding: 'utf8',
    maxBuffer: 2 ** 28,
  });
  if (status !== 0) throw new Error(stderr);
  return (JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as { samplesPerS: number }).samplesPerS;
}
