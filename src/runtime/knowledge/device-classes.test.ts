import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DeviceTimes } from '../../cluster/cluster.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';
import { type MeasuredDevice, timesByClass } from './device-classes.ts';

const board: DeviceFacts = {
  memoryMiB: 1024,
  cores: 4,
  engine: 'onnxruntime (1 thread)',
  machine: 'm',
  cpuModel: 'Cortex-A72',
};

/** A device of two layers, measured at two sizes; `noise` on the first layer. */
function measured(
  name: string,
  noise: number,
  facts: Partial<DeviceFacts> = {},
  more: Partial<DeviceTimes> = {},
): MeasuredDevice {
  const rows = (ms: number): number[][] => [
    [ms + noise, ms],
    [2 * ms + noise, 2 * ms],
  ];
  return {
    name,
    facts: { ...board, ...facts },
    times: { forwardMs: rows(10), backwardMs: rows(20), updateMs: [1 + noise, 1], ...more },
  };
}

test('devices of one class share the middle of what they measured, layer by layer', () => {
  const found = timesByClass([measured('a', 0), measured('b', 6), measured('c', 1)]);
  assert.deepEqual(found.get('a'), measured('', 1).times);
  assert.equal(found.get('a'), found.get('b'));
  assert.equal(found.get('a'), found.get('c'));
  assert.deepEqual(
    timesByClass([measured('a', 0), measured('b', 4)]).get('a'),
    measured('', 2).times,
    'of two, the mean',
  );
});

test('together layers take what the middle device takes, whichever of its layers noise made longer', () => {
  const rows = (first: number, second: number, third: number): DeviceTimes => ({
    forwardMs: [[first, second, third]],
    backwardMs: [[1, 1, 1]],
    callMs: third / 10,
    passMs: first / 10,
  });
  const devices = [rows(16, 10, 10), rows(10, 16, 10), rows(10, 10, 19)].map((times, index) => ({
    name: `${index}`,
    facts: board,
    times,
  }));
  const found = timesByClass(devices).get('0');
  // The middles are 10 each, the sums 36, 36 and 39.
  assert.deepEqual(found, { forwardMs: [[12, 12, 12]], backwardMs: [[1, 1, 1]], callMs: 1, passMs: 1 });
});

test('another processor, quota or engine is another class, and so is a device of which no processor is known', () => {
  const { cpuModel: _, ...unknown } = board;
  const devices = [
    measured('a', 0),
    measured('b', 1, { cpuModel: 'Cortex-A76' }),
    measured('c', 2, { cpuQuotaCores: 0.5 }),
    measured('d', 3, { engine: 'reference' }),
    { ...measured('e', 4), facts: unknown },
    { ...measured('f', 5), facts: unknown },
  ];
  const found = timesByClass(devices);
  for (const { name, times } of devices) assert.equal(found.get(name), times, name);
});

test('a device slower than its class by more than noise keeps its own times, and the others keep theirs', () => {
  const slow = measured(
    'slow',
    0,
    {},
    {
      backwardMs: [
        [40, 40],
        [80, 80],
      ],
    },
  );
  const found = timesByClass([measured('a', 0), slow, measured('b', 2)]);
  assert.equal(found.get('slow'), slow.times);
  assert.deepEqual(found.get('a'), measured('', 1).times);
});

test('of two devices neither takes part of the other’s slowness beyond noise', () => {
  const [a, hot] = [measured('a', 0), measured('hot', 15)];
  const found = timesByClass([a, hot]);
  assert.equal(found.get('a'), a.times);
  assert.equal(found.get('hot'), hot.times);
});

test('a table that one of them does not have is left out', () => {
  const stepMs = [
    [30, 30],
    [60, 60],
  ];
  assert.equal(timesByClass([measured('a', 0, {}, { stepMs }), measured('b', 0)]).get('a')?.stepMs, undefined);
  assert.deepEqual(
    timesByClass([measured('a', 0, {}, { stepMs }), measured('b', 0, {}, { stepMs })]).get('a')?.stepMs,
    stepMs,
  );
});
