// How much the last bits of the weights change a run on one device: Adam divides a gradient by its own size, so that
// weights whose gradients are nearly zero go where rounding points. This is why `asteroid verify` lets weights differ
// by 1e-3 where Adam trains (runtime/run/verify.ts). Each initial weight is moved by at most one last bit; the state
// after so many rounds is compared with that of the run from the weights as they are.
//   npm run bench -- adam-rounding [--model digits --data mnist] [--steps 10] [--seeds 3]

import { parseArgs } from 'node:util';
import { readRun } from '../dist/cli/inputs.js';
import { createOutput } from '../dist/cli/output.js';
import { resolveSettings } from '../dist/cli/settings.js';
import { createComputeThread } from '../dist/engine/node/compute-thread.js';
import type { Tensor } from '../dist/graph/tensor.js';
import { createRandom } from '../dist/random.js';
import { type DelayedResult, trainDelayed } from '../dist/runtime/run/delayed-training.js';
import type { PreparedRun } from '../dist/runtime/run/prepare.js';
import { tensorDifference } from '../dist/runtime/run/verify.js';
import { gather } from '../dist/training/data/dataset.js';
import { batchIndices } from '../dist/training/data/order.js';
import { table } from './common/table.ts';

const { values: flags } = parseArgs({
  options: {
    model: { type: 'string', default: 'digits' },
    data: { type: 'string', default: 'mnist' },
    steps: { type: 'string', default: '10' },
    seeds: { type: 'string', default: '3' },
  },
});

/** Settings of `train`, and by how many rounds gradients are late. */
const cases: readonly (readonly [settings: Record<string, unknown>, staleness: number])[] = [
  [{ momentum: 0.9 }, 0],
  [{ optimizer: 'adam' }, 0],
  [{ optimizer: 'adam', epsilon: 1e-4 }, 0],
  [{ momentum: 0.9, mode: 'async' }, 3],
  [{ optimizer: 'adam', mode: 'async', stalenessCorrection: 'none' }, 3],
  [{ optimizer: 'adam', mode: 'async' }, 3],
  [{ optimizer: 'adam', mode: 'async', epsilon: 1e-4 }, 3],
];

/** Each weight times 1, or 1 ± 2⁻²⁴, which rounds to a neighbour or back. */
function nudged(parameters: ReadonlyMap<string, Tensor>, seed: number): ReadonlyMap<string, Tensor> {
  if (seed === 0) return parameters;
  const random = createRandom(seed, 0x61646d);
  const nudge = (value: number): number => value * (1 + (random.integer(3) - 1) * 2 ** -24);
  return new Map(
    [...parameters].map(([name, value]) => [
      name,
      value.type === 'float32' ? { ...value, data: Float32Array.from(value.data as Float32Array, nudge) } : value,
    ]),
  );
}

async function trained({ subject, machine, dataset, order }: PreparedRun, staleness: number, seed: number) {
  const engine = await createComputeThread({ engine: 'onnxruntime', threadCount: 1 });
  const { state, sequence, training } = subject;
  const found = await trainDelayed(engine, {
    subject: { ...subject, state: { ...state, parameter: nudged(state.parameter, seed) } },
    config: machine,
    batch: (round) => gather(dataset, batchIndices(order, round)),
    microBatchSize: training.batchSize,
    stages: [{ layers: [0, sequence.layers.length], staleness }],
    correction: training.stalenessCorrection ?? 'none',
  });
  await engine.close();
  return found;
}

function compared(one: DelayedResult, other: DelayedResult): readonly [loss: number, weight: number] {
  const losses = one.losses.map((loss, round) => Math.abs(loss - (other.losses[round] ?? Number.NaN)) / loss);
  const weights = [...one.state.parameter].map(([name, value]) => {
    const second = other.state.parameter.get(name);
    return second === undefined ? Number.NaN : tensorDifference(second, value);
  });
  return [Math.max(...losses), Math.max(...weights)];
}

const rows: string[][] = [];
for (const [own, staleness] of cases) {
  const asked = { workers: 3, steps: Number(flags.steps), model: flags.model, data: flags.data, ...own };
  const run = await readRun(resolveSettings(asked, {}, ''), undefined, createOutput({ json: true }));
  const plain = await trained(run, staleness, 0);
  const found: (readonly [number, number])[] = [];
  for (let seed = 1; seed <= Number(flags.seeds); seed++)
    found.push(compared(plain, await trained(run, staleness, seed)));
  const most = (place: 0 | 1): string => Math.max(...found.map((each) => each[place])).toExponential(1);
  const correction = run.subject.training.stalenessCorrection ?? 'none';
  const { kind, epsilon } = run.subject.training.optimizer;
  rows.push([kind === 'sgd' ? kind : `${kind}, ε ${epsilon}`, String(staleness), correction, most(0), most(1)]);
}
console.log(table(['optimizer', 'rounds late', 'correction', 'losses', 'weights'], rows));
