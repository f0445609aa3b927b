// Stages made ready for layouts that may come, with the real engine and the real thread.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { systemClock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { createComputeThread } from '../../engine/node/compute-thread.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { peerToken } from '../../testing/memory-cluster.ts';
import { regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { createMemoryLinks } from '../../transport/memory.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { createStage } from '../device/create-stage.ts';
import { partOf } from '../device/rest-stage.ts';
import { stageOptionsOf } from '../device/stage-options.ts';
import { message, type ToWorker } from '../protocol/messages.ts';
import type { ModelMessage } from '../protocol/model-message.ts';
import { encodeModel } from '../protocol/model-transfer.ts';
import { checkedProgram } from '../worker/layout.ts';
import { type Model, receiveModel } from '../worker/model.ts';
import { runWorker } from '../worker/worker.ts';
import { StagesAhead } from './stages-ahead.ts';

const timeout = 60_000;
const subject = subjectOf(regressionNet(), 4);
const { sequence, training, label } = subject;
const { bytes, parameters, buffers } = encodeModel(sequence.graph);
const control: ModelMessage = {
  ...{ parameters, buffers, training, peerToken },
  layerNames: sequence.layers.map((layer) => layer.name),
  labelShape: label.shape.slice(1) as number[],
  labelType: 'float32',
};
const modelFrame = message('model', control, [bytes]);
const predicted = { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} };
const whole: Plan = { ...handPlan({ schedule: '1f1b', cuts: [], shares: [[2]], microBatchCount: 2 }, 4), predicted };
const halves: Plan = {
  ...handPlan({ schedule: 'zb-h1', cuts: [2], shares: [[2], [2]], microBatchCount: 2 }, 4),
  predicted,
};

interface MemoryStore extends StageStore {
  readonly kept: Map<string, Buffer>;
  /** Keys that were asked for and there. */
  readonly found: string[];
  /** Resolves when `count` stages have been written. */
  written(count: number): Promise<void>;
}

function memoryStore(): MemoryStore {
  const kept = new Map<string, Buffer>();
  const found: string[] = [];
  let check = (): void => {};
  return {
    kept,
    found,
    read: async (key) => {
      if (kept.has(key)) found.push(key);
      return kept.get(key);
    },
    write: async (key, pieces) => {
      kept.set(key, Buffer.concat(pieces));
      check();
    },
    written: (count) =>
      new Promise((resolve) => {
        check = () => kept.size >= count && resolve();
        check();
      }),
  };
}

const onlyOne = ({ kept }: MemoryStore): Buffer => defined([...kept.values()][0], 'a bundle');

function programOf(model: Model, plan: Plan, name: string) {
  return defined(checkedProgram(plan, model.sequence, name), name);
}

test('a worker stores for a layout that may come the bytes that compiling would, and deploys from them', {
  timeout,
}, async () => {
  const engine = await createComputeThread();
  const [store, other] = [memoryStore(), memoryStore()];
  const [coordinator, link] = createMemoryLinks('coordinator', 'a');
  const heard: string[] = [];
  let check = (): void => {};
  const until = (kind: string): Promise<void> =>
    new Promise((resolve) => {
      check = () => heard.includes(kind) && resolve();
      check();
    });
  coordinator.receive(({ kind }) => {
    heard.push(kind);
    check();
  });
  const end = runWorker({
    ...{ name: 'a', coordinator: link, clock: systemClock, engine, stageStore: store },
    stagesAhead: new StagesAhead({ engine, store, memoryBytes: undefined }),
    createNetwork: async () => ({
      url: 'memory://a',
      connect: () => Promise.reject(new Error('nobody calls')),
      close: async () => {},
    }),
  });
  void coordinator.send(modelFrame);
  await until('ready');
  void coordinator.send(message('reserve', { plan: whole, id: 7 } satisfies ToWorker['reserve']));
  await store.written(1);

  const model = receiveModel(control, modelFrame);
  const stage = await createStage(engine, stageOptionsOf(model, programOf(model, whole, 'a'), whole, undefined), other);
  await other.written(1);
  stage.dispose();
  assert.deepEqual([...store.kept.keys()], [...other.kept.keys()]);
  assert.ok(onlyOne(store).equals(onlyOne(other)), 'the same translation, to the byte');

  const state = [...subject.state.parameter].map(([name, value]) =>
    message('state', { role: 'parameter', name }, [value], { epoch: 1, round: 0 }),
  );
  const deploy: ToWorker['deploy'] = {
    ...{ plan: whole, round: 0, moves: [{ layers: [0, 4], from: null, to: 'a' }], stateCount: state.length },
    peers: [{ name: 'a', url: 'memory://a' }],
  };
  for (const frame of [message('deploy', deploy, [], { epoch: 1 }), ...state]) void coordinator.send(frame);
  await until('deployed');
  assert.equal(store.kept.size, 1, 'nothing was translated again');
  void coordinator.send(message('end', { reason: 'the run is done' }));
  assert.deepEqual(await end, { clean: true, reason: 'the run is done' });
  await engine.close();
});

test('stages are translated one after the other, each once; one that is given up is not stored', {
  timeout,
}, async () => {
  const engine = await createComputeThread();
  const store = memoryStore();
  const ahead = new StagesAhead({ engine, store, memoryBytes: undefined, spareBytes: () => 2 ** 29 });
  const model = receiveModel(control, modelFrame);
  const [first, second] = [programOf(model, halves, 'a'), programOf(model, halves, 'b')];
  await Promise.all([
    ahead.add(model, { device: first, plan: halves }),
    ahead.add(model, { device: second, plan: halves }),
    ahead.add(model, { device: first, plan: halves }),
  ]);
  assert.equal(store.kept.size, 2);
  assert.equal(store.found.length, 1);
  const left = ahead.add(model, { device: programOf(model, whole, 'a'), plan: whole });
  await ahead.close();
  await left;
  assert.equal(store.kept.size, 2);
  await engine.close();
});

test('with enough memory the engine has the stage before it is needed, and compiles nothing then', {
  timeout,
}, async () => {
  for (const [spareBytes, readyCount] of [
    [2 ** 31, 1],
    [2 ** 29, 0],
  ] as const) {
    const engine = await createComputeThread();
    let compileCount = 0;
    const { compile } = engine;
    engine.compile = (graph) => {
      compileCount++;
      return compile.call(engine, graph);
    };
    const store = memoryStore();
    const ahead = new StagesAhead({ engine, store, memoryBytes: undefined, spareBytes: () => spareBytes });
    const model = receiveModel(control, modelFrame);
    await ahead.add(model, { device: programOf(model, whole, 'a'), plan: whole });
    const [device, sampleCount] = [programOf(model, whole, 'a'), whole.batchSize - 1];
    await ahead.add(model, { device, plan: whole, sampleCount });
    const before = compileCount;
    assert.equal(before > 0, readyCount === 1);
    const stage = await createStage(engine, stageOptionsOf(model, device, whole, undefined), store);
    assert.equal(compileCount > before, readyCount === 0);
    // And what it takes for a round of fewer samples.
    const usualCount = compileCount;
    await partOf({ program: device, stage }, whole, { sampleCount });
    assert.equal(compileCount > usualCount, readyCount === 0);
    assert.equal(store.kept.size, 2);
    stage.dispose();
    await ahead.close();
    await engine.close();
  }
});
