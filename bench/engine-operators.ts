// Where the time of a training step goes, by operator, as ONNX Runtime's own profiler tells it, with the speed of what multiplies matrices. After `npm run build`:
//   node bench/engine-operators.mjs --model resnet-50 --batch 8 [--threads 1] [--steps 4] [--shapes 8]
// The step is that of bench/engine.mjs; the profiler costs some per cent. `--shapes N` lists the N products that take the most time.

import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { createOnnxRuntimeNodeEngine } from '../dist/engine/node/onnxruntime-node.js';
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
const [batch, threadCount, steps] = [options.batch, options.threads, options.steps].map(Number);
const products = new Set(['Conv', 'ConvTranspose', 'MatMul', 'FusedMatMul', 'Gemm', 'FusedGemm']);

const folder = mkdtempSync(join(tmpdir(), 'asteroid-operators-'));
/** Those that are not released: compiling tries some. */
const sessions = new Map();
const engine = await createOnnxRuntimeNodeEngine({ threadCount, load: profiled });
const step = await compileStageForBench(options.model, batch, threadCount, engine);
for (let index = 0; index < steps; index++) await step();
for (const session of sessions.keys()) session.endProfiling();
const names = readdirSync(folder).filter((file) => [...sessions.values()].some((prefix) => file.startsWith(prefix)));
const events = names.flatMap((file) => JSON.parse(readFileSync(join(folder, file), 'utf8')));
rmSync(folder, { recursive: true });
report(kernelEvents(events));
process.exit(0);

/** The package, with a profile of each session in `folder`. */
async function profiled() {
  const runtime = await import('onnxruntime-node');
  let count = 0;
  const create = async (model, sessionOptions) => {
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

/** The kernels of all steps but the first, which finds no warm memory; each session's share of runs is dropped from its front. */
function kernelEvents(all) {
  const kernels = all.filter(({ cat, name }) => cat === 'Node' && name.endsWith('_kernel_time'));
  const seen = new Map();
  return kernels.filter(({ name, args }) => {
    const key = `${name} ${args.node_index} ${JSON.stringify(args.output_type_shape)}`;
    seen.set(key, (seen.get(key) ?? 0) + 1);
    return seen.get(key) > 1;
  });
}

function shapesOf(list) {
  return list.map((each) => Object.values(each)[0]);
}

function size(shape) {
  return shape.reduce((product, each) => product * each, 1);
}

/** Multiplications and additions; 0 for what is no product. */
function flops({ args: { op_name: operator, input_type_shape: inputs, output_type_shape: outputs } }) {
  if (!products.has(operator)) return 0;
  const [a, b] = shapesOf(inputs);
  const [c] = shapesOf(outputs);
  if (operator === 'Conv') return (2 * size(c) * size(b)) / b[0];
  if (operator === 'ConvTranspose') return (2 * size(a) * size(b)) / b[0];
  return 2 * size(c) * Math.sqrt((size(a) * size(b)) / size(c) / size(b.slice(0, -2)));
}

function report(kernels) {
  const counted = Math.max(1, steps - 1);
  const total = kernels.reduce((sum, { dur }) => sum + dur, 0) / counted;
  const line = (name, group) => {
    const us = group.reduce((sum, { dur }) => sum + dur, 0) / counted;
    const work = group.reduce((sum, event) => sum + flops(event), 0) / counted;
    const cells = [
      name,
      (group.length / counted).toFixed(0),
      (us / 1000).toFixed(1),
      `${((100 * us) / total).toFixed(1)} %`,
    ];
    return { us, text: `| ${[...cells, work === 0 ? '' : (work / us / 1000).toFixed(0)].join(' | ')} |` };
  };
  const grouped = (of, keyOf) => {
    const groups = Map.groupBy === undefined ? groupsOf(of, keyOf) : Map.groupBy(of, keyOf);
    return [...groups].map(([name, group]) => line(name, group)).sort((a, b) => b.us - a.us);
  };
  console.log(
    `${options.model}, batch ${batch}, threads ${threadCount}: ${(total / 1000).toFixed(0)} ms of kernels a step\n`,
  );
  console.log('| operator | kernels | ms | of all | GFLOPS |\n| --- | --- | --- | --- | --- |');
  for (const { text } of grouped(kernels, ({ args }) => args.op_name).slice(0, 12)) console.log(text);
  console.log('\n| product | kernels | ms | of all | GFLOPS |\n| --- | --- | --- | --- | --- |');
  const shapes = ({ args }) =>
    `${args.op_name} ${[...shapesOf(args.input_type_shape).slice(0, 2), ...shapesOf(args.output_type_shape).slice(0, 1)].map((shape) => shape.join('x')).join(', ')}`;
  const heavy = kernels.filter(({ args }) => products.has(args.op_name));
  for (const { text } of grouped(heavy, shapes).slice(0, Number(options.shapes))) console.log(text);
}

function groupsOf(all, keyOf) {
  const groups = new Map();
  for (const each of all) groups.set(keyOf(each), [...(groups.get(keyOf(each)) ?? []), each]);
  return groups;
}
