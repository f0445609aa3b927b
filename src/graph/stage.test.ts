import assert from 'node:assert/strict';
import { test } from 'node:test';

import { attentionModel, depthwiseModel, randomInputs, residualModel } from '../testing/sample-models.ts';
import { evaluateGraph } from './evaluate.ts';
import type { Graph, ValueInfo } from './graph.ts';
import { cutBytes, layers } from './layers.ts';
import { extractStage, stageExtractor } from './stage.ts';
import { instantiate } from './static.ts';
import type { Tensor, ValueType } from './tensor.ts';

type StaticInfo = ValueInfo & ValueType;

function run(graph: Graph, inputs: ReadonlyMap<string, Tensor>): Map<string, Tensor> {
  return evaluateGraph(graph, inputs);
}

for (const [name, model] of Object.entries({ residual: residualModel(), depthwise: depthwiseModel(), attention: attentionModel() })) {
  for (const batchSize of [1, 2, 5]) {
    test(`${name}: cut at every place, batch ${batchSize}, the parts give exactly what the whole gives`, () => {
      const sequence = layers(model);
      const whole = instantiate(model, batchSize).graph;
      const inputs = randomInputs(whole.inputs as StaticInfo[], 7);
      const expected = run(whole, inputs);
      const stage = stageExtractor(sequence, batchSize);
      for (let cut = 1; cut < sequence.layers.length; cut++) {
        const parts = [stage(0, cut), stage(cut, sequence.layers.length)] as const;
        const middle = run(parts[0].graph, inputs);
        assert.deepEqual(parts[0].graph.outputs, parts[1].graph.inputs);
        assert.deepEqual(run(parts[1].graph, middle), expected, `cut before layer ${cut}`);
        const bytes = [...middle.values()].reduce((sum, value) => sum + value.data.byteLength, 0);
        assert.equal(cutBytes(parts[0].outputs, batchSize), bytes);
        const trained = parts.flatMap((part) => [...part.graph.parameters, ...part.graph.buffers]).sort();
        assert.deepEqual(trained, [...model.parameters, ...model.buffers].sort(), 'each weight on exactly one side');
      }
    });
  }
}

test('a chain of single layers gives what the whole gives', () => {
  const model = attentionModel();
  const sequence = layers(model);
  const whole = instantiate(model, 3).graph;
  const inputs = randomInputs(whole.inputs as StaticInfo[], 9);
  let values = inputs;
  for (let index = 0; index < sequence.layers.length; index++) values = run(extractStage(sequence, index, index + 1, 3).graph, values);
  assert.deepEqual(values, run(whole, inputs));
});

test('a tensor that passes through is both an input and an output', () => {
  const sequence = layers(residualModel());
  const index = sequence.layers.findIndex(({ name }) => name === 'block1.0.conv');
  const { graph } = extractStage(sequence, index, index + 1, 2);
  const inputs = graph.inputs.map(({ name }) => name);
  assert.deepEqual(
    graph.outputs.map(({ name }) => name),
    [inputs[0], 'Relu_2'],
  );
  assert.deepEqual(graph.parameters, ['block1.0.conv.weight', 'block1.0.bn.weight', 'block1.0.bn.bias']);
  assert.deepEqual(graph.buffers, ['block1.0.bn.running_mean', 'block1.0.bn.running_var']);
});

test('weights are the same tensors, not copies', () => {
  const model = depthwiseModel();
  const { graph } = extractStage(layers(model), 0, 2, 4);
  for (const name of graph.parameters) assert.equal(graph.initializers.get(name), model.initializers.get(name));
});
