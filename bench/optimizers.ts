// Memory of optimizers: resident memory of a process that trains a chain of square linear layers, at its sixth round,
// beside eq. 3's parameters, gradients and state. Each optimizer runs in a process of its own. Linux only (/proc):
//   npm run bench -- optimizers [--width 1024] [--layers 16] [--json]
// Writes bench/results/. The runtime keeps the version before the last update, too, with its state.

import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { createOnnxRuntimeNodeEngine } from '../dist/engine/node/onnxruntime-node.js';
import { GraphBuilder } from '../dist/graph/builder.js';
import { type Tensor, tensor } from '../dist/graph/tensor.js';
import { optimizerStateCount } from '../dist/runtime/protocol/training-spec.js';
import { runAlone } from '../dist/testing/memory-cluster.js';
import { sgd, subjectOf } from '../dist/testing/training-subjects.js';
import { type OptimizerKind, optimizerKinds } from '../dist/training/update-rules.js';
import { residentMiB, runJson } from './common/cases.ts';
import { at, machine } from './common/numbers.ts';
import { table, writeResult } from './common/table.ts';

const { values } = parseArgs({
  options: {
    width: { type: 'string', default: '1024' },
    layers: { type: 'string', default: '16' },
    json: { type: 'boolean', default: false },
    case: { type: 'string' },
  },
});
const [width, layers] = [Number(values.width), Number(values.layers)];
const weightMiB = (layers * width * width * 4) / 2 ** 20;
const [batchSize, lastRound] = [4, 5];

interface Measured {
  readonly state: number;
  readonly MiB: number;
}

function filled(shape: readonly number[], value: number): Tensor {
  const count = shape.reduce((product, size) => product * size, 1);
  return tensor('float32', shape, new Array<number>(count).fill(value));
}

async function measure(kind: OptimizerKind): Promise<Measured> {
  const b = new GraphBuilder('chain', { seed: 1 });
  let x = b.input('x', 'float32', ['N', width]);
  for (let index = 0; index < layers; index++)
    x = b.relu(b.linear(x, { name: `layer${index}`, outFeatures: width, bias: false }));
  const net = { graph: b.build([x]), loss: 'mse', classCount: 0 } as const;
  const subject = subjectOf(net, batchSize, { optimizer: { ...sgd, kind } });
  const halves = (): Tensor => filled([batchSize, width], 0.5);
  let found = 0;
  await runAlone({
    ...{ subject, microBatchSize: batchSize, createEngine: () => createOnnxRuntimeNodeEngine() },
    batch(round) {
      if (round === lastRound) found = residentMiB().now;
      return { inputs: [halves()], labels: halves() };
    },
    machine: { endRound: lastRound + 1, learningRate: () => 1e-6 },
  });
  return { state: optimizerStateCount(subject.training), MiB: found };
}

if (values.case !== undefined) {
  console.log(JSON.stringify(await measure(values.case as OptimizerKind)));
} else {
  const script = fileURLToPath(import.meta.url);
  const returned = { MALLOC_ARENA_MAX: '1', MALLOC_MMAP_THRESHOLD_: '65536' };
  const results = optimizerKinds.map((kind) => {
    const args = [script, '--case', kind, '--width', values.width, '--layers', values.layers];
    return { kind, ...runJson<Measured>(args, returned) };
  });
  const own = (kind: OptimizerKind): number => results.find((result) => result.kind === kind)?.MiB ?? Number.NaN;
  const rows = results.map(({ kind, state, MiB }) => [
    ...[kind === 'sgd' ? 'sgd, momentum 0.9' : kind, state, ((2 + state) * weightMiB).toFixed(0), MiB.toFixed(0)],
    (MiB - at(results, 0).MiB).toFixed(0),
  ]);
  const head = ['optimizer', 'values a weight', 'eq. 3, MiB', 'resident, MiB', 'more than sgd, MiB'];
  const saved = own('adamw') - own('lion');
  const times = (saved / weightMiB).toFixed(2);
  const sentence =
    `Lion takes ${saved.toFixed(0)} MiB less than AdamW, ${times} times the weights, which are ` +
    `${weightMiB.toFixed(0)} MiB.`;
  const text = `${table(head, rows)}\n\n${sentence}\n`;
  console.log(values.json ? JSON.stringify({ weightMiB, results }) : text);
  writeResult('optimizers', (date) => `# Memory of optimizers (${date})\n\n${machine()}.\n\n${text}`);
}
