// Filters that are kept for a round, against passes that make them anew for each micro-batch, and against stages that
// were just loaded.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import type { Engine } from '../../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { Graph } from '../../graph/graph.ts';
import { byteLength, elementCount, type Tensor, type ValueType, wrap } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { sgd, subjectOf, type TestNet } from '../../testing/training-subjects.ts';
import { createStage } from './create-stage.ts';
import { keepFilters } from './kept-filters.ts';
import { filterBytes } from './memory-need.ts';
import { ownCopy } from './samples.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { StagePort } from './stage.ts';
import { designStage } from './stage-design.ts';
import { type StageForm, wholeForm } from './stage-form.ts';
import type { StageOptions } from './stage-graphs.ts';

/** A small filter, two large ones (3 x 3, the second with strides), a large one of one tap, and a depthwise one. */
function net(): TestNet {
  const b = new GraphBuilder('large filters', { seed: 3 });
  const conv = (
    x: string,
    name: string,
    outChannels: number,
    kernel: number,
    more: { stride?: number; groups?: number } = {},
  ): string => b.relu(b.conv2d(x, { name, outChannels, kernel, padding: (kernel - 1) / 2, bias: false, ...more }));
  let x = conv(b.input('x', 'float32', ['N', 3, 8, 8]), 'small', 80, 3);
  x = conv(x, 'wide', 96, 3);
  x = conv(x, 'strided', 96, 3, { stride: 2 });
  x = conv(x, 'depthwise', 96, 3, { groups: 96 });
  x = conv(x, 'pointwise', 720, 1);
  const head = b.linear(b.flatten(b.globalAveragePool(x)), { name: 'head', outFeatures: 3 });
  return { graph: b.build([head]), loss: 'cross-entropy', classCount: 3 };
}

const large = ['wide.weight', 'strided.weight', 'pointwise.weight'];
const sampleCount = 2;

const subject = subjectOf(net(), 8, { optimizer: { ...sgd, momentum: 0.9 } });
const { sequence } = subject;

function optionsOf(more: Partial<StageOptions> = {}): StageOptions {
  return {
    sequence,
    layers: [0, sequence.layers.length],
    sampleCount,
    training: subject.training,
    label: subject.label,
    microBatchSize: sampleCount,
    form: wholeForm,
    ...more,
  };
}

async function withEngine(use: (engine: Engine, blockSize: number) => Promise<void>): Promise<string | undefined> {
  const engine = await createOnnxRuntimeNodeEngine();
  try {
    if (engine.blockSize === undefined) return 'no kernels for the blocked layout here';
    await use(engine, engine.blockSize);
  } finally {
    await engine.close();
  }
}

/** One micro-batch a round. */
const single: StageForm = { ...wholeForm, sums: 'none' };
const parameters = new Set(sequence.layers.flatMap((layer) => layer.parameters));

for (const how of ['whole', 'split'] as const) {
  test(`passes that take filters give the bits of passes that make them (${how})`, async (t) => {
    const skipped = await withEngine(async (engine, blockSize) => {
      const { graphs } = designStage(engine, optionsOf({ form: { ...single, passes: how } }));
      const passes = Object.fromEntries(Object.entries(graphs).filter(([name]) => /^(forward|backward)/.test(name)));
      const kept = keepFilters(passes, parameters, blockSize);
      const filters = defined(kept.filters, 'filters');
      assert.deepEqual(filters.inputs.map(({ name }) => name).sort(), large.toSorted());
      // One for the forward pass; for the input gradients one, or one for each residue of the strides: four taps, two
      // and two, and one, of nine in all.
      const bytes = (names: readonly { readonly name: string }[]): number =>
        names.reduce((sum, value) => sum + byteLength(value as unknown as ValueType), 0);
      const own = large.map((name) => byteLength(defined(sequence.graph.initializers.get(name), name)));
      const total = own.reduce((sum, each) => sum + each, 0);
      const predicted = sequence.layers.reduce((sum, layer) => sum + filterBytes(sequence, layer), 0);
      assert.equal(predicted, total);
      assert.ok(
        bytes(filters.outputs) <= 2 * total && bytes(filters.outputs) > 1.6 * total,
        `${bytes(filters.outputs)} of ${total}`,
      );
      const values = new Map<string, Tensor>();
      await run(engine, filters, values);
      for (const [name, graph] of Object.entries(passes)) {
        const without = defined(kept.graphs[name], name);
        assert.ok(without.nodes.length < defined(graph, name).nodes.length, name);
        assert.ok(without.inputs.length >= defined(graph, name).inputs.length, name);
        const expected = await run(engine, defined(graph, name), values);
        assert.deepEqual(await run(engine, without, values), expected, name);
      }
    });
    if (skipped !== undefined) t.skip(skipped);
  });
}

test('a pass without large filters stays as it is', () => {
  const { graphs } = designStage({ blockSize: 16 }, optionsOf({ layers: [0, 1], form: single }));
  const kept = keepFilters({ forward: defined(graphs.forward, 'a pass') }, parameters, 16);
  assert.equal(kept.filters, undefined);
  assert.equal(kept.graphs.forward, graphs.forward);
});

test('a filter that a pass gives as well as reads is made there', async (t) => {
  const skipped = await withEngine(async (engine, blockSize) => {
    const { graphs } = designStage(engine, optionsOf({ form: single }));
    const forward = defined(graphs.forward, 'a pass');
    const kept = keepFilters({ forward }, parameters, blockSize);
    const before = defined(kept.graphs.forward, 'a pass').nodes.length;
    const read = new Set(defined(kept.graphs.forward, 'a pass').nodes.flatMap(({ outputs }) => outputs));
    const moved = forward.nodes.filter(({ outputs }) => !read.has(outputs[0] as string));
    const filter = defined(moved.at(-1)?.outputs[0], 'a filter');
    const info = defined(kept.filters?.outputs.at(-1), 'its type');
    const giving = { ...forward, outputs: [...forward.outputs, { ...info, name: filter }] };
    const again = keepFilters({ forward: giving }, parameters, blockSize);
    const without = defined(again.graphs.forward, 'a pass');
    assert.ok(without.nodes.length > before && without.nodes.length < forward.nodes.length);
    const values = new Map<string, Tensor>();
    await run(engine, defined(again.filters, 'filters'), values);
    const expected = await run(engine, giving, values);
    assert.ok(expected[filter] !== undefined);
    assert.deepEqual(await run(engine, without, values), expected);
  });
  if (skipped !== undefined) t.skip(skipped);
});

/** The graph's outputs; they and what it reads are in `values` afterwards. */
async function run(engine: Engine, graph: Graph, values: Map<string, Tensor>): Promise<Record<string, Tensor>> {
  const executable = await engine.compile(graph);
  const feeds = Object.fromEntries(
    graph.inputs.map(({ name, type, shape }, index) => {
      const value = values.get(name) ?? madeUp({ type, shape: shape as number[] }, index);
      values.set(name, value);
      return [name, engine.upload(ownCopy(value))];
    }),
  );
  const outputs = executable.run(feeds);
  const results = Object.fromEntries(
    await Promise.all(Object.entries(outputs).map(async ([name, value]) => [name, await engine.take(value)] as const)),
  );
  for (const value of Object.values(feeds)) engine.release(value);
  executable.release();
  for (const [name, value] of Object.entries(results)) values.set(name, value);
  return results;
}

function madeUp({ type, shape }: ValueType, seed: number): Tensor {
  const random = createRandom(seed);
  assert.equal(type, 'float32');
  return wrap(
    'float32',
    shape,
    Float32Array.from({ length: elementCount(shape) }, () => random.normal()),
  );
}

async function weightsOf(stage: StagePort): Promise<Map<string, Tensor>> {
  const weights = new Map<string, Tensor>();
  for await (const { role, name, value } of stage.state()) if (role === 'parameter') weights.set(name, value);
  return weights;
}

/** The gradients of a round of two micro-batches. */
async function gradients(stage: StagePort, round: number): Promise<SegmentedVector> {
  stage.beginRound(round);
  for (const microBatch of [0, 1]) {
    const labels = wrap('int64', [sampleCount], BigInt64Array.from([0n, 2n]));
    await stage.forward(
      { round, index: microBatch },
      0,
      [madeUp({ type: 'float32', shape: [sampleCount, 3, 8, 8] }, microBatch)],
      labels,
    );
    await stage.backward({ round, index: microBatch }, []);
  }
  const own = await stage.takeGradients();
  assert.ok(own instanceof SegmentedVector);
  return own;
}

test('filters follow the weights: after an update, after loading, and after going back to a version', async (t) => {
  const skipped = await withEngine(async (engine) => {
    const loaded = async (state: ReadonlyMap<string, Tensor>): Promise<StagePort> => {
      const stage = await createStage(engine, optionsOf());
      for (const [name, value] of state) stage.load({ role: 'parameter', name, value: ownCopy(value) });
      return stage;
    };
    const isAsLoaded = async (stage: StagePort, round: number): Promise<SegmentedVector> => {
      const fresh = await loaded(await weightsOf(stage));
      const found = await gradients(stage, round);
      assert.deepEqual(found, await gradients(fresh, 0));
      stage.putGradients(new SegmentedVector(found.segments.map((segment) => segment.slice())));
      fresh.dispose();
      return found;
    };
    const stage = await loaded(subject.state.parameter);
    const first = await isAsLoaded(stage, 0);
    stage.update({ learningRate: 0.1, gradientScale: 1, step: 1 });
    const second = await isAsLoaded(stage, 1);
    assert.notDeepEqual(second, first);
    const wide = defined(subject.state.parameter.get('wide.weight'), 'a weight');
    stage.load({ role: 'parameter', name: 'wide.weight', value: madeUp(wide, 9) });
    const third = await isAsLoaded(stage, 1);
    assert.notDeepEqual(third, second);
    stage.returnTo(0);
    assert.deepEqual(await isAsLoaded(stage, 0), first);
    stage.dispose();
    await engine.settled();
    assert.equal(engine.valueBytes(), 0);
  });
  if (skipped !== undefined) t.skip(skipped);
});
