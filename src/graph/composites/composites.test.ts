// Composites against central differences, and their values against ONNX Runtime's own kernels for the operators. ONNX's
// node tests (engine/onnx-node.test.ts) check the other values.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { InputError } from '../../errors.ts';
import { createRandom, type Random } from '../../random.ts';
import { evaluateGraph } from '../../testing/evaluate-graph.ts';
import { assertClose, checkGraph } from '../../testing/gradient-check.ts';
import { onnxModel } from '../../testing/onnx-models.ts';
import { spoil } from '../../testing/spoilt-cases.ts';
import { type Attribute, type Attributes, float, floats, type Graph, int, ints, type Node, string } from '../graph.ts';
import { importModel } from '../onnx/import.ts';
import { instantiate } from '../static.ts';
import { int64s, scalar, type Tensor, tensor, toNumbers } from '../tensor.ts';
import { composites, expandComposite } from './expand.ts';

const seed = 20261121;

/** One node with values for its inputs; float ones are differentiated unless listed as fixed. */
interface Case {
  readonly domain?: string;
  readonly attributes?: Attributes;
  readonly inputs: readonly (Tensor | undefined)[];
  readonly outputCount?: number;
  /** Positions of inputs that are constants. */
  readonly constants?: readonly number[];
  /** Positions of float inputs without a gradient. */
  readonly fixed?: readonly number[];
}

/** Draws a random case of the requested float type. */
type Make = (draw: Draw) => Case;

class Draw {
  readonly random: Random;
  readonly type: 'float32' | 'float64';

  constructor(seedWord: number, type: 'float32' | 'float64') {
    this.random = createRandom(seedWord);
    this.type = type;
  }

  integer(low: number, high: number): number {
    return low + this.random.integer(high - low + 1);
  }

  pick<T>(list: readonly T[]): T {
    return list[this.random.integer(list.length)] as T;
  }

  maybe<T>(value: T): T | undefined {
    return this.random.integer(2) === 1 ? value : undefined;
  }

  floats(shape: readonly number[], low = -1, high = 1): Tensor {
    const count = shape.reduce((product, size) => product * size, 1);
    return tensor(
      this.type,
      shape,
      Array.from({ length: count }, () => Math.fround(low + (high - low) * this.random.uniform())),
    );
  }

  integers(shape: readonly number[], low: number, high: number): Tensor {
    const count = shape.reduce((product, size) => product * size, 1);
    return tensor(
      'int64',
      shape,
      Array.from({ length: count }, () => this.integer(low, high)),
    );
  }
}

function present(attributes: Readonly<Record<string, Attribute | undefined>>): Attributes {
  return Object.fromEntries(
    Object.entries(attributes).filter((entry): entry is [string, Attribute] => entry[1] !== undefined),
  );
}

function recurrent(gates: number, extra: (draw: Draw, hidden: number, directions: number) => Partial<Case>): Make {
  return (draw) => {
    const [steps, samples, features, hidden] = [
      draw.integer(1, 5),
      draw.integer(1, 2),
      draw.integer(1, 3),
      draw.integer(1, 3),
    ];
    const direction = draw.pick(['forward', 'reverse', 'bidirectional']);
    const directions = direction === 'bidirectional' ? 2 : 1;
    const rows = gates * hidden;
    const inputs = [
      draw.floats([steps, samples, features]),
      draw.floats([directions, rows, features]),
      draw.floats([directions, rows, hidden]),
      draw.maybe(draw.floats([directions, 2 * rows])),
      undefined,
      draw.maybe(draw.floats([directions, samples, hidden])),
    ];
    const more = extra(draw, hidden, directions);
    return {
      inputs: [...inputs, ...(more.inputs ?? []).map((make) => make && draw.floats([directions, samples, hidden]))],
      attributes: { hidden_size: int(hidden), direction: string(direction), ...more.attributes },
      outputCount: more.outputCount ?? 2,
    };
  };
}

const marker = tensor('float32', [], [0]);

/** Cases of every composite, with the opset at which ONNX Runtime has a kernel to compare with. */
const cases: Readonly<Record<string, { readonly make: Make; readonly opset?: number }>> = {
  Attention: {
    opset: 23,
    make(draw) {
      const [samples, queries, keys, size] = [
        draw.integer(1, 2),
        draw.integer(1, 3),
        draw.integer(1, 3),
        draw.integer(1, 2),
      ];
      const [keyHeads, copies] = [draw.integer(1, 2), draw.integer(1, 2)];
      const flat = draw.pick([true, false]);
      const value = (heads: number, length: number): Tensor =>
        draw.floats(flat ? [samples, length, heads * size] : [samples, heads, length, size]);
      const past = flat ? undefined : draw.maybe(draw.integer(1, 2));
      const cache = (): Tensor | undefined =>
        past === undefined ? undefined : draw.floats([samples, keyHeads, past, size]);
      return {
        inputs: [
          value(keyHeads * copies, queries),
          value(keyHeads, keys),
          value(keyHeads, keys),
          draw.maybe(draw.floats([queries, keys + (past ?? 0)])),
          cache(),
          cache(),
        ],
        attributes: present({
          is_causal: draw.maybe(int(1)),
          scale: draw.maybe(float(0.5)),
          softcap: draw.maybe(float(1.5)),
          q_num_heads: flat ? int(keyHeads * copies) : undefined,
          kv_num_heads: flat ? int(keyHeads) : undefined,
        }),
        outputCount: past === undefined ? 1 : 3,
      };
    },
  },
  AffineGrid: {
    opset: 20,
    make(draw) {
      const rank = draw.integer(2, 3);
      const sizes = [2, 1, ...Array.from({ length: rank }, () => draw.integer(2, 4))];
      return {
        inputs: [draw.floats([2, rank, rank + 1]), int64s(sizes)],
        attributes: present({ align_corners: draw.maybe(int(1)) }),
        constants: [1],
      };
    },
  },
  CenterCropPad: {
    make: (draw) => ({
      inputs: [draw.floats([draw.integer(1, 4), draw.integer(1, 4)]), int64s([draw.integer(1, 5)])],
      attributes: { axes: ints([draw.pick([0, -1])]) },
      constants: [1],
    }),
  },
  Col2Im: {
    opset: 18,
    make(draw) {
      const [stride, dilation, pad] = [draw.integer(1, 2), draw.integer(1, 2), draw.integer(0, 1)];
      const places = [5, 6].map(
        (size, axis) => Math.floor((size + 2 * pad - (axis === 0 ? 1 : 2) * dilation - 1) / stride) + 1,
      );
      return {
        inputs: [
          draw.floats([2, 2 * 6, (places[0] as number) * (places[1] as number)]),
          int64s([5, 6]),
          int64s([2, 3]),
        ],
        attributes: {
          strides: ints([stride, stride]),
          dilations: ints([dilation, dilation]),
          pads: ints([pad, pad, pad, pad]),
        },
        constants: [1, 2],
      };
    },
  },
  Compress: {
    make: (draw) => ({
      inputs: [draw.floats([3, 2]), tensor('bool', [3], [1, draw.integer(0, 1), 1])],
      attributes: present({ axis: draw.maybe(int(0)) }),
      constants: [1],
    }),
  },
  DFT: {
    opset: 20,
    make: (draw) => ({
      inputs: [
        draw.floats([2, 5, 3, draw.pick([1, 2])]),
        draw.maybe(scalar('int64', draw.pick([4, 7]))),
        scalar('int64', draw.pick([1, 2, -2])),
      ],
      attributes: present({ inverse: draw.maybe(int(1)) }),
      constants: [1, 2],
    }),
  },
  Einsum: {
    opset: 12,
    make(draw) {
      const sizes: Readonly<Record<string, number>> = { a: 2, b: 3, c: 1, i: 2, j: 3, k: 2 };
      const equation = draw.pick([
        'ij,jk->ik',
        'aij,ajk->aik',
        'ij->ji',
        'ij,kj',
        'i,j->ij',
        'ij->',
        'aibj,ak,bkc->ajc',
        'ii->i',
        'abij,ij->ab',
      ]);
      const terms = (equation.split('->')[0] as string).split(',');
      return {
        inputs: terms.map((term) => draw.floats([...term].map((letter) => sizes[letter] as number))),
        attributes: { equation: string(equation) },
      };
    },
  },
  GRU: {
    opset: 14,
    make: recurrent(3, (draw) => ({
      attributes: present({ linear_before_reset: draw.maybe(int(1)), clip: draw.maybe(float(0.7)) }),
    })),
  },
  GlobalLpPool: {
    opset: 18,
    make: (draw) => ({ inputs: [draw.floats([2, 2, 2, 3], 0.2, 2)], attributes: { p: int(draw.integer(1, 3)) } }),
  },
  GridSample: {
    opset: 16,
    make: (draw) => ({
      inputs: [draw.floats([2, 2, 3, 3]), draw.floats([2, 2, 2, 2], -0.9, 0.9)],
      attributes: present({
        align_corners: draw.maybe(int(1)),
        padding_mode: draw.maybe(string('border')),
        mode: draw.maybe(string('nearest')),
      }),
    }),
  },
  Hardmax: {
    opset: 13,
    make: (draw) => ({ inputs: [draw.floats([2, 3, 2])], attributes: { axis: int(draw.integer(-3, 2)) }, fixed: [0] }),
  },
  LRN: {
    opset: 13,
    make: (draw) => ({
      inputs: [draw.floats([2, draw.integer(1, 5), 2, 2])],
      attributes: { size: int(draw.pick([1, 3, 5])), alpha: float(0.5), beta: float(0.75), bias: float(1.5) },
    }),
  },
  LSTM: {
    opset: 14,
    make: recurrent(4, (draw, hidden, directions) => ({
      inputs: [draw.maybe(marker)],
      attributes: present({ input_forget: draw.maybe(int(1)), activations: undefined, clip: draw.maybe(float(0.7)) }),
      outputCount: hidden * directions > 0 ? 3 : 1,
    })),
  },
  LpPool: {
    opset: 18,
    make: (draw) => ({
      inputs: [draw.floats([1, 2, 4, 4], 0.2, 2)],
      attributes: { kernel_shape: ints([2, 3]), strides: ints([draw.integer(1, 2), 1]), p: int(draw.integer(2, 3)) },
    }),
  },
  MaxUnpool: {
    opset: 11,
    make: (draw) => ({
      inputs: [draw.floats([1, 1, 2, 2]), tensor('int64', [1, 1, 2, 2], [draw.pick([0, 1, 4, 5]), 3, 8, 15])],
      attributes: { kernel_shape: ints([2, 2]), strides: ints([2, 2]) },
    }),
  },
  MeanVarianceNormalization: {
    opset: 13,
    make: (draw) => ({
      inputs: [draw.floats([2, 2, 3, 2], -3, 3)],
      attributes: present({ axes: draw.maybe(ints([0, 2, 3])) }),
    }),
  },
  NegativeLogLikelihoodLoss: { opset: 13, make: loss },
  RMSNormalization: {
    opset: 23,
    make(draw) {
      const axis = draw.pick([1, -1]);
      return {
        inputs: [draw.floats([2, 2, 3]), draw.floats(axis === 1 ? [2, 3] : [3])],
        attributes: { axis: int(axis), epsilon: float(0.01) },
      };
    },
  },
  RNN: {
    opset: 14,
    make: recurrent(1, (_draw, _hidden, directions) => ({
      attributes: {
        activations: { type: 'strings', value: new Array(directions).fill('Affine') },
        activation_alpha: floats(new Array(directions).fill(0.5)),
        activation_beta: floats(new Array(directions).fill(0.25)),
      },
    })),
  },
  Resize: {
    opset: 19,
    make(draw) {
      const sizes = draw.pick([true, false]);
      return {
        inputs: [
          draw.floats([2, 1, 4, 5]),
          undefined,
          sizes ? undefined : tensor('float32', [2], [draw.pick([0.5, 1, 2]), draw.pick([1.5, 0.6])]),
          sizes ? int64s([draw.integer(1, 7), draw.integer(1, 7)]) : undefined,
        ],
        attributes: present({
          mode: string('cubic'),
          axes: ints([2, 3]),
          coordinate_transformation_mode: draw.maybe(
            string(draw.pick(['asymmetric', 'pytorch_half_pixel', 'align_corners'])),
          ),
          exclude_outside: draw.maybe(int(1)),
          antialias: draw.maybe(int(1)),
        }),
        constants: [2, 3],
      };
    },
  },
  ReverseSequence: {
    opset: 10,
    make(draw) {
      const batch = draw.integer(0, 1);
      return {
        inputs: [draw.floats([3, 3, 2]), draw.integers([3], 1, 3)],
        attributes: { batch_axis: int(batch), time_axis: int(1 - batch) },
        constants: [1],
      };
    },
  },
  RotaryEmbedding: {
    opset: 23,
    make(draw) {
      const flat = draw.pick([true, false]);
      const partial = draw.pick([true, false]);
      const [angles, positions] = [partial ? 1 : 2, draw.pick([true, false])];
      const table = (): Tensor => draw.floats(positions ? [5, angles] : [2, 3, angles]);
      return {
        inputs: [
          draw.floats(flat ? [2, 3, 8] : [2, 2, 3, 4]),
          table(),
          table(),
          positions ? draw.integers([2, 3], 0, 4) : undefined,
        ],
        attributes: present({
          interleaved: draw.maybe(int(1)),
          num_heads: flat || partial ? int(2) : undefined,
          rotary_embedding_dim: partial ? int(2) : undefined,
        }),
      };
    },
  },
  Shrink: {
    opset: 9,
    make: (draw) => ({
      inputs: [draw.floats([3, 4], -2, 2)],
      attributes: { bias: float(draw.pick([0, 0.5])), lambd: float(0.75) },
    }),
  },
  SimplifiedLayerNormalization: {
    opset: 17,
    make: (draw) => ({
      inputs: [draw.floats([2, 3]), draw.floats([3])],
      attributes: { axis: int(-1), epsilon: float(0.01) },
    }),
  },
  SoftmaxCrossEntropyLoss: { opset: 13, make: (draw) => ({ ...loss(draw), outputCount: draw.integer(1, 2) }) },
  'com.microsoft.Attention': {
    opset: 17,
    make: (draw) => ({
      inputs: [draw.floats([2, 3, 4]), draw.floats([4, 12]), draw.floats([12])],
      attributes: present({ num_heads: int(2), unidirectional: draw.maybe(int(1)), scale: draw.maybe(float(0.5)) }),
    }),
  },
  'com.microsoft.BiasGelu': { opset: 17, make: (draw) => ({ inputs: [draw.floats([2, 3, 4]), draw.floats([4])] }) },
  'com.microsoft.FastGelu': {
    opset: 17,
    make: (draw) => ({ inputs: [draw.floats([2, 4]), draw.maybe(draw.floats([4]))] }),
  },
  'com.microsoft.FusedConv': {
    opset: 17,
    make: (draw) => ({
      inputs: [draw.floats([1, 2, 4, 4]), draw.floats([2, 2, 3, 3]), draw.maybe(draw.floats([2]))],
      attributes: { activation: string(draw.pick(['Sigmoid', 'Tanh'])), pads: ints([1, 1, 1, 1]) },
    }),
  },
  'com.microsoft.FusedGemm': {
    opset: 17,
    make: (draw) => ({
      inputs: [draw.floats([2, 3]), draw.floats([4, 3]), draw.floats([4])],
      attributes: { activation: string('LeakyRelu'), activation_alpha: float(0.25), transB: int(1) },
    }),
  },
  'com.microsoft.FusedMatMul': {
    opset: 17,
    make: (draw) => ({
      inputs: [draw.floats([2, 3, 2]), draw.floats([2, 4, 3])],
      attributes: { transA: int(1), transB: int(1), alpha: float(0.5) },
    }),
  },
  'com.microsoft.Gelu': { opset: 17, make: (draw) => ({ inputs: [draw.floats([2, 4], -3, 3)] }) },
  'com.microsoft.MultiHeadAttention': {
    opset: 17,
    make: (draw) => ({
      inputs: [draw.floats([2, 3, 4]), draw.floats([2, 2, 4]), draw.floats([2, 2, 4]), draw.maybe(draw.floats([12]))],
      attributes: present({ num_heads: int(2), scale: draw.maybe(float(0.5)) }),
    }),
  },
  'com.microsoft.QuickGelu': { opset: 17, make: (draw) => ({ inputs: [draw.floats([2, 4], -3, 3)] }) },
  'com.microsoft.SkipLayerNormalization': {
    opset: 17,
    make: (draw) => ({
      inputs: [
        draw.floats([2, 3, 4]),
        draw.floats([2, 3, 4]),
        draw.floats([4]),
        draw.floats([4]),
        draw.maybe(draw.floats([4])),
      ],
      attributes: { epsilon: float(0.01) },
    }),
  },
  'com.microsoft.SkipSimplifiedLayerNormalization': {
    opset: 17,
    make: (draw) => ({
      inputs: [draw.floats([2, 3, 4]), draw.floats([2, 3, 4]), draw.floats([4])],
      attributes: { epsilon: float(0.01) },
    }),
  },
};

function loss(draw: Draw): Case {
  const [classes, images] = [draw.integer(2, 4), draw.pick<readonly number[]>([[], [2]])];
  return {
    inputs: [
      draw.floats([3, classes, ...images]),
      draw.integers([3, ...images], 0, classes - 1),
      draw.maybe(draw.floats([classes], 0.5, 2)),
    ],
    attributes: present({
      reduction: draw.maybe(string(draw.pick(['none', 'sum', 'mean']))),
      ignore_index: draw.maybe(int(draw.integer(0, classes - 1))),
    }),
    fixed: [2],
  };
}

/** The graph of one case, not yet expanded. */
function graphOf(name: string, { inputs, attributes = {}, outputCount = 1, constants = [] }: Case): Graph {
  const parts = name.split('.');
  const operator = parts.pop() as string;
  const named = inputs.map((value, index) => ({ name: `x${index}`, value, constant: constants.includes(index) }));
  const given = named.filter(
    (input): input is { name: string; value: Tensor; constant: boolean } => input.value !== undefined,
  );
  const last = inputs.findLastIndex((value) => value !== undefined);
  const outputs = Array.from({ length: outputCount }, (_, index) => `y${index}`);
  return {
    name,
    inputs: given
      .filter(({ constant }) => !constant)
      .map(({ name: input, value }) => ({ name: input, type: value.type, shape: value.shape })),
    outputs: outputs.map((output) => ({ name: output, type: 'float64', shape: [] })),
    initializers: new Map(given.filter(({ constant }) => constant).map(({ name: input, value }) => [input, value])),
    parameters: [],
    buffers: [],
    nodes: [
      {
        operator,
        domain: parts.join('.'),
        name: 'node',
        inputs: named.slice(0, last + 1).map(({ name: input, value }) => (value === undefined ? '' : input)),
        outputs,
        attributes,
      },
    ],
  };
}

test('every composite has cases', () => {
  assert.deepEqual(Object.keys(cases).sort(), Object.keys(composites).sort());
});

for (const [name, { make }] of Object.entries(cases)) {
  test(`the gradient of ${name} agrees with central differences`, () => {
    const property = fc.property(fc.nat(999_999), (word) => {
      const one = make(new Draw(word, 'float64'));
      const graph = graphOf(name, one);
      const stage = instantiate(graph, 1);
      const feeds = new Map(
        graph.inputs.map((input) => [input.name, one.inputs[Number(input.name.slice(1))] as Tensor]),
      );
      const differentiable = graph.inputs
        .filter(({ name: input, type }) => type === 'float64' && !one.fixed?.includes(Number(input.slice(1))))
        .map((input) => input.name);
      checkGraph({ stage, feeds, inputs: differentiable }, createRandom(word, 1));
    });
    fc.assert(property, { seed, numRuns: 25, includeErrorInReport: true });
  });
}

for (const [name, { make, opset }] of Object.entries(cases)) {
  if (opset === undefined) continue;
  test(`${name} equals ONNX Runtime's kernel`, async (context) => {
    const runtime = await import('onnxruntime-node').catch(() => undefined);
    if (runtime === undefined) return context.skip('onnxruntime-node does not load');
    let compared = 0;
    const property = fc.asyncProperty(fc.nat(999_999), async (word) => {
      const one = make(new Draw(word, 'float32'));
      const graph = graphOf(name, one);
      const values = new Map(
        graph.inputs.map((input) => [input.name, one.inputs[Number(input.name.slice(1))] as Tensor]),
      );
      const model = onnxModel({
        opset,
        inputs: graph.inputs,
        nodes: graph.nodes,
        outputs: graph.outputs.map((output) => output.name),
        initializers: Object.fromEntries(graph.initializers),
      });
      const session = await runtime.InferenceSession.create(model, { logSeverityLevel: 4 });
      const feeds = Object.fromEntries(
        [...values].map(([input, value]) => [
          input,
          new runtime.Tensor(value.type as 'float32', value.data as Float32Array, value.shape),
        ]),
      );
      const expected = await session.run(feeds);
      const found = evaluateGraph(
        instantiate(importModel(model).graph, graph.inputs[0]?.shape[0] as number).graph,
        values,
      );
      for (const [output, value] of Object.entries(expected)) {
        const ours = found.get(output) as Tensor;
        assert.deepEqual(ours.shape, value.dims, output);
        assertClose(toNumbers(ours), Array.from(value.data as Float32Array, Number), `${name}: ${output}`, 1e-5);
      }
      compared++;
      await session.release();
    });
    await fc.assert(property, { seed, numRuns: 12, includeErrorInReport: true });
    assert.ok(compared > 0);
  });
}

for (const [name, { make }] of Object.entries(cases)) {
  test(`${name}: a corrupted case is an InputError that names the node, or another valid case`, () => {
    let refused = 0;
    const property = fc.property(fc.nat(999_999), (word) => {
      const { attributes = {}, constants = [], outputCount = 1, ...given } = make(new Draw(word, 'float64'));
      const { nodes } = graphOf(name, { attributes, constants, outputCount, ...given });
      const whole = nodes[0] as Node;
      const { node, inputs } = spoil(
        { node: whole, inputs: given.inputs.slice(0, whole.inputs.length) },
        createRandom(word, 1),
      );
      try {
        const last = inputs.findLastIndex((value) => value !== undefined);
        const named = { ...node, inputs: node.inputs.slice(0, last + 1) };
        expandComposite(
          named,
          inputs.slice(0, last + 1),
          inputs.slice(0, last + 1).map((value, index) => (constants.includes(index) ? value : undefined)),
        );
      } catch (error) {
        assert.ok(error instanceof InputError, `${name}: ${error instanceof Error ? error.stack : error}`);
        assert.match(error.message, /^Node "node" \(.*\.$/);
        refused++;
      }
    });
    fc.assert(property, { seed, numRuns: 100, includeErrorInReport: true });
    assert.ok(refused > 0, 'nothing was refused');
  });
}
