import assert from 'node:assert/strict';
import { test } from 'node:test';
import { differentiate } from '../../autodiff/differentiate.ts';
import { InputError } from '../../errors.ts';
import { GraphBuilder } from '../../graph/builder.ts';
import type { Graph } from '../../graph/graph.ts';
import { forwardOnlyCount, type LayerSequence } from '../../graph/layers.ts';
import { importModel } from '../../graph/onnx/import.ts';
import { extractStage } from '../../graph/stage.ts';
import { buildModel } from '../../models/zoo.ts';
import { batchNormNet } from '../../testing/training-subjects.ts';
import { differentiableNames } from '../device/stage-graphs.ts';
import { encodeModel } from '../protocol/model-transfer.ts';
import { type FineTuning, frozenNames, trainedLayers } from './fine-tuning.ts';

const names = ['a.1.weight', 'a.1.bias', 'a.2.weight', 'a.2.bias', 'b.weight', 'b.bias'];
const all: FineTuning = { loss: 'cross-entropy', freeze: [], freezeAllBut: [] };

test('--freeze and --freeze-all-but take names and patterns, in the model’s order, each once', () => {
  assert.deepEqual(frozenNames(names, {}), []);
  assert.deepEqual(frozenNames(names, { freeze: ['b.bias', 'a.1.weight'] }), ['a.1.weight', 'b.bias']);
  assert.deepEqual(frozenNames(names, { freeze: ['a.*', '*.1.*'] }), [
    'a.1.weight',
    'a.1.bias',
    'a.2.weight',
    'a.2.bias',
  ]);
  assert.deepEqual(frozenNames(names, { freezeAllBut: ['b.*', '*.2.bias'] }), ['a.1.weight', 'a.1.bias', 'a.2.weight']);
  assert.deepEqual(frozenNames(names, { freeze: ['*.weight'], freezeAllBut: ['b.*'] }), names.slice(0, 5));
});

test('a pattern without a match names the closest parameters; signs of regular expressions are literal', () => {
  const message = (pattern: string, flag: 'freeze' | 'freezeAllBut' = 'freeze'): string => {
    try {
      frozenNames(names, { [flag]: [pattern] });
    } catch (error) {
      assert.ok(error instanceof InputError);
      return error.message;
    }
    return '';
  };
  const closest = (close: string): string => `matches no parameter: the closest of the model’s names are ${close}.`;
  assert.equal(message('aX1.weight'), `--freeze aX1.weight ${closest('a.1.weight, a.2.weight, b.weight, a.1.bias')}`);
  assert.equal(message('a.3.*'), `--freeze a.3.* ${closest('a.1.weight, a.1.bias, a.2.weight, a.2.bias')}`);
  assert.equal(
    message('c.*', 'freezeAllBut'),
    `--freeze-all-but c.* ${closest('a.1.weight, a.1.bias, a.2.weight, a.2.bias')}`,
  );
  for (const pattern of ['a.1', 'b', '(', '[a-b]*', 'a.1.weight|b.bias'])
    assert.match(message(pattern), /matches no parameter/, pattern);
  assert.throws(
    () => frozenNames(['w'], { freeze: ['v'] }),
    /^InputError: --freeze v matches no parameter: the model has w\.$/,
  );
});

test('something must be left to train', () => {
  const { graph } = batchNormNet();
  assert.throws(
    () => trainedLayers(graph, { ...all, freeze: ['*'] }),
    /^InputError: --freeze leaves no parameter to train: freeze fewer\.$/,
  );
  assert.throws(
    () => trainedLayers(graph, { ...all, freeze: ['head.*'], freezeAllBut: ['head.weight'] }),
    /^InputError: --freeze leaves nothing of what --freeze-all-but names: freeze fewer\.$/,
  );
});

/** The graphs of the whole model for 4 samples. */
function whole(sequence: LayerSequence, frozen: readonly string[]) {
  const stage = extractStage(sequence, 0, sequence.layers.length, 4);
  return differentiate(stage, {
    inputs: differentiableNames(stage.inputs),
    parameters: stage.graph.parameters.filter((name) => !frozen.includes(name)),
    outputs: [stage.graph.outputs[0]?.name ?? ''],
  });
}

/** Five linear layers of 8, with a ReLU between them unless said otherwise. */
function chain(between: 'relu' | 'nothing' = 'relu'): Graph {
  const b = new GraphBuilder('chain', { seed: 1 });
  let x = b.input('x', 'float32', ['N', 8]);
  for (const name of ['a', 'b', 'c', 'd']) {
    x = b.linear(x, { name, outFeatures: 8 });
    if (between === 'relu') x = b.relu(x);
  }
  return b.build([b.linear(x, { name: 'head', outFeatures: 8 })]);
}

test('no gradient goes behind the first trained layer: no backward nodes, nothing saved', () => {
  const { sequence, frozen, notes } = trainedLayers(chain(), { ...all, freezeAllBut: ['head.*'] });
  assert.deepEqual(
    frozen,
    ['a', 'b', 'c', 'd'].flatMap((name) => [`${name}.weight`, `${name}.bias`]),
  );
  assert.equal(forwardOnlyCount(sequence), 4);
  assert.deepEqual(notes, ['4 of 5 layers are frozen before all others: they only run forward, and keep nothing.']);
  assert.ok(sequence.layers.slice(0, 4).every(({ outputs }) => outputs.every(({ differentiable }) => !differentiable)));
  const { backward, saved, savedInputs, parameterGradients } = whole(sequence, frozen);
  // dW = dYᵀ·X and db = Σ dY: all that is kept is the head's input, 4 samples of 8 floats.
  assert.deepEqual(
    [...saved, ...savedInputs].map(({ bytes }) => bytes),
    [4 * 8 * 4],
  );
  assert.deepEqual(parameterGradients, ['head.weight', 'head.bias']);
  const unfrozen = trainedLayers(chain(), all);
  assert.equal(forwardOnlyCount(unfrozen.sequence), 0);
  assert.deepEqual(unfrozen.notes, []);
  const full = whole(unfrozen.sequence, []);
  assert.ok(
    backward.nodes.length <= 4 && full.backward.nodes.length > 4 * 4,
    `${backward.nodes.length} of ${full.backward.nodes.length} nodes`,
  );
  // Any stage of frozen layers has no backward graph at all.
  const stage = extractStage(sequence, 0, 3, 4);
  const first = differentiate(stage, { inputs: [], parameters: [], outputs: differentiableNames(stage.outputs) });
  assert.deepEqual([first.backward.nodes.length, first.backward.outputs.length, first.saved.length], [0, 0, 0]);
});

test('a frozen layer behind a trained one passes its gradient on, and keeps no input for a gradient of its own', () => {
  const { sequence, frozen } = trainedLayers(chain('nothing'), { ...all, freeze: ['b.*', 'c.*'] });
  assert.equal(forwardOnlyCount(sequence), 0);
  const { parameterGradients, saved } = whole(sequence, frozen);
  assert.deepEqual(parameterGradients, ['a.weight', 'a.bias', 'd.weight', 'd.bias', 'head.weight', 'head.bias']);
  // The inputs of a (which is the data), d and head; of all five where nothing is frozen.
  assert.equal(saved.length, 2);
  assert.equal(whole(trainedLayers(chain('nothing'), all).sequence, []).saved.length, 4);
});

test('frozen batch normalization takes its running statistics, keeps them, and no longer depends on the batch', () => {
  const { graph } = batchNormNet();
  const { sequence, frozen } = trainedLayers(graph, { ...all, freeze: ['stem*', 'a*'] });
  const modes = sequence.graph.nodes
    .filter(({ operator }) => operator === 'BatchNormalization')
    .map(({ inputs, outputs, attributes }) => [inputs[1], outputs.length, attributes['training_mode']?.value]);
  assert.deepEqual(modes, [
    ['stem.bn.weight', 1, 0],
    ['a.bn.weight', 1, 0],
    ['b.bn.weight', 3, 1],
  ]);
  assert.deepEqual(
    sequence.layers.map(({ name, batchDependent }) => [name, batchDependent]),
    [
      ['stem', false],
      ['a', false],
      ['b', true],
      ['globalaveragepool_1', false],
      ['head', false],
    ],
  );
  const { bufferUpdates } = whole(sequence, frozen);
  assert.deepEqual(
    bufferUpdates.map(({ buffer }) => buffer),
    ['b.bn.running_mean', 'b.bn.running_var'],
  );
});

test('running variances are those of the model’s producer unless told otherwise, and travel to workers', () => {
  const { graph } = batchNormNet();
  const trained = (model: Graph, options: Partial<FineTuning> = {}): Graph =>
    trainedLayers(model, { ...all, ...options }).sequence.graph;
  assert.equal(trained(graph).runningVariance, undefined);
  const unbiased: Graph = { ...graph, runningVariance: 'unbiased' };
  assert.equal(trained(unbiased).runningVariance, 'unbiased');
  assert.equal(trained(unbiased, { runningVariance: 'population' }).runningVariance, 'population');
  assert.equal(importModel(encodeModel(trained(unbiased)).bytes.data as Uint8Array).graph.runningVariance, 'unbiased');
  assert.equal(buildModel('shufflenet-v2-x0.5', { initialize: false }).graph.runningVariance, 'unbiased');
});

test('a trained scale keeps its batch normalization training; one without parameters follows what is before', () => {
  const { graph } = batchNormNet();
  const mode = (some: Graph, place: number): unknown =>
    some.nodes.filter(({ operator }) => operator === 'BatchNormalization')[place]?.attributes['training_mode']?.value;
  assert.equal(mode(trainedLayers(graph, { ...all, freeze: ['stem.weight', 'stem.bn.bias'] }).sequence.graph, 0), 1);
  const bare: Graph = { ...graph, parameters: graph.parameters.filter((name) => !name.includes('.bn.')) };
  assert.equal(mode(trainedLayers(bare, { ...all, freeze: ['stem.weight', 'a.weight'] }).sequence.graph, 0), 0);
  assert.equal(mode(trainedLayers(bare, { ...all, freeze: ['a.weight'] }).sequence.graph, 1), 1);
});

test('a Softmax at the end is left to the loss, and said; mean squared error keeps it', () => {
  const b = new GraphBuilder('probabilities', { seed: 1 });
  const graph = b.build([b.softmax(b.linear(b.input('x', 'float32', ['N', 4]), { name: 'head', outFeatures: 3 }))]);
  const { sequence, notes } = trainedLayers(graph, all);
  assert.deepEqual(
    sequence.graph.nodes.map(({ operator }) => operator),
    ['Gemm'],
  );
  assert.deepEqual(notes, [
    'The model ends in a Softmax: the loss takes the logits before it, and the trained model keeps it.',
  ]);
  const kept = trainedLayers(graph, { ...all, loss: 'mse' });
  assert.deepEqual(
    kept.sequence.graph.nodes.map(({ operator }) => operator),
    ['Gemm', 'Softmax'],
  );
  assert.deepEqual(kept.notes, []);
});

test('of several outputs the first is trained, or the one that is named; a note says so', () => {
  const b = new GraphBuilder('heads', { seed: 1 });
  const body = b.relu(b.linear(b.input('x', 'float32', ['N', 4]), { name: 'body', outFeatures: 5 }));
  const [one, two] = ['one', 'two'].map((name) => b.linear(body, { name, outFeatures: 3 })) as [string, string];
  const graph = b.build([one, b.node('Sigmoid', [two])]);
  const sigmoid = graph.outputs[1]?.name ?? '';
  const first = trainedLayers(graph, all);
  const note =
    `The model has 2 outputs, ${one}, ${sigmoid}: the loss takes the first, and what only the others read stays as ` +
    'it is; --output NAME chooses another.';
  assert.deepEqual(first.notes, [note]);
  assert.deepEqual(first.sequence.graph.parameters, ['body.weight', 'body.bias', 'one.weight', 'one.bias']);
  const second = trainedLayers(graph, { ...all, loss: 'binary-cross-entropy', output: sigmoid });
  assert.deepEqual(second.sequence.graph.parameters, ['body.weight', 'body.bias', 'two.weight', 'two.bias']);
  assert.equal(second.sequence.graph.outputs[0]?.name, two);
  assert.deepEqual(second.notes, [
    'The model ends in a Sigmoid: the loss takes the logits before it, and the trained model keeps it.',
  ]);
  assert.match(trainedLayers(graph, { ...all, output: sigmoid }).notes[0] ?? '', /takes what it gives as logits/);
  const logits = trainedLayers(graph, { ...all, loss: 'binary-cross-entropy', output: one });
  assert.match(logits.notes[0] ?? '', /^The loss takes the outputs as logits/);
  assert.throws(
    () => trainedLayers(graph, { ...all, output: 'three' }),
    new InputError(`--output three is not an output of the model: it has ${one}, ${sigmoid}.`),
  );
});
