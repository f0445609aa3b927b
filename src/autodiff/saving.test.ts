import assert from 'node:assert/strict';
import { test } from 'node:test';
import { instantiate, type StaticGraph } from '../graph/static.ts';
import { isFloat, type Tensor, tensor, type ValueType } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { assertClose, inDoublePrecision, randomTensor, runBackward } from '../testing/gradient-check.ts';
import { randomTrainedGraph } from '../testing/random-graph-cases.ts';
import { attentionNet, depthwiseNet, residualNet } from '../testing/small-nets.ts';
import { differentiate } from './differentiate.ts';
import type { Recomputation } from './recompute.ts';
import { recomputations } from './saving.ts';

/** The inputs of a stage that need gradients. */
const floats = ({ graph }: StaticGraph): readonly string[] =>
  graph.inputs.filter(({ type }) => isFloat(type)).map(({ name }) => name);

function gradients(
  stage: StaticGraph,
  recompute: Iterable<string>,
  seed: number,
): { values: Map<string, Tensor>; savedBytes: number } {
  const random = createRandom(seed);
  const draw = (name: string): readonly [string, Tensor] => {
    const type = stage.types.get(name) as ValueType;
    return [name, isFloat(type.type) ? randomTensor(random, type) : tensor(type.type, type.shape, [0, 3, 1, 4, 2, 0])];
  };
  const values = new Map([...stage.graph.initializers, ...stage.graph.inputs.map(({ name }) => draw(name))]);
  const seeds = new Map(stage.graph.outputs.map(({ name }) => draw(name)));
  const graphs = differentiate(stage, { inputs: floats(stage), recompute });
  for (const mask of graphs.dropouts) values.set(mask.name, randomTensor(random, mask));
  const savedBytes = [...graphs.saved, ...graphs.savedInputs].reduce((sum, { bytes }) => sum + bytes, 0);
  return { values: runBackward(graphs, values, seeds), savedBytes };
}

const frontOf = (stage: StaticGraph): readonly Recomputation[] => recomputations(stage, { inputs: floats(stage) });

/**
 * Checks on the whole front that gradients are the same (except for rounding) and bytes as predicted. Returns the
 * front's length.
 */
function checkFront(stage: StaticGraph, seed: number): number {
  const front = frontOf(stage);
  const plain = gradients(stage, [], seed);
  for (const { recompute, savedBytes } of front) {
    const again = gradients(stage, recompute, seed);
    assert.equal(again.savedBytes, savedBytes);
    for (const [name, value] of plain.values) {
      assertClose(
        again.values.get(name)?.data as Float64Array,
        Array.from(value.data as Float64Array),
        `${name} of ${stage.graph.name}`,
      );
    }
  }
  assert.equal(front[0]?.savedBytes, plain.savedBytes);
  return front.length;
}

test('nets with recomputation have the same gradients, and keep the bytes that the front predicts', () => {
  for (const net of [residualNet(), attentionNet(), depthwiseNet()]) {
    const front = checkFront(instantiate(inDoublePrecision(net), 2), 1);
    assert.ok(front > 4, `${net.name}: ${front}`);
  }
});

test('random graphs with recomputation have the same gradients', () => {
  let [checkedCount, pointCount] = [0, 0];
  for (let seed = 0; seed < 60; seed++) {
    const { model } = randomTrainedGraph(seed, 16);
    try {
      const front = checkFront(instantiate(model, 1, { keep: model.parameters }), seed);
      checkedCount++;
      pointCount += front;
    } catch (error) {
      throw new Error(`random graph ${seed}`, { cause: error });
    }
  }
  assert.ok(checkedCount > 50 && pointCount > 100, `${checkedCount} graphs, ${pointCount} points`);
});

test('batch normalization runs again with the mean and variance of the first time', () => {
  const stage = instantiate(residualNet(), 2);
  const front = frontOf(stage);
  const graphs = differentiate(stage, { inputs: floats(stage), recompute: front.at(-1)?.recompute ?? [] });
  const again = graphs.backward.nodes.filter(
    ({ operator, name }) => operator === 'BatchNormalization' && !name.startsWith('grad.'),
  );
  assert.equal(again.length, 2);
  for (const { inputs, attributes } of again) {
    assert.equal(inputs.length, 5);
    assert.ok(
      inputs.slice(3).every((name) => graphs.saved.some((saved) => saved.name === name)),
      inputs.join(),
    );
    assert.equal(attributes['training_mode'], undefined);
  }
});

test('times are scaled to the measured forward pass', () => {
  const stage = instantiate(residualNet(), 2);
  const options = { inputs: [] };
  const one = recomputations(stage, options, { costMs: () => 2, forwardMs: 10 });
  const half = recomputations(stage, options, { costMs: () => 7, forwardMs: 5 });
  assert.deepEqual(
    half.map(({ savedBytes }) => savedBytes),
    one.map(({ savedBytes }) => savedBytes),
  );
  one.forEach(({ extraMs }, index) => assert.ok(Math.abs(extraMs / 2 - (half[index]?.extraMs ?? 0)) < 1e-9));
  assert.ok((one.at(-1)?.extraMs ?? 0) > 0 && (one.at(-1)?.extraMs ?? 0) <= 10);
});
