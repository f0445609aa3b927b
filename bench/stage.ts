// What a stage of a pipeline costs on a device: forward passes, backward passes and whole rounds of micro-batches on
// the compute thread, without links, and the memory that they take. Each case runs in a process of its own, with a
// worker's settings. Times are processor times of the whole process (garbage collection and handing over included),
// medians of rounds; page faults are those of a round. Linux only (/proc):
//   npm run bench:stage -- [--json] [--rounds 9] [--before FOLDER] [--repeats 2]
//     [MODEL/STAGE:MICRO_BATCHES x SAMPLES ...]
// STAGE: `middle` (the layers between a third and two thirds), `first` (those before), `whole` (one stage; forward
// pass, loss and backward pass are one graph) or `split` (the same in separate graphs, as stages that are not last have
// them). `--before`: another build of this package (a dist folder), run in alternation.

import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import type { CutTensor } from '../dist/graph/layers.js';
import type { Tensor } from '../dist/graph/tensor.js';
import type { StagePort } from '../dist/runtime/device/stage.js';
import type { StageOptions } from '../dist/runtime/device/stage-graphs.js';
import { median } from '../dist/statistics.js';
import { loadFrom } from './common/build.ts';
import { resetPeak, residentMiB, runJson } from './common/cases.ts';
import { at, cpuMs } from './common/numbers.ts';
import { table } from './common/table.ts';

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
const load = loadFrom(values.folder);

/** Medians of a case. */
interface Measured {
  readonly forwardMs: number;
  readonly backwardMs: number;
  readonly updateMs: number;
  readonly roundCpuMs: number;
  readonly roundFaults: number;
  readonly peakMiB: number;
}
const measuredKeys = ['forwardMs', 'backwardMs', 'roundCpuMs', 'roundFaults', 'updateMs', 'peakMiB'] as const;
type TimedKind = 'forwardMs' | 'backwardMs' | 'updateMs';
type Timed = (kind: TimedKind, work: () => Promise<unknown>) => Promise<unknown>;

if (values.case) console.log(JSON.stringify(await measure(at(positionals, 0))));
else await runAll(positionals.length > 0 ? positionals : defaults);

async function runAll(specs: readonly string[]): Promise<void> {
  const folders = { ...(values.before === undefined ? {} : { before: values.before }), now: values.folder };
  const rows: (Measured & { readonly case: string; readonly build: string })[] = [];
  for (const spec of specs) {
    const runs = Object.entries(folders).map(([build, folder]) => ({ build, folder, results: [] as Measured[] }));
    for (let repeat = 0; repeat < Number(values.repeats); repeat++) {
      for (const { folder, results } of runs) results.push(await runCase(spec, folder));
    }
    for (const { build, results } of runs) {
      const middle = (key: keyof Measured) => median(results.map((result) => result[key]));
      const medians = Object.fromEntries(measuredKeys.map((key) => [key, middle(key)])) as Record<
        keyof Measured,
        number
      >;
      rows.push({ case: spec, build, ...medians });
    }
  }
  if (values.json) return console.log(JSON.stringify({ cases: rows }));
  const head = ['stage', 'build', 'forward, ms', 'backward, ms', 'round, CPU ms', 'its page faults', 'its update, ms'];
  const shown = (row: Measured, key: keyof Measured) => row[key].toFixed(key.endsWith('Ms') ? 1 : 0);
  const cells = rows.map((row) => [row.case, row.build, ...measuredKeys.map((key) => shown(row, key))]);
  console.log(table([...head, 'peak, MiB'], cells));
}

async function runCase(spec: string, folder: string): Promise<Measured> {
  const { allocatorEnvironment } = await load('engine/node/host-node.js');
  const args = [fileURLToPath(import.meta.url), '--case', '--folder', folder, '--rounds', values.rounds, spec];
  return runJson(args, allocatorEnvironment());
}

/** One case, in this process. */
async function measure(spec: string): Promise<Measured> {
  const [, model = '', partName, microBatches, samples] =
    /^(.*)\/(first|middle|whole|split):(\d+)x(\d+)$/.exec(spec) ?? [];
  const part = partName as Part;
  const [microBatchCount, sampleCount, isWhole] = [
    Number(microBatches),
    Number(samples),
    part === 'whole' || part === 'split',
  ];
  const { searchForGarbageLess } = await load('engine/node/host-node.js');
  const { createComputeThread } = await load('engine/node/compute-thread.js');
  const { createStage } = await load('runtime/device/create-stage.js');
  searchForGarbageLess();
  const options = await optionsOf(model, part, { microBatchCount, sampleCount });
  const engine = await createComputeThread();
  const stage = await createStage(engine, options);
  const baseMiB = loadMadeUp(stage, options);
  const gradientCuts = stage.isLast ? [] : stage.outputs.filter(({ differentiable }) => differentiable);
  const labels = () => (stage.isLast ? madeUp(options.label, sampleCount) : undefined);
  let step = 0;
  const forward = (index: number) =>
    stage.forward(
      { round: step, index },
      0,
      stage.inputs.map((cut) => madeUp(cut, sampleCount)),
      labels(),
    );
  const backward = (index: number) =>
    stage.backward(
      { round: step, index },
      gradientCuts.map((cut) => madeUp(cut, sampleCount)),
    );
  // As in 1F1B with two micro-batches in flight; on the last stage one.
  const ahead = isWhole ? 1 : Math.min(2, microBatchCount);
  const round = async (timed: Timed) => {
    stage.beginRound(step, undefined);
    const waiting: Promise<unknown>[] = [];
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
  const queued: Timed = (_, work) => work();
  for (let warm = 0; warm < 3; warm++) await round(queued);
  resetPeak();
  const roundCpuMs: number[] = [];
  const roundFaults: number[] = [];
  for (let count = 0; count < Number(values.rounds); count++) {
    const faults = process.resourceUsage().minorPageFault;
    const before = cpuMs();
    await round(queued);
    roundCpuMs.push(cpuMs() - before);
    roundFaults.push(process.resourceUsage().minorPageFault - faults);
  }
  const peakMiB = residentMiB().peak - baseMiB;
  // One at a time, waited for.
  const times: Record<TimedKind, number[]> = { forwardMs: [], backwardMs: [], updateMs: [] };
  const timed: Timed = async (kind, work) => {
    await engine.settled();
    const before = cpuMs();
    const result = await work();
    await engine.settled();
    times[kind].push(cpuMs() - before);
    return result;
  };
  let pending: Promise<unknown> = Promise.resolve();
  const inTurn: Timed = (kind, work) => {
    pending = pending.then(() => timed(kind, work));
    return pending;
  };
  for (let count = 0; count < Math.min(3, Number(values.rounds)); count++) await round(inTurn);
  await engine.close();
  return {
    forwardMs: median(times.forwardMs),
    backwardMs: median(times.backwardMs),
    updateMs: median(times.updateMs),
    roundCpuMs: median(roundCpuMs),
    roundFaults: median(roundFaults),
    peakMiB,
  };
}

type Part = 'first' | 'middle' | 'whole' | 'split';

async function optionsOf(
  model: string,
  part: Part,
  { microBatchCount, sampleCount }: { readonly microBatchCount: number; readonly sampleCount: number },
): Promise<StageOptions> {
  const { layers } = await load('graph/layers.js');
  const { buildModel } = await load('models/zoo.js');
  const { assumedLabel, assumedTraining } = await load('runtime/host/profile-here.js');
  const sequence = layers(buildModel(model, { seed: 1, initialize: false }).graph);
  const cut = (fraction: number) => Math.round(fraction * sequence.layers.length);
  const ranges = {
    first: [0, cut(1 / 3)],
    middle: [cut(1 / 3), cut(2 / 3)],
    whole: [0, sequence.layers.length],
  } as const;
  return {
    sequence,
    layers: ranges[part === 'split' ? 'whole' : part],
    sampleCount,
    microBatchSize: sampleCount,
    training: assumedTraining(microBatchCount * sampleCount, []),
    label: assumedLabel(sequence),
    form: {
      passes: part === 'whole' ? 'step' : 'whole',
      sums: microBatchCount === 1 ? 'none' : 'in-graph',
      grains: 1,
    },
  };
}

/**
 * Weights of about the size that keeps activations where they are from layer to layer, and positive statistics. Returns
 * the process's memory before.
 */
function loadMadeUp(stage: StagePort, { sequence, layers: [first, end] }: StageOptions): number {
  const baseMiB = residentMiB().now;
  for (const { parameters, buffers } of sequence.layers.slice(first, end)) {
    for (const [role, names] of [
      ['parameter', parameters],
      ['buffer', buffers],
    ] as const) {
      for (const name of names) {
        const { shape } = defined(sequence.graph.initializers.get(name), name);
        const data = new Float32Array(shape.reduce((a, b) => a * b, 1));
        const scale = role === 'parameter' && shape.length > 1 ? Math.sqrt(3 / (data.length / at(shape, 0))) : 0;
        for (let index = 0; index < data.length; index++)
          data[index] = scale === 0 ? 0.5 + pseudo(index) : scale * (2 * pseudo(index) - 1);
        stage.load({ role, name, value: { type: 'float32', shape, data } });
      }
    }
  }
  return baseMiB;
}

function madeUp({ type, shape }: CutTensor, sampleCount: number): Tensor {
  const sizes = shape.map((size) => (typeof size === 'string' ? sampleCount : size));
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

function pseudo(index: number): number {
  return ((index * 7919) % 1009) / 1009;
}
