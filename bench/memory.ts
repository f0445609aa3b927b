// Memory of training steps on ONNX Runtime: what the analysis of lifetimes predicts beside what the process takes at most, and what recomputation
// saves and costs. Each case runs in a process of its own. Linux only (/proc). After `npm run build`:
//   node bench/memory.mjs [--json] [--folder dist] [--models resnet50:4,bert-small:8]
// Two settings of the C library's allocator: `returned` gives freed memory back at once, so that the process's peak is that of the step; `kept` is
// what workers run with (faster: the next run finds its pages). Times are CPU times of a step, medians; the ratio is to the same step without recomputation.

import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    folder: { type: 'string', default: 'dist' },
    models: { type: 'string', default: 'resnet50:4,mobilenetv2:8,efficientnet-b1:4,bert-small:8' },
    steps: { type: 'string', default: '9' },
    case: { type: 'string' },
  },
});
const load = (path) => import(pathToFileURL(`${resolve(values.folder)}/${path}`).href);
const MiB = 2 ** 20;
const { allocatorEnvironment } = await load('engine/host-node.js');
const allocators = {
  returned: { MALLOC_ARENA_MAX: '1', MALLOC_MMAP_THRESHOLD_: '65536' },
  kept: allocatorEnvironment(),
};
const fractions = [1, 0.5];

if (values.case === undefined) runAll();
else console.log(JSON.stringify(await measure(JSON.parse(values.case))));

function runAll() {
  const rows = [];
  for (const model of values.models.split(',')) {
    const [name, batch] = model.split(':');
    for (const allocator of Object.keys(allocators)) {
      // The first case runs twice, around the others, so that a machine that gets busier shows.
      const runs = [...fractions, fractions[0]].map((fraction) =>
        runCase({ name, batch: Number(batch), fraction, allocator }),
      );
      const plainMs = (runs[0].cpuMs + runs.at(-1).cpuMs) / 2;
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
    ...[`${((row.measuredMiB / row.predictedMiB - 1) * 100).toFixed(1)} %`, row.cpuMs.toFixed(0), row.ratio.toFixed(2)],
  ]);
  for (const line of [headings, headings.map(() => '---'), ...cells]) console.log(`| ${line.join(' | ')} |`);
}

function runCase(options) {
  const args = ['--expose-gc', fileURLToPath(import.meta.url), '--folder', values.folder, '--steps', values.steps];
  const { stdout, status, stderr } = spawnSync(process.execPath, [...args, '--case', JSON.stringify(options)], {
    env: { ...process.env, ...allocators[options.allocator] },
    encoding: 'utf8',
  });
  if (status !== 0) throw new Error(stderr);
  return JSON.parse(stdout);
}

/** One case, in this process. */
async function measure({ name, batch, fraction, allocator }) {
  const { createOnnxRuntimeNodeEngine } = await load('engine/onnxruntime-node.js');
  const { loweringOf } = await load('engine/lowering.js');
  const { runMemory } = await load('engine/onnxruntime-memory.js');
  const { differentiate, outputGradientName } = await load('autodiff/differentiate.js');
  const { recomputationFront, withinBudget } = await load('autodiff/recompute.js');
  const { recomputationProblem } = await load('autodiff/saving.js');
  const { instantiate } = await load('graph/static.js');
  const { buildModel } = await load('models/zoo.js');
  const engine = await createOnnxRuntimeNodeEngine();
  let model = buildModel(name, { seed: 1, initialize: false });
  const logits = model.graph.outputs[0].name;
  const graphs = differentiate(instantiate(model.graph, batch), {
    inputs: [],
    ...loweringOf(engine),
    recompute: (pass) => {
      if (fraction === 1) return [];
      const front = recomputationFront(recomputationProblem(pass));
      return withinBudget(front, fraction * front[0].savedBytes).recompute;
    },
  });
  model = undefined;
  const forward = await engine.compile(graphs.forward);
  const backward = await engine.compile(graphs.backward);
  const given = {};
  for (const input of [
    ...graphs.forward.inputs,
    ...graphs.backward.inputs.filter((each) => each.name === outputGradientName(logits)),
  ])
    given[input.name] = engine.upload(madeUp(input));
  const sum = (kept) => kept.reduce((bytes, value) => bytes + value.bytes, 0) / MiB;
  const saved = sum(graphs.saved);
  const [first, second] = [graphs.forward, graphs.backward].map(
    (graph) => runMemory(graph, engine.blockSize).runBytes / MiB,
  );
  globalThis.gc();
  await new Promise((wake) => setTimeout(wake, 300));
  globalThis.gc();
  const steps = [];
  for (let step = 0; step < Number(values.steps); step++) {
    const before = memory().VmRSS;
    writeFileSync('/proc/self/clear_refs', '5'); // the peak begins anew
    const cpu = process.cpuUsage();
    const results = forward.run(pick(given, forward.inputs), [
      ...new Set([logits, ...graphs.saved.map((value) => value.name)]),
    ]);
    const gradients = backward.run(pick({ ...given, ...results }, backward.inputs));
    for (const value of Object.values(results)) engine.release(value);
    await engine.settled();
    const { user, system } = process.cpuUsage(cpu);
    steps.push({ peak: memory().VmHWM - before, cpuMs: (user + system) / 1000 });
    for (const value of Object.values(gradients)) engine.release(value);
    await engine.settled();
  }
  await engine.close();
  // The engine keeps its outputs' memory, and so may the allocator: later steps need no more of it.
  const measuredMiB = steps[0].peak;
  return {
    ...{
      name,
      batch,
      fraction,
      allocator,
      savedMiB: saved + sum(graphs.savedInputs),
      predictedMiB: Math.max(first, saved + second),
    },
    ...{ measuredMiB, cpuMs: median(steps.slice(1).map(({ cpuMs }) => cpuMs)) },
  };
}

function pick(all, names) {
  return Object.fromEntries(names.map((name) => [name, all[name]]));
}

function median(numbers) {
  return [...numbers].sort((a, b) => a - b)[numbers.length >> 1];
}

/** Resident memory now and at most, in MiB. */
function memory() {
  const lines = readFileSync('/proc/self/status', 'utf8').matchAll(/^(VmHWM|VmRSS):\s+(\d+) kB/gm);
  return Object.fromEntries([...lines].map(([, key, kibibytes]) => [key, Number(kibibytes) / 1024]));
}

function madeUp({ type, shape }) {
  const count = shape.reduce((product, size) => product * size, 1);
  if (type === 'int64') return { type, shape, data: new BigInt64Array(count).fill(1n) };
  return {
    type,
    shape,
    data: Float32Array.from({ length: count }, (_, index) => ((index * 7919) % 1000) / 1e4 + 0.01),
  };
}
