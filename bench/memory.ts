// Memory of training steps on ONNX Runtime: what the analysis of lifetimes predicts, what the process takes at
// most, and what recomputation saves and costs. Each case runs in a process of its own. Linux only (/proc):
//   npm run bench -- memory [--json] [--folder dist] [--models resnet50:4,bert-small:8]
// Settings of the C library's allocator: `returned` gives freed memory back at once, so that the process's peak is that
// of the step; `kept` is what workers run with where memory is scarce (faster: the next run finds its pages), `ample`
// where it is not. Times are CPU times of a step, medians; the ratio is to the same step without recomputation.

import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import type { Value } from '../dist/engine/engine.js';
import type { Graph, ValueInfo } from '../dist/graph/graph.js';
import type { Tensor } from '../dist/graph/tensor.js';
import { median } from '../dist/statistics.js';
import { loadFrom } from './common/build.ts';
import { resetPeak, residentMiB, runJson } from './common/cases.ts';
import { at, cpuMs, percent, sum } from './common/numbers.ts';
import { table } from './common/table.ts';

const { values } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    folder: { type: 'string', default: 'dist' },
    models: { type: 'string', default: 'resnet50:4,mobilenetv2:8,efficientnet-b1:4,bert-small:8' },
    steps: { type: 'string', default: '9' },
    case: { type: 'string' },
  },
});
const load = loadFrom(values.folder);
const MiB = 2 ** 20;
const { allocatorEnvironment } = await load('engine/node/host-node.js');
const allocators = {
  returned: { MALLOC_ARENA_MAX: '1', MALLOC_MMAP_THRESHOLD_: '65536' },
  kept: allocatorEnvironment(0),
  ample: allocatorEnvironment(Number.POSITIVE_INFINITY),
};
const fractions = [1, 0.5];

interface Case {
  readonly name: string;
  readonly batch: number;
  /** Bytes that may be saved, as a part of what is saved without recomputation. */
  readonly fraction: number;
  readonly allocator: keyof typeof allocators;
}

interface Measured extends Case {
  readonly savedMiB: number;
  readonly predictedMiB: number;
  readonly measuredMiB: number;
  readonly cpuMs: number;
}

if (values.case === undefined) runAll();
else console.log(JSON.stringify(await measure(JSON.parse(values.case))));

function runAll() {
  const rows: (Measured & { readonly ratio: number })[] = [];
  for (const model of values.models.split(',')) {
    const [name = '', batch] = model.split(':');
    for (const allocator of ['returned', 'kept', 'ample'] as const) {
      // The first case runs twice, around the others, so that a machine that gets busier shows.
      const runs = [...fractions, at(fractions, 0)].map((fraction) =>
        runCase({ name, batch: Number(batch), fraction, allocator }),
      );
      const plainMs = (at(runs, 0).cpuMs + at(runs, -1).cpuMs) / 2;
      for (const run of runs.slice(0, -1)) rows.push({ ...run, ratio: run.fraction === 1 ? 1 : run.cpuMs / plainMs });
    }
  }
  if (values.json) return console.log(JSON.stringify({ cases: rows }));
  const headings = [
    'model',
    'batch',
    'allocator',
    'saved MiB',
    'predicted MiB',
    'measured MiB',
    'error',
    'CPU ms',
    'ratio',
  ];
  const cells = rows.map((row) => [
    ...[
      row.name,
      row.batch,
      row.allocator,
      row.savedMiB.toFixed(0),
      row.predictedMiB.toFixed(0),
      row.measuredMiB.toFixed(0),
    ],
    ...[percent(row.measuredMiB / row.predictedMiB - 1), row.cpuMs.toFixed(0), row.ratio.toFixed(2)],
  ]);
  console.log(table(headings, cells));
}

function runCase(options: Case): Measured {
  const own = ['--expose-gc', fileURLToPath(import.meta.url), '--folder', values.folder, '--steps', values.steps];
  return runJson([...own, '--case', JSON.stringify(options)], allocators[options.allocator]);
}

/** One case, in this process. */
async function measure({ name, batch, fraction, allocator }: Case): Promise<Measured> {
  const { createOnnxRuntimeNodeEngine } = await load('engine/node/onnxruntime-node.js');
  const { loweringOf } = await load('engine/lowering.js');
  const { runMemory } = await load('engine/onnxruntime-memory.js');
  const { differentiate, outputGradientName } = await load('autodiff/differentiate.js');
  const { recomputationFront, withinBudget } = await load('autodiff/recompute.js');
  const { recomputationProblem } = await load('autodiff/saving.js');
  const { instantiate } = await load('graph/static.js');
  const { buildModel } = await load('models/zoo.js');
  const engine = await createOnnxRuntimeNodeEngine();
  const { graph } = buildModel(name, { seed: 1, initialize: false });
  const logits = at(graph.outputs, 0).name;
  const graphs = differentiate(instantiate(graph, batch), {
    inputs: [],
    ...loweringOf(engine),
    recompute: (pass) => {
      if (fraction === 1) return [];
      const front = recomputationFront(recomputationProblem(pass));
      return defined(withinBudget(front, fraction * at(front, 0).savedBytes), 'a choice').recompute;
    },
  });
  const forward = await engine.compile(graphs.forward);
  const backward = await engine.compile(graphs.backward);
  const given: Record<string, Value> = {};
  for (const input of [
    ...graphs.forward.inputs,
    ...graphs.backward.inputs.filter((each) => each.name === outputGradientName(logits)),
  ])
    given[input.name] = engine.upload(madeUp(input));
  const mibOf = (kept: typeof graphs.saved) => sum(kept.map(({ bytes }) => bytes)) / MiB;
  const saved = mibOf(graphs.saved);
  const runMiB = (graph: Graph) => runMemory(graph, engine.blockSize).runBytes / MiB;
  const [first, second] = [runMiB(graphs.forward), runMiB(graphs.backward)];
  globalThis.gc?.();
  await pause(300);
  globalThis.gc?.();
  const steps: { peak: number; cpuMs: number }[] = [];
  for (let step = 0; step < Number(values.steps); step++) {
    const before = residentMiB().now;
    resetPeak();
    const startMs = cpuMs();
    const results = forward.run(pick(given, forward.inputs), [
      ...new Set([logits, ...graphs.saved.map((value) => value.name)]),
    ]);
    const gradients = backward.run(pick({ ...given, ...results }, backward.inputs));
    for (const value of Object.values(results)) engine.release(value);
    await engine.settled();
    steps.push({ peak: residentMiB().peak - before, cpuMs: cpuMs() - startMs });
    for (const value of Object.values(gradients)) engine.release(value);
    await engine.settled();
  }
  await engine.close();
  // The engine keeps its outputs' memory, and so may the allocator: later steps need no more of it.
  const measuredMiB = at(steps, 0).peak;
  return {
    ...{
      name,
      batch,
      fraction,
      allocator,
      savedMiB: saved + mibOf(graphs.savedInputs),
      predictedMiB: Math.max(first, saved + second),
    },
    ...{ measuredMiB, cpuMs: median(steps.slice(1).map(({ cpuMs }) => cpuMs)) },
  };
}

function pick(all: Readonly<Record<string, Value>>, names: readonly string[]): Record<string, Value> {
  return Object.fromEntries(names.map((name) => [name, defined(all[name], name)]));
}

function madeUp({ type, shape: dimensions }: ValueInfo): Tensor {
  const shape = dimensions.map(Number);
  const count = shape.reduce((product, size) => product * size, 1);
  if (type === 'int64') return { type, shape, data: new BigInt64Array(count).fill(1n) };
  return {
    type,
    shape,
    data: Float32Array.from({ length: count }, (_, index) => ((index * 7919) % 1000) / 1e4 + 0.01),
  };
}
