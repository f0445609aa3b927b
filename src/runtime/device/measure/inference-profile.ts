// The profile of a run that only infers: the model in a few parts, each compiled and timed as a stage that infers is,
// with weights as constants. A part's time is shared out among its layers by their operations. Weights need not be
// there: zeros take as long.

import { defined } from '../../../assert.ts';
import type { Engine } from '../../../engine/engine.ts';
import { cutBefore, cutBytes, type LayerSequence, parameterBytes } from '../../../graph/layers.ts';
import { allocate, elementCount, type Tensor } from '../../../graph/tensor.ts';
import { median } from '../../../statistics.ts';
import { designInference } from '../inference-design.ts';
import { withSessionBytes } from '../memory-need.ts';
import type { MeasuredProfile, ProfileOptions } from './measurement.ts';
import { partStarts, type Range, rangesOf, sum } from './parts.ts';

/** Runs of a part that are timed: as many as take this long, within these limits. */
const [runsMs, leastRuns, mostRuns] = [60, 3, 12];
/** Of a part's time, what its layers have by their operations; the rest they have by being one. */
const flopsWeight = 0.9;

/** Times each layer's forward pass at each batch size. */
export async function profileInference(
  engine: Engine,
  sequence: LayerSequence,
  { batchSizes, onProgress }: Pick<ProfileOptions, 'batchSizes' | 'onProgress'>,
): Promise<MeasuredProfile> {
  const { layers } = sequence;
  const flops = layers.map((layer) => layer.flops);
  const borders = layers.map((_, layer) => cutBytes(layers[layer - 1]?.outputs ?? []));
  const parts = rangesOf(partStarts(flops, borders), layers.length);
  const total = parts.length * batchSizes.length;
  let done = 0;
  const forwardMs: number[][] = [];
  for (const batchSize of batchSizes) {
    const row: number[] = [];
    for (const part of parts) {
      const ms = await timePart(engine, sequence, part, batchSize);
      const own = flops.slice(...part);
      const ownFlops = sum(own);
      for (const each of own) {
        const share =
          ownFlops === 0 ? 1 / own.length : (flopsWeight * each) / ownFlops + (1 - flopsWeight) / own.length;
        row.push(ms * share);
      }
      onProgress(++done, total);
    }
    forwardMs.push(row);
  }
  const profiles = layers.map((layer) => ({
    name: layer.name,
    outputBytes: cutBytes(layer.outputs),
    weightBytes: parameterBytes(sequence, layer),
    savedBytes: 0,
    flops: layer.flops,
    batchDependent: layer.batchDependent || sequence.fixedBatch !== undefined,
  }));
  return {
    layers: profiles.map(withSessionBytes),
    times: { forwardMs, backwardMs: forwardMs.map((row) => row.map(() => 0)) },
    cached: false,
  };
}

/** Milliseconds of a run of layers [first, end) with `sampleCount` samples. */
async function timePart(
  engine: Engine,
  sequence: LayerSequence,
  [first, end]: Range,
  sampleCount: number,
): Promise<number> {
  const { graphs } = designInference({ sequence, layers: [first, end], sampleCount, keepsMemory: true });
  const executable = await engine.compile(defined(graphs.forward, 'the forward pass'));
  const inputs = cutBefore(sequence, first);
  const feeds = Object.fromEntries(
    inputs.map(({ name, type, shape }) => {
      const sizes = shape.map((size) => (size === 'N' ? sampleCount : size));
      const value: Tensor = { type, shape: sizes, data: allocate(type, elementCount(sizes)) };
      return [name, engine.upload(value)];
    }),
  );
  const timeRun = async (): Promise<number> => {
    const results = executable.run(feeds);
    for (const value of Object.values(results)) engine.release(value);
    const beforeMs = engine.busyMs();
    await engine.settled();
    return engine.busyMs() - beforeMs;
  };
  // The first run allocates.
  await timeRun();
  const times: number[] = [];
  for (let passedMs = 0; times.length < leastRuns || (passedMs < runsMs && times.length < mostRuns); ) {
    const ms = await timeRun();
    times.push(ms);
    passedMs += ms;
  }
  for (const value of Object.values(feeds)) engine.release(value);
  executable.release();
  engine.trim();
  return median(times);
}
