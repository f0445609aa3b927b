import assert from 'node:assert/strict';
import { test } from 'node:test';
import { calibratedTimes } from './calibration.ts';
import { partStarts } from './parts.ts';

test('parts are about equal in time, and in layers; a few layers are a part each', () => {
  assert.deepEqual(partStarts(new Array(16).fill(1)), [0, 2, 4, 6, 8, 10, 12, 14]);
  assert.deepEqual(partStarts([5]), [0]);
  assert.deepEqual(partStarts([1, 1, 1]), [0, 1, 2]);
  assert.deepEqual(partStarts([0, 0]), [0, 1]);
  // 22 layers: half of the time, and nearly two fifths of the size, is the first one's.
  const uneven = partStarts([22, ...new Array(21).fill(1)]);
  assert.equal(uneven[0], 0);
  assert.equal(uneven[1], 1);
  assert.ok(uneven.length >= 5 && uneven.length <= 7, `${uneven}`);
});

test('a part begins where the fewest bytes cross, if that is near', () => {
  const ones = new Array<number>(48).fill(1);
  // Six layers a part; a start may move by three of them.
  const bytes = (cheap: readonly number[]): number[] => ones.map((_, layer) => (cheap.includes(layer) ? 1 : 9));
  assert.deepEqual(partStarts(ones, bytes([])), [0, 6, 12, 18, 24, 30, 36, 42]);
  assert.deepEqual(partStarts(ones, bytes([5, 7, 13, 16, 20, 30])), [0, 5, 13, 16, 24, 30, 36, 42]);
  // Layers 6 and 7 are longer than a part each; between them, and around 8, many bytes cross (a block of MobileNetV2).
  const block = [...new Array<number>(6).fill(1), 9, 9, ...new Array<number>(20).fill(1)];
  assert.ok(partStarts(block).includes(7));
  const starts = partStarts(
    block,
    block.map((_, layer) => (layer === 7 || layer === 8 ? 9 : 1)),
  );
  assert.deepEqual(starts.slice(0, 4), [0, 5, 6, 9]);
});

test('layers take their part of what their part of the model takes', () => {
  const layer = { forwardMs: 1, backwardMs: 3, inputPart: 0.5, weightPart: 0.75, savedBytes: 0 };
  const calibration = {
    starts: [0, 2],
    forward: [2, 1],
    backward: [1, 0.5],
    split: { input: [1.5, 1], weight: [2, 4] },
  };
  assert.deepEqual(calibratedTimes(calibration, [layer, layer, layer]), {
    forwardMs: [2, 2, 1],
    backwardMs: [3, 3, 1.5],
    backwardInputMs: [2.25, 2.25, 0.75],
    backwardWeightMs: [4.5, 4.5, 4.5],
  });
  const [first, frozen] = [
    { ...layer, inputPart: 0, weightPart: 1 },
    { ...layer, inputPart: 1, weightPart: 0 },
  ];
  const { backwardInputMs, backwardWeightMs } = calibratedTimes(
    { ...calibration, split: { input: [1.5, 1.5], weight: [2, 2] } },
    [first, frozen, { ...layer, inputPart: 0.9 }],
  );
  assert.deepEqual(
    backwardInputMs,
    [0, 3, 1.5],
    'what is not split is not changed, and no part is more than the whole',
  );
  assert.deepEqual(backwardWeightMs, [3, 0, 2.25]);
});
