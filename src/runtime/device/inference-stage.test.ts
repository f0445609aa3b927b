// A stage that infers with memory for one number of samples, and for all.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { defined } from '../../assert.ts';
import { createReferenceEngine } from '../../engine/reference.ts';
import { evaluateGraph } from '../../graph/evaluate.ts';
import { inferenceMode } from '../../graph/onnx/modes.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { program } from '../../schedule/generate.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { batches, regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import { InferenceStage } from './inference-stage.ts';
import { ownCopy, sliceSamples } from './samples.ts';
import { stageOptionsOf } from './stage-options.ts';

const net = regressionNet();
const graph = inferenceMode(net.graph);
const subject = subjectOf({ ...net, graph }, 4);
const layerCount = subject.sequence.layers.length;
const plan = handPlan({ schedule: 'inference', cuts: [], shares: [[4]], microBatchCount: 1 }, layerCount);
const options = stageOptionsOf(subject, defined(program(plan).devices[0], 'a device'), plan, undefined);
const [x = assert.fail('an input')] = batches(net, subject)(0).inputs;

/** Outputs of 4, 1, 2, 1 and 3 samples, and how often that took compiling. */
async function computed(memoryBytes: number | undefined): Promise<{ outputs: Tensor[]; compiledCount: number }> {
  let compiledCount = 0;
  const engine = createReferenceEngine();
  const compile = engine.compile.bind(engine);
  engine.compile = (source) => {
    compiledCount++;
    return compile(source);
  };
  const stage = new InferenceStage(engine, options, { files: undefined, memoryBytes });
  for (const [name, value] of graph.initializers) stage.load({ name, role: 'parameter', value });
  await stage.finish();
  const outputs: Tensor[] = [];
  for (const [round, count] of [4, 1, 2, 1, 3].entries()) {
    await stage.rest({ lastMicroBatch: 0, lastSampleCount: count, sampleShare: count / 4, pieces: undefined });
    const own = ownCopy(sliceSamples(x, 0, 0, count));
    outputs.push(...(await stage.forward({ round, index: 0 }, 0, [own], undefined)));
  }
  await engine.close();
  return { outputs, compiledCount };
}

test('without memory for weights packed once more, smaller micro-batches are filled up: equal outputs', async () => {
  const input = defined(graph.inputs[0], 'an input').name;
  const wanted = defined([...evaluateGraph(graph, new Map([[input, x]])).values()][0], 'an output');
  const [little, enough] = [await computed(0), await computed(undefined)];
  assert.deepEqual([little.compiledCount, enough.compiledCount], [1, 4]);
  for (const { outputs } of [little, enough])
    for (const [round, count] of [4, 1, 2, 1, 3].entries()) {
      const { shape, data } = sliceSamples(wanted, 0, 0, count);
      const found = defined(outputs[round], `round ${round}`);
      assert.deepEqual(found.shape, shape);
      for (const [index, value] of Array.from(data as Float32Array).entries())
        assert.ok(Math.abs(Number(found.data[index]) - value) <= 1e-6 * Math.max(1, Math.abs(value)), `${round}`);
    }
});
