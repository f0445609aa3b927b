import assert from 'node:assert/strict';
import { test } from 'node:test';

import fc from 'fast-check';

import { attentionModel, depthwiseModel, randomInputs, residualModel } from '../testing/sample-models.ts';
import { GraphBuilder } from './builder.ts';
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

for (const [name, model] of Object.entries({
  residual: residualModel(),
  depthwise: depthwiseModel(),
  attention: attentionModel(),
})) {
  for (const batchSize of [1, 2, 5]) {
    test(`${name}: cut at every place, batch ${batchSize}, the parts compute exactly what the whole computes`, () => {
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

test('a chain of single layers computes what the whole computes', () => {
  const model = attentionModel();
  const sequence = layers(model);
  const whole = instantiate(model, 3).graph;
  const inputs = randomInputs(whole.inputs as StaticInfo[], 9);
  let values = inputs;
  for (let index = 0; index < sequence.layers.length; index++)
    values = run(extractStage(sequence, index, index + 1, 3).graph, values);
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

test('random nets with branches, sums and concatenations: cut anywhere, the parts compute what the whole does', () => {
  const layer = fc.record({
    kind: fc.constantFrom('conv', 'conv', 'relu', 'add', 'concat', 'pool'),
    from: fc.nat(),
    other: fc.nat(),
  });
  fc.assert(
    fc.property(fc.array(layer, { minLength: 3, maxLength: 14 }), (choices) => {
      const b = new GraphBuilder('random');
      const values = [b.input('x', 'float32', ['N', 2, 4, 4])];
      choices.forEach(({ kind, from, other }, index) => {
        const [one, two] = [values[from % values.length] as string, values[other % values.length] as string];
        const narrow = (x: string): string =>
          b.size(x, 1) === 2 ? x : b.conv2d(x, { name: `narrow${index}.${x}`, outChannels: 2, kernel: 1 });
        if (kind === 'conv')
          values.push(b.conv2d(one, { name: `conv${index}`, outChannels: 2, kernel: 3, padding: 1 }));
        else if (kind === 'relu') values.push(b.relu(one));
        else if (kind === 'pool') values.push(b.maxPool2d(one, { kernel: 3, stride: 1, padding: 1 }));
        else if (kind === 'concat') values.push(b.concat([one, two], 1));
        else values.push(b.add(narrow(one), one === two ? narrow(b.relu(two)) : narrow(two)));
      });
      const model = b.build([values.at(-1) as string]);
      const sequence = layers(model);
      const whole = instantiate(model, 2).graph;
      const inputs = randomInputs(whole.inputs as StaticInfo[], 5);
      const expected = run(whole, inputs);
      const stage = stageExtractor(sequence, 2);
      for (let cut = 1; cut < sequence.layers.length; cut++) {
        assert.deepEqual(run(stage(cut, sequence.layers.length).graph, run(stage(0, cut).graph, inputs)), expected);
      }
      assert.deepEqual(
        sequence.layers.flatMap(({ parameters }) => parameters),
        model.parameters.filter((name) => whole.initializers.has(name)),
      );
    }),
    { seed: 11, numRuns: 60 },
  );
});
