import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { systemClock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import type { Engine } from '../../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { Failure } from '../../failure.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import { type CutTensor, cutBefore } from '../../graph/layers.ts';
import { allocate, elementCount, type Tensor, tensor, wrap } from '../../graph/tensor.ts';
import { createRandom } from '../../random.ts';
import { program } from '../../schedule/generate.ts';
import {
  batchNormNet,
  dropoutNet,
  regressionNet,
  residualNet,
  sequenceFirstNet,
  sgd,
  subjectOf,
  type TestNet,
  transformerNet,
} from '../../testing/training-subjects.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import { createStage } from './create-stage.ts';
import { gradientArrays } from './gradient-sums.ts';
import { runRound } from './round.ts';
import type { RoundTotals } from './round-sums.ts';
import { ownCopy } from './samples.ts';
import { SegmentedVector } from './segmented-vector.ts';
import type { StagePort } from './stage.ts';
import { type StageForm, wholeForm } from './stage-form.ts';
import type { EntryOptions, StateEntry } from './stage-state.ts';

const sampleCount = 3;

interface Options {
  readonly layers: readonly [number, number];
  readonly split?: boolean;
  readonly samples?: number;
  /** Forward and backward pass as one graph, or the update with them. */
  readonly joined?: 'passes' | 'update';
}

const joinedForms: Readonly<Record<NonNullable<Options['joined']>, StageForm>> = {
  passes: { ...wholeForm, passes: 'step' },
  update: { ...wholeForm, passes: 'step-with-update', sums: 'none' },
};

/** A stage of the subject's model with its initial weights. */
async function stageOf(
  engine: Engine,
  { sequence, training, label, state }: RunSubject,
  options: Options,
): Promise<StagePort> {
  const { layers, split = false, samples = sampleCount, joined } = options;
  const stage = await createStage(engine, {
    sequence,
    layers,
    sampleCount: samples,
    training,
    label,
    microBatchSize: 4,
    form: joined === undefined ? { ...wholeForm, passes: split ? 'split' : 'whole' } : joinedForms[joined],
  });
  for (const layer of sequence.layers.slice(...layers)) {
    for (const [role, names] of [
      ['parameter', layer.parameters],
      ['buffer', layer.buffers],
    ] as const) {
      for (const name of names) stage.load({ role, name, value: ownCopy(defined(state[role].get(name), name)) });
    }
  }
  return stage;
}

/** Seeded values for cut tensors: small integers for indices. */
function values(cuts: readonly CutTensor[], seed: number, classCount: number): Tensor[] {
  return cuts.map((cut, index) => {
    const random = createRandom(seed, index);
    const shape = cut.shape.map((dimension) => (dimension === 'N' ? sampleCount : dimension));
    const draw = (): number => (cut.type === 'float32' ? random.normal() : random.integer(classCount));
    return tensor(cut.type, shape, Array.from({ length: elementCount(shape) }, draw));
  });
}

function forward(stage: StagePort, net: TestNet, microBatch: number, round = 0): Promise<readonly Tensor[]> {
  const labels = stage.isLast ? values([stage.label], 50 + microBatch, net.classCount)[0] : undefined;
  return stage.forward({ round, index: microBatch }, 0, values(stage.inputs, microBatch, net.classCount), labels);
}

function outputGradients(stage: StagePort, microBatch: number): Tensor[] {
  const cuts = stage.outputs.filter((output) => output.differentiable);
  return stage.isLast ? [] : values(cuts, 80 + microBatch, 2);
}

/** Forward and backward of two micro-batches. */
async function pass(stage: StagePort, net: TestNet, round = 0): Promise<readonly (readonly Tensor[])[]> {
  stage.beginRound(round);
  const results = [forward(stage, net, 0), forward(stage, net, 1)];
  for (const microBatch of [0, 1])
    results.push(stage.backward({ round: 0, index: microBatch }, outputGradients(stage, microBatch)));
  return Promise.all(results);
}

/** The own gradients; of a strict stage they would come in parts. */
async function sumsOf(stage: StagePort): Promise<SegmentedVector> {
  const own = await stage.takeGradients();
  assert.ok(own instanceof SegmentedVector);
  return own;
}

async function stateOf(stage: StagePort, options: EntryOptions = {}): Promise<Map<string, StateEntry>> {
  const entries = new Map<string, StateEntry>();
  for await (const entry of stage.state(options)) entries.set(`${entry.role} ${entry.name}`, entry);
  return entries;
}

function stateBytes(state: ReadonlyMap<string, StateEntry>): number {
  return [...state.values()].reduce((sum, { value }) => sum + value.data.byteLength, 0);
}

const update = { learningRate: 0.1, gradientScale: 1, step: 1 };

test('a split backward pass gives what the whole one gives, in any order of the second halves', async () => {
  for (const net of [residualNet(), transformerNet(), sequenceFirstNet(), batchNormNet()]) {
    const subject = subjectOf(net, 8);
    const end = subject.sequence.layers.length;
    for (const layers of [
      [0, 2],
      [1, end - 1],
      [end - 2, end],
      [0, end],
    ] as const) {
      const engine = createReferenceEngine();
      const whole = await stageOf(engine, subject, { layers });
      const expected = await pass(whole, net);
      const expectedSums = await sumsOf(whole);
      const split = await stageOf(engine, subject, { layers, split: true });
      split.beginRound(0);
      const results = [forward(split, net, 0), forward(split, net, 1)];
      for (const microBatch of [0, 1])
        results.push(split.backwardInput({ round: 0, index: microBatch }, outputGradients(split, microBatch)));
      for (const microBatch of [0, 1]) split.backwardWeight({ round: 0, index: microBatch });
      assert.deepEqual(await Promise.all(results), expected, `${net.graph.name} ${layers}`);
      assert.deepEqual(await sumsOf(split), expectedSums, `${net.graph.name} ${layers}`);
      assert.ok(expectedSums.segments.flatMap((segment) => [...segment]).some((value) => value !== 0));
      await engine.close();
    }
  }
});

test('after a round the engine holds the state alone; after an update the version before, too', async () => {
  for (const net of [residualNet(), transformerNet(), dropoutNet(), batchNormNet()]) {
    for (const kind of ['sgd', 'adam'] as const) {
      const engine = createReferenceEngine();
      const subject = subjectOf(net, 8, { optimizer: { ...sgd, kind } });
      const stage = await stageOf(engine, subject, { layers: [0, subject.sequence.layers.length] });
      for (const round of [0, 1, 2]) {
        await pass(stage, net, round);
        assert.equal((await stage.finishRound(true)).finite, true);
        stage.update({ ...update, step: round + 1 });
        await engine.settled();
        const bytes = stateBytes(await stateOf(stage));
        assert.ok(engine.valueBytes() > bytes);
        assert.deepEqual(stage.versions, [round]);
        stage.dropVersion(round);
        await engine.settled();
        assert.equal(engine.valueBytes(), bytes, `${net.graph.name} ${kind}`);
      }
      await engine.close();
    }
  }
});

test('a round that was given up leaves nothing behind: the next one is as if it had never begun', async () => {
  const net = residualNet();
  const subject = subjectOf(net, 8);
  const engine = createReferenceEngine();
  const fresh = await stageOf(engine, subject, { layers: [2, 5] });
  const expected = await pass(fresh, net, 4);
  const expectedSums = await sumsOf(fresh);
  const stage = await stageOf(engine, subject, { layers: [2, 5] });
  const bytes = engine.valueBytes();
  stage.beginRound(3);
  await Promise.all([
    forward(stage, net, 0),
    forward(stage, net, 1),
    stage.backward({ round: 0, index: 0 }, outputGradients(stage, 0)),
  ]);
  stage.beginRound(4);
  await engine.settled();
  assert.equal(engine.valueBytes(), bytes);
  assert.deepEqual(await pass(stage, net, 4), expected);
  assert.deepEqual(await sumsOf(stage), expectedSums);
  await engine.close();
});

test('a kept version is the very state of its round, statistics and optimizer state too', async () => {
  for (const net of [transformerNet(), batchNormNet()]) {
    const subject = subjectOf(net, 8, { optimizer: { ...sgd, kind: 'adamw', weightDecay: 0.1 } });
    const engine = createReferenceEngine();
    const stage = await stageOf(engine, subject, { layers: [0, subject.sequence.layers.length] });
    const states = [];
    for (const round of [0, 1, 2]) {
      states.push(await stateOf(stage));
      await pass(stage, net, round);
      stage.update({ ...update, step: round + 1 });
    }
    const last = await stateOf(stage);
    assert.deepEqual(stage.versions, [0, 1, 2]);
    for (const round of [0, 1, 2])
      assert.deepEqual(await stateOf(stage, { round }), states[round], `version ${round} of ${net.graph.name}`);
    stage.dropVersion(1);
    assert.deepEqual(stage.versions, [0, 2]);

    // Back to before round 2, with a round given up in between, and on again: equal once more.
    stage.beginRound(3);
    await forward(stage, net, 0);
    stage.returnTo(2);
    assert.deepEqual(await stateOf(stage), states[2]);
    await pass(stage, net, 2);
    stage.update({ ...update, step: 3 });
    assert.deepEqual(await stateOf(stage), last);
    stage.returnTo(0);
    assert.deepEqual(await stateOf(stage), states[0]);
    stage.dispose();
    await engine.settled();
    assert.equal(engine.valueBytes(), 0);
    await engine.close();
  }
});

test('optimizer state loaded in a round is of the version before it, and of the update behind it', async () => {
  for (const make of [createReferenceEngine, () => createOnnxRuntimeNodeEngine()]) {
    for (const net of [transformerNet(), batchNormNet()]) {
      const subject = subjectOf(net, 8, { optimizer: { ...sgd, kind: 'adamw', weightDecay: 0.1 } });
      const engine = await make();
      const whole = [0, subject.sequence.layers.length] as const;
      const stage = await stageOf(engine, subject, { layers: whole });
      await pass(stage, net, 0);
      stage.update({ ...update, step: 1 });
      const after = await stateOf(stage);
      const late = await stageOf(engine, subject, { layers: whole });
      const load = (isLate: boolean): void => {
        for (const { role, name, value } of after.values())
          if ((role === 'optimizer') === isLate) late.load({ role, name, value: ownCopy(value) });
      };
      load(false);
      late.keepVersion(1);
      for (const each of [stage, late]) {
        await pass(each, net, 1);
        if (each === late) load(true);
        each.update({ ...update, step: 2 });
      }
      assert.deepEqual(await stateOf(late), await stateOf(stage), net.graph.name);
      assert.deepEqual(await stateOf(late, { round: 1 }), after);
      const moments = [...after].filter(([, { role }]) => role === 'optimizer');
      assert.ok(moments.length > 0);
      assert.deepEqual(await stateOf(late, { round: 1, part: 'optimizer' }), new Map(moments));
      late.returnTo(1);
      assert.deepEqual(await stateOf(late), after);
      for (const each of [stage, late]) each.dispose();
      await engine.settled();
      assert.equal(engine.valueBytes(), 0);
      await engine.close();
    }
  }
});

test('of two versions only the difference is given if asked for, and only of the layers asked for', async () => {
  const net = regressionNet();
  const subject = subjectOf(net, 8, { frozen: ['a.weight'] });
  const engine = createReferenceEngine();
  const stage = await stageOf(engine, subject, { layers: [0, subject.sequence.layers.length] });
  await pass(stage, net, 0);
  stage.update({ ...update, step: 1 });
  stage.keepVersion(1);
  const names = async (options: EntryOptions): Promise<string[]> => {
    const found = [];
    for await (const { role, name } of stage.state(options)) found.push(`${role} ${name}`);
    return found.sort();
  };
  const all = await names({ round: 1 });
  const changed = await names({ round: 1, since: 0 });
  assert.ok(all.includes('parameter a.weight'), String(all));
  assert.deepEqual(
    changed,
    all.filter((name) => name !== 'parameter a.weight'),
  );
  assert.deepEqual(
    await names({ round: 1, names: new Set(['head.bias']) }),
    all.filter((name) => name.includes('head.bias')),
  );
  await engine.close();
});

test('loss, right predictions and norm are sums over samples, counted where the program says so', async () => {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  const engine = createReferenceEngine();
  const stage = await stageOf(engine, subject, { layers: [3, 4] });
  await pass(stage, net);
  const counted = await stage.finishRound(true);
  assert.equal((await stage.finishRound(false)).squaredNorm, 0);
  const gradients = (await sumsOf(stage)).segments.flatMap((segment) => [...segment]);
  const norm = gradients.reduce((sum, value) => sum + value * value, 0);
  assert.ok(Math.abs(counted.squaredNorm - norm) < 1e-5 * norm);
  assert.ok(norm > 0);
  // loss = Σ_samples mean over outputs of (x·Wᵀ + b − y)².
  const weight = defined(subject.state.parameter.get('head.weight'), 'weight').data;
  const bias = defined(subject.state.parameter.get('head.bias'), 'bias').data;
  let loss = 0;
  for (const microBatch of [0, 1]) {
    const x = defined(values(stage.inputs, microBatch, 0)[0], 'x').data as Float32Array;
    const y = defined(values([stage.label], 50 + microBatch, 0)[0], 'y').data as Float32Array;
    for (let sample = 0; sample < sampleCount; sample++) {
      for (const output of [0, 1]) {
        let value = Number(bias[output]);
        for (let index = 0; index < 7; index++)
          value += Number(weight[output * 7 + index]) * Number(x[sample * 7 + index]);
        loss += (value - Number(y[sample * 2 + output])) ** 2 / 2;
      }
    }
  }
  assert.ok(Math.abs(counted.lossSum - loss) < 1e-4 * loss, `${counted.lossSum} and ${loss}`);
  await engine.close();
});

test('a number that is not finite is reported, and none of it travels', async () => {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  (subject.state.parameter as Map<string, Tensor>).set('b.bias', tensor('float32', [7], new Array(7).fill(Number.NaN)));
  const engine = createReferenceEngine();
  const stage = await stageOf(engine, subject, { layers: [0, 4] });
  await pass(stage, net);
  assert.deepEqual(await stage.finishRound(true), { lossSum: 0, correctCount: 0, squaredNorm: 0, finite: false });
  await engine.close();
});

test('frozen parameters stay and have no optimizer state; a stage of frozen layers only passes on', async () => {
  const net = regressionNet();
  const frozen: TrainingSpec['frozen'] = ['a.weight', 'a.bias', 'b.bias'];
  const subject = subjectOf(net, 8, { frozen });
  const engine = createReferenceEngine();
  const stage = await stageOf(engine, subject, { layers: [0, 4] });
  const before = await stateOf(stage);
  await pass(stage, net);
  stage.update(update);
  const after = await stateOf(stage);
  for (const [key, { role, name, value }] of after) {
    const isFrozen = frozen.includes(name.replace('/momentum', ''));
    if (role === 'optimizer') assert.equal(isFrozen, false, name);
    else assert.equal(Buffer.compare(bytes(value), bytes(defined(before.get(key), key).value)) === 0, isFrozen, name);
  }
  assert.deepEqual(
    [...after.values()].filter(({ role }) => role === 'optimizer').map(({ name }) => name),
    ['b.weight/momentum', 'c.weight/momentum', 'c.bias/momentum', 'head.weight/momentum', 'head.bias/momentum'],
  );
  const first = await stageOf(engine, subject, { layers: [0, 1] });
  const results = await pass(first, net);
  assert.deepEqual(results.slice(2), [[], []]);
  first.update(update);
  assert.equal((await sumsOf(first)).length, 0);
  await engine.close();
});

function bytes({ data }: Tensor): Uint8Array {
  return new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
}

test('a device without samples holds weights, takes its group’s sums, and updates with them', async () => {
  const net = regressionNet();
  const subject = subjectOf(net, 8);
  const engine = createReferenceEngine();
  const busy = await stageOf(engine, subject, { layers: [0, 4] });
  const spare = await stageOf(engine, subject, { layers: [0, 4], samples: 0 });
  await pass(busy, net);
  spare.beginRound(0);
  const own = await sumsOf(spare);
  assert.deepEqual(
    own.segments,
    own.segments.map(({ length }) => new Float32Array(length)),
  );
  const sums = await sumsOf(busy);
  const copy = new SegmentedVector(sums.segments.map((segment) => segment.slice()));
  busy.putGradients(sums);
  spare.putGradients(copy);
  const { lossSum, squaredNorm } = await spare.finishRound(true);
  assert.equal(lossSum, 0);
  assert.equal(squaredNorm, (await busy.finishRound(true)).squaredNorm);
  for (const stage of [busy, spare]) stage.update(update);
  assert.deepEqual(await stateOf(spare), await stateOf(busy));
  await engine.close();
});

test('state that was not loaded is named; optimizer state starts from zeros', async () => {
  const subject = subjectOf(batchNormNet(), 8);
  const engine = createReferenceEngine();
  const { sequence, training, label } = subject;
  const stage = await createStage(engine, {
    sequence,
    layers: [0, 1],
    sampleCount,
    training,
    label,
    microBatchSize: 4,
    form: wholeForm,
  });
  stage.load({
    role: 'parameter',
    name: 'stem.weight',
    value: { type: 'float32', shape: [3, 2, 3, 3], data: allocate('float32', 54) },
  });
  assert.deepEqual(stage.missingState(), [
    'stem.bn.weight',
    'stem.bn.bias',
    'stem.bn.running_mean',
    'stem.bn.running_var',
  ]);
  await engine.close();
});

test('dropout masks are those of the sample’s place in the batch, wherever the samples’ axis is', async () => {
  const net = sequenceFirstNet();
  const subject = subjectOf(net, 8);
  const engine = createReferenceEngine();
  const { sequence, training, label } = subject;
  const run = async (samples: number, firstSample: number): Promise<Tensor> => {
    const stage = await createStage(engine, {
      sequence,
      layers: [0, 1],
      sampleCount: samples,
      training,
      label,
      microBatchSize: 4,
      form: wholeForm,
    });
    for (const name of sequence.layers[0]?.parameters ?? []) {
      stage.load({ role: 'parameter', name, value: ownCopy(defined(subject.state.parameter.get(name), name)) });
    }
    stage.beginRound(5);
    const input = tensor('float32', [samples, 4, 5], new Array(samples * 20).fill(1));
    const [output] = await stage.forward({ round: 5, index: 1 }, firstSample, [input], undefined);
    return defined(output, 'output');
  };
  assert.equal(defined(cutBefore(sequence, 1)[0], 'cut').batchAxis, 1);
  const whole = await run(4, 0);
  const column = (value: Tensor, sample: number): number[] => {
    const count = defined(value.shape[1], 'samples');
    return [0, 1, 2, 3].flatMap((position) =>
      Array.from(
        value.data.subarray((position * count + sample) * 5, (position * count + sample + 1) * 5) as Float32Array,
      ),
    );
  };
  for (const [samples, firstSample] of [
    [1, 0],
    [2, 1],
    [3, 1],
    [1, 3],
  ] as const) {
    const part = await run(samples, firstSample);
    for (let sample = 0; sample < samples; sample++)
      assert.deepEqual(column(part, sample), column(whole, firstSample + sample));
  }
  assert.notDeepEqual(column(whole, 0), column(whole, 1));
  assert.ok(column(whole, 0).includes(0));
  await engine.close();
});

/** One round of one micro-batch, updated; resolves with its sums. */
async function wholeRound(stage: StagePort, net: TestNet, round: number): Promise<RoundTotals> {
  const planned = { learningRate: 0.1 / (round + 1), gradientScale: 1, step: round + 1 };
  stage.beginRound(round, planned);
  await forward(stage, net, round, round);
  await stage.backward({ round, index: round }, []);
  const totals = await stage.finishRound(true);
  stage.update({ ...planned });
  return totals;
}

test('a step that updates leaves the state of an update behind it; given up it leaves none', async () => {
  for (const createEngine of [async () => createReferenceEngine(), () => createOnnxRuntimeNodeEngine()]) {
    for (const net of [residualNet(), transformerNet(), batchNormNet()]) {
      for (const kind of ['sgd', 'adam'] as const) {
        const frozen = net.graph.parameters.slice(0, 1);
        const subject = subjectOf(net, 8, { optimizer: { ...sgd, kind, weightDecay: 0.01 }, frozen });
        const layers = [0, subject.sequence.layers.length] as const;
        const [engine, other] = [await createEngine(), await createEngine()];
        const apart = await stageOf(other, subject, { layers, joined: 'passes' });
        const stage = await stageOf(engine, subject, { layers, joined: 'update' });
        const what = `${net.graph.name} ${kind} ${engine.name}`;
        for (const round of [0, 1, 2]) {
          const { squaredNorm: norm, ...expected } = await wholeRound(apart, net, round);
          if (round === 1) {
            stage.beginRound(round, { learningRate: 9, gradientScale: 1, step: 7 });
            await forward(stage, net, round, round);
            await stage.backward({ round, index: round }, []);
            stage.returnTo(round); // given up
          }
          const { squaredNorm, ...totals } = await wholeRound(stage, net, round);
          assert.deepEqual(totals, expected, what);
          assert.ok(norm > 0 && Math.abs(squaredNorm - norm) < 1e-5 * norm, `${what}: ${squaredNorm} for ${norm}`);
          assert.deepEqual(await stateOf(stage), await stateOf(apart), `${what}, round ${round}`);
        }
        stage.returnTo(1);
        for (const round of [1, 2]) await wholeRound(stage, net, round);
        assert.deepEqual(await stateOf(stage), await stateOf(apart), what);
        for (const round of stage.versions) stage.dropVersion(round);
        await engine.settled();
        assert.equal(engine.valueBytes(), stateBytes(await stateOf(stage)), what);
        await engine.close();
        await other.close();
      }
    }
  }
});

test('a step that updates takes the planned update, and reports a gradient that is not finite', async () => {
  const engine = createReferenceEngine();
  const b = new GraphBuilder('linear', { seed: 1 });
  const graph = b.build([b.linear(b.input('x', 'float32', ['N', 2]), { name: 'head', outFeatures: 1 })]);
  const subject = subjectOf({ graph, loss: 'mse', classCount: 0 }, 3);
  const stage = await stageOf(engine, subject, { layers: [0, 1], joined: 'update' });
  const planned = { learningRate: 0.1, gradientScale: 1, step: 1 };
  const passes = async (x: number): Promise<void> => {
    await stage.forward(
      { round: 0, index: 0 },
      0,
      [tensor('float32', [3, 2], new Array(6).fill(x))],
      tensor('float32', [3, 1], [1, 1, 1]),
    );
    await stage.backward({ round: 0, index: 0 }, []);
  };
  stage.beginRound(0);
  await assert.rejects(passes(1), /how the round will be updated with is missing/);
  stage.beginRound(0, planned);
  await passes(1);
  assert.throws(() => stage.update({ ...planned, learningRate: 0.2 }), /as it was said/);
  stage.update(planned);
  for (const [name, shape] of [
    ['head.weight', [1, 2]],
    ['head.bias', [1]],
  ] as const)
    stage.load({ role: 'parameter', name, value: tensor('float32', shape, new Array(elementCount(shape)).fill(0)) });
  stage.beginRound(1, planned);
  await passes(1e30); // the loss is 1 a sample; the square of the weight's gradient is more than float32 holds
  assert.deepEqual(await stage.finishRound(true), { lossSum: 0, correctCount: 0, squaredNorm: 0, finite: false });
  await engine.close();
});

test('rounds that are queued one behind the other share out what the engine computes, none of it twice', async () => {
  const net = residualNet();
  const subject = subjectOf(net, 8);
  const engine = createReferenceEngine();
  const stage = await stageOf(engine, subject, { layers: [0, subject.sequence.layers.length] });
  const stages: Plan['stages'] = [
    { layers: [0, subject.sequence.layers.length], devices: ['a'], samples: [sampleCount], inFlight: 1 },
  ];
  const sizes = { batchSize: 2 * sampleCount, microBatchSize: sampleCount, microBatchCount: 2 };
  const device = defined(program({ planner: 'hand', schedule: 'gpipe', ...sizes, stages }).devices[0], 'a device');
  const beforeMs = engine.busyMs();
  const queue = async (round: number) =>
    runRound(device, stage, round, {
      clock: systemClock,
      send: () => Promise.reject(new Error('there is nobody else')),
      receive: async ({ kind, microBatch }) => {
        const tensors = values(kind === 'label' ? [stage.label] : stage.inputs, microBatch, net.classCount);
        return { kind, epoch: 0, round, microBatch, tensors };
      },
      failure: new Failure(),
      updates: { due: async () => ({ ...update, step: round + 1 }) },
    });
  const [first, second] = [await queue(0), await queue(1)];
  const busyMs = [(await first.outcome).result.busyMs, (await second.outcome).result.busyMs];
  assert.ok(busyMs.every((ms) => ms > 0));
  const sum = busyMs.reduce((total, ms) => total + ms, 0);
  assert.ok(sum <= engine.busyMs() - beforeMs + 1e-9, `${busyMs.join(' and ')} of ${engine.busyMs() - beforeMs} ms`);
});

test('gradients that arrive are the arrays that they came in, and zeros where there are none', async () => {
  const ones = wrap('float32', [3_000], new Float32Array(3_000).fill(1));
  const specs = [
    { name: 'frozen', shape: [20, 100] },
    { name: 'trained', shape: [3_000] },
  ];
  const [frozen, trained] = await gradientArrays(specs, [undefined, Promise.resolve(ones)]);
  assert.deepEqual(frozen, new Float32Array(2_000));
  assert.equal(trained, ones.data);
});
