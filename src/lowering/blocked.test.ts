// A pass on the blocked layout computes what the plain pass computes: random nets, lowered, on ONNX Runtime, against
// the reference engine and the graphs as the rules write them.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import { differentiate, outputGradientName, type StageGraphs } from '../autodiff/differentiate.ts';
import type { Engine } from '../engine/engine.ts';
import { loweringOf } from '../engine/lowering.ts';
import { createOnnxRuntimeNodeEngine } from '../engine/node/onnxruntime-node.ts';
import { GraphBuilder } from '../graph/builder.ts';
import type { Graph } from '../graph/graph.ts';
import { instantiate } from '../graph/static.ts';
import type { Tensor } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { evaluateGraph } from '../testing/evaluate-graph.ts';
import { assertClose, randomTensor } from '../testing/gradient-check.ts';
import { runOnEngine } from '../testing/onnxruntime-check.ts';
import { blockedDomain } from './layouts.ts';

const seed = 20261121;
let engine: Engine;

before(async () => {
  engine = await createOnnxRuntimeNodeEngine();
});

after(async () => {
  await engine.close();
});

const activations = ['none', 'relu', 'relu6', 'silu', 'hardSwish', 'sigmoid', 'gelu'] as const;

/** One step of a random net. A step that does not fit (a skip over other shapes) is left out. */
const step = fc.oneof(
  fc.record({
    kind: fc.constant('convolution' as const),
    channels: fc.constantFrom(8, 16, 21, 24, 32),
    kernel: fc.constantFrom(1, 1, 3, 5),
    stride: fc.constantFrom(1, 1, 2),
    dilation: fc.constantFrom(1, 1, 2),
    form: fc.constantFrom('dense', 'dense', 'depthwise', 'grouped'),
    isPadded: fc.boolean(),
    hasBias: fc.boolean(),
    isNormalized: fc.boolean(),
    activation: fc.constantFrom(...activations),
    isResidual: fc.boolean(),
  }),
  fc.record({ kind: fc.constantFrom('squeeze-excite', 'pool', 'concat', 'average' as const) }),
);
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

const net = fc.record({
  samples: fc.constantFrom(1, 2, 3),
  size: fc.constantFrom([8, 8], [7, 5], [1, 1], [6, 4]),
  input: fc.constantFrom(3, 16, 20),
  steps: fc.array(step, { minLength: 1, maxLength: 4 }),
});

function build({ input, size, steps }: { input: number; size: readonly number[]; steps: readonly Step[] }): Graph {
  const b = new GraphBuilder('net', { seed: 7 });
  let x = b.input('x', 'float32', ['N', input, ...size]);
  steps.forEach((part, index) => {
    const before = x;
    const [channels, height, width] = [b.size(x, 1), b.size(x, 2), b.size(x, 3)];
    const smallest = Math.min(height, width);
    switch (part.kind) {
      case 'convolution': {
        const reach = (part.kernel - 1) * part.dilation + 1;
        const padding = part.isPadded || smallest < reach ? (reach - 1) / 2 : 0;
        const groups =
          part.form === 'depthwise'
            ? channels
            : part.form === 'grouped' && (channels | part.channels) % 4 === 0
              ? 4
              : 1;
        const outChannels = part.form === 'depthwise' ? channels : part.channels;
        const { kernel, stride, dilation } = part;
        // A normalization cancels any bias: its gradient is zero, and only rounding errors would be compared.
        const bias = part.hasBias && !part.isNormalized;
        x = b.conv2d(x, { name: `c${index}`, outChannels, kernel, stride, dilation, groups, padding, bias });
        if (part.isNormalized) x = b.batchNorm(x, { name: `n${index}` });
        if (part.isResidual && String(b.shape(x)) === String(b.shape(before))) x = b.add(before, x);
        if (part.activation !== 'none') x = b[part.activation](x);
        break;
      }
      case 'squeeze-excite': {
        const gate = b.sigmoid(
          b.conv2d(b.globalAveragePool(x), { name: `s${index}`, outChannels: channels, kernel: 1 }),
        );
        x = b.mul(gate, x);
        break;
      }
      case 'pool':
        if (smallest >= 2) x = b.maxPool2d(x, { kernel: 2 });
        break;
      case 'average':
        if (smallest >= 2) x = b.averagePool2d(x, { kernel: 2 });
        break;
      default:
        x = b.concat([x, b.relu(x)], 1);
    }
  });
  return b.build([b.linear(b.flatten(b.globalAveragePool(x)), { name: 'head', outFeatures: 3 }), x]);
}

/** Asserts that every expected value agrees within 2e-4 of its largest element. */
function compare(found: ReadonlyMap<string, Tensor>, expected: ReadonlyMap<string, Tensor>, what: string): void {
  for (const [name, value] of expected) {
    const other = found.get(name);
    assert.ok(other !== undefined, `${what} gives ${name}`);
    assert.deepEqual(other.shape, value.shape, name);
    assertClose(
      Float64Array.from(other.data as Float32Array),
      Float64Array.from(value.data as Float32Array),
      `${name} of ${what}`,
      2e-4,
    );
  }
}

function scaled(value: Tensor, factor: number): Tensor {
  return { ...value, data: Float32Array.from(value.data as Float32Array, (x) => x * factor) };
}

async function backwardOf(
  graphs: StageGraphs,
  values: Map<string, Tensor>,
  run: (graph: Graph) => Promise<Map<string, Tensor>>,
) {
  const merge = (found: Map<string, Tensor>): Map<string, Tensor> => {
    for (const [name, value] of found) values.set(name, value);
    return found;
  };
  const forward = merge(await run(graphs.forward));
  const whole = await run(graphs.backward);
  const first = merge(await run(graphs.backwardInput));
  const second = await run(graphs.backwardWeight);
  return { forward, whole, halves: new Map([...first, ...second]) };
}

test('random nets: outputs, running statistics and gradients, whole and in halves', async () => {
  let blockedCount = 0;
  await fc.assert(
    fc.asyncProperty(net, async (drawn) => {
      const stage = instantiate(build(drawn), drawn.samples);
      const random = createRandom(3);
      const values = new Map<string, Tensor>(stage.graph.initializers);
      for (const { name, type, shape } of stage.graph.inputs)
        values.set(name, randomTensor(random, { type, shape: shape as number[] }));
      for (const { name, type, shape } of stage.graph.outputs)
        values.set(outputGradientName(name), randomTensor(random, { type, shape: shape as number[] }));
      const plain = differentiate(stage, { inputs: ['x'] });
      // In the course of training the running means are near the batch's.
      const running = evaluateGraph(plain.forward, values);
      for (const { buffer, output } of plain.bufferUpdates)
        if (buffer.endsWith('mean')) values.set(buffer, scaled(running.get(output) as Tensor, 10));
      const lowered = differentiate(stage, { inputs: ['x'], ...loweringOf(engine) });
      blockedCount += lowered.forward.nodes.filter(({ domain }) => domain === blockedDomain).length;
      const reference = new Map(values);
      const expected = await backwardOf(plain, reference, async (graph) => new Map(evaluateGraph(graph, reference)));
      const own = new Map(values);
      const found = await backwardOf(lowered, own, (graph) =>
        graph.outputs.length === 0 ? Promise.resolve(new Map()) : runOnEngine(engine, graph, own),
      );
      const kept = new Set([
        ...stage.graph.outputs.map(({ name }) => name),
        ...plain.bufferUpdates.map(({ output }) => output),
      ]);
      compare(found.forward, new Map([...expected.forward].filter(([name]) => kept.has(name))), 'the forward pass');
      compare(found.whole, expected.whole, 'the backward pass');
      compare(found.halves, expected.whole, 'the two halves');
    }),
    { seed, numRuns: 60, includeErrorInReport: true },
  );
  assert.ok(engine.blockSize === undefined || blockedCount > 100, `${blockedCount} blocked nodes`);
});
