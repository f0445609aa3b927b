import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { LinkRate } from '../../transport/link.ts';
import { BitsInUse } from './activation-bits.ts';

const bytes = 100_000;

test('bits follow what the link carries while it is busy, by receiver, and changes are reported once', () => {
  const rates: Record<string, LinkRate> = { b: { mbps: 100, measuredMs: 10 }, c: { mbps: 2.2, measuredMs: 500 } };
  const compression = { activation: 'uint8', adaptive: { paceMs: 100 }, exactEvery: 16 } as const;
  const bits = new BitsInUse({ compression, rate: (peer) => rates[peer], busyMs: () => 0 });
  const choose = (to: string, round = 0): string | undefined => bits.choose(to, { round, bytes });
  // A link that was hardly busy yet says nothing.
  assert.deepEqual([choose('b'), choose('c')], ['uint8', 'uint8']);
  assert.deepEqual(bits.changes(), { b: 8, c: 8 });
  rates['b'] = { mbps: 100, measuredMs: 60 };
  rates['c'] = { mbps: 1.6, measuredMs: 600 };
  assert.deepEqual([choose('b'), choose('c')], [undefined, 'uint6']);
  assert.deepEqual(bits.changes(), { b: 32, c: 6 });
  assert.deepEqual(bits.changes(), {});
  rates['c'] = { mbps: 0.1, measuredMs: 700 };
  assert.equal(choose('c'), 'uint2');
  // Rounds that others are compared with.
  assert.deepEqual([choose('c', 1), choose('c', 17), choose('c', 16)], [undefined, undefined, 'uint2']);
  assert.deepEqual(bits.changes(), { c: 2 });
});

test('without a pace, that of the device’s own computing counts once it is known', () => {
  let busyMs = 1000;
  const options = {
    compression: { activation: 'uint8', adaptive: {} },
    rate: () => ({ mbps: 11, measuredMs: 99 }),
  } as const;
  const bits = new BitsInUse({ ...options, busyMs: () => busyMs });
  const found = Array.from({ length: 6 }, (_, round) => {
    busyMs += round < 4 ? 100 : 1;
    return bits.choose('b', { round, bytes });
  });
  // 100 ms a micro-batch carry float32; when it computes faster, fewer bits are left for the link.
  assert.deepEqual(found, ['uint8', 'uint8', 'uint8', undefined, undefined, 'float16']);
});
