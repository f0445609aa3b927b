// A model of gigabytes, its weights outside, over workers none of which could hold it: peaks of memory (VmHWM) of the
// coordinator and of each worker, and outputs beside those of stock ONNX Runtime on the whole model:
//   npm run bench -- large-model [--gib 3] [--workers 4] [--limit 1228] [--width 2048] [--samples 64] [--folder DIR]
// `--limit`: each worker's --max-memory, in MiB. Needs twice the model's size in the folder, and memory for stock ONNX
// Runtime on all of it.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { GraphBuilder } from '../dist/graph/builder.js';
import type { Graph } from '../dist/graph/graph.js';
import type { Tensor } from '../dist/graph/tensor.js';
import { createRandom } from '../dist/random.js';
import { writeExternalModel } from '../dist/testing/external-model.js';
import { readNpy, writeNpy } from '../dist/training/data/npy.js';
import { freePort, listening, peakMiBOf, startAsteroid, startWorker } from './common/remote-workers.ts';
import { table } from './common/table.ts';

const { values } = parseArgs({
  options: {
    gib: { type: 'string', default: '3' },
    workers: { type: 'string', default: '4' },
    width: { type: 'string', default: '2048' },
    samples: { type: 'string', default: '64' },
    folder: { type: 'string', default: tmpdir() },
    limit: { type: 'string', default: '1228' },
    planner: { type: 'string', default: 'unmeasured' },
    json: { type: 'boolean', default: false },
  },
});
const [gib, workers, width, samples] = [values.gib, values.workers, values.width, values.samples].map(Number) as [
  number,
  number,
  number,
  number,
];
const folder = mkdtempSync(join(values.folder, 'asteroid-large-model-'));
const batch = 8;

interface Peak {
  readonly process: string;
  readonly peakMiB: number;
}

try {
  writeExternalModel(join(folder, 'large.onnx'), stack(), fastElements());
  const bytes = statSync(join(folder, 'large.onnx.data')).size;
  const random = createRandom(7);
  const data = Float32Array.from({ length: samples * width }, () => random.normal());
  const x: Tensor = { type: 'float32', shape: [samples, width], data };
  writeFileSync(join(folder, 'x.npy'), writeNpy(x));
  const peaks = await infer();
  stock();
  const [found, wanted] = ['y.npy', 'stock.npy'].map(
    (name) => readNpy({ name, bytes: readFileSync(join(folder, name)) }).data as Float32Array,
  ) as [Float32Array, Float32Array];
  const scale = wanted.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const difference = wanted.reduce((most, value, at) => Math.max(most, Math.abs(value - (found[at] ?? 0))), 0);
  const result = { modelMiB: bytes / 2 ** 20, workers, ...peaks, difference: difference / scale };
  if (values.json) console.log(JSON.stringify(result));
  else {
    console.log(`${(bytes / 2 ** 20).toFixed(0)} MiB of weights, ${peaks.samplesPerS.toFixed(2)} samples a second,`);
    console.log(`outputs within ${result.difference.toExponential(1)} of the largest of stock ONNX Runtime's.`);
    console.log(
      table(
        ['process', 'peak MiB'],
        peaks.peaks.map(({ process: name, peakMiB }) => [name, peakMiB.toFixed(0)]),
      ),
    );
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}

/** x + Relu(W x) again and again, normalized. */
function stack(): Graph {
  const count = Math.round((gib * 2 ** 30) / (4 * width * width));
  const b = new GraphBuilder('large');
  let x = b.input('x', 'float32', ['N', width]);
  for (let index = 0; index < count; index++) {
    const hidden = b.relu(b.linear(x, { name: `layer${index}`, outFeatures: width, bias: false }));
    x = b.layerNorm(b.add(x, hidden), { name: `norm${index}` });
  }
  return b.build([x]);
}

/** Uniform numbers of a generator that takes a nanosecond each; scales of normalizations are near 1. */
function fastElements(): (name: string, count: number) => Float32Array {
  let state = 0x9e3779b9;
  const bound = Math.sqrt(3 / width);
  return (name, count) => {
    const data = new Float32Array(count);
    for (let index = 0; index < count; index++) {
      state ^= state << 13;
      state ^= state >>> 17;
      state ^= state << 5;
      data[index] = (state / 2 ** 31) * bound;
    }
    return name.startsWith('norm') && name.endsWith('weight') ? data.map((value) => 1 + value) : data;
  };
}

/** Runs the pipeline; what its processes took at most. */
async function infer(): Promise<{ readonly peaks: readonly Peak[]; readonly samplesPerS: number }> {
  const port = await freePort();
  const args = ['infer', '--model', 'large.onnx', '--data', 'npy:x.npy', '-o', 'y.npy', '--json'];
  const place = ['--workers', '0', '--remote', String(workers), '--port', String(port), '--code-file', 'code'];
  const sizes = ['--batch', String(batch), '--micro-batch', String(batch), '--planner', values.planner];
  const coordinator = startAsteroid(folder, [...args, ...place, ...sizes]);
  await listening(folder, coordinator);
  const devices = Array.from({ length: workers }, (_, index) =>
    startWorker(folder, port, `worker-${index + 1}`, ['--max-memory', values.limit]),
  );
  const processes = [['coordinator', coordinator] as const, ...devices.map((each) => ['worker', each] as const)];
  const peaks = processes.map(() => 0);
  const timer = setInterval(() => {
    for (const [index, [, { child }]] of processes.entries()) peaks[index] = peakMiBOf(child.pid) ?? peaks[index] ?? 0;
  }, 100);
  const lines = await coordinator.ended
    .then(async (found) => {
      await Promise.all(devices.map(({ ended }) => ended));
      return found;
    })
    .finally(() => {
      clearInterval(timer);
      for (const { child } of devices) child.kill('SIGKILL');
    });
  const { samplesPerS } = JSON.parse(lines.at(-1) ?? '') as { samplesPerS: number };
  return { samplesPerS, peaks: processes.map(([name], index) => ({ process: name, peakMiB: peaks[index] ?? 0 })) };
}

/** Stock ONNX Runtime on the whole model, in a process of its own. */
function stock(): void {
  const script = `
    import { readFileSync, writeFileSync } from 'node:fs';
    import runtime from ${JSON.stringify(import.meta.resolve('onnxruntime-node'))};
    import { readNpy, writeNpy } from ${JSON.stringify(new URL('../dist/training/data/npy.js', import.meta.url).href)};
    const x = readNpy({ name: 'x.npy', bytes: readFileSync('x.npy') });
    const session = await runtime.InferenceSession.create('large.onnx', { intraOpNumThreads: 1 });
    const { data, dims } = Object.values(await session.run({ x: new runtime.Tensor('float32', x.data, x.shape) }))[0];
    writeFileSync('stock.npy', writeNpy({ type: 'float32', shape: dims, data }));`;
  execFileSync(process.execPath, ['--input-type=module', '-e', script], { cwd: folder, stdio: 'inherit' });
}
