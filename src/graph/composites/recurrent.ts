// LSTM, GRU and RNN, unrolled: one matrix product for the inputs of all steps, then each step is one product with the
// recurrent weights and a few elementwise nodes. Notation as in ONNX: T steps, N samples, H hidden units, D directions.

import { type Attribute, intAttribute, type Node, stringAttribute } from '../graph.ts';
import { check } from '../operators/define.ts';
import { tensor } from '../tensor.ts';
import type { Composite } from './composite.ts';
import { type Optional, range, type Writer } from './writer.ts';

const shared: Pick<Composite, 'ranks' | 'otherTypes' | 'constantInputs'> = {
  ranks: [
    [3, 3],
    [3, 3],
    [3, 3],
    [2, 2],
    [1, 1],
    [3, 3],
    [3, 3],
    [2, 2],
  ],
  otherTypes: [4],
  constantInputs: [4],
};
const attributes: Readonly<Record<string, Attribute['type']>> = {
  activation_alpha: 'floats',
  activation_beta: 'floats',
  activations: 'strings',
  clip: 'float',
  direction: 'string',
  hidden_size: 'int',
  layout: 'int',
};
/** Longer sequences would become graphs that take minutes to compile. */
const stepLimit = 2048;

export const recurrentComposites: Readonly<Record<string, Composite>> = {
  GRU: {
    inputs: [3, 6],
    attributes: { ...attributes, linear_before_reset: 'int' },
    ...shared,
    write: (w) => unroll(w, 3, ['Sigmoid', 'Tanh'], gru),
  },
  LSTM: {
    inputs: [3, 8],
    attributes: { ...attributes, input_forget: 'int' },
    ...shared,
    write: (w) => unroll(w, 4, ['Sigmoid', 'Tanh', 'Tanh'], lstm),
  },
  RNN: { inputs: [3, 6], attributes, ...shared, write: (w) => unroll(w, 1, ['Tanh'], rnn) },
};

/** Applies an activation to a value. */
type Activation = (x: string) => string;

/** The recurrent weights of one direction and the other parameters of a step. */
interface Cell {
  readonly w: Writer;
  readonly hidden: number;
  /** [gates·H, H] */
  readonly recurrent: string;
  /**
   * [gates·H], added to the product with the recurrent weights. Only for GRU with linear_before_reset; otherwise it is
   * added to the input.
   */
  readonly recurrentBias: Optional;
  /** [3·H]: weights of the cell state in the gates i, o, f. LSTM only. */
  readonly peepholes: Optional;
  readonly activations: readonly Activation[];
  /** Clips the activations' arguments if the node says so. */
  readonly clip: Activation;
}

interface State {
  /** [N, H] */
  readonly h: string;
  /** [N, H]; LSTM only. */
  readonly c?: string;
}

/** One step. `input` [N, gates·H] is the input's contribution to the gates, biases included. */
type Step = (cell: Cell, input: string, state: State) => State;

function unroll(w: Writer, gates: number, defaults: readonly string[], step: Step): readonly string[] {
  const { node } = w;
  const batchFirst = intAttribute(node, 'layout', 0) !== 0;
  const x = batchFirst ? w.transpose(w.input(0), [1, 0, 2]) : w.input(0);
  const [steps, samples, features] = w.shape(x) as [number, number, number];
  check(
    steps > 0 && steps <= stepLimit,
    node,
    () => `has sequences of ${steps} steps; 1 to ${stepLimit} can be unrolled`,
  );
  const hidden = w.shape(w.input(2)).at(-1) as number;
  const directions = directionsOf(node);
  checkShapes(w, { directions: directions.length, rows: gates * hidden, hidden, features });
  const lengths = w.numbers(4) ?? [];
  check(
    lengths.every((length) => length === steps),
    node,
    () =>
      `has sequences of different lengths (${lengths.join(', ')}); pad them to one length and leave sequence_lens out`,
  );
  const perDirection = directions.map((_, index) =>
    direction(w, index, { gates, defaults, hidden, x, features, directions }),
  );
  const results = perDirection.map(({ cell, inputs, initial }, index) => {
    const order = directions[index] === 'reverse' ? [...range(steps)].reverse() : range(steps);
    const hiddens = new Array<string>(steps);
    let state = initial;
    for (const time of order) {
      state = step(cell, w.reshape(inputs[time] as string, [samples, gates * hidden]), state);
      hiddens[time] = state.h;
    }
    return { hiddens, last: state };
  });
  const stack = (parts: readonly string[], axis: number): string => {
    const joined = w.concat(parts, axis);
    return batchFirst ? w.transpose(joined, axis === 1 ? [2, 0, 1, 3] : [1, 0, 2]) : joined;
  };
  const y = stack(
    results.map(({ hiddens }) => w.reshape(w.concat(hiddens, 0), [steps, 1, samples, hidden])),
    1,
  );
  const lastOf = (pick: (state: State) => Optional): readonly string[] => {
    const parts = results.flatMap(({ last }) => pick(last) ?? []);
    return parts.length === 0
      ? []
      : [
          stack(
            parts.map((part) => w.reshape(part, [1, samples, hidden])),
            0,
          ),
        ];
  };
  return [y, ...lastOf(({ h }) => h), ...lastOf(({ c }) => c)];
}

function directionsOf(node: Node): readonly ('forward' | 'reverse')[] {
  const direction = stringAttribute(node, 'direction', 'forward');
  if (direction === 'forward' || direction === 'reverse') return [direction];
  check(
    direction === 'bidirectional',
    node,
    () => `has direction "${direction}"; it may be "forward", "reverse" or "bidirectional"`,
  );
  return ['forward', 'reverse'];
}

function checkShapes(
  w: Writer,
  { directions, rows, hidden, features }: { directions: number; rows: number; hidden: number; features: number },
): void {
  const expect = (index: number, shape: readonly number[]): void => {
    const name = w.optional(index);
    if (name === undefined) return;
    const found = w.shape(name);
    check(
      found.length === shape.length && found.every((size, axis) => size === shape[axis]),
      w.node,
      () => `wants input "${name}" of shape [${shape.join(', ')}], not [${found.join(', ')}]`,
    );
  };
  expect(1, [directions, rows, features]);
  expect(2, [directions, rows, hidden]);
  expect(3, [directions, 2 * rows]);
  expect(7, [directions, 3 * hidden]);
}

interface DirectionOptions {
  readonly gates: number;
  readonly defaults: readonly string[];
  readonly hidden: number;
  /** [T, N, features] */
  readonly x: string;
  readonly features: number;
  readonly directions: readonly string[];
}

interface Direction {
  readonly cell: Cell;
  /** For each step, [1, N, gates·H]. */
  readonly inputs: readonly string[];
  readonly initial: State;
}

function direction(
  w: Writer,
  index: number,
  { gates, defaults, hidden, x, features, directions }: DirectionOptions,
): Direction {
  const [steps, samples] = w.shape(x) as [number, number];
  const rows = gates * hidden;
  const own = (position: number, shape: readonly number[]): Optional => {
    const name = w.optional(position);
    return name === undefined ? undefined : w.reshape(w.slice(name, 0, index, index + 1), shape);
  };
  const [bias, recurrentBias] = biases(w, own(3, [2 * rows]), rows);
  const weights = own(1, [rows, features]) as string;
  const all = w.gemmTransposed(w.reshape(x, [steps * samples, features]), weights, bias);
  const inputs = w.split(
    w.reshape(all, [steps, samples, rows]),
    0,
    range(steps).map(() => 1),
  );
  const zeros = (): string => w.constant(tensor(w.type(x), [samples, hidden], new Float32Array(samples * hidden)));
  const initial = (position: number): string => {
    const name = w.optional(position);
    if (name === undefined) return zeros();
    const batchFirst = intAttribute(w.node, 'layout', 0) !== 0;
    return w.reshape(w.slice(name, batchFirst ? 1 : 0, index, index + 1), [samples, hidden]);
  };
  const first = index * defaults.length;
  const clip = w.node.attributes['clip'];
  const limit = clip?.type === 'float' && clip.value > 0 ? clip.value : undefined;
  const cell: Cell = {
    w,
    hidden,
    recurrent: own(2, [rows, hidden]) as string,
    recurrentBias,
    peepholes: own(7, [3 * hidden]),
    activations: defaults.map((fallback, position) =>
      activation(w, first + position, fallback, directions.length * defaults.length),
    ),
    clip: (value) => (limit === undefined ? value : w.op('Clip', [value, w.like(value, -limit), w.like(value, limit)])),
  };
  return { cell, inputs, initial: { h: initial(5), ...(gates === 4 ? { c: initial(6) } : {}) } };
}

/** The biases to add to the input's product and to the recurrent one. */
function biases(w: Writer, both: Optional, rows: number): readonly [Optional, Optional] {
  if (both === undefined) return [undefined, undefined];
  const [first, second] = w.split(both, 0, [rows, rows]) as [string, string];
  return intAttribute(w.node, 'linear_before_reset', 0) !== 0 ? [first, second] : [w.add(first, second), undefined];
}

/** The activation at a position of the node's list. */
function activation(w: Writer, place: number, fallback: string, count: number): Activation {
  const { node } = w;
  const names = node.attributes['activations'];
  const list = names?.type === 'strings' ? names.value : [];
  check(
    list.length === 0 || list.length === count,
    node,
    () => `has ${list.length} activations where it needs ${count}`,
  );
  const name = (list[place] ?? fallback).toLowerCase();
  const number = (attribute: string, standard: number): number => {
    const values = node.attributes[attribute];
    return (values?.type === 'floats' ? values.value[place] : undefined) ?? standard;
  };
  const alpha = (standard: number): number => number('activation_alpha', standard);
  const beta = (standard: number): number => number('activation_beta', standard);
  const known: Readonly<Record<string, Activation>> = {
    affine: (x) => w.add(w.scale(x, alpha(1)), w.like(x, beta(0))),
    elu: (x) => w.op('Elu', [x], { alpha: { type: 'float', value: alpha(1) } }),
    hardsigmoid: (x) =>
      w.op('HardSigmoid', [x], {
        alpha: { type: 'float', value: alpha(0.2) },
        beta: { type: 'float', value: beta(0.5) },
      }),
    leakyrelu: (x) => w.op('LeakyRelu', [x], { alpha: { type: 'float', value: alpha(0.01) } }),
    relu: (x) => w.op('Relu', [x]),
    scaledtanh: (x) => w.scale(w.op('Tanh', [w.scale(x, beta(1))]), alpha(1)),
    sigmoid: (x) => w.op('Sigmoid', [x]),
    softplus: (x) => w.op('Softplus', [x]),
    softsign: (x) => w.op('Softsign', [x]),
    tanh: (x) => w.op('Tanh', [x]),
    thresholdedrelu: (x) => w.op('ThresholdedRelu', [x], { alpha: { type: 'float', value: alpha(1) } }),
  };
  const found = Object.hasOwn(known, name) ? known[name] : undefined;
  check(found, node, () => `has the activation "${list[place]}"; it may be one of ${Object.keys(known).join(', ')}`);
  return found;
}

/** h′ = f(x·Wᵀ + h·Rᵀ + b) */
function rnn({ w, recurrent, activations: [f = (x) => x], clip }: Cell, input: string, { h }: State): State {
  return { h: f(clip(w.gemmTransposed(h, recurrent, input))) };
}

/**
 * Gates z, r, n: z = f(…), r = f(…), n = g(x·Wnᵀ + (r∘h)·Rnᵀ + b), or with linear_before_reset n = g(x·Wnᵀ + r∘(h·Rnᵀ +
 * b)); h′ = n + z∘(h − n).
 */
function gru(cell: Cell, input: string, { h }: State): State {
  const { w, hidden, recurrent, recurrentBias, activations, clip } = cell;
  const [f = (x: string) => x, g = f] = activations;
  const [inputZR, inputN] = w.split(input, 1, [2 * hidden, hidden]) as [string, string];
  const linear = intAttribute(w.node, 'linear_before_reset', 0) !== 0;
  let n: string;
  let z: string;
  if (linear) {
    const [memoryZR, memoryN] = w.split(w.gemmTransposed(h, recurrent, recurrentBias), 1, [2 * hidden, hidden]) as [
      string,
      string,
    ];
    const [update, reset] = w.split(f(clip(w.add(inputZR, memoryZR))), 1, [hidden, hidden]) as [string, string];
    z = update;
    n = g(clip(w.add(inputN, w.mul(reset, memoryN))));
  } else {
    const [weightsZR, weightsN] = w.split(recurrent, 0, [2 * hidden, hidden]) as [string, string];
    const [update, reset] = w.split(f(clip(w.gemmTransposed(h, weightsZR, inputZR))), 1, [hidden, hidden]) as [
      string,
      string,
    ];
    z = update;
    n = g(clip(w.gemmTransposed(w.mul(reset, h), weightsN, inputN)));
  }
  return { h: w.add(n, w.mul(z, w.sub(h, n))) };
}

/**
 * Gates i, o, f, c: c′ = f∘c + i∘g(c gate), h′ = o∘h(c′); with peepholes, i and f also see pᵢ∘c and p_f∘c, o sees
 * p_o∘c′.
 */
function lstm(cell: Cell, input: string, { h, c: old }: State): State {
  const { w, hidden, recurrent, peepholes, activations, clip } = cell;
  const [f = (x: string) => x, g = f, last = g] = activations;
  const before = old as string;
  const all = w.gemmTransposed(h, recurrent, input);
  const coupled = intAttribute(w.node, 'input_forget', 0) !== 0;
  if (peepholes === undefined) {
    const [gates, candidate] = w.split(clip(all), 1, [3 * hidden, hidden]) as [string, string];
    const [i, o, forget] = w.split(f(gates), 1, [hidden, hidden, hidden]) as [string, string, string];
    const kept = coupled ? w.sub(w.like(i, 1), i) : forget;
    const c = w.add(w.mul(kept, before), w.mul(i, g(candidate)));
    return { h: w.mul(o, last(c)), c };
  }
  const [i, o, forget, candidate] = w.split(all, 1, [hidden, hidden, hidden, hidden]) as [
    string,
    string,
    string,
    string,
  ];
  const [peepI, peepO, peepF] = w.split(peepholes, 0, [hidden, hidden, hidden]) as [string, string, string];
  const gate = (value: string, peep: string, seen: string): string => f(clip(w.add(value, w.mul(peep, seen))));
  const inputGate = gate(i, peepI, before);
  const kept = coupled ? w.sub(w.like(i, 1), inputGate) : gate(forget, peepF, before);
  const c = w.add(w.mul(kept, before), w.mul(inputGate, g(clip(candidate))));
  return { h: w.mul(gate(o, peepO, c), last(c)), c };
}
