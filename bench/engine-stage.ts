// A whole model as one stage on the compute thread, and its training step: what a worker does in a round with one
// micro-batch.

import type { Engine } from '../dist/engine/engine.js';
import { createComputeThread } from '../dist/engine/node/compute-thread.js';
import { layers } from '../dist/graph/layers.js';
import { elementCount } from '../dist/graph/tensor.js';
import { type BuiltModel, buildModel } from '../dist/models/zoo.js';
import { createRandom } from '../dist/random.js';
import { createStage } from '../dist/runtime/device/create-stage.js';
import type { StageOptions } from '../dist/runtime/device/stage-graphs.js';

export interface BenchStage extends BuiltModel {
  readonly options: StageOptions;
}

/** A model of the zoo as one stage: its graph with weights, what `createStage` takes, and what it is fed with. */
export function stageForBench(spec: string, batch: number, { initialize = true } = {}): BenchStage {
  const model = buildModel(spec, { seed: 1, initialize });
  const sequence = layers(model.graph);
  const sgd = {
    kind: 'sgd',
    momentum: 0.9,
    nesterov: false,
    weightDecay: 0,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
  } as const;
  const options: StageOptions = {
    sequence,
    layers: [0, sequence.layers.length],
    sampleCount: batch,
    microBatchSize: batch,
    training: { batchSize: batch, loss: 'cross-entropy', optimizer: sgd, clipNorm: null, seed: 1, frozen: [] },
    label: { name: 'label', type: 'int64', shape: ['N'], batchAxis: 0, differentiable: false },
    form: { passes: 'step-with-update', sums: 'none', grains: 1 },
  };
  return { ...model, options };
}

/** Random inputs and labels of a batch. */
function drawBatch({ input, label }: BuiltModel, batch: number) {
  const random = createRandom(2);
  const shape = [batch, ...input.shape];
  const length = elementCount(shape);
  const labels = BigInt64Array.from({ length: batch }, () => BigInt(random.integer(label.classCount)));
  const data =
    input.type === 'int64'
      ? BigInt64Array.from({ length }, () => BigInt(random.integer(input.valueCount ?? 2)))
      : Float32Array.from({ length }, () => random.normal());
  return { shape, data, labels };
}

/**
 * Resolves with a function that does one step and waits for its end, on the compute thread unless another engine is
 * given.
 */
export async function compileStageForBench(
  spec: string,
  batch: number,
  threadCount: number,
  given?: Engine,
): Promise<() => Promise<void>> {
  const model = stageForBench(spec, batch);
  const { graph, input } = model;
  const engine = given ?? (await createComputeThread({ threadCount }));
  const stage = await createStage(engine, model.options);
  for (const role of ['parameter', 'buffer'] as const) {
    for (const name of graph[`${role}s`]) {
      const tensor = graph.initializers.get(name);
      if (tensor !== undefined) stage.load({ role, name, value: { ...tensor, data: tensor.data.slice() } });
    }
  }
  const { shape, data, labels } = drawBatch(model, batch);
  let round = 0;
  return async () => {
    const update = { learningRate: 0.01, gradientScale: 1, step: round + 1 };
    stage.beginRound(round, update);
    const label = { type: 'int64', shape: [batch], data: labels.slice() } as const;
    await stage.forward({ round, index: 0 }, 0, [{ type: input.type, shape, data: data.slice() }], label);
    await stage.backward({ round, index: 0 }, []);
    stage.update(update);
    stage.dropVersion(round++);
    await engine.settled();
  };
}
