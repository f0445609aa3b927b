// What plans count on of devices' memory.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { machineConfig } from '../../testing/memory-cluster.ts';
import { regressionNet, subjectOf } from '../../testing/training-subjects.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';
import { DeviceKnowledge } from './device-knowledge.ts';

test('devices of one machine share its memory; each has its limit, but no more than its share', () => {
  const memoryOf = (facts: Partial<DeviceFacts>): readonly number[] => {
    const subject = subjectOf(regressionNet(), 8);
    const machine = machineConfig({ subject, machine: {} }, 2);
    const known = new DeviceKnowledge({ subject, machine }, (cluster) => cluster);
    for (const device of ['a', 'b'])
      known.joined(device, { memoryMiB: 2160, cores: 1, engine: 'a test', machine: 'one', ...facts });
    return known.cluster(['a', 'b']).devices.map(({ memoryMiB }) => memoryMiB);
  };
  assert.deepEqual(memoryOf({}), [920, 920], 'half of it each, less 160 for the process');
  assert.deepEqual(memoryOf({ memoryMiB: 500, machineMemoryMiB: 2160 }), [340, 340]);
  assert.deepEqual(memoryOf({ memoryMiB: 2000, machineMemoryMiB: 2160 }), [920, 920]);
});
