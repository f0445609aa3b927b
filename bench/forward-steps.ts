// How much one update by a forward gradient can lower the loss of AsyncFGD's small nets (its Table 1), beside one by
// backpropagation. A step η along an estimate d·u of the gradient g changes the loss, to second order and on average
// over signs u, by −η|g|² + η²/2 (|g|² tr H + 2 gᵀHg − 2 Σ g_i² H_ii), H being the Hessian; the last two are small
// where there are many weights. The best η lowers it by |g|² / (2 tr H), the best along g itself by |g|⁴ / (2 gᵀHg).
// Measured at the start and after updates by backpropagation (Adam), with second differences of the loss along random
// signs (Hutchinson) and along g.
//   npm run bench -- forward-steps [--samples 512] [--draws 16] [--updates 0,20,100] [--only TEXT]

import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import { resolveSettings } from '../dist/cli/settings.js';
import type { Engine } from '../dist/engine/engine.js';
import { createOnnxRuntimeNodeEngine } from '../dist/engine/node/onnxruntime-node.js';
import { type Tensor, wrap } from '../dist/graph/tensor.js';
import { writeNoise } from '../dist/noise.js';
import { loadModel } from '../dist/runtime/host/models.js';
import { prepareRun } from '../dist/runtime/host/session-here.js';
import type { RunState } from '../dist/runtime/protocol/run-state.js';
import { DelayedTraining } from '../dist/runtime/run/delayed-training.js';
import type { PreparedRun } from '../dist/runtime/run/prepare.js';
import { loadDataset } from '../dist/storage/node/datasets.js';
import { gather, subset } from '../dist/training/data/dataset.js';
import { batchIndices } from '../dist/training/data/order.js';
import { table } from './common/table.ts';
import { round } from './lab/group.ts';

const { values: flags } = parseArgs({
  options: {
    samples: { type: 'string', default: '512' },
    draws: { type: 'string', default: '16' },
    updates: { type: 'string', default: '0,20,100' },
    only: { type: 'string', default: '' },
  },
});

type Weights = ReadonlyMap<string, Tensor>;

/** One training run of a net, all of the samples as a batch. `rate`: of SGD without momentum, or of Adam. */
async function prepared(net: string, optimizer: 'sgd' | 'adam', rate: number): Promise<PreparedRun> {
  const count = Number(flags.samples);
  const { train } = await loadDataset('mnist', { seed: 0 });
  const data = subset(
    train,
    Uint32Array.from({ length: count }, (_, index) => index),
  );
  const given = { model: net, data: 'mnist', batch: count, seed: 0, epochs: 1000, optimizer, lr: rate, shuffle: false };
  const settings = resolveSettings(given, {}, '');
  return prepareRun({ settings, model: await loadModel(net, 0), train: data, test: undefined });
}

async function trainingOf(engine: Engine, run: PreparedRun, state: RunState): Promise<DelayedTraining> {
  const { subject, dataset, order, machine } = run;
  return await DelayedTraining.create(engine, {
    subject: { ...subject, state },
    config: machine,
    batch: (at) => gather(dataset, batchIndices(order, at)),
    microBatchSize: machine.batchSize,
    stages: [{ layers: [0, subject.sequence.layers.length], staleness: 0 }],
  });
}

/** The loss at these weights and, where asked for, its gradient: what one step of SGD with rate 1 takes away. */
async function lossAt(engine: Engine, run: PreparedRun, state: RunState): Promise<readonly [number, Weights]> {
  const training = await trainingOf(engine, run, state);
  const { loss } = await training.next();
  const { parameter } = await training.state();
  training.dispose();
  return [loss, moved(state.parameter, parameter, -1)];
}

/** a + factor · b, weight by weight. */
function moved(a: Weights, b: Weights, factor: number): Weights {
  return new Map(
    [...a].map(([name, tensor]) => {
      const by = defined(b.get(name), name).data as Float32Array;
      const data = (tensor.data as Float32Array).map((value, at) => value + factor * (by[at] as number));
      return [name, wrap('float32', tensor.shape, data)] as const;
    }),
  );
}

function squaredNorm(weights: Weights): number {
  let sum = 0;
  for (const { data } of weights.values()) for (const value of data as Float32Array) sum += value * value;
  return sum;
}

function signs(like: Weights, draw: number): Weights {
  return new Map(
    [...like].map(([name, { shape, data }]) => {
      const into = new Float32Array(data.length);
      const parts = [{ name, offset: 0, count: data.length, scale: 1, tangent: draw }];
      writeNoise(into, { kind: 'rademacher', seed: 1, round: 0, parts });
      return [name, wrap('float32', shape, into)] as const;
    }),
  );
}

/** Lengths of steps that are small beside a net's weights and large beside rounding: over all weights, along g. */
const [stepOverAll, stepAlongGradient] = [2, 0.1];

/** direction' H direction, by the second difference of the loss along it, over `length`. */
async function curvature(
  engine: Engine,
  run: PreparedRun,
  state: RunState,
  [direction, length]: readonly [Weights, number],
): Promise<number> {
  const step = length / Math.sqrt(squaredNorm(direction));
  const at = async (factor: number): Promise<number> =>
    (await lossAt(engine, run, { ...state, parameter: moved(state.parameter, direction, factor) }))[0];
  return ((await at(step)) + (await at(-step)) - 2 * (await at(0))) / step ** 2;
}

/** A net at one moment of its training. */
interface Moment {
  readonly net: string;
  readonly updates: number;
  readonly loss: number;
  readonly gradient: number;
  readonly trace: number;
  readonly traceError: number;
  readonly alongGradient: number;
}

async function momentOf(engine: Engine, net: string, updates: number, state: RunState): Promise<Moment> {
  const run = await prepared(net, 'sgd', 1);
  const [loss, negative] = await lossAt(engine, run, state);
  const gradient = moved(new Map([...negative].map(([name, tensor]) => [name, zeros(tensor)])), negative, -1);
  const own: number[] = [];
  for (let draw = 0; draw < Number(flags.draws); draw++)
    own.push(await curvature(engine, run, state, [signs(state.parameter, draw), stepOverAll]));
  const trace = own.reduce((sum, value) => sum + value, 0) / own.length;
  const variance = own.reduce((sum, value) => sum + (value - trace) ** 2, 0) / (own.length - 1);
  const alongGradient = (await curvature(engine, run, state, [gradient, stepAlongGradient])) / squaredNorm(gradient);
  const traceError = Math.sqrt(variance / own.length);
  return { net, updates, loss, gradient: Math.sqrt(squaredNorm(gradient)), trace, traceError, alongGradient };
}

function zeros({ shape, data }: Tensor): Tensor {
  return wrap('float32', shape, new Float32Array(data.length));
}

const nets = ['fc-s', 'fc-l', 'conv-s', 'conv-l'].flatMap((net) =>
  ['tanh', 'relu'].map((activation) => `${net}:activation=${activation},classes=10`),
);
const engine = await createOnnxRuntimeNodeEngine();
const rows: (string | number)[][] = [];
for (const net of nets.filter((name) => name.includes(flags.only))) {
  const run = await prepared(net, 'adam', 0.001);
  const training = await trainingOf(engine, run, run.subject.state);
  let done = 0;
  for (const updates of flags.updates.split(',').map(Number)) {
    for (; done < updates; done++) await training.next();
    const found = await momentOf(engine, net, updates, await training.state());
    const { gradient, trace, traceError, alongGradient, loss } = found;
    const [byForward, byBackward] = [gradient ** 2 / (2 * trace), gradient ** 2 / (2 * alongGradient)];
    const name = net.replace(',classes=10', '').replace(':activation=', ', ');
    rows.push([
      ...[name, updates, round(loss, 4), round(gradient, 3), `${round(trace, 3)} ± ${round(traceError, 2)}`],
      ...[round(alongGradient, 3), byForward.toExponential(1), byBackward.toExponential(1)],
      ...[round(trace / alongGradient, 3)],
    ]);
    console.log(rows.at(-1)?.join('  '));
  }
  training.dispose();
}
await engine.close();
const head = ['net', 'updates', 'loss', '|g|', 'tr H', 'gᵀHg / |g|²'];
console.log(`\n${table([...head, 'best by forward', 'best by backward', 'ratio'], rows)}`);
