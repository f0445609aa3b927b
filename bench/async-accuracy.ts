// What staleness does to accuracy, and what repairs it: a small net of MobileNetV2's kind trained by the delayed oracle
// (one device; equal to an asynchronous pipeline of five stages, M = 1 and vertical sync), on the digits and on a part
// of Fashion-MNIST. Each run is a line of JSON in a file, so that a stopped table goes on; then tables and a picture.
//   npm run bench -- async-accuracy [--runs FILE] [--seeds 5] [--epochs 5] [--sgd-rate R] [--adam-rate R] [--only TEXT]
//     [--rates] [--report]
// `--rates`: seed 100 at each learning rate instead; `--report`: only the tables, and the pictures in bench/results/.

import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import type { Engine } from '../dist/engine/engine.js';
import type { Graph } from '../dist/graph/graph.js';
import { accuracyTable, epochTable, errorPicture, type Run } from './common/accuracy-report.ts';
import { loadFrom } from './common/build.ts';
import { cpuMs } from './common/numbers.ts';
import { RunsFile } from './common/runs-file.ts';

const { values: flags } = parseArgs({
  options: {
    dist: { type: 'string', default: 'dist' },
    runs: { type: 'string', default: 'async-accuracy.jsonl' },
    seeds: { type: 'string', default: '5' },
    epochs: { type: 'string', default: '5' },
    rates: { type: 'boolean', default: false },
    report: { type: 'boolean', default: false },
    only: { type: 'string', default: '' },
    'sgd-rate': { type: 'string', default: '0.05' },
    'adam-rate': { type: 'string', default: '0.016' },
  },
});
const load = loadFrom(flags.dist);
const { GraphBuilder } = await load('graph/builder.js');
const { convNorm, pooledFeatures } = await load('models/blocks.js');
const { layers } = await load('graph/layers.js');
const { exportGraph } = await load('graph/onnx/export.js');
const { importModel } = await load('graph/onnx/import.js');
const { inferenceMode, trainingMode } = await load('graph/onnx/modes.js');
const { createOnnxRuntimeNodeEngine } = await load('engine/node/onnxruntime-node.js');
const { prepareRun } = await load('runtime/host/session-here.js');
const { evaluateOn } = await load('runtime/run/evaluate.js');
const { DelayedTraining } = await load('runtime/run/delayed-training.js');
const { rampOf } = await load('runtime/run/settings.js');
const { resolveSettings } = await load('cli/settings.js');
const { gather, subset } = await load('training/data/dataset.js');
const { batchIndices, roundsPerEpoch } = await load('training/data/order.js');
const { loadDataset } = await load('storage/node/datasets.js');

const stageCount = 5;
const batchSize = 32;
/** Rounds over which the learning rate rises, of all methods. */
const warmup = 60;

const datasets = {
  digits: { spec: 'mnist', sampleCount: 4000 },
  'Fashion-MNIST': { spec: 'idx:/usr/share/datasets/fashion-mnist', sampleCount: 4000 },
} as const;
type DatasetName = keyof typeof datasets;

const methods = {
  synchronous: { staleness: 0 },
  asynchronous: { staleness: stageCount - 1 },
  'asynchronous, --aggregate 1': { staleness: stageCount - 1, aggregateEvery: 1 },
  'asynchronous, predict': { staleness: stageCount - 1, correction: 'predict' },
  'asynchronous, nesterov': { staleness: stageCount - 1, correction: 'nesterov' },
} as const;
type MethodName = keyof typeof methods;

const optimizers = {
  sgd: { lr: Number(flags['sgd-rate']), rates: [0.0125, 0.025, 0.05, 0.1, 0.2] },
  adam: { lr: Number(flags['adam-rate']), rates: [0.002, 0.004, 0.008, 0.016, 0.032] },
} as const;
type OptimizerName = keyof typeof optimizers;

/** Stem, two inverted residual blocks and a head of 64 channels, on pictures of 28x28 halved. */
function net(seed: number): Graph {
  const b = new GraphBuilder('small-mobilenet', { seed });
  const small = b.averagePool2d(b.input('x', 'float32', ['N', 1, 28, 28]), { kernel: 2, stride: 2 });
  let y = convNorm(b, small, { name: 'stem', outChannels: 8, kernel: 3, stride: 2, activation: 'relu6' });
  for (const [index, [expansion, channels, stride]] of (
    [
      [4, 8, 1],
      [4, 16, 2],
    ] as const
  ).entries()) {
    const [name, inChannels] = [`block${index}`, b.size(y, 1)];
    const hidden = inChannels * expansion;
    const wide = convNorm(b, y, { name: `${name}.a`, outChannels: hidden, kernel: 1, activation: 'relu6' });
    const deep = { outChannels: hidden, kernel: 3, stride, groups: hidden, activation: 'relu6' } as const;
    const spread = convNorm(b, wide, { name: `${name}.b`, ...deep });
    const narrow = convNorm(b, spread, { name: `${name}.c`, outChannels: channels, kernel: 1, activation: 'none' });
    y = stride === 1 && inChannels === channels ? b.add(y, narrow) : narrow;
  }
  y = convNorm(b, y, { name: 'last', outChannels: 64, kernel: 1, activation: 'relu6' });
  return b.build([b.linear(pooledFeatures(b, y), { name: 'head', outFeatures: 10 })]);
}

/** The pictures in bench/results/. */
const pictures = [
  ['2026-11-28-async-accuracy.svg', ['Fashion-MNIST', 'sgd', optimizers.sgd.lr]],
  ['2026-11-28-async-accuracy-adam.svg', ['Fashion-MNIST', 'adam', optimizers.adam.lr]],
] as const;

/** What a run is told apart by. */
type Key = Omit<Run, 'accuracies' | 'losses' | 'cpuS'>;

/** A method's options, all of them optional but the staleness. */
interface Method {
  readonly staleness: number;
  readonly aggregateEvery?: number;
  readonly correction?: 'predict' | 'nesterov';
}

/** A run that is ready to begin, and what it is tested with. */
async function prepared(engine: Engine, { dataset, method, optimizer, rate, seed, epochs }: Key) {
  const { spec, sampleCount } = datasets[dataset as DatasetName];
  const { train, test } = await loadDataset(spec, { seed });
  if (test === undefined) throw new Error(`${spec} has no test part`);
  const graph = net(seed);
  const settings = resolveSettings(
    {
      ...{ model: 'small', data: spec, batch: batchSize, workers: 0, seed, epochs, optimizer, lr: rate },
      ...{ lrSchedule: `cosine:warmup=${warmup}`, momentum: 0.9, dropLast: true, loss: 'cross-entropy' },
    },
    {},
    '',
  );
  const model = { name: 'small', graph: trainingMode(graph), notes: [], write: () => new Uint8Array() };
  const part = subset(
    train,
    Uint32Array.from({ length: sampleCount }, (_, index) => index),
  );
  const { subject, dataset: bound, order, machine } = prepareRun({ settings, model, train: part, test: undefined });
  const count = layers(graph).layers.length;
  const cut = (stage: number): number => Math.round((stage * count) / stageCount);
  const { staleness, ...options }: Method = methods[method as MethodName];
  const stages = Array.from({ length: stageCount }, (_, stage) => ({
    layers: [cut(stage), cut(stage + 1)] as const,
    staleness,
  }));
  const batch = (round: number) => gather(bound, batchIndices(order, round));
  const ramp = rampOf(settings, options.correction ?? 'none', epochs * roundsPerEpoch(order));
  const rising = { ...subject, training: { ...subject.training, ...ramp } };
  const own = { subject: rising, config: machine, batch, microBatchSize: batchSize, stages };
  const training = await DelayedTraining.create(engine, { ...own, ...options });
  return { training, graph, test, settings, roundCount: roundsPerEpoch(order) };
}

/** Test pictures after an epoch that is not the last. */
const epochTestCount = 2000;

/** Trains once, with a test after every epoch. */
async function run(engine: Engine, key: Key): Promise<Run> {
  const startMs = cpuMs();
  const { training, graph, test, settings, roundCount } = await prepared(engine, key);
  const [accuracies, losses]: [number[], number[]] = [[], []];
  const part = subset(
    test,
    Uint32Array.from({ length: Math.min(test.sampleCount, epochTestCount) }, (_, index) => index),
  );
  for (let epoch = 0; epoch < key.epochs; epoch++) {
    let sum = 0;
    for (let round = 0; round < roundCount; round++) sum += (await training.next()).loss;
    losses.push(sum / roundCount);
    const { parameter, buffer } = await training.state();
    const trained = importModel(exportGraph(inferenceMode(graph), new Map([...parameter, ...buffer]))).graph;
    const shown = epoch + 1 < key.epochs ? part : test;
    const found = await evaluateOn(() => createOnnxRuntimeNodeEngine(), trained, shown, { ...settings, threads: 1 });
    accuracies.push(found.accuracy ?? Number.NaN);
  }
  training.dispose();
  return { ...key, accuracies, losses, cpuS: (cpuMs() - startMs) / 1000 };
}

const keyOf = ({ dataset, method, optimizer, rate, seed, epochs }: Key) =>
  JSON.stringify([dataset, method, optimizer, rate, seed, epochs]);
const file = new RunsFile<Key, Run>(flags.runs, keyOf);

/** What is to be run, whole tables first: a seed at a time. */
function wanted(): Key[] {
  const epochs = Number(flags.epochs);
  const seeds = flags.rates ? [100] : Array.from({ length: Number(flags.seeds) }, (_, seed) => seed);
  return seeds.flatMap((seed) =>
    (Object.keys(datasets) as DatasetName[]).flatMap((dataset) =>
      (Object.keys(optimizers) as OptimizerName[]).flatMap((optimizer) =>
        (Object.keys(methods) as MethodName[]).flatMap((method) =>
          (flags.rates ? optimizers[optimizer].rates : [optimizers[optimizer].lr]).map((rate) => ({
            ...{ dataset, method, optimizer, rate, seed, epochs },
          })),
        ),
      ),
    ),
  );
}

if (!flags.report) {
  const engine = await createOnnxRuntimeNodeEngine();
  for (const key of file.missing(wanted(), flags.only)) {
    const result = await run(engine, key);
    file.add(result);
    const last = ((result.accuracies.at(-1) ?? 0) * 100).toFixed(2);
    console.log(`${keyOf(key)}: ${last} % (${result.cpuS.toFixed(1)} s)`);
  }
  await engine.close();
}
const runs = file.read();
console.log(accuracyTable(runs));
console.log(epochTable(runs));
if (flags.report)
  for (const [name, column] of pictures) {
    const path = new URL(`../bench/results/${name}`, import.meta.url);
    writeFileSync(path, errorPicture(runs, column, Number(flags.seeds)));
  }
