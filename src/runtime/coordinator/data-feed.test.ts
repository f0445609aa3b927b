import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { tensor } from '../../graph/tensor.ts';
import { layoutOf, program } from '../../schedule/generate.ts';
import type { Frame } from '../../transport/link.ts';
import { DataFeed } from './data-feed.ts';
import type { Batch } from './options.ts';

/** Four samples, or fewer: sample s of round r is [r, s], its label s. */
function batch(round: number, sampleCount: number): Batch {
  const samples = Array.from({ length: sampleCount }, (_, index) => index);
  return {
    inputs: [
      tensor(
        'float32',
        [sampleCount, 2],
        samples.flatMap((sample) => [round, sample]),
      ),
    ],
    labels: tensor('int32', [sampleCount], samples),
  };
}

/** The first stage on `a` (one sample of each micro-batch of two) and `b`, the second on `c`. */
const plan: PlanLayout = {
  planner: 'fixed',
  schedule: '1f1b',
  batchSize: 4,
  microBatchSize: 2,
  microBatchCount: 2,
  stages: [
    { layers: [0, 1], devices: ['a', 'b'], samples: [1, 1], inFlight: 2 },
    { layers: [1, 2], devices: ['c'], samples: [2], inFlight: 1 },
  ],
};
const twoStages = program(plan);

/** A feed whose sends are written down, and wait for `open` where that is given. */
function feedTo(
  sent: string[],
  open: () => Promise<void> = () => Promise.resolve(),
  sampleCount = 4,
): { feed: DataFeed; errors: unknown[] } {
  const errors: unknown[] = [];
  const feed = new DataFeed({
    batch: (round) => {
      if (round === 9) throw new Error('no data');
      return batch(round, sampleCount);
    },
    send: async (device, { kind, round, epoch, microBatch, tensors }: Frame) => {
      sent.push(
        `${device} ${kind} ${epoch}/${round}/${microBatch}: ${tensors?.map(({ data }) => [...data].join(' ')).join()}`,
      );
      await open();
    },
    onError: (error) => errors.push(error),
  });
  return { feed, errors };
}

test('each device gets its samples, micro-batch by micro-batch, round after round', async () => {
  const sent: string[] = [];
  const { feed } = feedTo(sent);
  feed.begin(twoStages);
  feed.feed(7, 3);
  feed.feed(8, 3);
  while (sent.length < 12) await new Promise(setImmediate);
  assert.deepEqual(sent.slice(0, 6), [
    'a input 3/7/0: 7 0',
    'b input 3/7/0: 7 1',
    'c label 3/7/0: 0 1',
    'a input 3/7/1: 7 2',
    'b input 3/7/1: 7 3',
    'c label 3/7/1: 2 3',
  ]);
  assert.equal(sent[6], 'a input 3/8/0: 8 0');
  assert.equal(sent.length, 12);
});

test('pieces of a long batch are made when they may be sent', async () => {
  const made: string[] = [];
  const sent: string[] = [];
  let open = (): void => {};
  const feed = new DataFeed({
    batch: (round) => ({
      sampleCount: 4,
      piece: (payload, [first, end]) => {
        made.push(`${payload} ${round}: ${first} to ${end}`);
        return [tensor('int32', [end - first], [round, first].slice(0, end - first))];
      },
    }),
    send: (device, { kind, round, microBatch }: Frame) => {
      sent.push(`${device} ${kind} ${round}/${microBatch}`);
      return new Promise((resolve) => {
        open = resolve;
      });
    },
    onError: (error) => assert.fail(String(error)),
  });
  feed.begin(twoStages);
  feed.feed(7, 3);
  while (sent.length < 6) {
    assert.equal(made.length, sent.length);
    open();
    await new Promise(setImmediate);
  }
  assert.deepEqual(made.slice(0, 4), ['input 7: 0 to 1', 'input 7: 1 to 2', 'label 7: 0 to 2', 'input 7: 2 to 3']);
  assert.deepEqual(sent.slice(0, 4), ['a input 7/0', 'b input 7/0', 'c label 7/0', 'a input 7/1']);
});

test('a smaller batch is cut as its own program says', async () => {
  const sent: string[] = [];
  const { feed } = feedTo(sent, undefined, 3);
  feed.begin(program(plan), (sampleCount) => program(layoutOf(plan, sampleCount)));
  feed.feed(7, 3);
  while (sent.length < 5) await new Promise(setImmediate);
  for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
  assert.deepEqual(sent, [
    'a input 3/7/0: 7 0',
    'b input 3/7/0: 7 1',
    'c label 3/7/0: 0 1',
    'a input 3/7/1: 7 2',
    'c label 3/7/1: 2',
  ]);
});

test('what is left of a layout is not sent, be it stopped or followed by another', async () => {
  for (const end of ['stop', 'begin'] as const) {
    const sent: string[] = [];
    let open = (): void => {};
    const { feed } = feedTo(sent, () => new Promise((resolve) => (open = resolve)));
    feed.begin(twoStages);
    feed.feed(0, 1);
    feed.feed(1, 1);
    while (sent.length < 1) await new Promise(setImmediate);
    if (end === 'stop') feed.stop();
    else feed.begin(twoStages);
    feed.feed(0, 2);
    open();
    for (let turn = 0; turn < 10; turn++) await new Promise(setImmediate);
    assert.deepEqual(sent, end === 'stop' ? ['a input 1/0/0: 0 0'] : ['a input 1/0/0: 0 0', 'a input 2/0/0: 0 0']);
  }
});

test('a batch that cannot be read is reported', async () => {
  const { feed, errors } = feedTo([]);
  feed.begin(twoStages);
  feed.feed(9, 1);
  while (errors.length === 0) await new Promise(setImmediate);
  assert.match(String(errors[0]), /no data/);
});
