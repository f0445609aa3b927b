// The graphs that rules write must be what ONNX Runtime runs: each operator's forward and backward graphs there, in float32.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import fc from 'fast-check';
import type { Engine } from '../engine/engine.ts';
import { createOnnxRuntimeNodeEngine } from '../engine/onnxruntime-node.ts';
import { createRandom } from '../random.ts';
import { gradientCases } from '../testing/gradient-cases/all.ts';
import { checkNodeOnEngine } from '../testing/onnxruntime-check.ts';

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
      fc.asyncProperty(arbitrary, (configuration) => checkNodeOnEngine(engine, build(configuration), createRandom(configuration.seed, 2))),
      { seed, numRuns: 8, includeErrorInReport: true },
    );
  });
}
