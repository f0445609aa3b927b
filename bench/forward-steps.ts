// How much one update by a forward gradient can lower the loss of AsyncFGD's small nets (its Table 1), beside one along
// the gradient g itself: the best step of each, by trying. A step −η d u, u being signs and d = g·u, lowers the loss by
// d² (η − η² uᵀHu / 2) to second order, H being the Hessian: per squared slope it varies with u by the curvature alone.
// So the sum over directions is divided by that of squared slopes, and multiplied by their mean, |g|². The best η
// lowers the loss by |g|² / (2 tr H), the best step along g by |g|⁴ / (2 gᵀHg). Measured at the start and after updates
// by backpropagation (Adam, 0.001), which pass through losses that forward gradients must pass through, too.
//   npm run bench -- forward-steps [--samples 512] [--draws 24] [--updates 0,5,10,20] [--only TEXT]

import { parseArgs } from 'node:util';
import { defined } from '../dist/assert.js';
import { resolveSettings } from '../dist/cli/settings.js';
import type { Engine, Executable, Value } from '../dist/engine/engine.js';
import { createOnnxRuntimeNodeEngine } from '../dist/engine/node/onnxruntime-node.js';
import { gradientName } from '../dist/graph/gradient-name.js';
import { scalar, type Tensor, wrap } from '../dist/graph/tensor.js';
import { writeNoise } from '../dist/noise.js';
import { stepNames } from '../dist/runtime/device/stage-graphs.js';
import { loadModel } from '../dist/runtime/host/models.js';
import { prepareRun } from '../dist/runtime/host/session-here.js';
import { stepOf } from '../dist/runtime/run/delayed-step.js';
import { DelayedTraining } from '../dist/runtime/run/delayed-training.js';
import type { PreparedRun } from '../dist/runtime/run/prepare.js';
import { loadDataset } from '../dist/storage/node/datasets.js';
import { gather, subset } from '../dist/training/data/dataset.js';
import { batchIndices } from '../dist/training/data/order.js';
import { sum } from './common/numbers.ts';
import { table } from './common/table.ts';
import { round } from './lab/group.ts';

const { values: flags } = parseArgs({
  options: {
    samples: { type: 'string', default: '512' },
    draws: { type: 'string', default: '24' },
    updates: { type: 'string', default: '0,5,10,20' },
    only: { type: 'string', default: '' },
  },
});

type Weights = ReadonlyMap<string, Float32Array>;

/** A training run of a net with all of the samples as a batch. */
async function prepared(net: string): Promise<PreparedRun> {
  const count = Number(flags.samples);
  const { train } = await loadDataset('mnist', { seed: 0 });
  const data = subset(
    train,
    Uint32Array.from({ length: count }, (_, index) => index),
  );
  const given = { model: net, data: 'mnist', batch: count, epochs: 1000, optimizer: 'adam', lr: 0.001, shuffle: false };
  const settings = resolveSettings({ ...given, seed: 0 }, {}, '');
  return prepareRun({ settings, model: await loadModel(net, 0), train: data, test: undefined });
}

/** The loss of the batch, and its gradient, at any weights. */
class Loss {
  readonly #engine: Engine;
  readonly #executable: Executable;
  readonly #shapes: ReadonlyMap<string, readonly number[]>;
  readonly #feeds: Readonly<Record<string, Value>>;
  readonly #count: number;

  private constructor(engine: Engine, executable: Executable, { subject, dataset, order, machine }: PreparedRun) {
    this.#engine = engine;
    this.#executable = executable;
    this.#shapes = new Map([...subject.state.parameter].map(([name, { shape }]) => [name, shape]));
    this.#count = machine.batchSize;
    const { inputs, labels } = gather(dataset, batchIndices(order, 0));
    const own = new Map<string, Tensor>([
      ...subject.sequence.inputs.map(({ name }, index) => [name, defined(inputs[index], name)] as const),
      [stepNames.labels, labels],
      [stepNames.scale, scalar('float32', 1 / this.#count)],
      ...[...subject.state.buffer].map(([name, value]) => [name, { ...value, data: value.data.slice() }] as const),
    ]);
    this.#feeds = Object.fromEntries([...own].map(([name, value]) => [name, engine.upload(value)]));
  }

  static async of(engine: Engine, run: PreparedRun): Promise<Loss> {
    return new Loss(engine, (await stepOf(engine, run.subject, run.machine.batchSize)).executable, run);
  }

  async #run(weights: Weights, outputs: readonly string[]): Promise<readonly Float32Array[]> {
    const own = [...weights].map(
      ([name, data]) =>
        [name, this.#engine.upload(wrap('float32', defined(this.#shapes.get(name), name), data.slice()))] as const,
    );
    const results = this.#executable.run({ ...this.#feeds, ...Object.fromEntries(own) }, outputs);
    const taken = await Promise.all(outputs.map((name) => this.#engine.take(defined(results[name], name))));
    for (const [, value] of own) this.#engine.release(value);
    return taken.map(({ data }) => data as Float32Array);
  }

  async at(weights: Weights): Promise<number> {
    const [ofSamples] = await this.#run(weights, [stepNames.loss]);
    return defined(ofSamples?.[0], 'the loss') / this.#count;
  }

  async gradient(weights: Weights): Promise<Weights> {
    const names = [...weights.keys()];
    const found = await this.#run(weights, names.map(gradientName));
    return new Map(names.map((name, index) => [name, defined(found[index], name)]));
  }

  release(): void {
    for (const value of Object.values(this.#feeds)) this.#engine.release(value);
    this.#executable.release();
  }
}

/** a + factor · b. */
function moved(a: Weights, b: Weights, factor: number): Weights {
  return new Map(
    [...a].map(([name, values]) => {
      const by = defined(b.get(name), name);
      return [name, values.map((value, at) => value + factor * (by[at] as number))] as const;
    }),
  );
}

function product(a: Weights, b: Weights): number {
  let total = 0;
  for (const [name, values] of a) {
    const other = defined(b.get(name), name);
    for (let at = 0; at < values.length; at++) total += (values[at] as number) * (other[at] as number);
  }
  return total;
}

function signs(like: Weights, draw: number): Weights {
  return new Map(
    [...like].map(([name, { length: count }]) => {
      const into = new Float32Array(count);
      const parts = [{ name, offset: 0, count, scale: 1, tangent: draw }];
      writeNoise(into, { kind: 'rademacher', seed: 1, round: 0, parts });
      return [name, into] as const;
    }),
  );
}

/** The best step: how much lower the loss is, on average, its standard error, and its rate η. */
interface Best {
  readonly decrease: number;
  readonly error: number;
  readonly rate: number;
}

/** A direction, and what the loss changes by along it. Steps are −η · slope · direction. */
interface Direction {
  readonly along: Weights;
  readonly slope: number;
}

/** Tries rates, each twice the one before, until steps are too long. `squared`: the mean of squared slopes. */
async function bestStep(
  loss: Loss,
  weights: Weights,
  { directions, squared, first }: { directions: readonly Direction[]; squared: number; first: number },
): Promise<Best> {
  const start = await loss.at(weights);
  let best: Best = { decrease: 0, error: 0, rate: 0 };
  for (let rate = first; ; rate *= 2) {
    const found: number[] = [];
    for (const { along, slope } of directions)
      found.push(start - (await loss.at(moved(weights, along, -rate * slope))));
    const perSquare = sum(found) / sum(directions.map(({ slope }) => slope ** 2));
    const rest = found.map((own, index) => own - perSquare * (directions[index] as Direction).slope ** 2);
    const error =
      (squared * Math.sqrt(sum(rest.map((own) => own ** 2)))) / sum(directions.map(({ slope }) => slope ** 2));
    if (perSquare * squared > best.decrease) best = { decrease: perSquare * squared, error, rate };
    else if (perSquare * squared < best.decrease / 2 || rate > 1e6 * first) return best;
  }
}

const nets = ['fc-s', 'fc-l', 'conv-s', 'conv-l'].flatMap((net) =>
  ['tanh', 'relu'].map((activation) => `${net}:activation=${activation},classes=10`),
);
const engine = await createOnnxRuntimeNodeEngine();
const rows: (string | number)[][] = [];
for (const net of nets.filter((name) => name.includes(flags.only))) {
  const run = await prepared(net);
  const { subject, dataset, order, machine } = run;
  const loss = await Loss.of(engine, run);
  const training = await DelayedTraining.create(engine, {
    ...{ subject, config: machine, microBatchSize: machine.batchSize },
    batch: (at) => gather(dataset, batchIndices(order, at)),
    stages: [{ layers: [0, subject.sequence.layers.length], staleness: 0 }],
  });
  let done = 0;
  for (const updates of flags.updates.split(',').map(Number)) {
    for (; done < updates; done++) await training.next();
    const { parameter } = await training.state();
    const weights: Weights = new Map([...parameter].map(([name, { data }]) => [name, data as Float32Array]));
    const gradient = await loss.gradient(weights);
    const squared = product(gradient, gradient);
    const drawn = Array.from({ length: Number(flags.draws) }, (_, draw): Direction => {
      const along = signs(weights, draw);
      return { along, slope: product(gradient, along) };
    });
    // |g|² is the mean of the squared slopes along signs.
    const byForward = await bestStep(loss, weights, { directions: drawn, squared, first: 2 ** -13 });
    const whole = [{ along: gradient, slope: 1 }];
    const byBackward = await bestStep(loss, weights, { directions: whole, squared: 1, first: 2 ** -6 });
    rows.push([
      ...[net.replace(',classes=10', '').replace(':activation=', ', '), updates],
      ...[round(await loss.at(weights), 4), round(Math.sqrt(squared), 3)],
      ...[`${byForward.decrease.toExponential(1)} ± ${byForward.error.toExponential(0)}`, round(byForward.rate, 2)],
      ...[byBackward.decrease.toExponential(1), round(byBackward.decrease / byForward.decrease, 3)],
    ]);
    console.log(rows.at(-1)?.join('  '));
  }
  training.dispose();
  loss.release();
}
await engine.close();
const head = ['net', 'updates', 'loss', '|g|', 'lowered by a forward gradient', 'its rate'];
console.log(`\n${table([...head, 'lowered along g', 'ratio'], rows)}`);
