// ONNX Runtime must run the graphs that rules write: each operator's forward and backward graphs, in float32.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import type { Engine } from '../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../engine/node/onnxruntime-node.ts';
import { instantiate } from '../graph/static.ts';
import { type Tensor, tensor } from '../graph/tensor.ts';
import { createRandom } from '../random.ts';
import { gradientCases } from '../testing/gradient-cases/all.ts';
import { randomTensor } from '../testing/gradient-check.ts';
import { checkGraphOnEngine, checkNodeOnEngine } from '../testing/onnxruntime-check.ts';
import { attentionNet, depthwiseNet, residualNet } from '../testing/small-nets.ts';

const seed = 20261122;
let engine: Engine;

before(async () => {
  engine = await createOnnxRuntimeNodeEngine();
});

after(async () => {
  assert.equal(engine.valueBytes(), 0);
  await engine.close();
});

for (const [operator, { arbitrary, build }] of Object.entries(gradientCases)) {
  test(`ONNX Runtime computes the gradient of ${operator}`, async () => {
    await fc.assert(
      fc.asyncProperty(arbitrary, (configuration) =>
        checkNodeOnEngine(engine, build(configuration), createRandom(configuration.seed, 2)),
      ),
      { seed, numRuns: 8, includeErrorInReport: true },
    );
  });
}

for (const [graph, inputs] of [
  [residualNet(), ['x']],
  [attentionNet(), []],
  [depthwiseNet(), ['x']],
] as const) {
  test(`ONNX Runtime computes the gradients of the ${graph.name} net`, async () => {
    const stage = instantiate(graph, 4);
    const random = createRandom(1);
    const feeds = new Map<string, Tensor>([['tokens', tensor('int64', [4, 3], [0, 3, 3, 1, 4, 0, 2, 2, 2, 4, 1, 0])]]);
    for (const { name, type, shape } of stage.graph.inputs)
      if (type === 'float32') feeds.set(name, randomTensor(random, { type, shape: shape as readonly number[] }));
    await checkGraphOnEngine(engine, { stage, feeds, inputs }, random);
  });
}
