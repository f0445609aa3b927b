import assert from 'node:assert/strict';
import { mkdtemp, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { nodeDisk } from '../../storage/node/disk.ts';
import { learningCurve, readLearningCurve } from './learning-curve.ts';

const line = (round: number, loss: number | null, accuracy: number | null = null): Record<string, unknown> => ({
  round,
  epoch: 0,
  loss,
  accuracy,
});

test('rounds count as done; tests stand where they were made, the last of each round', () => {
  const metrics = [line(0, 4, 0), line(1, 3, 0.25), line(2, null, 0.5), line(3, 1, 1)];
  const tested = (round: number, loss: number): Record<string, unknown> => ({
    event: 'evaluated',
    round,
    loss,
    accuracy: 0.5,
  });
  const events = [tested(4, 9), tested(2, 2.5), { event: 'checkpoint', round: 2 }, tested(4, 1.5), tested(8, 1)];
  assert.deepEqual(learningCurve('r', metrics, events), {
    run: 'r',
    unit: 'round',
    loss: {
      train: [
        { x: 1, y: 4 },
        { x: 2, y: 3 },
        { x: 4, y: 1 },
      ],
      test: [
        { x: 2, y: 2.5 },
        { x: 4, y: 1.5 },
      ],
    },
    accuracy: {
      train: [
        { x: 1, y: 0 },
        { x: 2, y: 0.25 },
        { x: 3, y: 0.5 },
        { x: 4, y: 1 },
      ],
      test: [
        { x: 2, y: 0.5 },
        { x: 4, y: 0.5 },
      ],
    },
  });
});

test('many rounds become 120 means, over epochs where one is done', () => {
  const metrics = Array.from({ length: 2400 }, (_, round) => line(round, round));
  const { unit, loss, accuracy } = learningCurve('r', metrics, [{ event: 'training', roundsPerEpoch: 1200 }]);
  assert.equal(unit, 'epoch');
  assert.equal(loss.train.length, 120);
  // Rounds 0 to 19, done at 1 to 20: the mean 9.5 at 10.5 of 1,200.
  assert.deepEqual(loss.train[0], { x: 10.5 / 1200, y: 9.5 });
  assert.deepEqual(accuracy, { train: [], test: [] });
});

test('a folder without metrics is refused', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'asteroid-curve-'));
  await assert.rejects(
    readLearningCurve(folder, nodeDisk),
    /^InputError: .* holds no metrics\.jsonl with rounds in it: name the folder of a run that has begun to train\.$/,
  );
  await writeFile(join(folder, 'metrics.jsonl'), `${JSON.stringify(line(0, 2))}\n`);
  assert.deepEqual((await readLearningCurve(folder, nodeDisk)).loss.train, [{ x: 1, y: 2 }]);
  await writeFile(join(folder, 'metrics.jsonl'), `${JSON.stringify(line(0, null))}\n`);
  await assert.rejects(
    readLearningCurve(folder, nodeDisk),
    /^InputError: .* has no round with a loss that is a number in its metrics\.jsonl/,
  );
});

test('what damaged lines say of rounds does not count', () => {
  const metrics = [
    line(0, 2),
    line(-1, 3),
    line(0.5, 3),
    line(1e300, 3),
    { ...line(1, 3), round: null },
    line(1, 1e300),
    line(1, 1),
  ];
  const events = [
    { event: 'training', roundsPerEpoch: 0 },
    { event: 'evaluated', round: 1e300, loss: 1 },
  ];
  assert.deepEqual(learningCurve('r', metrics, events), {
    run: 'r',
    unit: 'round',
    loss: {
      train: [
        { x: 1, y: 2 },
        { x: 2, y: 1 },
      ],
      test: [],
    },
    accuracy: { train: [], test: [] },
  });
});

test('a run may have hundreds of thousands of rounds', () => {
  const metrics = Array.from({ length: 300_000 }, (_, round) => line(round, 1));
  assert.equal(learningCurve('r', metrics, []).loss.train.length, 120);
});
