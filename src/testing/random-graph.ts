// Random small graphs with values for their inputs: the material for comparing engines and passes with the operators'
// definitions. One seed is one graph, for ever. Values stay small and functions continuous, so that rounding is the
// only difference to expect.

import { Emitter } from '../graph/emitter.ts';
import type { Graph } from '../graph/graph.ts';
import { float, int, ints } from '../graph/graph.ts';
import { type ElementType, elementCount, type Tensor, tensor } from '../graph/tensor.ts';
import { createRandom, type Random } from '../random.ts';

/** A graph and values for its inputs. */
export interface RandomGraph {
  readonly graph: Graph;
  readonly inputs: ReadonlyMap<string, Tensor>;
}

/** A tensor of normal values (of small integers, for integer types). */
export function randomTensor(random: Random, type: ElementType, shape: readonly number[]): Tensor {
  const isInteger = !type.startsWith('float');
  return tensor(
    type,
    shape,
    Array.from({ length: elementCount(shape) }, () => (isInteger ? random.integer(2) : random.normal())),
  );
}

/** The graph of `seed`: about `nodeCount` operators on images and matrices of float32. */
export function randomGraph(seed: number, nodeCount = 12): RandomGraph {
  const random = createRandom(seed);
  const emitter = new Emitter();
  const inputs = new Map<string, Tensor>();
  const addInput = (name: string, shape: readonly number[]): void => {
    inputs.set(name, randomTensor(random, 'float32', shape));
    emitter.input(name, 'float32', shape);
  };
  addInput('image', [2, 3, 4 + random.integer(4), 5]);
  addInput('matrix', [1 + random.integer(4), 4]);
  addInput('scalar', []);
  const values = ['image', 'matrix', 'scalar', emitter.constant(randomTensor(random, 'float32', [2, 3]))];
  const draw = { random, emitter, pick: () => choose(random, values) };
  for (let index = 0; index < nodeCount; index++) {
    const value = draw.pick();
    const steps = [
      unary,
      binary,
      reduce,
      move,
      normalize,
      ...(emitter.shape(value).length === 4 ? [convolve, pool] : []),
      ...(emitter.shape(value).length >= 2 ? [multiply] : []),
    ];
    values.push(...choose(random, steps)(draw, value));
  }
  // The last values, and whatever else: perhaps an input, a constant, or a value in the middle.
  const outputs = new Set([...values.slice(-3), draw.pick()]);
  return { graph: emitter.build(`random ${seed}`, [...outputs]), inputs };
}

interface Draw {
  readonly random: Random;
  readonly emitter: Emitter;
  pick(): string;
}

type Step = (draw: Draw, value: string) => readonly string[];

function choose<T>(random: Random, choices: readonly T[]): T {
  return choices[random.integer(choices.length)] as T;
}

const unary: Step = ({ random, emitter }, value) => {
  const operator = choose(random, [
    'Abs',
    'Elu',
    'Erf',
    'Exp',
    'Gelu',
    'HardSwish',
    'Identity',
    'LeakyRelu',
    'Log',
    'Neg',
    'Relu',
    'Sigmoid',
    'Softplus',
    'Sqrt',
    'Tanh',
  ]);
  if (operator === 'Exp') return [emitter.emit('Exp', [emitter.emit('Tanh', [value])])];
  if (operator === 'Log' || operator === 'Sqrt') {
    const positive = emitter.emit('Add', [emitter.emit('Abs', [value]), emitter.scalarLike(value, 0.5)]);
    return [emitter.emit(operator, [positive])];
  }
  return [emitter.emit(operator, [value])];
};

const binary: Step = ({ random, emitter, pick }, value) => {
  const other = pick();
  const [a, b] = [emitter.shape(value), emitter.shape(other)];
  const fits = a.length >= b.length && b.every((size, index) => size === 1 || size === a[a.length - b.length + index]);
  const right = fits ? other : emitter.constant(randomTensor(random, 'float32', a.slice(-1)));
  const operator = choose(random, ['Add', 'Div', 'Max', 'Min', 'Mul', 'Sub', 'Where']);
  if (operator === 'Where')
    return [emitter.emit('Where', [emitter.emit('Less', ['scalar', emitter.scalarLike('scalar', 0)]), value, right])];
  if (operator !== 'Div')
    return [emitter.emit(operator, [operator === 'Mul' ? emitter.emit('Tanh', [value]) : value, right])];
  return [
    emitter.emit('Div', [value, emitter.emit('Add', [emitter.emit('Abs', [right]), emitter.scalarLike(value, 1)])]),
  ];
};

const reduce: Step = ({ random, emitter }, value) => {
  const rank = emitter.shape(value).length;
  const axes = Array.from({ length: rank }, (_, axis) => axis).filter(() => random.integer(2) === 0);
  const operator = choose(random, ['ReduceL2', 'ReduceLogSumExp', 'ReduceMax', 'ReduceMean', 'ReduceMin', 'ReduceSum']);
  return [
    emitter.emit(operator, axes.length === 0 ? [value] : [value, emitter.int64s(axes)], {
      keepdims: int(random.integer(2)),
    }),
  ];
};

const move: Step = ({ random, emitter, pick }, value) => {
  const shape = emitter.shape(value);
  const rank = shape.length;
  if (rank === 0) return [emitter.emit('Unsqueeze', [value, emitter.int64s([0])])];
  const axis = random.integer(rank);
  const size = shape[axis] as number;
  const other = pick();
  switch (random.integer(7)) {
    case 0:
      return [emitter.emit('Transpose', [value], { perm: ints(shape.map((_, index) => (index + axis) % rank)) })];
    case 1:
      return [emitter.emit('Reshape', [value, emitter.int64s([size === 0 ? 0 : -1])])];
    case 2:
      return [
        emitter.emit('Concat', [value, emitter.shape(other).join() === shape.join() ? other : value], {
          axis: int(axis),
        }),
      ];
    case 3:
      return [
        emitter.emit('Slice', [
          value,
          emitter.int64s([random.integer(size)]),
          emitter.int64s([size]),
          emitter.int64s([axis]),
        ]),
      ];
    case 4:
      return [emitter.emit('Gather', [value, emitter.int64s([size - 1, 0])], { axis: int(axis) })];
    case 5:
      return [
        emitter.emit('Pad', [
          value,
          emitter.int64s([...shape.map(() => 0), ...shape.map((_, index) => (index === axis ? 2 : 0))]),
        ]),
      ];
    default:
      return [
        emitter.emit('Expand', [
          emitter.emit('Unsqueeze', [value, emitter.int64s([0])]),
          emitter.int64s([2, ...shape]),
        ]),
      ];
  }
};

const normalize: Step = ({ random, emitter }, value) => {
  const shape = emitter.shape(value);
  if (shape.length === 0) return [emitter.emit('Tanh', [value])];
  const vector = (size: number): string =>
    emitter.constant(
      tensor(
        'float32',
        [size],
        Array.from({ length: size }, () => 0.5 + random.uniform()),
      ),
    );
  if (shape.length === 4 && random.integer(2) === 0) {
    const channels = shape[1] as number;
    const inputs = [value, ...Array.from({ length: 4 }, () => vector(channels))];
    return emitter.emitAll('BatchNormalization', inputs, 3, {
      training_mode: int(1),
      momentum: float(0.875),
      epsilon: float(0.01),
    });
  }
  const last = vector(shape.at(-1) as number);
  const choice = random.integer(3);
  if (choice === 0)
    return [emitter.emit('LayerNormalization', [value, last, last], { axis: int(-1), epsilon: float(0.01) })];
  return [emitter.emit(choice === 1 ? 'Softmax' : 'LogSoftmax', [value], { axis: int(-1) })];
};

const convolve: Step = ({ random, emitter }, value) => {
  const channels = emitter.shape(value)[1] as number;
  const depthwise = random.integer(2) === 0;
  const kernel = 1 + 2 * random.integer(2);
  const weights = randomTensor(random, 'float32', [channels, depthwise ? 1 : channels, kernel, kernel]);
  const attributes = {
    kernel_shape: ints([kernel, kernel]),
    pads: ints([kernel >> 1, kernel >> 1, kernel >> 1, kernel >> 1]),
    strides: ints([1 + random.integer(2), 1]),
    group: int(depthwise ? channels : 1),
  };
  return [emitter.emit('Tanh', [emitter.emit('Conv', [value, emitter.constant(weights)], attributes)])];
};

const pool: Step = ({ random, emitter }, value) => {
  if (
    emitter
      .shape(value)
      .slice(2)
      .some((size) => size < 2)
  )
    return [emitter.emit('GlobalAveragePool', [value])];
  return [
    emitter.emit(choose(random, ['AveragePool', 'MaxPool']), [value], {
      kernel_shape: ints([2, 2]),
      strides: ints([1, 2]),
    }),
  ];
};

const multiply: Step = ({ random, emitter }, value) => {
  const inner = emitter.shape(value).at(-1) as number;
  return [
    emitter.emit('Tanh', [
      emitter.emit('MatMul', [value, emitter.constant(randomTensor(random, 'float32', [inner, 3]))]),
    ]),
  ];
};
