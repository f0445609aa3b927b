// The corrections of staleness against their formulas in float64, step by step.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createReferenceEngine } from '../engine/reference.ts';
import { gradientName } from '../graph/gradient-name.ts';
import { scalar, type Tensor, tensor, toNumbers } from '../graph/tensor.ts';
import { runGraph } from '../testing/run-graph.ts';
import { aggregatedVersions, meanGraph, versionName } from './aggregation.ts';
import { optimizerGraph } from './optimizers.ts';
import { checkCorrection, correctionOf } from './staleness.ts';
import type { OptimizerKind, OptimizerOptions } from './update-rules.ts';

const shape = [2];
const start = [0.5, -1.25];
const gradients = [
  [0.5, -2],
  [-0.25, 1],
  [1, 0.125],
  [2, -0.5],
];
const rateOf = (step: number): number => 0.1 / step;
const scale = 0.5;

/** One weight through an optimizer: the new weight and what is read. State is the caller's own. */
type ByHand = (weight: number, gradient: number, rate: number, step: number) => readonly [number, number];

/** Adam's or AdamW's state for one weight, and the formulas with it. */
function adamByHand(decay: number, ahead: number): ByHand {
  let [m, v] = [0, 0];
  return (weight, gradient, rate, step) => {
    m = 0.9 * m + 0.1 * gradient;
    v = 0.999 * v + 0.001 * gradient ** 2;
    const u = m / (1 - 0.9 ** step) / (Math.sqrt(v / (1 - 0.999 ** step)) + 1e-8);
    const updated = weight - rate * u - rate * decay * weight;
    return [updated, updated - ahead * rate * (u + decay * updated)];
  };
}

/** `late`: the part of the learning rate at a step. */
function delayedAdamByHand(
  gamma: number,
  newest: number,
  { decay, ahead, late }: { readonly decay: number; readonly ahead: number; readonly late: (step: number) => number },
): ByHand {
  let [m, v] = [0, 0];
  return (weight, gradient, given, step) => {
    const rate = given * late(step);
    m = gamma * m + (1 - gamma) * gradient;
    v = 0.999 * v + 0.001 * gradient ** 2;
    const smooth = m / (1 - gamma ** step);
    const size = Math.sqrt(v / (1 - 0.999 ** step)) + 1e-8;
    const updated = weight * (1 - rate * decay) - (rate * ((1 - newest) * smooth + newest * gradient)) / size;
    return [updated, updated - ahead * rate * (smooth / size + decay * updated)];
  };
}

function nesterovByHand(gamma: number, share: number, decay: number, ahead: number): ByHand {
  let velocity = 0;
  return (weight, gradient, rate) => {
    const g = share * (gradient + decay * weight);
    velocity = gamma * velocity + g;
    const updated = weight - rate * (gamma * velocity + g);
    return [updated, updated - ahead * rate * velocity];
  };
}

/** Runs the optimizer's graph over the gradients in float64. */
async function follow(
  kind: OptimizerKind,
  options: OptimizerOptions,
  byHand: () => ByHand,
  rampRounds?: number,
): Promise<void> {
  const engine = createReferenceEngine();
  const parameter = { name: 'w', shape, type: 'float64' } as const;
  const optimizer = optimizerGraph(kind, [parameter], options);
  const values: Record<string, Tensor> = { w: tensor('float64', shape, start) };
  for (const { name, type } of optimizer.state) values[name] = tensor(type, shape, [0, 0]);
  const hands = start.map(byHand);
  let expected = start.map((weight): readonly [number, number] => [weight, weight]);
  for (const [index, gradient] of gradients.entries()) {
    const step = index + 1;
    const scalars = Object.entries(
      optimizer.scalars({ learningRate: rateOf(step), gradientScale: scale, step, rampRounds }),
    );
    const feeds = { [gradientName('w')]: tensor('float64', shape, gradient) };
    for (const [name, value] of scalars) feeds[name] = scalar('float32', value);
    const results = await runGraph(engine, optimizer.graph, { ...values, ...feeds });
    for (const name of ['w', ...optimizer.state.map((part) => part.name)])
      values[name] = results[optimizer.updatedName(name)] as Tensor;
    expected = expected.map(([weight], element) =>
      (hands[element] as ByHand)(weight, scale * (gradient[element] as number), rateOf(step), step),
    );
    const read = toNumbers(results[optimizer.readName('w')] as Tensor);
    for (const [element, [weight, reads]] of expected.entries()) {
      const [found] = [toNumbers(values['w'] as Tensor)[element] as number];
      assert.ok(Math.abs(found - weight) < 1e-6, `step ${step}: ${found} instead of ${weight}`);
      assert.ok(Math.abs((read[element] as number) - reads) < 1e-6, `step ${step}: reads ${read} instead of ${reads}`);
    }
  }
  await engine.close();
}

test('predicted weights are s times Adam’s last step further on, with AdamW’s decay', async () => {
  await follow('adam', { correction: { kind: 'predict', staleness: 3 } }, () => adamByHand(0, 3));
  await follow('adamw', { weightDecay: 0.05, correction: { kind: 'predict', staleness: 2 } }, () =>
    adamByHand(0.05, 2),
  );
});

test('nesterov on Adam: a momentum of 1 − (1 − β₁) / (1 + s), (1 − β₁) / √(1 + s) of the newest gradient', async () => {
  const correction = { kind: 'nesterov', staleness: 3 } as const;
  const late = (): number => 1;
  await follow('adam', { correction }, () => delayedAdamByHand(0.975, 0.05, { decay: 0, ahead: 3, late }));
  await follow('adamw', { weightDecay: 0.05, correction }, () =>
    delayedAdamByHand(0.975, 0.05, { decay: 0.05, ahead: 3, late }),
  );
});

test('nesterov on Adam: the learning rate rises from 1/√(1 + s) of itself', async () => {
  const correction = { kind: 'nesterov', staleness: 3 } as const;
  const late = (step: number): number => [2 ** -0.5, 1, 1, 1][step - 1] ?? Number.NaN;
  await follow(
    'adamw',
    { weightDecay: 0.05, correction },
    () => delayedAdamByHand(0.975, 0.05, { decay: 0.05, ahead: 3, late }),
    2,
  );
});

test('nesterov on SGD takes (1 − γ) / (1 − μ) of a gradient', async () => {
  const correction = { kind: 'nesterov', staleness: 3 } as const;
  await follow('sgd', { momentum: 0.5, weightDecay: 0.125, correction }, () => nesterovByHand(0.75, 0.5, 0.125, 3));
});

test('a correction of no staleness is the plain optimizer, to the graph', () => {
  const parameters = [{ name: 'w', shape }];
  for (const kind of ['sgd', 'adam', 'adamw'] as const)
    for (const name of ['predict', 'nesterov'] as const) {
      const correction = correctionOf(name, 0);
      const corrected = optimizerGraph(kind, parameters, { momentum: 0.9, correction });
      assert.deepEqual(corrected.graph, optimizerGraph(kind, parameters, { momentum: 0.9 }).graph);
    }
});

test('a stage of three versions averages them every 3 K updates, but not before a stream has three', () => {
  const of = (update: number, every: number, firstVersion = 0): readonly number[] =>
    aggregatedVersions(update, { every, versionCount: 3, firstVersion });
  assert.deepEqual(
    [0, 1, 3, 4, 6].map((update) => of(update, 1)),
    [[0], [1], [1, 2, 3], [4], [4, 5, 6]],
  );
  assert.deepEqual(
    [3, 6].map((update) => of(update, 2)),
    [[3], [4, 5, 6]],
  );
  assert.deepEqual(
    [6, 6, 6].map((update, index) => of(update, 1, 4 + index)),
    [[4, 5, 6], [6], [6]],
  );
  assert.deepEqual(of(6, 0), [6]);
});

test('the mean of three versions of two parameters', async () => {
  const engine = createReferenceEngine();
  const feeds: Record<string, Tensor> = {};
  for (const [version, value] of [3, 6, -1.5].entries()) {
    feeds[versionName('a', version)] = tensor('float32', [2], [value, 2 * value]);
    feeds[versionName('b', version)] = tensor('float32', [1], [-value]);
  }
  const parameters = [
    { name: 'a', shape: [2] },
    { name: 'b', shape: [1] },
  ];
  const { a, b } = await runGraph(engine, meanGraph(parameters, 3), feeds);
  assert.deepEqual([toNumbers(a as Tensor), toNumbers(b as Tensor)], [[2.5, 5], [-2.5]]);
  await engine.close();
});

test('SGD without momentum has nothing to predict with', () => {
  checkCorrection('none', { kind: 'sgd', momentum: 0 });
  checkCorrection('predict', { kind: 'adam', momentum: 0 });
  assert.throws(() => checkCorrection('nesterov', { kind: 'sgd', momentum: 0 }), {
    message:
      "--staleness-correction nesterov goes by the optimizer's momentum, and SGD without momentum has none: give " +
      '--momentum 0.9 or --optimizer adam.',
  });
});
