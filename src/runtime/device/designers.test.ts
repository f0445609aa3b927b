import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { layers } from '../../graph/layers.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import { scalar, type Tensor } from '../../graph/tensor.ts';
import { runGraph } from '../../testing/run-graph.ts';
import { batches, batchNormNet, residualNet, subjectOf, transformerNet } from '../../testing/training-subjects.ts';
import { type Designers, design, designers } from './designers.ts';
import { designStage } from './stage-design.ts';
import { wholeForm } from './stage-form.ts';

const engine = { blockSize: undefined };

test('a task without a designer does not compile', () => {
  const { infer: _, ...others } = designers;
  // @ts-expect-error: `infer` is missing.
  const incomplete: Designers = others;
  assert.deepEqual(Object.keys(incomplete), ['train', 'forward-gradient']);
});

test('each task has the graphs of its own designer', () => {
  const { sequence, training, label } = subjectOf(residualNet(), 4);
  const whole = { sequence, layers: [0, sequence.layers.length], sampleCount: 4 } as const;
  const options = { ...whole, training, label, microBatchSize: 4, form: wholeForm };
  assert.deepEqual(design(engine, { kind: 'train', ...options }), designStage(engine, options));
  const { graphs } = design(engine, { kind: 'infer', ...whole });
  assert.deepEqual(Object.keys(graphs), ['forward']);
  assert.deepEqual(graphs.forward?.parameters, []);
});

test('the stages of a model infer what the whole model does, and the last one compares it with labels', async () => {
  const reference = createReferenceEngine();
  for (const net of [residualNet(), transformerNet(), batchNormNet()]) {
    const { sequence: _, ...subject } = subjectOf(net, 4);
    const sequence = layers(inferenceMode(net.graph));
    const end = sequence.layers.length;
    const { inputs, labels } = batches(net, { ...subject, sequence })(0);
    const comparison = { loss: net.loss, label: subject.label, ignoresNegative: false, sampleCount: 4 };
    const inferred = async (...borders: readonly number[]): Promise<Readonly<Record<string, Tensor>>> => {
      let values = Object.fromEntries(sequence.inputs.map(({ name }, index) => [name, defined(inputs[index], name)]));
      for (const [index, last] of borders.entries()) {
        const range = [borders[index - 1] ?? 0, last] as const;
        const { graphs } = design(engine, { kind: 'infer', sequence, layers: range, sampleCount: 4, test: comparison });
        assert.equal(graphs.loss !== undefined, last === end);
        values = await runGraph(reference, defined(graphs.forward, 'the forward pass'), values);
        if (graphs.loss === undefined) continue;
        const feeds = { logits: defined(Object.values(values)[0], 'logits'), labels, scale: scalar('float32', 1) };
        values = await runGraph(reference, graphs.loss, feeds);
      }
      return values;
    };
    const whole = await inferred(end);
    assert.ok(whole['loss'] !== undefined);
    assert.deepEqual(await inferred(1, end - 1, end), whole);
  }
});
