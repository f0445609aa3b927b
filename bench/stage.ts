// What a stage of a pipeline costs on a device: forward passes, backward passes and whole rounds of micro-batches on the compute thread, without links, and the
// memory that they take. Each case runs in a process of its own, with a worker's settings. Times are processor times of the whole process (garbage
// collection and handing over included), medians of rounds; page faults are those of a round. Linux only (/proc). After `npm run build`:
//   node bench/stage.mjs [--json] [--rounds 9] [--before FOLDER] [--repeats 2] [MODEL/STAGE:MICRO_BATCHES x SAMPLES ...]
// STAGE: `middle` (the layers between a third and two thirds), `first` (those before), `whole` (one stage; forward pass, loss and backward pass are one
// graph) or `split` (the same in separate graphs, as stages that are not last have them). `--before`: another build of this package (a dist folder), run in alternation.

import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    json: { type: 'boolean', default: false },
    rounds: { type: 'string', default: '9' },
    repeats: { type: 'string', default: '2' },
    before: { type: 'string' },
    folder: { type: 'string', default: fileURLToPath(new URL('../dist', import.meta.url)) },
    case: { type: 'boolean', default: false },
  },
});
const defaults = [
  'mobilenet-v2:input=32,classes=10/middle:8x2',
  'mobilenet-v2:input=32,classes=10/middle:8x10',
  'mobilenet-v2:input=32,classes=10/whole:8x2',
  'mobilenet-v2:input=32,classes=10/whole:8x10',
  'resnet-50/middle:4x2',
  'resnet-50/whole:4x2',
  'bert-small/middle:4x2',
  'bert-small/whole:4x2',
];
const load = (path) => import(pathToFileURL(`${resolve(values.folder)}/${path}`).href);
const MiB = 2 ** 20;

if (values.case) console.log(JSON.stringify(await measure(positionals[0])));
else await runAll(positionals.length > 0 ? positionals : defaults);

async function runAll(specs) {
  const folders = values.before === undefined ? { now: values.folder } : { before: values.before, now: values.folder };
  const rows = [];
  for (const spec of specs) {
    const runs = Object.fromEntries(Object.keys(folders).map((name) => [name, []]));
    for (let repeat = 0; repeat < Number(values.repeats); repeat++) {
      for (const [name, folder] of Object.entries(folders)) runs[name].push(await runCase(spec, folder));
    }
    for (const [build, results] of Object.entries(runs)) {
      const middle = Object.fromEntries(
        Object.keys(results[0]).map((key) => [key, median(results.map((result) => result[key]))]),
      );
      rows.push({ case: spec, build, ...middle });
    }
  }
  if (values.json) return console.log(JSON.stringify({ cases: rows }));
  const columns = ['forwardMs', 'backwardMs', 'roundCpuMs', 'roundFaults', 'updateMs', 'peakMiB'];
  console.log(
    `| stage | build | forward, ms | backward, ms | round, CPU ms | its page faults | its update, ms | peak, MiB |`,
  );
  console.log(
    `| ${Array(2 + columns.length)
      .fill('---')
      .join(' | ')} |`,
  );
  const shown = (row, key) => row[key].toFixed(key.endsWith('Ms') ? 1 : 0);
  for (const row of rows)
    console.log(`| ${[row.case, row.build, ...columns.map((key) => shown(row, key))].join(' | ')} |`);
}

async function runCase(spec, folder) {
  const { allocatorEnvironment } = await load('engine/host-node.js');
  const args = [fileURLToPath(import.meta.url), '--case', '--folder', folder, '--rounds', values.rounds, spec];
  const env = { ...process.env, ...allocatorEnvironment() };
  const { stdout, status, stderr } = spawnSync(process.execPath, args, { env, encoding: 'utf8', maxBuffer: 2 ** 26 });
  if (status !== 0) throw new Error(stderr);
  return JSON.parse(stdout.trim().split('\n').at(-1));
}

/** One case, in this process. */
async function measure(spec) {
  const [, model, part, microBatches, samples] = /^(.*)\/(first|middle|whole|split):(\d+)x(\d+)$/.exec(spec);
  const [microBatchCount, sampleCount, isWhole] = [
    Number(microBatches),
    Number(samples),
    part === 'whole' || part === 'split',
  ];
  const { searchForGarbageLess } = await load('engine/host-node.js');
  const { createComputeThread } = await load('engine/compute-thread.js');
  const { createStage } = await load('runtime/device/create-stage.js');
  searchForGarbageLess();
  const { options } = await optionsOf(model, part, { microBatchCount, sampleCount });
  const engine = await createComputeThread();
  const stage = await createStage(engine, options);
  loadMadeUp(stage, options);
  options.sequence = undefined;
  const gradientCuts = stage.isLast ? [] : stage.outputs.filter(({ differentiable }) => differentiable);
  const labels = () => (stage.isLast ? madeUp(stage.label, sampleCount) : undefined);
  const forward = (index) =>
    stage.forward(
      index,
      0,
      stage.inputs.map((cut) => madeUp(cut, sampleCount)),
      labels(),
    );
  const backward = (index) =>
    stage.backward(
      index,
      gradientCuts.map((cut) => madeUp(cut, sampleCount)),
    );
  // As in 1F1B with two micro-batches in flight; on the last stage one.
  const ahead = isWhole ? 1 : Math.min(2, microBatchCount);
  let step = 0;
  const round = async (timed) => {
    stage.beginRound(step, undefined);
    const waiting = [];
    for (let index = 0; index < microBatchCount + ahead; index++) {
      if (index < microBatchCount) waiting.push(timed('forwardMs', () => forward(index)));
      if (index >= ahead) {
        waiting.push(timed('backwardMs', () => backward(index - ahead)));
        await Promise.all(waiting.splice(0, waiting.length - 2));
      }
    }
    await Promise.all(waiting);
    await timed('updateMs', async () => {
      const totals = stage.finishRound(true);
      stage.update({ learningRate: 0, gradientScale: 1, step: ++step });
      await totals;
    });
    stage.dropVersion(step - 1);
    await engine.settled();
  };
  const queued = (_, work) => work();
  for (let warm = 0; warm < 3; warm++) await round(queued);
  writeFileSync('/proc/self/clear_refs', '5'); // the peak begins anew
  const roundCpuMs = [];
  const roundFaults = [];
  for (let count = 0; count < Number(values.rounds); count++) {
    const faults = process.resourceUsage().minorPageFault;
    const before = process.cpuUsage();
    await round(queued);
    const { user, system } = process.cpuUsage(before);
    roundCpuMs.push((user + system) / 1000);
    roundFaults.push(process.resourceUsage().minorPageFault - faults);
  }
  const peakMiB = memory().VmHWM - baseMiB;
  // One at a time, waited for.
  const times = { forwardMs: [], backwardMs: [], updateMs: [] };
  const timed = async (kind, work) => {
    await engine.settled();
    const before = process.cpuUsage();
    const result = await work();
    await engine.settled();
    const { user, system } = process.cpuUsage(before);
    times[kind].push((user + system) / 1000);
    return result;
  };
  const sequential = { pending: Promise.resolve() };
  const inTurn = (kind, work) => (sequential.pending = sequential.pending.then(() => timed(kind, work)));
  for (let count = 0; count < Math.min(3, Number(values.rounds)); count++) await round(inTurn);
  await engine.close();
  const medians = Object.fromEntries(Object.entries(times).map(([kind, all]) => [kind, median(all)]));
  return { ...medians, roundCpuMs: median(roundCpuMs), roundFaults: median(roundFaults), peakMiB };
}

var baseMiB = 0;

async function optionsOf(model, part, { microBatchCount, sampleCount }) {
  const { layers } = await load('graph/layers.js');
  const { buildModel } = await load('models/zoo.js');
  const { assumedLabel, assumedTraining } = await load('runtime/profile-here.js');
  const sequence = layers(buildModel(model, { seed: 1, initialize: false }).graph);
  const at = (fraction) => Math.round(fraction * sequence.layers.length);
  const range = { first: [0, at(1 / 3)], middle: [at(1 / 3), at(2 / 3)], whole: [0, sequence.layers.length] }[
    part === 'split' ? 'whole' : part
  ];
  return {
    options: {
      sequence,
      layers: range,
      sampleCount,
      microBatchSize: sampleCount,
      training: assumedTraining(microBatchCount * sampleCount, []),
      label: assumedLabel(sequence),
      splitBackward: false,
      immediateBackward: part === 'whole',
      immediateUpdate: false,
      isSingle: microBatchCount === 1,
    },
  };
}

/** Weights of about the size that keeps activations where they are from layer to layer, and positive statistics. */
function loadMadeUp(stage, { sequence, layers: [first, end] }) {
  baseMiB = memory().VmRSS;
  for (const { parameters, buffers } of sequence.layers.slice(first, end)) {
    for (const [role, names] of [
      ['parameter', parameters],
      ['buffer', buffers],
    ]) {
      for (const name of names) {
        const { shape } = sequence.graph.initializers.get(name);
        const data = new Float32Array(shape.reduce((a, b) => a * b, 1));
        const scale = role === 'parameter' && shape.length > 1 ? Math.sqrt(3 / (data.length / shape[0])) : 0;
        for (let index = 0; index < data.length; index++)
          data[index] = scale === 0 ? 0.5 + pseudo(index) : scale * (2 * pseudo(index) - 1);
        stage.load({ role, name, value: { type: 'float32', shape, data } });
      }
    }
  }
}

function madeUp({ type, shape }, sampleCount) {
  const sizes = shape.map((size) => (size === 'N' ? sampleCount : size));
  const count = sizes.reduce((a, b) => a * b, 1);
  const data =
    type === 'int64'
      ? new BigInt64Array(count)
      : type === 'bool'
        ? new Uint8Array(count).fill(1)
        : new Float32Array(count);
  if (type === 'float32') for (let index = 0; index < count; index++) data[index] = 0.1 + pseudo(index);
  return { type, shape: sizes, data };
}

function pseudo(index) {
  return ((index * 7919) % 1009) / 1009;
}

/** Resident memory now and at most, in MiB. */
function memory() {
  const lines = readFileSync('/proc/self/status', 'utf8').matchAll(/^(VmHWM|VmRSS):\s+(\d+) kB/gm);
  return Object.fromEntries([...lines].map(([, key, kibibytes]) => [key, Number(kibibytes) / 1024]));
}

function median(numbers) {
  return [...numbers].sort((a, b) => a - b)[numbers.length >> 1];
}
