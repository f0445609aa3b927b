// Where the time of a training step goes, by operator, as ONNX Runtime's own profiler reports it, with the speed of
// what multiplies matrices:
//   npm run bench -- engine-operators --model resnet-50 --batch 8 [--threads 1] [--steps 4] [--shapes 8]
// The step is that of bench/engine.ts; the profiler costs some per cent. `--shapes N` lists the N products that take
// the most time.

import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { InferenceSession } from 'onnxruntime-node';
import { createOnnxRuntimeNodeEngine } from '../dist/engine/node/onnxruntime-node.js';
import { sum } from './common/numbers.ts';
import { tableHead, tableRow } from './common/table.ts';
import { compileStageForBench } from './engine-stage.ts';

const { values: options } = parseArgs({
  options: {
    model: { type: 'string', default: 'resnet-50' },
    batch: { type: 'string', default: '8' },
    threads: { type: 'string', default: '1' },
    steps: { type: 'string', default: '4' },
    shapes: { type: 'string', default: '8' },
  },
});
const [batch, threadCount, steps] = [Number(options.batch), Number(options.threads), Number(options.steps)];
const products = new Set(['Conv', 'ConvTranspose', 'MatMul', 'FusedMatMul', 'Gemm', 'FusedGemm']);

interface Kernel {
  readonly cat: string;
  readonly name: string;
  /** Microseconds. */
  readonly dur: number;
  readonly args: {
    readonly op_name: string;
    readonly node_index: string;
    readonly input_type_shape: readonly Readonly<Record<string, number[]>>[];
    readonly output_type_shape: readonly Readonly<Record<string, number[]>>[];
  };
}

const folder = mkdtempSync(join(tmpdir(), 'asteroid-operators-'));
/** Sessions that are not released (compiling tries some), with the prefix of their files. */
const sessions = new Map<InferenceSession, string>();
const engine = await createOnnxRuntimeNodeEngine({ threadCount, load: profiled });
const step = await compileStageForBench(options.model, batch, threadCount, engine);
for (let index = 0; index < steps; index++) await step();
for (const session of sessions.keys()) session.endProfiling();
const names = readdirSync(folder).filter((file) => [...sessions.values()].some((prefix) => file.startsWith(prefix)));
const events = names.flatMap((file) => JSON.parse(readFileSync(join(folder, file), 'utf8')) as Kernel[]);
rmSync(folder, { recursive: true });
report(kernelEvents(events));
process.exit(0);

/** The package, with a profile of each session in `folder`. */
async function profiled() {
  const runtime = await import('onnxruntime-node');
  let count = 0;
  const create = async (model: Uint8Array, sessionOptions?: InferenceSession.SessionOptions) => {
    const prefix = `session-${count++}-`;
    const session = await runtime.InferenceSession.create(model, {
      ...sessionOptions,
      enableProfiling: true,
      profileFilePrefix: join(folder, prefix),
    });
    sessions.set(session, prefix);
    const release = session.release.bind(session);
    session.release = () => {
      sessions.delete(session);
      return release();
    };
    return session;
  };
  return { ...runtime, env: runtime.env, Tensor: runtime.Tensor, InferenceSession: { create } };
}

/**
 * The kernels of all steps but the first, which finds no warm memory; each session's share of runs is dropped from its
 * front.
 */
function kernelEvents(all: readonly Kernel[]): Kernel[] {
  const kernels = all.filter(({ cat, name }) => cat === 'Node' && name.endsWith('_kernel_time'));
  const seen = new Map<string, number>();
  return kernels.filter(({ name, args }) => {
    const key = `${name} ${args.node_index} ${JSON.stringify(args.output_type_shape)}`;
    const count = (seen.get(key) ?? 0) + 1;
    seen.set(key, count);
    return count > 1;
  });
}

function shapesOf(list: Kernel['args']['input_type_shape']): number[][] {
  return list.map((each) => Object.values(each)[0] ?? []);
}

function size(shape: readonly number[]): number {
  return shape.reduce((product, each) => product * each, 1);
}

/** Multiplications and additions; 0 for what is no product. */
function flops({ args }: Kernel): number {
  const { op_name: operator, input_type_shape: inputs, output_type_shape: outputs } = args;
  if (!products.has(operator)) return 0;
  const [a = [], b = []] = shapesOf(inputs);
  const [c = []] = shapesOf(outputs);
  if (operator === 'Conv') return (2 * size(c) * size(b)) / (b[0] ?? 1);
  if (operator === 'ConvTranspose') return (2 * size(a) * size(b)) / (b[0] ?? 1);
  return 2 * size(c) * Math.sqrt((size(a) * size(b)) / size(c) / size(b.slice(0, -2)));
}

function report(kernels: readonly Kernel[]): void {
  const columns = ['kernels', 'ms', 'of all', 'GFLOPS'];
  const counted = Math.max(1, steps - 1);
  const total = sum(kernels.map(({ dur }) => dur)) / counted;
  const line = (name: string, group: readonly Kernel[]) => {
    const us = sum(group.map(({ dur }) => dur)) / counted;
    const work = sum(group.map(flops)) / counted;
    const cells = [
      name,
      (group.length / counted).toFixed(0),
      (us / 1000).toFixed(1),
      `${((100 * us) / total).toFixed(1)} %`,
    ];
    return { us, text: tableRow([...cells, work === 0 ? '' : (work / us / 1000).toFixed(0)]) };
  };
  const grouped = (all: readonly Kernel[], keyOf: (kernel: Kernel) => string) => {
    return [...groupsOf(all, keyOf)].map(([name, group]) => line(name, group)).sort((a, b) => b.us - a.us);
  };
  console.log(
    `${options.model}, batch ${batch}, threads ${threadCount}: ${(total / 1000).toFixed(0)} ms of kernels a step\n`,
  );
  console.log(tableHead(['operator', ...columns]));
  for (const { text } of grouped(kernels, ({ args }) => args.op_name).slice(0, 12)) console.log(text);
  console.log(`\n${tableHead(['product', ...columns])}`);
  const shapes = ({ args }: Kernel) => {
    const given = shapesOf(args.input_type_shape).slice(0, 2);
    const result = shapesOf(args.output_type_shape).slice(0, 1);
    return `${args.op_name} ${[...given, ...result].map((shape) => shape.join('x')).join(', ')}`;
  };
  const heavy = kernels.filter(({ args }) => products.has(args.op_name));
  for (const { text } of grouped(heavy, shapes).slice(0, Number(options.shapes))) console.log(text);
}

function groupsOf(all: readonly Kernel[], keyOf: (kernel: Kernel) => string): Map<string, Kernel[]> {
  const groups = new Map<string, Kernel[]>();
  for (const each of all) groups.set(keyOf(each), [...(groups.get(keyOf(each)) ?? []), each]);
  return groups;
}
