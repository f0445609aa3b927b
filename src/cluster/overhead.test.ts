import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DeviceTimes } from './cluster.ts';
import {
  activationEncodingNames,
  cutEncodingNames,
  encodedFraction,
  encodings,
  sumEncodingNames,
} from './compression.ts';
import {
  correctedOverhead,
  fusedTables,
  measuredOverhead,
  overheadOf,
  processorMs,
  reduceCpuMs,
  transferCpuMs,
  withLinkCosts,
} from './overhead.ts';
import { combinedTimes, onGrid } from './times.ts';

const mib = 2 ** 20;

test('traffic costs by the MiB, the frame and the pass; what a profile does not say is nothing', () => {
  const overhead = overheadOf({ handlingMsPerMiB: 4, passMs: 0.5, frameMs: 0.25 });
  assert.equal(processorMs(overhead, { bytes: 3 * mib, frames: 2, passes: 1 }), 12 + 0.5 + 0.5);
  assert.equal(processorMs(overheadOf({}), { bytes: mib, frames: 9, passes: 9 }), 0);
  assert.equal(reduceCpuMs(overhead, mib), transferCpuMs(overhead, mib), 'AllReduces as transfers, where not known');
  assert.equal(reduceCpuMs(overheadOf({ handlingMsPerMiB: 4, reducingMsPerMiB: 6 }), mib), 6);
  const third = overheadOf({ handlingMsPerMiB: 1 / 3, passMs: 1 / 3, frameMs: 1 / 3 });
  const priced = processorMs(third, { bytes: mib, frames: 3, passes: 1 }, onGrid);
  assert.equal(priced, 5 * onGrid(1 / 3), 'each price is on the grid');
});

test('measurements keep their old names in files: a table for both passes as one graph, a ratio for frames', () => {
  const passes = [{ forwardMs: [1, 2], backwardMs: [3, 4] }];
  const fields = measuredOverhead(passes, { fusedFactors: [0.5], callMs: 0.25, wakeMs: 1 });
  assert.deepEqual(fields, { stepMs: [[2, 3]], callMs: 0.25, passMs: 1 });
  const tables = { forwardMs: [[1, 2]], backwardMs: [[3, 4]], ...fields };
  assert.deepEqual(fusedTables(tables), { forwardMs: [[0.5, 1]], backwardMs: [[1.5, 2]] });
  assert.deepEqual(withLinkCosts(fields, { transferMsPerMiB: 4, reduceMsPerMiB: undefined }), {
    ...fields,
    handlingMsPerMiB: 4,
    frameMs: 1.3,
  });
  assert.equal('frameMs' in withLinkCosts({}, { transferMsPerMiB: 4, reduceMsPerMiB: 6 }), false, 'no pass, no ratio');
});

test('corrections scale what is known, and name what was not', () => {
  const fields = { handlingMsPerMiB: 4, passMs: 1, frameMs: 2 };
  assert.deepEqual(correctedOverhead(fields, { wake: 2, transfer: 0.5, reduce: undefined }), {
    handlingMsPerMiB: 2,
    passMs: 2,
    frameMs: 4,
  });
  assert.equal(correctedOverhead(fields, { wake: 1, transfer: 1, reduce: 3 }).reducingMsPerMiB, 12);
  assert.deepEqual(correctedOverhead({}, { wake: 1, transfer: 1, reduce: 1 }, 0.5), { passMs: 0.5 });
});

test('times of several devices are combined field by field, and what not all have is left out', () => {
  const [a, b]: readonly DeviceTimes[] = [
    { forwardMs: [[1]], backwardMs: [[2]], updateMs: [3], callMs: 4, stepMs: [[5]] },
    { forwardMs: [[3]], backwardMs: [[4]], updateMs: [5], callMs: 6 },
  ];
  const sum = (rows: readonly (readonly number[])[]): number[] => [rows.reduce((total, [ms = 0]) => total + ms, 0)];
  assert.deepEqual(combinedTimes([a, b] as DeviceTimes[], sum), {
    forwardMs: [[4]],
    backwardMs: [[6]],
    updateMs: [8],
    callMs: 10,
  });
});

test('every encoding has its bits and a codec, and what feeds errors back stays within sums', () => {
  assert.deepEqual(activationEncodingNames, ['float16', 'uint8', 'uint6', 'uint4', 'uint2']);
  assert.deepEqual(sumEncodingNames, ['float16', 'int8']);
  assert.deepEqual(cutEncodingNames, ['float16']);
  for (const name of [...activationEncodingNames, ...sumEncodingNames])
    assert.equal(encodedFraction(name), encodings[name].bits / 32);
  assert.equal(encodedFraction(undefined), 1);
});
