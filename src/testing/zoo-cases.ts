// The built-in models, or small configurations of the same code, with the outputs and gradients of torchvision's and
// transformers' models with the same weights (test/fixtures/zoo, whose script has the same formula for weights, inputs
// and labels). Used by tests only.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import { elementCount, type Tensor, tensor, wrap } from '../graph/tensor.ts';
import { bert } from '../models/bert.ts';
import { efficientNet } from '../models/efficientnet.ts';
import { mobileNetV2 } from '../models/mobilenet-v2.ts';
import { resNet } from '../models/resnet.ts';
import { vit } from '../models/vit.ts';
import { buildModel } from '../models/zoo.ts';
import { hashString } from '../random.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

/** What PyTorch computed. */
export interface ExpectedTraining {
  /** [N, classes], row by row. */
  readonly logits: readonly number[];
  /** Mean cross-entropy. */
  readonly loss: number;
  /** Sums of the running means after one step, by buffer. */
  readonly runningMeanSums: Readonly<Record<string, number>>;
  /**
   * For each parameter the norm of its gradient and its product with `uniform('direction NAME')`. Absent for deep nets
   * at random weights, which amplify rounding to 1%.
   */
  readonly gradients?: Readonly<Record<string, readonly [norm: number, product: number]>>;
}

/** One model, ready to be compared. */
export interface ZooCase {
  readonly name: string;
  /** In training mode, without dropout, its weights by the formula. */
  readonly graph: Graph;
  readonly input: Tensor;
  readonly labels: readonly number[];
  readonly parameterCount: number;
  /** Logits in evaluation mode. */
  readonly evaluation: readonly number[];
  readonly training?: ExpectedTraining;
}

interface ExpectedFile {
  readonly cases: Readonly<
    Record<
      string,
      {
        readonly parameterCount: number;
        readonly inputShape: readonly number[];
        readonly evaluation: readonly number[];
        readonly training?: ExpectedTraining;
      }
    >
  >;
}

const classes = 10;
const dropout = 0;

/**
 * Small configurations, by the names of the cases. The first takes token numbers from 1 to 49 (0 is padding to PyTorch,
 * without a gradient).
 */
const reduced: Readonly<Record<string, (b: GraphBuilder, x: string) => string>> = {
  'bert, reduced': (b, x) =>
    bert(b, x, {
      config: { layerCount: 2, width: 32, headCount: 4, intermediateWidth: 128, vocabularySize: 50, positionCount: 24 },
      classes,
      dropout,
    }),
  'vit, reduced': (b, x) =>
    vit(b, x, { config: { layerCount: 2, width: 48, headCount: 3, patch: 8 }, classes, dropout }),
  'mobilenet-v2, reduced': (b, x) =>
    mobileNetV2(b, x, {
      config: {
        stemStride: 2,
        stages: [
          [1, 16, 1, 1],
          [6, 24, 2, 2],
        ],
      },
      classes,
      dropout,
    }),
  'efficientnet, reduced': (b, x) =>
    efficientNet(b, x, {
      stages: [
        [1, 3, 1, 16, 2],
        [6, 5, 2, 24, 2],
        [6, 3, 1, 40, 1],
      ],
      classes,
      dropout,
    }),
  'resnet, basic, reduced': (b, x) => resNet(b, x, { config: { block: 'basic', counts: [1, 2, 1, 1] }, classes }),
  'resnet, bottleneck, reduced': (b, x) =>
    resNet(b, x, { config: { block: 'bottleneck', counts: [1, 2, 1, 1] }, classes }),
};
const tokenCount = 50;

const expected = JSON.parse(readFileSync(join(fixtureFolder('zoo'), 'expected.json'), 'utf8')) as ExpectedFile;

/** Names of the cases. */
export const zooCaseNames: readonly string[] = Object.keys(expected.cases);

/** Makes the case called `name`, about 50 MB for the largest. */
export function zooCase(name: string): ZooCase {
  const found = expected.cases[name];
  if (found === undefined) throw new Error(`no case "${name}"`);
  const { inputShape: shape, ...outputs } = found;
  const graph = withFormulaWeights(untrained(name, shape));
  const labels = Array.from({ length: shape[0] as number }, (_, index) => (3 * index + 1) % classes);
  return { name, graph, input: input(graph, shape), labels, ...outputs };
}

function untrained(name: string, shape: readonly number[]): Graph {
  const make = reduced[name];
  if (make === undefined) {
    const options = { classes, initialize: false };
    return buildModel(name, /^(mobile|mnas|efficient)/.test(name) ? { ...options, dropout } : options).graph;
  }
  const b = new GraphBuilder(name, { initialize: false });
  return b.build([make(b, b.input('input', shape.length === 2 ? 'int64' : 'float32', ['N', ...shape.slice(1)]))]);
}

function input(graph: Graph, shape: readonly number[]): Tensor {
  const indices = Array.from({ length: elementCount(shape) }, (_, index) => index);
  if (graph.inputs[0]?.type === 'float32') return wrap('float32', shape, Float32Array.from(indices, uniform('input')));
  const word = bits('input');
  return tensor(
    'int64',
    shape,
    indices.map((index) => 1 + (word(index) % (tokenCount - 1))),
  );
}

function withFormulaWeights(graph: Graph): Graph {
  const initializers = new Map(graph.initializers);
  for (const name of [...graph.parameters, ...graph.buffers]) {
    const { shape } = initializers.get(name) as Tensor;
    initializers.set(name, wrap('float32', shape, formulaValue(name, shape)));
  }
  return { ...graph, initializers };
}

function formulaValue(name: string, shape: readonly number[]): Float32Array {
  const values = new Float32Array(elementCount(shape));
  const u = uniform(name);
  const bound = Math.sqrt(6 / (values.length / (shape[0] as number)));
  const isScale = name.endsWith('.weight');
  for (let index = 0; index < values.length; index++) {
    const x = u(index);
    if (shape.length > 1) values[index] = x * bound;
    else if (name.endsWith('.running_var')) values[index] = 1 + 0.2 * x;
    else values[index] = isScale ? 1 + 0.1 * x : 0.1 * x;
  }
  return values;
}

/** Numbers in [−1, 1) by index, that follow from the name. */
export function uniform(name: string): (index: number) => number {
  const word = bits(name);
  return (index) => word(index) / 2 ** 31 - 1;
}

/** murmur3's finaliser over the name's hash and the index. */
function bits(name: string): (index: number) => number {
  const seed = hashString(name);
  return (index) => {
    let x = (seed + Math.imul(index, 0x9e3779b9)) | 0;
    x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
    x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
    return (x ^ (x >>> 16)) >>> 0;
  };
}
