// Batches that are read from files come late or in time, and a run says which.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Tensor } from '../../graph/tensor.ts';
import { createVirtualClock, type VirtualClock } from '../../testing/virtual-clock.ts';
import { createDataset, type Dataset, inputField, labelField } from '../../training/data/dataset.ts';
import { BatchesAhead } from './batches-ahead.ts';

const [sampleCount, batchSize] = [12, 2];
const order = { sampleCount, batchSize, seed: 1, shuffle: false };

/** Samples that take `readMs` a batch to read, one batch at a time; without it they are in memory. */
function samples(clock: VirtualClock, readMs?: number): Dataset {
  const values = { type: 'float32', shape: [sampleCount, 1], data: new Float32Array(sampleCount) } as const;
  const labels = { type: 'int32', shape: [sampleCount], data: new Int32Array(sampleCount) } as const;
  let last: Promise<void> = Promise.resolve();
  const read = async (rows: Uint32Array): Promise<Tensor> => {
    last = last.then(() => new Promise((resolve) => void clock.after(readMs ?? 0, resolve)));
    await last;
    return { type: 'float32', shape: [rows.length, 1], data: new Float32Array(rows.length) };
  };
  const input = { ...inputField('x', values, 'x'), ...(readMs === undefined ? {} : { reader: { read } }) };
  return createDataset('made up', [input], labelField(labels, 'y'));
}

/** The wait of each round, where computing one takes `computeMs`. */
async function waits(readMs: number | undefined, computeMs: number): Promise<readonly (number | undefined)[]> {
  const clock = createVirtualClock();
  const batches = new BatchesAhead(samples(clock, readMs), order, sampleCount / batchSize, clock);
  const found: (number | undefined)[] = [];
  const run = async (): Promise<void> => {
    let endMs = clock.now();
    for (let round = 0; round < sampleCount / batchSize; round++) {
      await batches.at(round);
      await new Promise<void>((resolve) => void clock.after(computeMs, resolve));
      found.push(batches.wait(round, endMs).dataWaitMs);
      endMs = clock.now();
    }
  };
  await clock.runUntil(run());
  return found;
}

test('a round waits for what reading takes longer than computing, the first for all of it', async () => {
  assert.deepEqual(await waits(30, 10), [30, 20, 20, 20, 20, 20]);
  assert.deepEqual(await waits(10, 30), [10, 0, 0, 0, 0, 0]);
});

test('samples in memory are not waited for', async () => {
  assert.deepEqual(await waits(undefined, 10), new Array(6).fill(undefined));
});
