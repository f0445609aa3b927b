// What forward gradients learn beside backpropagation: AsyncFGD's Tables 1 (small nets from scratch) and 2 (transfer),
// and ways to make the variance smaller, on the digits and on a part of Fashion-MNIST. One device; overlapping rounds
// by the delayed oracle, which equals a pipeline. Each run is a line of JSON in a file: a stopped table goes on.
//   npm run bench -- forward-accuracy [--runs FILE] [--tables 1,2,variance] [--epochs 10] [--samples 4000]
//     [--tests 2000] [--rates 0.0001,0.001,0.01] [--only TEXT] [--backbone FILE] [--head-epochs 150] [--report]
// Of each method, the learning rate that is best on a tenth of the training data is tested, as in the paper. Table 2
// takes a backbone with published weights: bench/forward_accuracy_backbone.py writes it.

import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import { resolveSettings } from '../dist/cli/settings.js';
import type { Engine } from '../dist/engine/engine.js';
import { createOnnxRuntimeNodeEngine } from '../dist/engine/node/onnxruntime-node.js';
import { GraphBuilder } from '../dist/graph/builder.js';
import { type LayerSequence, layers } from '../dist/graph/layers.js';
import { exportGraph } from '../dist/graph/onnx/export.js';
import { importModel } from '../dist/graph/onnx/import.js';
import { inferenceMode } from '../dist/graph/onnx/modes.js';
import { extractStage } from '../dist/graph/stage.js';
import { allocate, wrap } from '../dist/graph/tensor.js';
import { loadModel } from '../dist/runtime/host/models.js';
import { prepareRun } from '../dist/runtime/host/session-here.js';
import { DelayedTraining } from '../dist/runtime/run/delayed-training.js';
import { evaluateOn } from '../dist/runtime/run/evaluate.js';
import type { LoadedModel } from '../dist/runtime/run/loaded-model.js';
import { loadDataset } from '../dist/storage/node/datasets.js';
import { createDataset, type Dataset, gather, inputField, subset } from '../dist/training/data/dataset.js';
import { batchIndices, roundsPerEpoch } from '../dist/training/data/order.js';
import { cpuMs } from './common/numbers.ts';
import { RunsFile } from './common/runs-file.ts';
import { table } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    runs: { type: 'string', default: 'forward-accuracy.jsonl' },
    tables: { type: 'string', default: '1,2,variance' },
    epochs: { type: 'string', default: '10' },
    samples: { type: 'string', default: '4000' },
    tests: { type: 'string', default: '2000' },
    rates: { type: 'string', default: '0.0001,0.001,0.01' },
    only: { type: 'string', default: '' },
    backbone: { type: 'string', default: 'backbone.onnx' },
    'head-epochs': { type: 'string', default: '150' },
    report: { type: 'boolean', default: false },
  },
});

const batchSize = 64;

const datasets = { digits: 'mnist', 'Fashion-MNIST': 'idx:/usr/share/datasets/fashion-mnist' } as const;
type DatasetName = keyof typeof datasets;

/** How a run trains. Patterns are of `--freeze-all-but` and `--tangent-scale`. */
interface Method {
  /** 0: backpropagation. */
  readonly tangents: number;
  readonly kind?: 'gaussian' | 'rademacher';
  /** The step of two forward passes. */
  readonly difference?: number;
  /** Stages whose rounds overlap. */
  readonly stages?: number;
  readonly trained?: 'head' | 'norms and biases';
  readonly scale?: string;
  readonly perturb?: 'activations';
}

const fromScratch: Readonly<Record<string, Method>> = {
  BP: { tangents: 0 },
  FGD: { tangents: 1 },
  Async: { tangents: 1, stages: 3 },
  activations: { tangents: 1, perturb: 'activations' },
};
/** As in App. I.1: the head moves from the start, norms grow to 0.15 in the first epochs. */
const transfer: Readonly<Record<string, Method>> = {
  BP: { tangents: 0 },
  FGD: { tangents: 1 },
  'BP, head': { tangents: 0, trained: 'head' },
  'FGD, head, 1': { tangents: 1, trained: 'head' },
  'FGD, head, 16': { tangents: 16, trained: 'head' },
  'FGD, head, 64': { tangents: 64, trained: 'head' },
  'activations, head, 1': { tangents: 1, trained: 'head', perturb: 'activations' },
  'activations, head, 16': { tangents: 16, trained: 'head', perturb: 'activations' },
  'BP, head and norms': { tangents: 0, trained: 'norms and biases' },
  'Async*, head and norms': { tangents: 4, stages: 4, trained: 'norms and biases', scale: '*_bn*=0.15:5' },
};
const smaller: Readonly<Record<string, Method>> = {
  backpropagation: { tangents: 0 },
  'two forward passes (MeZO)': { tangents: 1, difference: 1e-3 },
  'gaussian, 1': { tangents: 1, kind: 'gaussian' },
  'rademacher, 1': { tangents: 1 },
  'rademacher, 4': { tangents: 4 },
  'rademacher, 16': { tangents: 16 },
  'activations, 1': { tangents: 1, perturb: 'activations' },
  'activations, 4': { tangents: 4, perturb: 'activations' },
  'biases and head, 1': { tangents: 1, trained: 'norms and biases' },
  'biases and head, 16': { tangents: 16, trained: 'norms and biases' },
  'biases and head by backpropagation': { tangents: 0, trained: 'norms and biases' },
};

/** The cheapest first: a stopped table has them. */
const smallNets = ['fc-s', 'conv-s', 'fc-l', 'conv-l'].flatMap((net) =>
  ['tanh', 'relu'].map((activation) => `${net}:activation=${activation},classes=10`),
);
/** Of a net: its head, and what else has few weights. */
const subsets: Readonly<Record<string, { readonly head: string; readonly few: readonly string[] }>> = {
  'conv-s': { head: 'fc2.*', few: ['*.bias'] },
  'conv-l': { head: 'fc1.*', few: ['bn*', '*.bias'] },
  'fc-s': { head: 'fc4.*', few: ['*.bias'] },
  'fc-l': { head: 'fc6.*', few: ['bn*', '*.bias'] },
  backbone: { head: '_fc.*', few: ['*_bn*'] },
};

interface Key {
  readonly table: string;
  readonly dataset: DatasetName;
  readonly net: string;
  readonly method: string;
  readonly rate: number;
  readonly epochs: number;
  readonly samples: number;
}
interface Run extends Key {
  readonly validation: number;
  readonly accuracy: number;
  readonly trainedCount: number;
  readonly cpuS: number;
}

const tables: Readonly<Record<string, { readonly nets: readonly string[]; readonly methods: typeof fromScratch }>> = {
  1: { nets: smallNets, methods: fromScratch },
  2: { nets: ['backbone'], methods: transfer },
  variance: { nets: ['fc-s:activation=relu,classes=10'], methods: smaller },
};

/** Grey pictures [n, 1, 28, 28] as the backbone takes them: each pixel four times, three channels, a border. */
function widened(data: Dataset): Dataset {
  const indices = Uint32Array.from({ length: data.sampleCount }, (_, index) => index);
  const { inputs, labels } = gather(data, indices);
  const pixels = defined(inputs[0], 'the pictures').data as Float32Array;
  const [from, to, border] = [28, 64, 4];
  const found = allocate('float32', data.sampleCount * 3 * to * to) as Float32Array;
  for (let at = 0; at < found.length; at++) {
    const [x, y, sample] = [(at % to) - border, (Math.floor(at / to) % to) - border, Math.floor(at / (3 * to * to))];
    const isInside = x >= 0 && y >= 0 && x < 2 * from && y < 2 * from;
    const pixel = isInside ? (pixels[sample * from * from + (y >> 1) * from + (x >> 1)] as number) : 0;
    found[at] = (pixel - 0.45) / 0.225;
  }
  const values = wrap('float32', [data.sampleCount, 3, to, to], found);
  return createDataset(data.name, [inputField('x', values, data.name)], { ...data.labels, values: labels }, 10);
}

async function dataOf({ dataset, net, samples }: Key): Promise<readonly [Dataset, Dataset, Dataset]> {
  const { train, test } = await loadDataset(datasets[dataset], { seed: 0 });
  const range = (from: Dataset, first: number, count: number): Dataset => {
    const part = subset(
      from,
      Uint32Array.from({ length: Math.min(count, from.sampleCount - first) }, (_, i) => first + i),
    );
    return net === 'backbone' ? widened(part) : part;
  };
  const held = Math.floor(samples / 10);
  return [
    range(train, held, samples - held),
    range(train, 0, held),
    range(defined(test, 'tests'), 0, Number(flags.tests)),
  ];
}

function trainedPatterns(net: string, { trained }: Method): readonly string[] {
  const { head, few } = defined(subsets[net.split(':')[0] ?? ''], net);
  return trained === undefined ? [] : trained === 'head' ? [head] : [head, ...few];
}

/** What a run trains: a whole net, or a head on what the frozen layers before it give, which is the same. */
interface Task {
  readonly model: LoadedModel;
  readonly data: readonly [Dataset, Dataset, Dataset];
}

/** By data set: the backbone's features, and a head on them. */
const heads = new Map<string, Task>();

async function taskOf(engine: Engine, key: Key, { trained }: Method): Promise<Task> {
  if (key.net !== 'backbone') return { model: await loadModel(key.net, 0), data: await dataOf(key) };
  const whole = { model: await loadModel(flags.backbone, 0, { headClasses: 10 }), data: await dataOf(key) };
  if (trained !== 'head') return whole;
  const name = JSON.stringify([key.dataset, key.samples]);
  const found = heads.get(name) ?? (await headTask(engine, whole));
  heads.set(name, found);
  return found;
}

async function headTask(engine: Engine, { model, data }: Task): Promise<Task> {
  const sequence = layers(inferenceMode(model.graph));
  const b = new GraphBuilder('head', { seed: 0 });
  const features: Dataset[] = [];
  for (const part of data) features.push(await featuresOf(engine, sequence, part));
  const width = defined(defined(features[0], 'data').inputs[0], 'features').values.shape[1] as number;
  const graph = b.build([b.linear(b.input('features', 'float32', ['N', width]), { name: '_fc', outFeatures: 10 })]);
  const write: LoadedModel['write'] = (values) => exportGraph(graph, values);
  return { model: { name: 'head', graph, notes: [], write }, data: features as unknown as Task['data'] };
}

/** What goes into the last layer of the backbone, sample by sample. */
async function featuresOf(engine: Engine, sequence: LayerSequence, data: Dataset): Promise<Dataset> {
  const size = 50;
  const { graph } = extractStage(sequence, 0, sequence.layers.length - 1, size);
  const compiled = await engine.compile({ ...graph, parameters: [], buffers: [] });
  const rows: Float32Array[] = [];
  for (let first = 0; first + size <= data.sampleCount; first += size) {
    const { inputs } = gather(
      data,
      Uint32Array.from({ length: size }, (_, index) => first + index),
    );
    const fed = engine.upload(defined(inputs[0], 'the pictures'));
    const results = compiled.run({ [defined(compiled.inputs[0], 'an input')]: fed });
    rows.push((await engine.take(defined(Object.values(results)[0], 'features'))).data as Float32Array);
    engine.release(fed);
  }
  compiled.release();
  const count = rows.length * size;
  const all = Float32Array.from(rows.flatMap((row) => [...row]));
  const { labels } = gather(
    data,
    Uint32Array.from({ length: count }, (_, index) => index),
  );
  const values = wrap('float32', [count, all.length / count], all);
  return createDataset(data.name, [inputField('features', values, data.name)], { ...data.labels, values: labels }, 10);
}

async function trainOnce(engine: Engine, key: Key): Promise<Run> {
  const startMs = cpuMs();
  const method = defined(defined(tables[key.table], 'a table').methods[key.method], key.method);
  const { model, data } = await taskOf(engine, key, method);
  const [train, held, test] = data;
  const isHead = model.name === 'head';
  const epochs = isHead ? Number(flags['head-epochs']) : key.epochs;
  const { tangents, kind = 'rademacher', difference, stages: stageCount = 1 } = method;
  const settings = resolveSettings(
    {
      ...{ model: key.net, data: key.dataset, batch: batchSize, seed: 0, epochs, dropLast: true },
      ...{
        optimizer: 'adam',
        lr: key.rate,
        lrSchedule: 'cosine:warmup=20',
        freezeAllBut: isHead ? [] : trainedPatterns(key.net, method),
      },
      ...(tangents === 0 ? {} : { mode: 'forward-gradient', tangents, tangent: kind }),
      ...(difference === undefined ? {} : { tangentDifference: difference }),
      ...(method.perturb === undefined ? {} : { perturb: method.perturb }),
      ...(method.scale === undefined ? {} : { tangentScale: [method.scale] }),
    },
    {},
    '',
  );
  const { subject, dataset, order, machine } = prepareRun({ settings, model, train, test: undefined });
  const count = subject.sequence.layers.length;
  const cut = (stage: number): number => Math.round((stage * count) / stageCount);
  const stages = Array.from({ length: stageCount }, (_, stage) => ({
    layers: [cut(stage), cut(stage + 1)] as const,
    staleness: stageCount - 1 - stage,
  }));
  const batch = (round: number) => gather(dataset, batchIndices(order, round));
  const training = await DelayedTraining.create(engine, {
    ...{ subject, config: machine, batch, microBatchSize: batchSize, stages },
  });
  for (let round = 0; round < epochs * roundsPerEpoch(order); round++) await training.next();
  const { parameter, buffer } = await training.state();
  training.dispose();
  const trained = importModel(model.write(new Map([...parameter, ...buffer]))).graph;
  const accuracyOn = async (data: Dataset): Promise<number> => {
    const found = await evaluateOn(() => createOnnxRuntimeNodeEngine(), trained, data, { ...settings, threads: 1 });
    return found.accuracy ?? Number.NaN;
  };
  const frozen = new Set(subject.training.frozen);
  const trainedCount = [...subject.state.parameter].reduce(
    (sum, [name, { data }]) => sum + (frozen.has(name) ? 0 : data.length),
    0,
  );
  const [validation, accuracy] = [await accuracyOn(held), await accuracyOn(test)];
  return { ...key, validation, accuracy, trainedCount, cpuS: (cpuMs() - startMs) / 1000 };
}

const keyOf = ({ table: name, dataset, net, method, rate, epochs, samples }: Key): string =>
  JSON.stringify([name, dataset, net, method, rate, epochs, samples]);
const file = new RunsFile<Key, Run>(flags.runs, keyOf);

/** Samples that are normalized together have no derivatives of their own. */
function isPossible(net: string, { perturb }: Method): boolean {
  return perturb === undefined || !/^(conv|fc)-l/.test(net);
}

function wanted(): Key[] {
  const [epochs, samples] = [Number(flags.epochs), Number(flags.samples)];
  const sets = Object.keys(datasets) as DatasetName[];
  return flags.tables.split(',').flatMap((name) => {
    const { nets, methods } = defined(tables[name], `table ${name}`);
    const all = sets.flatMap((dataset) =>
      nets.flatMap((net) => Object.keys(methods).map((method) => ({ table: name, dataset, net, method }))),
    );
    return all
      .filter(({ net, method }) => isPossible(net, defined(methods[method], method)))
      .flatMap((one) => flags.rates.split(',').map((rate) => ({ ...one, rate: Number(rate), epochs, samples })));
  });
}

/** Published accuracies in per cent, MNIST: BP, FGD, Async of Table 1. */
const published: Readonly<Record<string, readonly number[]>> = {
  'conv-s:activation=tanh,classes=10': [98.7, 94.6, 94.4],
  'conv-s:activation=relu,classes=10': [99.2, 95.5, 95.5],
  'conv-l:activation=tanh,classes=10': [99.3, 94.4, 94.2],
  'conv-l:activation=relu,classes=10': [99.3, 93.0, 93.2],
  'fc-s:activation=tanh,classes=10': [98.9, 94.4, 94.3],
  'fc-s:activation=relu,classes=10': [98.5, 93.6, 93.7],
  'fc-l:activation=tanh,classes=10': [98.8, 95.2, 95.4],
  'fc-l:activation=relu,classes=10': [99.3, 94.8, 95.3],
};

/** A row for each net and data set, a column for each method: the best by validation. */
function report(runs: readonly Run[], name: string): string {
  const { nets, methods } = defined(tables[name], `table ${name}`);
  const rows = nets.flatMap((net) =>
    (Object.keys(datasets) as DatasetName[]).map((dataset) => [
      net,
      dataset,
      ...Object.keys(methods).map((method, index) => {
        const own = runs.filter((run) => run.table === name && run.net === net && run.dataset === dataset);
        const best = own.filter((run) => run.method === method).sort((a, b) => b.validation - a.validation)[0];
        const paper = name === '1' && dataset === 'digits' ? ` (${published[net]?.[index]})` : '';
        return best === undefined ? '' : `${(100 * best.accuracy).toFixed(1)}${paper}, ${best.rate}`;
      }),
    ]),
  );
  return table(['net', 'data', ...Object.keys(methods)], rows);
}

if (!flags.report) {
  const engine = await createOnnxRuntimeNodeEngine();
  for (const key of file.missing(wanted(), flags.only)) {
    const found = await trainOnce(engine, key);
    file.add(found);
    console.log(`${keyOf(key)}: ${(100 * found.accuracy).toFixed(1)} % (${found.cpuS.toFixed(1)} s)`);
  }
  await engine.close();
}
for (const name of flags.tables.split(',')) console.log(`${report(file.read(), name)}\n`);
