// A data set through rounds: how many are in flight, what is counted, and who waits for whom.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Tensor, tensor } from '../../graph/tensor.ts';
import { type InferDataOptions, inferData, type Samples } from './infer-data.ts';
import { InferenceRounds } from './inference-rounds.ts';

const output = { name: 'y', type: 'float32', shape: ['N', 2], batchAxis: 0, differentiable: false } as const;

/** Rounds that are answered at once with [x, 1 − x], unless `hold` says otherwise. */
function identity(): { readonly rounds: InferenceRounds; mostOpen: number } {
  const rounds = new InferenceRounds();
  const state = { rounds, mostOpen: 0 };
  let answered = 0;
  rounds.begin((count) => {
    state.mostOpen = Math.max(state.mostOpen, rounds.openCount);
    for (; answered < count; answered++) {
      const round = answered;
      queueMicrotask(() => {
        const [x] = rounds.batch(round).inputs as [Tensor];
        const values = Array.from(x.data as Float32Array).flatMap((value) => [value, 1 - value]);
        rounds.results(round, [tensor('float32', [values.length / 2, 2], values)]);
      });
    }
  });
  return state;
}

async function* batches(count: number, size: number): AsyncGenerator<Samples> {
  for (let at = 0; at < count; at++)
    yield {
      inputs: [
        tensor(
          'float32',
          [size],
          Array.from({ length: size }, (_, index) => (index % 2 === 0 ? 1 : 0)),
        ),
      ],
      labels: tensor(
        'int64',
        [size],
        Array.from({ length: size }, () => 0),
      ),
    };
}

function optionsOf(rounds: InferenceRounds, more: Partial<InferDataOptions> = {}): InferDataOptions {
  let nowMs = 0;
  return {
    rounds,
    samples: batches(50, 4),
    limit: 3,
    output,
    clock: { now: () => nowMs++, after: () => () => {} },
    write: async () => {},
    ...more,
  };
}

test('samples, right answers and latencies are counted', async () => {
  const { rounds } = identity();
  const result = await inferData(optionsOf(rounds));
  assert.equal(result.sampleCount, 200);
  assert.equal(result.accuracy, 0.5);
  assert.ok(result.samplesPerS > 0 && result.latencyMs.p50 > 0 && result.latencyMs.p99 >= result.latencyMs.p50);
});

test('whoever is slow to take outputs holds up the input: no more is in flight than the limit', async () => {
  const state = identity();
  let [given, taken, mostWaiting] = [0, 0, 0];
  async function* counted(): AsyncGenerator<Samples> {
    for await (const samples of batches(200, 1)) {
      given++;
      mostWaiting = Math.max(mostWaiting, given - taken);
      yield samples;
    }
  }
  const write = (): Promise<void> =>
    new Promise((resolve) =>
      setImmediate(() => {
        taken++;
        resolve();
      }),
    );
  await inferData(optionsOf(state.rounds, { samples: counted(), write }));
  assert.equal(taken, 200);
  // Three in flight, and the one that waits to be submitted.
  assert.ok(mostWaiting <= 4 && state.mostOpen <= 3, `${mostWaiting} waited, ${state.mostOpen} were open`);
});

test('batches are filled up for a model of one batch size, and outputs cut to what was asked', async () => {
  const { rounds } = identity();
  const written: (readonly number[])[] = [];
  const write = async ([output]: readonly Tensor[]): Promise<void> => void written.push(output?.shape ?? []);
  await inferData(optionsOf(rounds, { samples: batches(1, 3), fixedBatch: 4, write }));
  assert.deepEqual(written, [[3, 2]]);
});

test('an output that cannot be written ends the run', async () => {
  const { rounds } = identity();
  const write = async (): Promise<void> => {
    throw new Error('the disk is full');
  };
  await assert.rejects(inferData(optionsOf(rounds, { write })), /the disk is full/);
});
