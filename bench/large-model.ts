// A model of gigabytes, its weights outside, over workers none of which could hold it: peaks of memory (VmHWM) of the
// coordinator and of each worker, and outputs beside those of stock ONNX Runtime on the whole model:
//   npm run bench -- large-model [--gib 3] [--workers 4] [--limit 1228] [--width 2048] [--samples 64] [--folder DIR]
// `--limit`: each worker's --max-memory, in MiB. Needs twice the model's size in the folder, and memory for stock ONNX
// Runtime on all of it.

import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { computeEnvironment } from '../dist/engine/node/host-node.js';
import { GraphBuilder } from '../dist/graph/builder.js';
import type { Graph } from '../dist/graph/graph.js';
import type { Tensor } from '../dist/graph/tensor.js';
import { createRandom } from '../dist/random.js';
import { writeExternalModel } from '../dist/testing/external-model.js';
import { readNpy, writeNpy } from '../dist/training/data/npy.js';
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
const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
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
  const coordinator = start([...args, ...place, ...sizes], {});
  const code = await codeOf(coordinator.child);
  const devices = Array.from({ length: workers }, (_, index) => {
    const name = `worker-${index + 1}`;
    const own = ['--join', `ws://127.0.0.1:${port}`, '--name', name, '--max-memory', values.limit, '--json'];
    return start(['worker', ...own], { ASTEROID_JOIN_CODE: code, ASTEROID_STATE: join(folder, name) });
  });
  const processes = [['coordinator', coordinator] as const, ...devices.map((each) => ['worker', each] as const)];
  const peaks = processes.map(() => 0);
  const timer = setInterval(() => {
    for (const [index, [, { child }]] of processes.entries()) peaks[index] = peakOf(child.pid) ?? peaks[index] ?? 0;
  }, 100);
  const output = await coordinator.ended
    .then(async (found) => {
      await Promise.all(devices.map(({ ended }) => ended));
      return found;
    })
    .finally(() => {
      clearInterval(timer);
      for (const { child } of devices) child.kill('SIGKILL');
    });
  const { samplesPerS } = JSON.parse(output.trim().split('\n').at(-1) ?? '') as { samplesPerS: number };
  return { samplesPerS, peaks: processes.map(([name], index) => ({ process: name, peakMiB: peaks[index] ?? 0 })) };
}

interface Running {
  readonly child: ChildProcess;
  /** What it printed; rejects where it failed. */
  readonly ended: Promise<string>;
}

function start(args: readonly string[], environment: Readonly<Record<string, string>>): Running {
  const env = { ...computeEnvironment(process.env), ASTEROID_CACHE: join(folder, 'cache'), ...environment };
  const child = spawn(process.execPath, [main, ...args], { cwd: folder, env, stdio: ['ignore', 'pipe', 'inherit'] });
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  const ended = new Promise<string>((resolve, reject) => {
    child.once('close', (code) => {
      if (code !== 0) console.error(`${args.join(' ')}: ${output.slice(-1000)}`);
      if (code === 0) resolve(output);
      else reject(new Error(`asteroid ${args[0]} ended with ${code}: ${output.slice(-2000)}`));
    });
  });
  ended.catch(() => {}); // awaited later
  return { child, ended };
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

async function codeOf({ exitCode }: ChildProcess): Promise<string> {
  while (exitCode === null) {
    if (existsSync(join(folder, 'code'))) return readFileSync(join(folder, 'code'), 'utf8').trim();
    await setTimeout(100);
  }
  throw new Error('the coordinator ended before it listened');
}

/** Undefined where the process has ended. */
function peakOf(pid: number | undefined): number | undefined {
  try {
    const found = /VmHWM:\s*(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'));
    return found === null ? undefined : Number(found[1]) / 1024;
  } catch {
    return undefined;
  }
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
