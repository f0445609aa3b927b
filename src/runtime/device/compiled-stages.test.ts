import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import type { Engine } from '../../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import type { Graph } from '../../graph/graph.ts';
import type { Tensor } from '../../graph/tensor.ts';
import {
  batches,
  batchNormNet,
  residualNet,
  sequenceFirstNet,
  sgd,
  subjectOf,
  type TestNet,
  transformerNet,
} from '../../testing/training-subjects.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import { compileStage, prepareStage, type StageStore } from './compiled-stages.ts';
import { createStage } from './create-stage.ts';
import { graphsKey } from './graphs-key.ts';
import { ownCopy } from './samples.ts';
import type { StagePort } from './stage.ts';
import { decodeBundle, encodeBundle } from './stage-bundle.ts';
import { wholeForm } from './stage-form.ts';
import type { StageOptions } from './stage-graphs.ts';

const batchSize = 4;

function optionsOf({ sequence, training, label }: RunSubject, given: Partial<StageOptions> = {}): StageOptions {
  const layers = [0, sequence.layers.length] as const;
  return {
    sequence,
    layers,
    sampleCount: batchSize,
    training,
    label,
    microBatchSize: batchSize,
    form: wholeForm,
    ...given,
  };
}

/** An engine that counts what it translates and compiles. */
function counting(engine: Engine): {
  engine: Engine;
  counts: { translated: number; compiled: number; released: number };
} {
  const counts = { translated: 0, compiled: 0, released: 0 };
  const { translate } = engine;
  const counted = new Proxy(engine, {
    get(target, property) {
      if (property === 'compile') {
        return async (...args: Parameters<Engine['compile']>) => {
          counts.compiled++;
          const executable = await target.compile(...args);
          return {
            ...executable,
            release: () => {
              counts.released++;
              executable.release();
            },
          };
        };
      }
      if (property === 'translate' && translate !== undefined) {
        return (...args: Parameters<typeof translate>) => {
          counts.translated++;
          return translate(...args);
        };
      }
      const value: unknown = Reflect.get(target, property, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  return { engine: counted, counts };
}

/** A store in memory. */
function memoryStore(): StageStore & { readonly entries: Map<string, Uint8Array> } {
  const entries = new Map<string, Uint8Array>();
  return {
    entries,
    read: async (key) => entries.get(key),
    write: async (key, pieces) => {
      entries.set(key, Buffer.concat(pieces));
    },
  };
}

/** Loss and state after each of two rounds on a stage that holds the whole model. */
async function trained(
  stage: StagePort,
  net: TestNet,
  subject: RunSubject,
  split: boolean,
): Promise<readonly unknown[]> {
  for (const role of ['parameter', 'buffer'] as const)
    for (const [name, value] of subject.state[role]) stage.load({ role, name, value: ownCopy(value) });
  const results: unknown[] = [];
  for (const round of [0, 1]) {
    const { inputs, labels } = batches(net, subject)(round);
    const update = { learningRate: 0.1, gradientScale: 1, step: round + 1 };
    stage.beginRound(round, update);
    await stage.forward({ round: 0, index: 0 }, 0, inputs.map(ownCopy) as Tensor[], ownCopy(labels));
    if (split) {
      await stage.backwardInput({ round: 0, index: 0 }, []);
      stage.backwardWeight({ round: 0, index: 0 });
    } else await stage.backward({ round: 0, index: 0 }, []);
    results.push(await stage.finishRound(true));
    stage.update(update);
    for await (const entry of stage.state()) results.push(entry);
  }
  return results;
}

test('a stage from the store equals a compiled one bit for bit, and nothing is translated for it', async () => {
  for (const net of [residualNet(), transformerNet(), sequenceFirstNet(), batchNormNet()]) {
    const subject = subjectOf(net, batchSize, { optimizer: { ...sgd, kind: 'adam' } });
    for (const form of [
      { form: { ...wholeForm, passes: 'split' } },
      { form: { ...wholeForm, passes: 'step' } },
      { form: { ...wholeForm, passes: 'step-with-update', sums: 'none' } },
      { savedBudgetBytes: 2000 },
      {},
    ] satisfies Partial<StageOptions>[]) {
      const options = optionsOf(subject, form);
      const store = memoryStore();
      const results = [];
      for (const expectedTranslations of ['some', 'none'] as const) {
        const { engine, counts } = counting(await createOnnxRuntimeNodeEngine());
        const stage = await createStage(engine, options, store);
        assert.equal(counts.translated > 0, expectedTranslations === 'some', net.graph.name);
        results.push(await trained(stage, net, subject, options.form.passes === 'split'));
        await engine.close();
      }
      assert.equal(store.entries.size, 1);
      assert.deepEqual(results[1], results[0], `${net.graph.name} ${JSON.stringify(form)}`);
    }
  }
});

test('what a store lost or spoilt is made again and kept again', async () => {
  const net = batchNormNet();
  const subject = subjectOf(net, batchSize);
  const options = optionsOf(subject);
  const store = memoryStore();
  const first = await createOnnxRuntimeNodeEngine();
  const key = graphsKey(first, options);
  const expected = await trained(await createStage(first, options, store), net, subject, false);
  await first.close();
  const whole = defined(store.entries.get(key), 'the entry');
  const { pass, translations } = decodeBundle(whole);
  const garbled = Object.fromEntries(
    Object.entries(translations).map(([name, each]) => [name, { ...each, model: each.model.map((byte) => byte ^ 85) }]),
  );
  for (const entry of [undefined, Buffer.concat(encodeBundle({ pass, translations: garbled }))]) {
    if (entry === undefined) store.entries.delete(key);
    else store.entries.set(key, entry);
    const { engine, counts } = counting(await createOnnxRuntimeNodeEngine());
    assert.deepEqual(await trained(await createStage(engine, options, store), net, subject, false), expected);
    assert.ok(counts.translated > 0);
    assert.deepEqual(store.entries.get(key), whole);
    await engine.close();
  }
});

test('stages alike share their graphs; the last two that are not needed any more stay compiled', async () => {
  const subject = subjectOf(residualNet(), batchSize);
  const end = subject.sequence.layers.length;
  for (const createEngine of [async () => createReferenceEngine(), () => createOnnxRuntimeNodeEngine()]) {
    const { engine, counts } = counting(await createEngine());
    const compile = (first: number) => compileStage(engine, optionsOf(subject, { layers: [first, end] }));
    const [a, b] = await Promise.all([compile(0), compile(0)]);
    const each = counts.compiled;
    assert.equal(each, Object.keys(a.graphs).length);
    assert.equal(a.graphs.forward, b.graphs.forward);
    a.release();
    (await compile(0)).release();
    b.release();
    assert.equal(counts.compiled, each);
    for (const first of [1, 2]) (await compile(first)).release();
    assert.deepEqual([counts.compiled, counts.released], [3 * each, each], 'the oldest goes');
    (await compile(1)).release();
    (await compile(2)).release();
    assert.equal(counts.compiled, 3 * each, 'both are there still');
    (await compile(0)).release();
    assert.deepEqual([counts.compiled, counts.released], [4 * each, 2 * each]);
    await engine.close();
  }
});

test('of stages that were prepared the last four stay compiled until they are used', async () => {
  const inner = await createOnnxRuntimeNodeEngine();
  const { engine, counts } = counting(inner);
  const subject = subjectOf(residualNet(), batchSize);
  const store = memoryStore();
  const options = [1, 2, 3, 4, 5].map((sampleCount) => optionsOf(subject, { sampleCount, microBatchSize: 5 }));
  for (const each of options) await prepareStage(engine, each, store);
  const graphCount = counts.compiled / 5;
  assert.equal(counts.released, graphCount, 'the first had to go');
  const used = await Promise.all(options.slice(1).map((each) => compileStage(engine, each, store)));
  assert.equal(counts.compiled, 5 * graphCount);
  const [second, ...others] = used;
  for (const { release } of others) release();
  assert.equal(counts.released, 2 * graphCount, 'used once, they are like all others');
  await prepareStage(engine, defined(options[1], 'a stage in use'), store);
  assert.equal(counts.compiled, 5 * graphCount);
  second?.release();
  // Wanted while it is prepared: the same graphs.
  const [, stage] = await Promise.all([
    prepareStage(engine, defined(options[0], 'options'), store),
    compileStage(engine, defined(options[0], 'options'), store),
  ]);
  assert.equal(counts.compiled, 6 * graphCount);
  stage.release();
  await inner.close();
});

test('a stage that cannot be compiled leaves nothing behind', async () => {
  const options = optionsOf(subjectOf(residualNet(), batchSize));
  const engine = createReferenceEngine();
  let isBroken = true;
  const breaking = new Proxy(engine, {
    get: (target, property) => {
      if (property === 'compile' && isBroken) return () => Promise.reject(new Error('no room'));
      const value: unknown = Reflect.get(target, property, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  await assert.rejects(compileStage(breaking, options), /no room/);
  isBroken = false;
  assert.ok((await compileStage(breaking, options)).graphs.forward);
  await engine.close();
});

/** The initializers, one constant of which has other numbers. */
function withOtherConstant(graph: Graph): Graph['initializers'] {
  const [name, constant] = defined(
    [...graph.initializers].find(([each, { type }]) => type === 'float32' && !graph.parameters.includes(each)),
    'a constant',
  );
  const data = constant.data.map(() => 3 as never) as Float32Array;
  return new Map(graph.initializers).set(name, { ...constant, data });
}

/** The nodes, one of which has an attribute of this value. */
function withAttribute({ nodes }: Graph, value: number): Graph['nodes'] {
  return nodes.map((node, index) => (index === 2 ? { ...node, attributes: { x: { type: 'float', value } } } : node));
}

test('the key changes with all that the graphs depend on, and with nothing else', () => {
  const engine = { name: 'engine 1', blockSize: 16 };
  const subject = subjectOf(transformerNet(), batchSize);
  const { sequence, training, label } = subject;
  const key = graphsKey(engine, optionsOf(subject));
  const { graph } = sequence;
  const withGraph = (parts: Partial<Graph>): RunSubject => ({
    ...subject,
    sequence: { ...sequence, graph: { ...graph, ...parts } },
  });
  const weight = defined(graph.parameters[0], 'a parameter');
  const changed = new Map(graph.initializers).set(weight, { ...defined(graph.initializers.get(weight), weight) });
  (changed.get(weight)?.data as Float32Array)[0] = 7;
  const same = [
    optionsOf(withGraph({ initializers: changed })),
    optionsOf({ ...subject, training: { ...training, seed: 99, batchSize: 800, clipNorm: 1 } }),
    optionsOf(subject, { microBatchSize: 40, form: { ...wholeForm } }),
  ];
  for (const options of same) assert.equal(graphsKey(engine, options), key);
  const others = [
    optionsOf(subject, { layers: [0, 2] }),
    optionsOf(subject, { sampleCount: 3 }),
    optionsOf(subject, { sampleCount: 0 }),
    optionsOf(subject, { form: { ...wholeForm, passes: 'split' } }),
    optionsOf(subject, { form: { ...wholeForm, passes: 'step' } }),
    optionsOf(subject, { form: { ...wholeForm, passes: 'step-with-update' } }),
    optionsOf(subject, { form: { ...wholeForm, sums: 'none' } }),
    optionsOf(subject, { savedBudgetBytes: 100 }),
    optionsOf(subject, { savedBudgetBytes: 100, budgetCount: 1 }),
    optionsOf({ ...subject, label: { ...label, type: 'int32' } }),
    optionsOf({ ...subject, training: { ...training, loss: 'mse' } }),
    optionsOf({ ...subject, training: { ...training, frozen: [weight] } }),
    optionsOf({ ...subject, training: { ...training, optimizer: { ...sgd, momentum: 0.8 } } }),
    optionsOf(withGraph({ initializers: withOtherConstant(graph) })),
    optionsOf(withGraph({ nodes: withAttribute(graph, -0) })),
    optionsOf(withGraph({ nodes: withAttribute(graph, 0) })),
  ];
  const keys = [key, ...others.map((options) => graphsKey(engine, options))];
  keys.push(
    graphsKey({ ...engine, name: 'engine 2' }, optionsOf(subject)),
    graphsKey({ ...engine, blockSize: 8 }, optionsOf(subject)),
  );
  assert.equal(new Set(keys).size, keys.length);
});
