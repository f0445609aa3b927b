// ONNX Runtime must run the graphs that gradient and tangent rules write, in float32: each operator's, and small nets'.

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
import {
  checkGraphOnEngine,
  checkNodeOnEngine,
  checkNodeTangentsOnEngine,
  checkTangentsOnEngine,
} from '../testing/onnxruntime-check.ts';
import { attentionNet, depthwiseNet, residualNet } from '../testing/small-nets.ts';

const modes = [
  { what: 'gradient', seed: 20261122, stream: 2, checkNode: checkNodeOnEngine, checkGraph: checkGraphOnEngine },
  {
    what: 'tangent',
    seed: 20261125,
    stream: 4,
    checkNode: checkNodeTangentsOnEngine,
    checkGraph: checkTangentsOnEngine,
  },
] as const;
let engine: Engine;

before(async () => {
  engine = await createOnnxRuntimeNodeEngine();
});

after(async () => {
  assert.equal(engine.valueBytes(), 0);
  await engine.close();
});

for (const { what, seed, stream, checkNode, checkGraph } of modes) {
  for (const [operator, { arbitrary, build }] of Object.entries(gradientCases)) {
    test(`ONNX Runtime computes the ${what} of ${operator}`, async () => {
      await fc.assert(
        fc.asyncProperty(arbitrary, (configuration) =>
          checkNode(engine, build(configuration), createRandom(configuration.seed, stream)),
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
    test(`ONNX Runtime computes the ${what}s of the ${graph.name} net`, async () => {
      const stage = instantiate(graph, 4);
      const random = createRandom(1);
      const tokens = tensor('int64', [4, 3], [0, 3, 3, 1, 4, 0, 2, 2, 2, 4, 1, 0]);
      const feeds = new Map<string, Tensor>([['tokens', tokens]]);
      for (const { name, type, shape } of stage.graph.inputs)
        if (type === 'float32') feeds.set(name, randomTensor(random, { type, shape: shape as readonly number[] }));
      await checkGraph(engine, { stage, feeds, inputs }, random);
    });
  }
}
