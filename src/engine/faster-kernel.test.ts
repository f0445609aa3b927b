import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fasterKernel } from './faster-kernel.ts';
import type { Kernel, OutputBuffers } from './queued.ts';

const noBuffers: OutputBuffers = { take: (byteLength) => new ArrayBuffer(byteLength) };

/** A kernel that takes `times` (the last one from then on) and writes down what happens to it. */
function fake(name: string, log: string[], clock: { now: number }, times: readonly number[]): Kernel {
  let runCount = 0;
  return {
    run: () => {
      log.push(name);
      clock.now += times[Math.min(runCount++, times.length - 1)] ?? 0;
      return Promise.resolve([]);
    },
    release: () => {
      log.push(`release ${name}`);
      return Promise.resolve();
    },
  };
}

test('both run in turn, then the faster alone; a slow first run does not count', async () => {
  const log: string[] = [];
  const clock = { now: 0 };
  const kernel = fasterKernel(fake('many', log, clock, [100, 5]), fake('one', log, clock, [1, 8]), () => clock.now);
  for (let run = 0; run < 8; run++) await kernel.run([], [], noBuffers);
  assert.deepEqual(log, ['many', 'one', 'many', 'one', 'many', 'one', 'release one', 'many', 'many']);
  await kernel.release();
  assert.deepEqual(log.slice(-1), ['release many']);
});

test('released before anything was chosen, both are', async () => {
  const log: string[] = [];
  const clock = { now: 0 };
  const kernel = fasterKernel(fake('many', log, clock, [1]), fake('one', log, clock, [1]), () => clock.now);
  await kernel.run([], [], noBuffers);
  await kernel.release();
  assert.deepEqual(log, ['many', 'release many', 'release one']);
});
