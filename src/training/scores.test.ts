// Against scikit-learn 1.7 (confusion_matrix, precision_recall_fscore_support, f1_score, balanced_accuracy_score,
// multilabel_confusion_matrix, r2_score) and PyTorch's losses without reduction.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { tensor } from '../graph/tensor.ts';
import { classScores, macro, scoreSheet, type TestDetails } from './scores.ts';

function close(found: readonly number[], expected: readonly number[]): void {
  assert.equal(found.length, expected.length);
  for (const [index, value] of found.entries())
    assert.ok(Math.abs(value - (expected[index] ?? 0)) < 1e-6, `${index}: ${value} and ${expected[index]}`);
}

/** The details of logits of width `size` and labels, in two batches. */
function detailsOf(
  loss: Parameters<typeof scoreSheet>[0],
  { size, rows, labels }: { size: number; rows: readonly number[]; labels: readonly number[] },
): TestDetails {
  const [count, each] = [rows.length / size, (labels.length * size) / rows.length];
  const shape = each === 1 ? [count] : [count, each];
  const sheet = scoreSheet(loss, [count, size], shape);
  assert.ok(sheet !== undefined);
  const type = loss === 'cross-entropy' ? 'int64' : 'float32';
  for (const [from, to] of [
    [0, 1],
    [1, count],
  ] as const)
    sheet.add(
      from,
      tensor('float32', [to - from, size], rows.slice(from * size, to * size)),
      tensor(type, [to - from, ...shape.slice(1)], labels.slice(from * each, to * each)),
      loss === 'cross-entropy',
    );
  return sheet.details();
}

const rows = [2, 1, 0, 0, 3, 1, 0, 1, 0, 1, 0, 2, 0, 0, 1, 3, 0, 0, 1, 1.5, 0, 0.5, 2, 0];
const labels = [0, 0, 1, 2, 2, 2, 0, 1];

test('classes are counted as scikit-learn counts them, and samples are ordered by their own loss', () => {
  const { confusion = [], worst } = detailsOf('cross-entropy', { size: 3, rows, labels });
  assert.deepEqual(confusion, [
    [1, 2, 0],
    [0, 2, 0],
    [1, 0, 2],
  ]);
  const scores = classScores(confusion);
  close(
    scores.map(({ precision }) => precision ?? -1),
    [0.5, 0.5, 1],
  );
  close(
    scores.map(({ recall }) => recall ?? -1),
    [1 / 3, 1, 2 / 3],
  );
  close([macro(scores, 'f1'), macro(scores, 'recall')], [0.6222222222, 0.6666666667]);
  assert.deepEqual(
    worst.map(({ sample }) => sample),
    [1, 5, 6, 2, 4, 0, 3, 7],
  );
  close(
    worst.slice(0, 3).map(({ loss }) => loss),
    [3.169846058, 3.0949230194, 1.1041306257],
  );
  close(
    worst.slice(0, 3).map(({ probability = 0 }) => probability),
    [0.8437947035, 0.9094430208, 0.5465493798],
  );
  assert.deepEqual([worst[0]?.label, worst[0]?.predicted], [[0], [1]]);
});

test('labels that are left out count for nothing', () => {
  const { confusion, worst } = detailsOf('cross-entropy', { size: 3, rows, labels: [0, -1, 1, -1, -1, -1, -1, 1] });
  assert.deepEqual(confusion, [
    [1, 0, 0],
    [0, 2, 0],
    [0, 0, 0],
  ]);
  assert.equal(worst.length, 3);
});

test('of several labels a sample each is counted by itself', () => {
  const several = { size: 2, rows: [1, -2, -1, 0.5, 2, 3], labels: [1, 0, 1, 0, 0, 1] };
  const found = detailsOf('binary-cross-entropy', several);
  assert.deepEqual(found.labels, [
    [0, 1, 1, 1],
    [1, 1, 0, 1],
  ]);
  close(
    found.worst.map(({ loss }) => loss),
    [1.1436693668, 1.0877577066, 0.2200948894],
  );
  assert.deepEqual([found.worst[0]?.label, found.worst[0]?.predicted], [[0], [1]]);
});

test('numbers have a mean absolute error, the part of the variance that is explained, and losses', () => {
  const numbers = { size: 2, rows: [1.5, 2, 2, 2, 4, 4.5], labels: [1, 2, 3, 1, 2, 5] };
  const { meanAbsoluteError = 0, r2 = 0, worst } = detailsOf('huber', numbers);
  close([meanAbsoluteError, r2], [0.8333333333, -0.3846153846]);
  close(
    worst.map(({ loss }) => loss),
    [0.8125, 0.5, 0.0625],
  );
});

test('outputs that nobody would read one by one have no sheet', () => {
  assert.equal(scoreSheet('cross-entropy', [1, 30_000, 128], [1, 128]), undefined);
  assert.equal(scoreSheet('cross-entropy', [1, 10, 4], [1, 4]), undefined);
});
