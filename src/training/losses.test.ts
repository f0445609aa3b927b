import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import type { Engine } from '../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../engine/node/onnxruntime-node.ts';
import { InputError } from '../errors.ts';
import { evaluateGraph } from '../graph/evaluate.ts';
import { numberToHalf } from '../graph/operators/numbers.ts';
import { type ElementType, elementCount, scalar, type Tensor, tensor, toNumbers, wrap } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';
import { runGraph } from '../testing/run-graph.ts';
import { type LossKind, type LossOptions, lossGraph } from './losses.ts';

interface LossCase {
  readonly name: string;
  readonly kind: LossKind;
  readonly labelSmoothing: number;
  readonly logits: { readonly shape: readonly number[]; readonly values: readonly number[] };
  readonly labels: {
    readonly type: ElementType;
    readonly shape: readonly number[];
    readonly values: readonly number[];
  };
  readonly lossSum: number;
  readonly gradient: readonly number[];
}

const cases = ['losses.json', 'more-losses.json'].flatMap(
  (name) => JSON.parse(readFileSync(join(fixtureFolder('pytorch'), 'optimizers', name), 'utf8')) as readonly LossCase[],
);

interface LossResult {
  readonly loss: number;
  readonly correct: number | undefined;
  readonly gradient: Tensor;
}

/** The loss by the operators' definitions. */
function evaluate(
  kind: LossKind,
  logits: Tensor,
  labels: Tensor,
  scale: number,
  options: LossOptions = {},
): LossResult {
  const feeds = new Map([
    ['logits', logits],
    ['labels', labels],
    ['scale', scalar('float32', scale)],
  ]);
  const results = evaluateGraph(lossGraph(kind, logits, labels, options), feeds);
  const correct = results.get('correct');
  return {
    loss: toNumbers(results.get('loss') as Tensor)[0] as number,
    correct: correct && (toNumbers(correct)[0] as number),
    gradient: results.get('gradient') as Tensor,
  };
}

function assertNear(actual: readonly number[], expected: readonly number[], tolerance: number, what: string): void {
  assert.equal(actual.length, expected.length, what);
  const size = Math.max(1e-30, ...expected.map(Math.abs));
  for (const [index, value] of actual.entries()) {
    const difference = Math.abs(value - (expected[index] as number));
    assert.ok(difference <= tolerance * size, `${what}, element ${index}: ${value} instead of ${expected[index]}`);
  }
}

describe('losses equal PyTorch’s', () => {
  let engine: Engine;
  before(async () => {
    engine = await createOnnxRuntimeNodeEngine();
  });
  after(() => engine.close());

  assert.ok(cases.length > 10);
  for (const { name, kind, labelSmoothing, logits, labels, lossSum, gradient } of cases) {
    const scale = 1 / (logits.shape[0] as number);
    test(`${kind}: ${name}`, async () => {
      const exact = evaluate(
        kind,
        tensor('float64', logits.shape, logits.values),
        tensor(labels.type, labels.shape, labels.values),
        scale,
        { labelSmoothing },
      );
      assertNear([exact.loss], [lossSum], 1e-9, 'loss');
      assert.deepEqual(exact.gradient.shape, logits.shape);
      assertNear(toNumbers(exact.gradient), gradient, 1e-9, 'gradient');

      const type = labels.type === 'int64' ? 'int64' : 'float32';
      const feeds = {
        logits: tensor('float32', logits.shape, logits.values),
        labels: tensor(type, labels.shape, labels.values),
        scale: scalar('float32', scale),
      };
      const fast = await runGraph(engine, lossGraph(kind, feeds.logits, feeds.labels, { labelSmoothing }), feeds);
      assertNear(toNumbers(fast['loss'] as Tensor), [lossSum], 1e-5, 'loss of ONNX Runtime');
      assertNear(toNumbers(fast['gradient'] as Tensor), gradient, 1e-5, 'gradient of ONNX Runtime');
    });
  }
});

/** The gradient of scale · loss by central differences. */
function numericGradient(
  kind: LossKind,
  logits: Tensor,
  labels: Tensor,
  { scale, options }: { readonly scale: number; readonly options: LossOptions | undefined },
): number[] {
  const step = 1e-5;
  return toNumbers(logits).map((_, index) => {
    const lossAt = (offset: number): number => {
      const data = Float64Array.from(logits.data as Float64Array);
      data[index] = (data[index] as number) + offset;
      return evaluate(kind, wrap('float64', logits.shape, data), labels, scale, options).loss;
    };
    return (scale * (lossAt(step) - lossAt(-step))) / (2 * step);
  });
}

function checkGradient(kind: LossKind, logits: Tensor, labels: Tensor, options?: LossOptions): void {
  const { gradient } = evaluate(kind, logits, labels, 0.25, options);
  const numeric = numericGradient(kind, logits, labels, { scale: 0.25, options });
  toNumbers(gradient).forEach((value, index) => {
    const expected = numeric[index] as number;
    assert.ok(Math.abs(value - expected) < 1e-8, `element ${index}: ${value} instead of ${expected}`);
  });
}

test('yes or no, and labels that are left out: gradients equal central differences', () => {
  const logits = (shape: readonly number[]): Tensor => {
    const random = createRandom(8);
    return tensor(
      'float64',
      shape,
      Array.from({ length: elementCount(shape) }, () => random.normal()),
    );
  };
  checkGradient('binary-cross-entropy', logits([3, 2]), tensor('uint8', [3, 2], [0, 1, 1, 1, 0, 1]));
  const someLeftOut = { ignoresNegative: true };
  const yesOrNo = tensor('float32', [2, 3], [0, -1, 0.3, -1, 1, -1]);
  checkGradient('binary-cross-entropy', logits([2, 3]), yesOrNo, someLeftOut);
  const classes = tensor('int64', [2, 2], [0, -1, -1, 2]);
  checkGradient('cross-entropy', logits([2, 3, 2]), classes, { ...someLeftOut, labelSmoothing: 0.3 });
});

describe('gradients equal central differences', () => {
  const random = createRandom(5);
  const normal = (shape: readonly number[]): Tensor => {
    const values = Array.from({ length: elementCount(shape) }, () => random.normal());
    return tensor('float64', shape, values);
  };
  // The first and the last class always occur.
  const classes = (type: ElementType, shape: readonly number[], count: number): Tensor => {
    const values = Array.from({ length: elementCount(shape) }, (_, index) =>
      index === 0 ? 0 : index === 1 ? count - 1 : random.integer(count),
    );
    return tensor(type, shape, values);
  };
  const material: readonly (readonly [
    name: string,
    kind: LossKind,
    logits: Tensor,
    labels: Tensor,
    options?: LossOptions,
  ])[] = [
    ['classes', 'cross-entropy', normal([3, 4]), classes('int64', [3], 4)],
    ['classes as bytes', 'cross-entropy', normal([3, 4]), classes('uint8', [3], 4)],
    ['classes as int32, smoothed', 'cross-entropy', normal([3, 4]), classes('int32', [3], 4), { labelSmoothing: 0.3 }],
    ['a single class', 'cross-entropy', normal([3, 1]), classes('int64', [3], 1)],
    ['positions after the classes', 'cross-entropy', normal([2, 3, 2, 2]), classes('int64', [2, 2, 2], 3)],
    ['positions before the classes', 'cross-entropy', normal([2, 4, 3]), classes('int64', [2, 4], 3)],
    ['distributions', 'cross-entropy', normal([2, 3]), normal([2, 3])],
    [
      'distributions at positions, smoothed',
      'cross-entropy',
      normal([2, 3, 2]),
      normal([2, 3, 2]),
      { labelSmoothing: 0.1 },
    ],
    ['squares', 'mse', normal([3, 2, 2]), normal([3, 2, 2])],
    ['squares of counts', 'mse', normal([3, 2]), classes('int64', [3, 2], 5)],
  ];
  for (const [name, kind, logits, labels, options] of material)
    test(`${kind}: ${name}`, () => checkGradient(kind, logits, labels, options));

  test('extreme logits give a large finite loss and a gradient that points back', () => {
    const { loss, gradient } = evaluate(
      'cross-entropy',
      tensor('float32', [1, 3], [1e4, 0, -1e4]),
      tensor('int64', [1], [2]),
      1,
    );
    assert.equal(loss, 2e4);
    assert.deepEqual(toNumbers(gradient), [1, 0, -1]);
  });
});

test('yes or no: extreme logits give a large finite loss and a gradient that points back', () => {
  const { loss, correct, gradient } = evaluate(
    'binary-cross-entropy',
    tensor('float32', [4, 1], [1e4, -1e4, 1e4, -1e4]),
    tensor('int64', [4], [0, 1, 1, 0]),
    1,
  );
  assert.deepEqual([loss, correct, toNumbers(gradient)], [2e4, 2, [1, -1, 0, 0]]);
});

test('labels that are left out change neither loss nor right predictions, and get no gradient', () => {
  const logits = tensor('float64', [3, 2], [2, 1, 0, 3, 1, 0]);
  const whole = evaluate('cross-entropy', logits, tensor('int64', [3], [1, -1, 0]), 1, { ignoresNegative: true });
  const two = evaluate('cross-entropy', tensor('float64', [2, 2], [2, 1, 1, 0]), tensor('int64', [2], [1, 0]), 1);
  assert.deepEqual([whole.loss, whole.correct], [two.loss, two.correct]);
  const [a, b, ...rest] = toNumbers(two.gradient);
  assert.deepEqual(toNumbers(whole.gradient), [a, b, 0, 0, ...rest]);
});

test('shares of a batch sum to the whole batch', () => {
  const random = createRandom(6);
  const logits = Array.from({ length: 6 * 3 }, () => random.normal());
  const labels = [0, 1, 2, 2, 1, 0];
  const part = (first: number, end: number): LossResult =>
    evaluate(
      'cross-entropy',
      tensor('float64', [end - first, 3], logits.slice(3 * first, 3 * end)),
      tensor('int64', [end - first], labels.slice(first, end)),
      1 / 8,
    );
  const [whole, ...parts] = [part(0, 6), part(0, 1), part(1, 4), part(4, 6)];
  assertNear([parts.reduce((sum, { loss }) => sum + loss, 0)], [whole.loss], 1e-14, 'loss');
  assert.equal(
    parts.reduce((sum, { correct }) => sum + (correct as number), 0),
    whole.correct,
  );
  assertNear(
    parts.flatMap(({ gradient }) => toNumbers(gradient)),
    toNumbers(whole.gradient),
    1e-14,
    'gradient',
  );
});

test('correct predictions are counted; of equal logits the first is the prediction', () => {
  const logits = tensor('float32', [4, 2], [3, 1, 0, 2, 5, 5, 5, 5]);
  assert.equal(evaluate('cross-entropy', logits, tensor('int64', [4], [0, 1, 0, 1]), 1).correct, 3);
  assert.equal(
    evaluate('cross-entropy', logits, tensor('float32', [4, 2], [0.9, 0.1, 0.2, 0.8, 1, 0, 0, 1]), 1).correct,
    3,
  );
  assert.equal(evaluate('mse', logits, logits, 1).correct, undefined);
});

test('a sample with several positions counts by its correct fraction', () => {
  const logits = tensor('float32', [2, 4, 2], [1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1]);
  assert.equal(
    evaluate('cross-entropy', logits, tensor('int64', [2, 4], [0, 0, 0, 1, 1, 0, 0, 0]), 1).correct,
    0.75 + 0.25,
  );
});

test('trailing dimensions of 1 may be missing on either side', () => {
  const values = [1, 2, 3, 6, 5, 4];
  const labels = [2, 0];
  const expected = evaluate('cross-entropy', tensor('float64', [2, 3], values), tensor('int64', [2], labels), 0.5);
  for (const [logits, label] of [
    [[2, 3, 1, 1], [2]],
    [
      [2, 3],
      [2, 1],
    ],
    [
      [2, 3, 1],
      [2, 1, 1],
    ],
  ] as const) {
    const { loss, gradient } = evaluate(
      'cross-entropy',
      tensor('float64', logits, values),
      tensor('int64', label, labels),
      0.5,
    );
    assert.equal(loss, expected.loss);
    assert.deepEqual(gradient.shape, logits);
    assert.deepEqual(gradient.data, expected.gradient.data);
  }
  const squares = evaluate('mse', tensor('float64', [2, 1], [1, 2]), tensor('float64', [2], [0, 4]), 0.5);
  assert.equal(squares.loss, 1 + 4);
  assert.deepEqual(toNumbers(squares.gradient), [1, -2]);
});

test('halves are computed in float32 and get a gradient in halves', async () => {
  const engine = await createOnnxRuntimeNodeEngine();
  const logits = wrap('float16', [1, 2], Uint16Array.from([numberToHalf(0), numberToHalf(0)]));
  const feeds = { logits, labels: tensor('int64', [1], [1]), scale: scalar('float32', 1) };
  const { loss, gradient } = await runGraph(engine, lossGraph('cross-entropy', logits, feeds.labels), feeds);
  assert.equal(loss?.type, 'float32');
  assert.ok(Math.abs((toNumbers(loss as Tensor)[0] as number) - Math.LN2) < 1e-6);
  assert.deepEqual(
    [gradient?.type, ...toNumbers(gradient as Tensor)],
    ['float16', numberToHalf(0.5), numberToHalf(-0.5)],
  );
  await engine.close();
});

test('an output of integers is an input error', () => {
  for (const kind of ['mse', 'cross-entropy'] as const) {
    assert.throws(
      () => lossGraph(kind, { type: 'int64', shape: [2, 3] }, { type: 'int64', shape: [2] }),
      /^InputError: The model's output is int64, and a loss compares floats; /,
    );
  }
});

test('shapes that do not fit are an input error that names both', () => {
  const float = (...shape: number[]) => ({ type: 'float32', shape }) as const;
  const integer = (...shape: number[]) => ({ type: 'int64', shape }) as const;
  const refused = (
    kind: LossKind,
    logits: ReturnType<typeof float>,
    labels: ReturnType<typeof float> | ReturnType<typeof integer>,
    message: RegExp,
  ): void => {
    assert.throws(
      () => lossGraph(kind, logits, labels),
      (error) => error instanceof InputError && message.test(error.message),
    );
  };
  refused(
    'cross-entropy',
    float(4, 3),
    integer(5),
    /^The loss cross-entropy cannot compare an output of shape \[4, 3\] with labels of shape \[5\]: it needs one class/,
  );
  refused('cross-entropy', float(4, 3), integer(4, 3), /one class/);
  refused('cross-entropy', float(4), integer(4), /one class/);
  refused('cross-entropy', float(4, 3), float(4), /or a distribution/);
  refused('cross-entropy', float(4, 3, 2), float(4, 2, 3), /or a distribution/);
  refused('mse', float(4, 3), float(4, 2), /^The loss mse .*one target for each output/);
  refused('mse', float(4, 3), integer(4), /one target/);
});
