// A whole model as one stage on the compute thread, and its training step: what a worker does in a round with one micro-batch.

import { createComputeThread } from '../dist/engine/node/compute-thread.js';
import { layers } from '../dist/graph/layers.js';
import { buildModel } from '../dist/models/zoo.js';
import { createRandom } from '../dist/random.js';
import { createStage } from '../dist/runtime/device/create-stage.js';

/** A model of the zoo as one stage: its graph with weights, what `createStage` takes, and what it is fed with. */
export function stageForBench(spec, batch, { initialize = true } = {}) {
  const { graph, input, label } = buildModel(spec, { seed: 1, initialize });
  const sequence = layers(graph);
  const sgd = { kind: 'sgd', momentum: 0.9, nesterov: false, weightDecay: 0, beta1: 0.9, beta2: 0.999, epsilon: 1e-8 };
  const options = {
    sequence,
    layers: [0, sequence.layers.length],
    sampleCount: batch,
    microBatchSize: batch,
    training: { batchSize: batch, loss: 'cross-entropy', optimizer: sgd, clipNorm: null, seed: 1, frozen: [] },
    label: { name: 'label', type: 'int64', shape: ['N'], batchAxis: 0, differentiable: false },
    form: { passes: 'step-with-update', sums: 'none', grains: 1 },
  };
  return { graph, input, label, options };
}

/** Resolves with a function that does one step and waits for its end, on the compute thread unless another engine is given. */
export async function compileStageForBench(spec, batch, threadCount, given) {
  const { graph, input, label, options } = stageForBench(spec, batch);
  const engine = given ?? (await createComputeThread({ threadCount }));
  const stage = await createStage(engine, options);
  for (const role of ['parameter', 'buffer']) {
    for (const name of graph[`${role}s`]) {
      const { type, shape, data } = graph.initializers.get(name);
      stage.load({ role, name, value: { type, shape, data: data.slice() } });
    }
  }
  const random = createRandom(2);
  const shape = [batch, ...input.shape];
  const count = shape.reduce((a, b) => a * b, 1);
  const draw = () =>
    input.type === 'int64'
      ? BigInt64Array.from({ length: count }, () => BigInt(random.integer(input.valueCount)))
      : Float32Array.from({ length: count }, () => random.normal());
  const labels = Array.from({ length: batch }, () => BigInt(random.integer(label.classCount)));
  const data = draw();
  let round = 0;
  return async () => {
    const update = { learningRate: 0.01, gradientScale: 1, step: round + 1 };
    stage.beginRound(round, update);
    await stage.forward({ round: 0, index: 0 }, 0, [{ type: input.type, shape, data: data.slice() }], {
      type: 'int64',
      shape: [batch],
      data: BigInt64Array.from(labels),
    });
    await stage.backward({ round: 0, index: 0 }, []);
    stage.update(update);
    stage.dropVersion(round++);
    await engine.settled();
  };
}
