import assert from 'node:assert/strict';
import { test } from 'node:test';
import { systemClock } from '../../../clock.ts';
import type { Engine, Executable } from '../../../engine/engine.ts';
import type { ProcessClock } from '../../../engine/process-clock.ts';
import { createReferenceEngine } from '../../../engine/reference.ts';
import { GraphBuilder } from '../../../graph/builder.ts';
import type { Graph } from '../../../graph/graph.ts';
import { type LayerSequence, layers } from '../../../graph/layers.ts';
import { createFakeEngine } from '../../../testing/fake-engine.ts';
import {
  batchNormNet,
  chainOfLinears,
  residualNet,
  sequenceFirstNet,
  transformerNet,
} from '../../../testing/training-subjects.ts';
import { assumedTraining } from '../../host/profile-here.ts';
import { wholeForm } from '../stage-form.ts';
import { cachedProfile, type ProfileCache } from './cached-profile.ts';
import type { MeasuredProfile, ProfileOptions } from './measurement.ts';
import { profileLayers } from './profiler.ts';
import { createStageTrial, type TrialTimes, total } from './stage-trial.ts';

function options({
  frozen = [],
  ...changes
}: Partial<ProfileOptions> & { readonly frozen?: readonly string[] } = {}): ProfileOptions {
  return {
    batchSizes: [1, 4],
    training: assumedTraining(4, frozen),
    label,
    clock: systemClock,
    onProgress: () => {},
    ...changes,
  };
}

const label = { name: 'label', type: 'int64', shape: ['N'], batchAxis: 0, differentiable: false } as const;

test('every layer has a time at every batch size, and facts that do not depend on the batch', async () => {
  const sequence = layers(residualNet().graph);
  const engine = createReferenceEngine();
  const { layers: found, times, cached } = await profileLayers(engine, sequence, options({ batchSizes: [1, 2] }));
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
      [8, 8],
    );
    assert.ok(rows.flat().every((ms) => ms > 0 && ms < 1000));
  }
  // An average pool's gradient needs nothing of its input.
  assert.ok(
    found.every(({ name, savedBytes }) => (savedBytes > 0 || name === 'averagepool_1') && Number.isInteger(savedBytes)),
  );
  assert.equal(engine.valueBytes(), 0);
  await engine.close();
});

test('layers that compute the same are measured once, however many they are', async () => {
  const totals: number[] = [];
  const note = { onProgress: (_done: number, total: number) => totals.push(total) };
  const few = await profileLayers(createFakeEngine(), chainOfLinears(3), options(note));
  const many = await profileLayers(createFakeEngine(), chainOfLinears(9), options(note));
  // The head, a middle one, the first, which has no input gradient, and the stages: at two batch sizes.
  assert.deepEqual(new Set(totals), new Set([2 * 4]));
  assert.equal(few.layers.length, 4);
  assert.equal(many.layers.length, 10);
});

test('a frozen layer is not taken for a trained one that computes the same', async () => {
  const engine = createFakeEngine();
  const { times } = await profileLayers(
    engine,
    chainOfLinears(4),
    options({ frozen: ['layer1.weight', 'layer1.bias'] }),
  );
  const backward = times.backwardMs[0] as readonly number[];
  assert.ok((backward[1] as number) < (backward[2] as number), `${backward}`);
  assert.equal(backward[2], backward[3]);
});

test('leading layers without training have no backward time and keep nothing; their weights are frozen', async () => {
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

test('on a shared processor, stages take what the engine computes, and passes what the main thread does', async () => {
  const sequence = chainOfLinears(5);
  const engineAlone = await profileLayers(createFakeEngine(), sequence, options());
  const engine = createFakeEngine();
  // Four times what the engine tells: two of its thread, one of the main thread, and garbage.
  const threaded = { ...engine, threadMs: () => 2 * engine.busyMs() };
  const processWork: ProcessClock = (threadMs = Number.NaN) => ({
    processMs: 2 * threadMs,
    computeMs: threadMs,
    mainMs: threadMs / 2,
  });
  const { times } = await profileLayers(threaded, sequence, { ...options(), processWork });
  const near = (found: number | undefined, expected: number | undefined): boolean =>
    Math.abs((found ?? 0) - (expected ?? 0)) < 1e-9;
  for (const table of ['forwardMs', 'backwardMs', 'stepMs'] as const)
    for (const [size, row] of (engineAlone.times[table] ?? []).entries())
      for (const [layer, ms] of row.entries())
        assert.ok(near(times[table]?.[size]?.[layer], 2 * ms), `${table} ${size} ${layer}`);
  assert.ok(near(times.callMs, 2 * (engineAlone.times.callMs ?? 0)));
  assert.equal(engineAlone.times.passMs, undefined);
  // Of six parts the main thread takes half as long as they compute, by two passes each.
  const [callMs, passMs] = [times.callMs ?? 0, times.passMs ?? 0];
  const layersMs = (times.forwardMs.at(-1) ?? []).map(
    (ms, layer) => (ms + (times.backwardMs.at(-1)?.[layer] ?? 0)) / 4,
  );
  assert.ok(
    passMs > Math.min(...layersMs) && passMs < Math.max(...layersMs) + 2 * callMs,
    `${passMs} ms of ${layersMs}`,
  );
});

test('a process clock that stands still, or does not know the engine’s thread, leaves the engine’s times', async () => {
  const sequence = chainOfLinears(3);
  const { times: expected } = await profileLayers(createFakeEngine(), sequence, options());
  const engine = createFakeEngine();
  const clocks: readonly ProcessClock[] = [
    () => ({ processMs: 0, mainMs: 0, computeMs: 0 }),
    () => ({ processMs: 3 * engine.busyMs(), mainMs: engine.busyMs() }),
  ];
  for (const processWork of clocks) {
    const { times } = await profileLayers(engine, sequence, { ...options(), processWork });
    assert.deepEqual(times, expected);
  }
});

test('the layers’ times add up to those of real stages', async () => {
  const sequence = chainOfLinears(5);
  const engine = createFakeEngine();
  const { times } = await profileLayers(engine, sequence, options());
  let callMs = 0;
  for (const [point, batchSize] of [1, 4].entries()) {
    const staged = async (
      range: readonly [number, number],
      passes: 'whole' | 'split' | 'step',
    ): Promise<TrialTimes> => {
      const common = {
        sequence,
        sampleCount: batchSize,
        microBatchSize: batchSize,
        training: assumedTraining(4, []),
        label,
        form: { ...wholeForm, passes },
      };
      const trial = await createStageTrial(engine, { ...common, layers: range });
      await trial.microBatch(); // the first adds nothing to the sum of gradients
      const taken = await trial.microBatch();
      trial.release();
      return taken;
    };
    const sum = (values: readonly number[] = []): number => values.reduce((all, ms) => all + ms, 0);
    const near = (found: number | undefined, expected: number): boolean =>
      Math.abs((found ?? Number.NaN) - expected) < 1e-9;
    // Six layers are six parts. Each takes something besides, the whole only once: what calls take is known from the
    // smallest batch, of the rest half is.
    const parts: TrialTimes[] = [];
    for (let first = 0; first < 6; first++) parts.push(await staged([first, first + 1], 'whole'));
    const wholeMs = total(await staged([0, 6], 'whole'));
    const besideMs = (sum(parts.map(total)) - wholeMs) / 5;
    if (batchSize === 1) callMs = besideMs;
    assert.ok(besideMs > 0 && besideMs >= callMs);
    const lessMs = callMs + (besideMs - callMs) / 2;
    for (const [layer, part] of parts.entries()) {
      const passes = [
        [times.forwardMs, part.forwardMs],
        [times.backwardMs, part.backwardMs],
      ] as const;
      for (const [table, ms] of passes)
        assert.ok(
          near(table[point]?.[layer], Math.max(ms / 2, ms - lessMs / 2)),
          `layer ${layer} at ${batchSize}: ${table[point]?.[layer]} of ${ms}`,
        );
    }
    // Two backward passes, in stages of one part or two: each has a call, and what goes with borders is the input
    // gradients'.
    const less = (ms: number, besideMs: number): number => Math.max(ms / 2, ms - besideMs);
    // The last layer, which has the loss, shares with another what the two take.
    const alike = (found: number, expected: number, [, end]: readonly [number, number]): boolean =>
      Math.abs(found / expected - 1) < (end === 6 ? 0.05 : 1e-9);
    const over = (table: readonly (readonly number[])[] = [], range: readonly [number, number]): number =>
      sum(table[point]?.slice(...range));
    for (const range of [
      [1, 2],
      [2, 4],
      [4, 6],
    ] as const) {
      const [whole, split] = [await staged(range, 'whole'), await staged(range, 'split')];
      assert.equal(split.forwardMs, whole.forwardMs);
      const [partsMs, wholeMs] = [over(times.backwardMs, range), less(whole.backwardMs, lessMs / 2)];
      const inputMs = Math.min(1, less(split.inputMs, lessMs / 2) / wholeMs) * partsMs;
      assert.ok(
        alike(over(times.backwardInputMs, range), inputMs, range),
        `input gradients of layers ${range} at ${batchSize}`,
      );
      const weightMs = (less(split.backwardMs - split.inputMs, callMs / 2) / wholeMs) * partsMs;
      assert.ok(
        alike(over(times.backwardWeightMs, range), weightMs, range),
        `weight gradients of layers ${range} at ${batchSize}`,
      );
    }
    // Both passes in one graph: what stages from some parts on take, of what their parts take.
    const apartMs = (layer: number): number =>
      (times.forwardMs[point]?.[layer] ?? 0) + (times.backwardMs[point]?.[layer] ?? 0);
    let [togetherMs, partsMs] = [0, 0];
    for (const first of [0, 3]) {
      togetherMs += total(await staged([first, 6], 'step')) - callMs;
      for (let layer = first; layer < 6; layer++) partsMs += apartMs(layer);
    }
    assert.ok(togetherMs < partsMs);
    const stepMs = times.stepMs?.[point];
    for (let layer = 0; layer < 6; layer++)
      assert.ok(
        near(stepMs?.[layer], (apartMs(layer) * togetherMs) / partsMs),
        `${stepMs?.[layer]} ms of layer ${layer} at ${batchSize}`,
      );
  }
  assert.equal(times.callMs, callMs / 2);
  assert.equal(engine.valueCount, 0);
});

test('on a slow device only parts are measured, at the first and the last size; others are on the line', async () => {
  const [slow, fast] = [createFakeEngine(), createFakeEngine()];
  const batchSizes = [1, 2, 5, 10];
  const sequence = chainOfLinears(150);
  const { times } = await profileLayers(slow, sequence, options({ batchSizes }));
  await profileLayers(fast, chainOfLinears(30), options({ batchSizes }));
  assert.ok(slow.compiled.length < fast.compiled.length / 3, `${slow.compiled.length} of ${fast.compiled.length}`);
  for (const rows of [times.forwardMs, times.backwardMs])
    for (const [layer, few] of (rows[0] ?? []).entries()) {
      const more = (rows[3]?.[layer] ?? 0) - few;
      for (const [point, part] of [1 / 9, 4 / 9].entries())
        assert.ok(Math.abs((rows[point + 1]?.[layer] ?? 0) - few - part * more) < 1e-9, `layer ${layer}`);
    }
  for (const [point, batchSize] of batchSizes.entries()) {
    const trial = await createStageTrial(slow, {
      ...{ sequence, label, layers: [0, 151], sampleCount: batchSize, microBatchSize: batchSize },
      ...{ training: assumedTraining(4, []), form: { ...wholeForm, passes: 'whole' } },
    });
    await trial.microBatch(); // the first adds nothing to the sum of gradients
    const stageMs = total(await trial.microBatch());
    trial.release();
    const rows = [...(times.forwardMs[point] ?? []), ...(times.backwardMs[point] ?? [])];
    const sumMs = rows.reduce((all, ms) => all + ms, 2 * (times.callMs ?? 0));
    assert.ok(Math.abs(sumMs / stageMs - 1) < 0.05, `${batchSize} samples: ${sumMs} for ${stageMs}`);
  }
  assert.ok((times.updateMs ?? []).every((ms) => ms > 0));
});

test('no time is negative, even if the whole model seems to take less than the extra of its parts', async () => {
  const engine = createFakeEngine();
  let busyMs = 0;
  const noisy: Engine = {
    ...engine,
    async compile(graph) {
      const executable = await engine.compile(graph);
      const takesMs = 'nodes' in graph && graph.nodes.length > 20 ? 0.001 : 1;
      const run: Executable['run'] = (...args) => {
        busyMs += takesMs;
        return executable.run(...args);
      };
      return { ...executable, run };
    },
    busyMs: () => busyMs,
  };
  const { times } = await profileLayers(noisy, chainOfLinears(9), options());
  for (const rows of [times.forwardMs, times.backwardMs, times.stepMs ?? []])
    for (const ms of rows.flat()) assert.ok(ms > 0 && Number.isFinite(ms), `${ms} ms`);
});

test('a device too small for the whole model is measured by the parts that fit', async () => {
  const sequence = chainOfLinears(5);
  const [small, large] = [createFakeEngine(), createFakeEngine()];
  // The weights of one layer of 6 to 6 are 168 bytes, of all of them about 900; three copies of a part are below this,
  // of a half are not.
  const { times } = await profileLayers(small, sequence, options({ memoryBytes: 1200 }));
  const { times: known } = await profileLayers(large, sequence, options());
  assert.ok(small.compiled.length < large.compiled.length);
  for (const point of [0, 1]) {
    for (const [layer, ms] of (times.forwardMs[point] ?? []).entries()) {
      const ratio = ms / (known.forwardMs[point]?.[layer] as number);
      assert.ok(ratio >= 1 && ratio <= 2, `layer ${layer}: ${ratio}`);
    }
  }
});

test('an update takes what its graphs take, by the weights that it changes', async () => {
  const engine = createFakeEngine();
  const { times, layers: found } = await profileLayers(
    engine,
    chainOfLinears(2),
    options({ frozen: ['layer1.weight', 'layer1.bias'] }),
  );
  const updateMs = times.updateMs as readonly number[];
  assert.equal(updateMs[1], 0);
  assert.ok((updateMs[0] as number) > 0);
  const perByte = found.map(({ weightBytes }, layer) => (updateMs[layer] as number) / weightBytes);
  assert.ok(Math.abs((perByte[0] as number) - (perByte[2] as number)) < 1e-12);
});

test('directions are drawn twice a round: both count with its end, none with its passes', async () => {
  const fake = createFakeEngine();
  let drawn = 0;
  const engine: Engine = {
    ...fake,
    draw(shape, noise) {
      drawn++;
      return fake.draw(shape, noise);
    },
  };
  const forwardGradient = { tangentCount: 1, kind: 'rademacher', scales: {}, roundsPerEpoch: 1 } as const;
  const trial = await createStageTrial(engine, {
    ...{ sequence: chainOfLinears(2), layers: [0, 3], sampleCount: 4, microBatchSize: 4, label, form: wholeForm },
    training: { ...assumedTraining(4, []), forwardGradient },
  });
  const drawsOf = async (work: () => Promise<unknown>): Promise<number> => {
    const before = drawn;
    await work();
    return drawn - before;
  };
  const first = await drawsOf(() => trial.microBatch());
  assert.ok(first > 0);
  assert.equal(await drawsOf(() => trial.update()), 2 * first);
  assert.equal(await drawsOf(() => trial.microBatch()), 0);
  trial.release();
});

test('input gradients are part of the backward pass: none in the first layer, all in frozen layers', async () => {
  const { times } = await profileLayers(
    createFakeEngine(),
    chainOfLinears(4),
    options({ frozen: ['layer2.weight', 'layer2.bias'] }),
  );
  for (const [point, row] of times.backwardMs.entries()) {
    const input = times.backwardInputMs?.[point] as readonly number[];
    const weight = times.backwardWeightMs?.[point] as readonly number[];
    assert.equal(input[0], 0);
    assert.equal(input[2], row[2]);
    assert.equal(weight[0], row[0]);
    assert.equal(weight[2], 0);
    for (const layer of [1, 3]) assert.ok((weight[layer] as number) > 0, `layer ${layer}`);
    for (const layer of [1, 3])
      assert.ok((input[layer] as number) > 0 && (input[layer] as number) < (row[layer] as number), `layer ${layer}`);
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
  await profileLayers(
    createFakeEngine(),
    chainOfLinears(3),
    options({ onProgress: (done, total) => seen.push(`${done}/${total}`) }),
  );
  assert.deepEqual(seen, ['1/8', '2/8', '3/8', '4/8', '5/8', '6/8', '7/8', '8/8']);
});

test('batch normalization makes a layer depend on its batch', async () => {
  const { layers: found } = await profileLayers(createFakeEngine(), layers(batchNormNet().graph), options());
  assert.deepEqual(
    found.map(({ batchDependent }) => batchDependent),
    [true, true, true, false, false],
  );
});

/** As a worker does: from the cache, or measured here. */
function profileKept(
  cache: ProfileCache,
  engine: Engine,
  sequence: LayerSequence,
  changes: Parameters<typeof options>[0] = {},
): Promise<MeasuredProfile> {
  const wanted = options(changes);
  return cachedProfile(cache, { engineName: engine.name, sequence, ...wanted }, () =>
    profileLayers(engine, sequence, wanted),
  );
}

test('a cached profile is used with names of this model; another batch size, engine or model is new', async () => {
  const store = new Map<string, MeasuredProfile>();
  const cache: ProfileCache = {
    read: async (key) => store.get(key),
    write: async (key, profile) => {
      store.set(key, profile);
    },
  };
  const first = createFakeEngine();
  const measured = await profileKept(cache, first, chainOfLinears(3));
  assert.equal(measured.cached, false);
  assert.equal(store.size, 1);
  const second = createFakeEngine();
  assert.deepEqual(await profileKept(cache, second, chainOfLinears(3)), { ...measured, cached: true });
  assert.equal(second.compiled.length, 0);

  const b = new GraphBuilder('renamed', { seed: 2 });
  let x = b.input('x', 'float32', ['N', 6]);
  for (const name of ['one', 'two', 'three']) x = b.tanh(b.linear(x, { name, outFeatures: 6 }));
  const renamed = layers(b.build([b.linear(x, { name: 'out', outFeatures: 2 })]));
  const third = createFakeEngine();
  const found = await profileKept(cache, third, renamed);
  assert.equal(third.compiled.length, 0);
  assert.deepEqual(
    found.layers.map(({ name }) => name),
    ['one', 'two', 'three', 'out'],
  );

  const adam = { ...assumedTraining(4, []), optimizer: { ...assumedTraining(4, []).optimizer, kind: 'adam' as const } };
  for (const [sequence, changes] of [
    [chainOfLinears(3), { batchSizes: [1, 8] }],
    [chainOfLinears(4), {}],
    [chainOfLinears(3), { frozen: ['layer1.weight'] }],
    [chainOfLinears(3), { training: adam }],
  ] as const) {
    const engine = createFakeEngine();
    assert.equal((await profileKept(cache, engine, sequence, changes)).cached, false);
    assert.ok(engine.compiled.length > 0);
  }
  const other = Object.assign(createFakeEngine(), { name: 'another engine' });
  assert.equal((await profileKept(cache, other, chainOfLinears(3))).cached, false);
});

test('a cache that cannot be written costs nothing but time', async () => {
  const cache: ProfileCache = {
    read: async () => undefined,
    write: () => Promise.reject(new Error('the disk is full')),
  };
  const { cached } = await profileKept(cache, createFakeEngine(), chainOfLinears(3));
  assert.equal(cached, false);
});

test('a fixed batch is measured at that size alone, and its layers cannot be shared out', async () => {
  const b = new GraphBuilder('fixed', { seed: 1 });
  const graph = b.build([
    b.linear(b.tanh(b.linear(b.input('x', 'float32', ['N', 6]), { name: 'a', outFeatures: 6 })), {
      name: 'b',
      outFeatures: 2,
    }),
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
