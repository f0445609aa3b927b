// Training with adapters is PEFT's (test/fixtures/adapters): its losses, its weights, its files, on one device and over
// three.

import assert from 'node:assert/strict';
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { resolveSettings } from '../../cli/settings.ts';
import { createOnnxRuntimeNodeEngine } from '../../engine/node/onnxruntime-node.ts';
import { InputError } from '../../errors.ts';
import { evaluateGraph } from '../../graph/evaluate.ts';
import { importModel } from '../../graph/onnx/import.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { instantiate } from '../../graph/static.ts';
import { type Tensor, toNumbers } from '../../graph/tensor.ts';
import { withStaleness } from '../../schedule/staleness.ts';
import { openSafetensors } from '../../storage/node/checkouts/checkout-files.ts';
import { loadDataset } from '../../storage/node/datasets.ts';
import { delayedOracle } from '../../testing/delayed-oracle.ts';
import { memoryRun } from '../../testing/label-cases.ts';
import { difference, type MemoryRun, runAlone, runCluster } from '../../testing/memory-cluster.ts';
import { gather } from '../../training/data/dataset.ts';
import { writeSafetensors } from '../../training/safetensors.ts';
import { averagedParameters } from '../protocol/run-state.ts';
import { withAdapters } from '../run/adapters.ts';
import { StreamParts } from '../run/delayed-streams.ts';
import type { PreparedRun } from '../run/prepare.ts';
import { loadModel } from './models.ts';
import { readAdapter, writeAdapter } from './peft.ts';
import { prepareRun } from './session-here.ts';

const root = 'test/fixtures/adapters';
const pictures = ['resnet', 'vit', 'deit'];
const createEngine = () => createOnnxRuntimeNodeEngine();

/** The net's run from PEFT's first adapter, with the settings of make_adapters.py. */
async function prepared(name: string, more: Readonly<Record<string, unknown>> = {}): Promise<PreparedRun> {
  const folder = join(root, name);
  const flags = {
    ...{
      model: pictures.includes(name) ? folder : `${folder}:sequence=8`,
      data: `npz:${join(folder, 'data.npz')}`,
      adapter: join(folder, 'start'),
    },
    ...{ batch: '8', steps: '50', optimizer: 'adamw', lr: '5e-3', weightDecay: '0.01', shuffle: false, ...more },
  };
  const settings = resolveSettings(flags, {}, 'the flags');
  const { model: spec, seed, lora, modulesToSave, adapter } = settings;
  const model = await loadModel(spec, seed, { lora, modulesToSave, ...(adapter === undefined ? {} : { adapter }) });
  const { train } = await loadDataset(settings.data);
  return prepareRun({ settings, model, train, test: undefined });
}

for (const name of ['bert', 'llama', 'gpt2', 'resnet', 'vit'])
  test(`${name}: PEFT's losses and weights, here and over three devices`, async () => {
    const expected = JSON.parse(readFileSync(join(root, name, 'losses.json'), 'utf8')) as readonly number[];
    const run = await prepared(name);
    const alone = await runAlone({ ...memoryRun(run), microBatchSize: 8, createEngine });
    assert.ok(furthest(alone.losses, expected) < 1e-4, `here: off by ${furthest(alone.losses, expected)}`);
    const third = Math.floor(run.subject.sequence.layers.length / 3);
    const plan = { schedule: '1f1b', cuts: [third], shares: [[1, 3], [4]], microBatchCount: 2 };
    const apart = await runCluster({ ...memoryRun(run, plan), createEngine });
    assert.ok(furthest(apart.losses, expected) < 1e-4, `over three: off by ${furthest(apart.losses, expected)}`);
    // only what is trained comes back
    const { adapters = [], onlyTrained = new Set(), moduleName = (name: string) => name } = run.model;
    assert.deepEqual(new Set(apart.state.parameter.keys()), onlyTrained);
    const trained = openSafetensors(join(root, name, 'trained', 'adapter_model.safetensors'));
    const whole = [...onlyTrained].filter((weight) => !weight.includes('.lora_'));
    const tensorOf = (weight: string): Tensor => apart.state.parameter.get(weight) as Tensor;
    const files = writeAdapter({ adapters, whole, baseModel: 'here', taskType: 'CAUSAL_LM', moduleName, tensorOf });
    const folder = mkdtempSync(join(tmpdir(), 'adapter-'));
    try {
      for (const [file, pieces] of files) writeFileSync(join(folder, file), Buffer.concat(pieces));
      const written = openSafetensors(join(folder, 'adapter_model.safetensors'));
      assert.deepEqual(new Set(written.keys()), new Set(trained.keys()));
      for (const [weight, value] of trained)
        assert.ok(furthest(numbersOf(written.get(weight)), toNumbers(value)) < 1e-3, weight);
      const model = await loadModel(join(root, name), 0);
      const again = readAdapter(folder, model);
      assert.deepEqual(again.options, readAdapter(join(root, name, 'start'), model).options);
    } finally {
      rmSync(folder, { recursive: true });
    }
    const merged = importModel(run.model.write(apart.state.parameter)).graph;
    const [logits] = evaluateGraph(instantiate(inferenceMode(merged), 8).graph, firstBatch(run)).values();
    const peft = openSafetensors(join(root, name, 'merged.safetensors')).get('logits');
    assert.ok(furthest(numbersOf(logits), numbersOf(peft)) < 2e-3, 'the merged model');
  });

for (const mode of ['async', 'forward-gradient'] as const)
  test(`${mode}: over four devices, adapters are trained as on one whose gradients are as late`, async () => {
    const correction = mode === 'async' ? { stalenessCorrection: 'none' } : {};
    const given = await prepared('bert', { mode, steps: '10', workers: '4', ...correction });
    const run = memoryRun(given, { schedule: mode, cuts: [8, 9], shares: [[3, 5], [8], [8]], microBatchCount: 1 });
    const plan = withStaleness({ ...defined(run.plan, 'a plan'), forwardOnlyLayers: 2 }, {});
    const parts = new StreamParts();
    const observe: MemoryRun['observe'] = (event, cluster) => parts.observe(event, cluster.losses.length);
    const apart = await runCluster({ ...run, plan, observe, createEngine });
    const alone = await delayedOracle({ ...run, plan }, parts.parts, 10);
    assert.deepEqual(new Set(apart.state.parameter.keys()), given.model.onlyTrained);
    const { loss, worst, weight } = difference(apart, { ...apart, ...alone });
    assert.ok(loss < 1e-5 && weight < 1e-3, `losses differ by ${loss}, ${worst} by ${weight}`);
  });

test('deit: an adapter is read by the names of PEFT and by those of the files, and patterns are of both', async () => {
  const model = await loadModel(join(root, 'deit'), 0);
  const given = readAdapter(join(root, 'deit', 'trained'), model);
  const modules = ['attention.attention.key', 'attention.output.dense', 'intermediate.dense'];
  const weights = [0, 1].flatMap((layer) => modules.map((module) => `deit.encoder.layer.${layer}.${module}.weight`));
  assert.deepEqual(new Set(given.options.keys()), new Set(weights));
  const folder = mkdtempSync(join(tmpdir(), 'adapter-'));
  try {
    const values = new Map([...given.values].map(([name, value]) => [`base_model.model.${name}`, value] as const));
    writeFileSync(join(folder, 'adapter_model.safetensors'), Buffer.concat(writeSafetensors(values)));
    copyFileSync(join(root, 'deit', 'trained', 'adapter_config.json'), join(folder, 'adapter_config.json'));
    assert.deepEqual({ ...readAdapter(folder, model), source: '' }, { ...given, source: '' });
  } finally {
    rmSync(folder, { recursive: true });
  }
  const weightsOf = (lora: string[]): unknown =>
    withAdapters(model, { lora, modulesToSave: [], seed: 0 }).adapters?.map(({ weight }) => weight);
  assert.deepEqual(weightsOf(['k_proj', 'mlp.fc1']), weightsOf(['key', 'intermediate.dense']));
});

test('two batches of half the size are accumulated to the same updates', async () => {
  const expected = JSON.parse(readFileSync(join(root, 'bert', 'losses.json'), 'utf8')) as readonly number[];
  const { settings, ...run } = await prepared('bert', { batch: '4', accumulate: '2' });
  assert.deepEqual([settings.batch, settings.microBatch], [8, 4]);
  const { losses } = await runAlone({ ...memoryRun({ settings, ...run }), microBatchSize: 4, createEngine });
  assert.ok(furthest(losses, expected) < 1e-4, `off by ${furthest(losses, expected)}`);
});

test('moving averages are the same on one device and over three, and trail what is trained', async () => {
  const run = await prepared('bert', { ema: '0.9', steps: '10' });
  const plan = { schedule: '1f1b', cuts: [8], shares: [[1, 3], [4]], microBatchCount: 2 } as const;
  const apart = await runCluster({ ...memoryRun(run, plan), createEngine });
  const alone = await runAlone({ ...memoryRun(run), microBatchSize: 8, createEngine });
  const [here, there] = [alone, apart].map(({ state }) => averagedParameters(state.parameter, state.optimizer));
  assert.deepEqual(new Set(there?.keys()), run.model.onlyTrained);
  for (const [name, value] of there ?? []) {
    assert.ok(furthest(numbersOf(here?.get(name)), numbersOf(value)) < 1e-5, name);
    assert.notDeepEqual(value, apart.state.parameter.get(name));
  }
});

test('a new adapter changes nothing, and its A is within 1 / √inputs', async () => {
  const run = await prepared('bert', {
    adapter: undefined,
    lora: ['query:rank=2,alpha=4', '*intermediate.dense.weight'],
  });
  const { model, subject } = run;
  assert.deepEqual(
    model.adapters?.map(({ weight, rank, scaling }) => [weight.replace('bert.encoder.layer.', ''), rank, scaling]),
    [
      ['0.attention.self.query.weight', 2, 2],
      ['0.intermediate.dense.weight', 8, 1],
      ['1.attention.self.query.weight', 2, 2],
      ['1.intermediate.dense.weight', 8, 1],
    ],
  );
  const values = subject.sequence.graph.initializers;
  const query = numbersOf(values.get('bert.encoder.layer.0.attention.self.query.lora_A.weight'));
  assert.ok(Math.max(...query.map(Math.abs)) <= 0.25 && Math.max(...query) > 0.1);
  const before = (await loadModel(`${join(root, 'bert')}:sequence=8`, 0)).graph;
  const inputs = firstBatch(run);
  const [plain] = evaluateGraph(instantiate(inferenceMode(before), 8).graph, inputs).values();
  const [adapted] = evaluateGraph(instantiate(inferenceMode(model.graph), 8).graph, inputs).values();
  assert.deepEqual(adapted, plain);
});

test('frozen layers keep no optimizer state, and layers are as many as without adapters', async () => {
  const run = await prepared('llama');
  const { sequence, training } = run.subject;
  const plain = await prepareRun({ ...run, model: await loadModel(`${join(root, 'llama')}:sequence=8`, 0) });
  // the head has a table of its own once the table is frozen, so that there is a cut before it
  assert.ok(sequence.layers.length > plain.subject.sequence.layers.length);
  assert.ok(
    training.frozen.includes('model.embed_tokens.weight') && training.frozen.includes('model.embed_tokens.weight_2'),
  );
  const frozen = new Set(training.frozen);
  assert.equal(sequence.graph.parameters.filter((name) => !frozen.has(name)).length, 16);
});

const refusals: readonly (readonly [what: string, flags: Readonly<Record<string, unknown>>, says: RegExp])[] = [
  ['a pattern that matches nothing', { lora: ['quary'] }, /--lora quary matches no weight.*query/],
  ['a rank that is too high', { lora: ['query:rank=17'] }, /rank 17 is more than a side of .*query.weight \[16, 16\]/],
  ['a rank of 0', { lora: ['query:rank=0'] }, /"rank=0" is none of rank=N/],
  ['an unknown option', { lora: ['query:size=4'] }, /"size=4" is none of/],
  ['no pattern', { lora: [':rank=4'] }, /has no pattern/],
  ['modules to save alone', { modulesToSave: ['classifier.*'] }, /goes with --lora/],
  ['an adapter that is not there', { adapter: 'no-such-folder' }, /adapter_config.json cannot be read/],
  ['the adapter of another net', { adapter: join(root, 'gpt2', 'start') }, /adapts transformer.h.0.*no linear layer/],
];

for (const [what, flags, says] of refusals)
  test(`refused: ${what}`, async () => {
    await assert.rejects(
      prepared('bert', { adapter: undefined, ...flags }),
      (error) => error instanceof InputError && says.test(error.message),
    );
  });

function firstBatch({ dataset }: PreparedRun): ReadonlyMap<string, Tensor> {
  const { inputs } = gather(
    dataset,
    Uint32Array.from({ length: 8 }, (_, index) => index),
  );
  return new Map(dataset.inputs.map(({ name }, index) => [name, inputs[index] as Tensor]));
}

function numbersOf(value: Tensor | undefined): readonly number[] {
  return value === undefined ? [] : toNumbers(value);
}

function furthest(values: readonly number[], expected: readonly number[]): number {
  assert.equal(values.length, expected.length);
  return Math.max(...values.map((value, index) => Math.abs(value - (expected[index] as number))));
}
