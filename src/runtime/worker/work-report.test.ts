// What a worker's process has worked: since the last call, and so far.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ProcessWork } from '../../engine/process-clock.ts';
import { WorkReport } from './work-report.ts';

/** A clock that reads these values, one after the other. */
function clockOf(...works: readonly ProcessWork[]): () => ProcessWork {
  const left = [...works];
  return () => left.shift() ?? assert.fail('asked too often');
}

test('work since the last call, and of that what the engine’s thread did not compute', () => {
  const asked: (number | undefined)[] = [];
  const clock = clockOf({ processMs: 50, mainMs: 10, computeMs: 30 }, { processMs: 150, mainMs: 25, computeMs: 110 });
  let threadMs = 0;
  const report = new WorkReport(
    (ms) => {
      asked.push(ms);
      return clock();
    },
    { threadMs: () => (threadMs += 7) },
  );
  assert.deepEqual(report.sinceLast(), { processMs: 50, linksMs: 20 });
  assert.deepEqual(report.sinceLast(), { processMs: 100, linksMs: 20 });
  assert.deepEqual(asked, [7, 14]);
});

test('without the engine’s thread the main thread counts; nothing without either, or if no time passes', () => {
  assert.deepEqual(new WorkReport(clockOf({ processMs: 50, mainMs: 10 }), {}).sinceLast(), {
    processMs: 50,
    linksMs: 10,
  });
  assert.deepEqual(new WorkReport(clockOf({ processMs: 50 }), {}).sinceLast(), { processMs: 50 });
  assert.deepEqual(new WorkReport(clockOf({ processMs: 0, mainMs: 0, computeMs: 0 }), {}).sinceLast(), {});
  assert.deepEqual(new WorkReport(undefined, {}).sinceLast(), {});
  const late = new WorkReport(clockOf({ processMs: 50, computeMs: 52 }), {}).sinceLast();
  assert.deepEqual(late, { processMs: 50, linksMs: 0 }, 'two clocks are not one');
});

test('work so far: of the main thread (or else of the process), and of the process', () => {
  assert.equal(new WorkReport(clockOf({ processMs: 50, mainMs: 10 }), {}).mainMs(), 10);
  assert.equal(new WorkReport(clockOf({ processMs: 50 }), {}).mainMs(), 50);
  assert.equal(new WorkReport(undefined, {}).mainMs(), undefined);
  assert.equal(new WorkReport(clockOf({ processMs: 50, mainMs: 10 }), {}).processMs(), 50);
  assert.equal(new WorkReport(undefined, {}).processMs(), undefined);
});
