import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../clock.ts';
import type { Engine, Executable, Value } from '../../engine/engine.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { Graph } from '../../graph/graph.ts';
import { type LayerSequence, layers } from '../../graph/layers.ts';
import { batchNormNet, residualNet, sequenceFirstNet, transformerNet } from '../../testing/training-subjects.ts';
import { type MeasuredProfile, type ProfileOptions, profileLayers } from './profiler.ts';

/** An engine on which every run takes 10 ms, and 1 ms for each node and sample. */
interface FakeEngine extends Engine {
  readonly compiled: Graph[];
  readonly runCount: number;
  /** Values that are alive. */
  readonly valueCount: number;
}

function createFakeEngine(): FakeEngine {
  const compiled: Graph[] = [];
  const alive = new Set<number>();
  let [busyMs, handle, runCount] = [0, 0, 0];
  const value = (type: Value['type'], shape: readonly number[]): Value => {
    alive.add(handle);
    return { type, shape, handle: handle++ };
  };
  return {
    name: 'fake',
    blockSize: undefined,
    compiled,
    get runCount() {
      return runCount;
    },
    get valueCount() {
      return alive.size;
    },
    async compile(graph): Promise<Executable> {
      assert.ok('nodes' in graph, 'a translation');
      compiled.push(graph);
      const batchSize = graph.inputs[0]?.shape[0] as number;
      return {
        inputs: graph.inputs.map(({ name }) => name),
        outputs: graph.outputs.map(({ name }) => name),
        run(inputs) {
          for (const { handle } of Object.values(inputs)) assert.ok(alive.has(handle));
          runCount++;
          busyMs += 10 + graph.nodes.length * batchSize;
          return Object.fromEntries(graph.outputs.map(({ name, type, shape }) => [name, value(type, shape as number[])]));
        },
        release: () => {},
      };
    },
    upload: ({ type, shape }) => value(type, shape),
    download: () => Promise.reject(new Error('nothing is read')),
    take: () => Promise.reject(new Error('nothing is read')),
    release: ({ handle }) => assert.ok(alive.delete(handle), 'released twice'),
    settled: async () => {},
    valueBytes: () => 0,
    busyMs: () => busyMs,
    close: async () => {},
  };
}

function options(changes: Partial<ProfileOptions> = {}): ProfileOptions {
  return { batchSizes: [1, 4], frozen: [], clock: systemClock, onProgress: () => {}, ...changes };
}

/** Linear layers of 6 to 6 with tanh between, and a head of 2. */
function chain(count: number): LayerSequence {
  const b = new GraphBuilder('chain', { seed: 1 });
  let x = b.input('x', 'float32', ['N', 6]);
  for (let index = 0; index < count; index++) x = b.tanh(b.linear(x, { name: `layer${index}`, outFeatures: 6 }));
  return layers(b.build([b.linear(x, { name: 'head', outFeatures: 2 })]));
}

test('every layer has a time at every batch size, and facts that do not depend on the batch', async () => {
  const sequence = layers(residualNet().graph);
  const engine = createReferenceEngine();
  const { layers: found, times, cached } = await profileLayers(engine, sequence, options({ batchSizes: [1, 2, 3] }));
  assert.equal(cached, false);
  assert.deepEqual(
    found.map(({ name }) => name),
    ['stem', 'block1.0', 'block1.1', 'block2.shortcut', 'block2.0', 'block2.1', 'averagepool_1', 'head'],
  );
  assert.deepEqual(
    found.map(({ outputBytes }) => outputBytes),
    [300, 600, 300, 700, 800, 400, 256, 12],
  );
  // Convolution and the two vectors of its normalization; the pool has none.
  assert.deepEqual(
    found.map(({ weightBytes }) => weightBytes),
    [240, 348, 348, 80, 464, 608, 0, 780],
  );
  assert.ok(found.every(({ batchDependent }) => batchDependent === false));
  for (const rows of [times.forwardMs, times.backwardMs]) {
    assert.deepEqual(
      rows.map((row) => row.length),
      [8, 8, 8],
    );
    assert.ok(rows.flat().every((ms) => ms > 0 && ms < 1000));
  }
  // An average pool's gradient needs nothing of its input.
  assert.ok(found.every(({ name, savedBytes }) => (savedBytes > 0 || name === 'averagepool_1') && Number.isInteger(savedBytes)));
  assert.equal(engine.valueBytes(), 0);
  await engine.close();
});

test('layers that compute the same are measured once, however many they are', async () => {
  const [short, long] = [createFakeEngine(), createFakeEngine()];
  const few = await profileLayers(short, chain(3), options());
  const many = await profileLayers(long, chain(9), options());
  // The head, a middle one, the first, which has no input gradient, and the whole: forward and backward, at two batch sizes.
  assert.equal(short.compiled.length, 2 * 2 * 4);
  assert.equal(long.compiled.length, 2 * 2 * 4);
  assert.equal(few.layers.length, 4);
  assert.equal(many.layers.length, 10);
  assert.equal(new Set(many.times.forwardMs[1]?.slice(1, 9)).size, 1);
});

test('a frozen layer is not taken for a trained one that computes the same', async () => {
  const engine = createFakeEngine();
  const { times } = await profileLayers(engine, chain(4), options({ frozen: ['layer1.weight', 'layer1.bias'] }));
  const backward = times.backwardMs[0] as readonly number[];
  assert.ok((backward[1] as number) < (backward[2] as number), `${backward}`);
  assert.equal(backward[2], backward[3]);
});

test('layers that nothing is trained before or in have no backward time and keep nothing; their weights are said to be frozen', async () => {
  const b = new GraphBuilder('chain', { seed: 1 });
  let x = b.input('x', 'float32', ['N', 6]);
  for (const name of ['a', 'b', 'c']) x = b.tanh(b.linear(x, { name, outFeatures: 6 }));
  const frozen = ['a.weight', 'a.bias', 'b.weight', 'b.bias', 'c.bias'];
  const sequence = layers(b.build([x]), { frozen });
  const { layers: found, times } = await profileLayers(createFakeEngine(), sequence, options({ frozen }));
  for (const row of times.backwardMs)
    assert.deepEqual(
      row.map((ms) => ms > 0),
      [false, false, true],
    );
  for (const row of times.forwardMs) assert.ok(row.every((ms) => ms > 0));
  assert.deepEqual(
    found.map(({ savedBytes, weightBytes, frozenBytes = 0 }) => [savedBytes > 0, weightBytes, frozenBytes]),
    [
      [false, 168, 168],
      [false, 168, 168],
      [true, 168, 24],
    ],
  );
});

test('the layers’ times add up to the whole model’s, in the proportions of the layers alone', async () => {
  const sequence = chain(3);
  const engine = createFakeEngine();
  const { times } = await profileLayers(engine, sequence, options());
  // In the order of compiling: forward and backward of the head, a middle one, the first and the whole; the same at the next batch size.
  const cost = (index: number, batchSize: number): number => 10 + (engine.compiled[index]?.nodes.length ?? 0) * batchSize;
  for (const [place, batchSize] of [1, 4].entries()) {
    const at = place * 8;
    for (const [offset, row] of [
      [0, times.forwardMs[place]],
      [1, times.backwardMs[place]],
    ] as const) {
      const alone = [4, 2, 2, 0].map((index) => cost(at + index + offset, batchSize));
      const whole = cost(at + 6 + offset, batchSize);
      const sum = alone.reduce((total, ms) => total + ms, 0);
      assert.ok(sum > whole);
      alone.forEach((ms, layer) => {
        const expected = (ms * whole) / sum;
        assert.ok(Math.abs((row?.[layer] as number) - expected) < 1e-9, `layer ${layer} at ${batchSize}: ${row?.[layer]} and ${expected}`);
      });
    }
  }
});

test('nothing is left in the engine', async () => {
  for (const net of [transformerNet(), batchNormNet(), sequenceFirstNet()]) {
    const engine = createFakeEngine();
    await profileLayers(engine, layers(net.graph), options());
    assert.equal(engine.valueCount, 0, net.graph.name);
  }
});

test('progress counts every measurement, up to the number announced', async () => {
  const seen: string[] = [];
  await profileLayers(createFakeEngine(), chain(3), options({ onProgress: (done, total) => seen.push(`${done}/${total}`) }));
  assert.deepEqual(seen, ['1/8', '2/8', '3/8', '4/8', '5/8', '6/8', '7/8', '8/8']);
});

test('batch normalization makes a layer depend on its batch', async () => {
  const { layers: found } = await profileLayers(createFakeEngine(), layers(batchNormNet().graph), options());
  assert.deepEqual(
    found.map(({ batchDependent }) => batchDependent),
    [true, true, true, false, false],
  );
});

test('a cached profile is used as it is, under the names of this model; another batch size, engine or model is measured', async () => {
  const store = new Map<string, MeasuredProfile>();
  const cache: NonNullable<ProfileOptions['cache']> = {
    read: async (key) => store.get(key),
    write: async (key, profile) => {
      store.set(key, profile);
    },
  };
  const first = createFakeEngine();
  const measured = await profileLayers(first, chain(3), options({ cache }));
  assert.equal(measured.cached, false);
  assert.equal(store.size, 1);
  const second = createFakeEngine();
  assert.deepEqual(await profileLayers(second, chain(3), options({ cache })), { ...measured, cached: true });
  assert.equal(second.compiled.length, 0);

  const b = new GraphBuilder('renamed', { seed: 2 });
  let x = b.input('x', 'float32', ['N', 6]);
  for (const name of ['one', 'two', 'three']) x = b.tanh(b.linear(x, { name, outFeatures: 6 }));
  const renamed = layers(b.build([b.linear(x, { name: 'out', outFeatures: 2 })]));
  const third = createFakeEngine();
  const found = await profileLayers(third, renamed, options({ cache }));
  assert.equal(third.compiled.length, 0);
  assert.deepEqual(
    found.layers.map(({ name }) => name),
    ['one', 'two', 'three', 'out'],
  );

  for (const [sequence, changes] of [
    [chain(3), { batchSizes: [1, 8] }],
    [chain(4), {}],
    [chain(3), { frozen: ['layer1.weight'] }],
  ] as const) {
    const engine = createFakeEngine();
    assert.equal((await profileLayers(engine, sequence, options({ cache, ...changes }))).cached, false);
    assert.ok(engine.compiled.length > 0);
  }
  const other = Object.assign(createFakeEngine(), { name: 'another engine' });
  assert.equal((await profileLayers(other, chain(3), options({ cache }))).cached, false);
});

test('a cache that cannot be written costs nothing but time', async () => {
  const cache: NonNullable<ProfileOptions['cache']> = {
    read: async () => undefined,
    write: () => Promise.reject(new Error('the disk is full')),
  };
  const { cached } = await profileLayers(createFakeEngine(), chain(3), options({ cache }));
  assert.equal(cached, false);
});

test('a fixed batch is measured at that size alone, and its layers cannot be shared out', async () => {
  const b = new GraphBuilder('fixed', { seed: 1 });
  const graph = b.build([
    b.linear(b.tanh(b.linear(b.input('x', 'float32', ['N', 6]), { name: 'a', outFeatures: 6 })), { name: 'b', outFeatures: 2 }),
  ]);
  const fixed: Graph = {
    ...graph,
    inputs: graph.inputs.map((input) => ({ ...input, shape: [4, 6] })),
    outputs: graph.outputs.map((output) => ({ ...output, shape: [4, 2] })),
    fixedBatch: 4,
  };
  const { layers: found, times } = await profileLayers(createFakeEngine(), layers(fixed), options({ batchSizes: [4] }));
  assert.deepEqual(
    found.map(({ batchDependent }) => batchDependent),
    [true, true],
  );
  assert.equal(times.forwardMs.length, 1);
});
