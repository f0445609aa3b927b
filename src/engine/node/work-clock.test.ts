import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { openThreadClock } from './host-linux.ts';
import {
  createProcessClock,
  createWorkClock,
  type ProcessorFacts,
  processorFacts,
  type WorkClockOptions,
} from './work-clock.ts';

const free = { threadCount: 1, maxCpu: 1, isCourteous: false };

/** A process that runs for 80 ms from one look to the next. */
function facts(quotaCores?: number): ProcessorFacts {
  let [processMs, mainMs] = [0, 0];
  return {
    quotaCores: () => quotaCores,
    coreCount: 4,
    processMs: () => (processMs += 80),
    mainThreadMs: () => (mainMs += 20),
  };
}

test('under a quota work counts for the processor time of its process over what that may use', () => {
  const workMs = (options: WorkClockOptions, quotaCores: number): number => {
    const clock = createWorkClock(options, facts(quotaCores));
    return -clock() + clock();
  };
  assert.equal(workMs(free, 0.25), 320);
  assert.equal(workMs({ ...free, threadCount: 2 }, 0.5), 160);
  assert.equal(workMs({ ...free, maxCpu: 0.1 }, 0.25), 800, 'the tighter limit counts');
  assert.equal(workMs({ ...free, maxCpu: 0.5 }, 0.25), 320);
});

test('a quota that changes counts from when it is noticed, within a second; one that comes or goes, too', (context) => {
  let [nowMs, processMs, quotaCores] = [5_000, 0, 0.5 as number | undefined];
  context.mock.method(performance, 'now', () => nowMs);
  const known = {
    quotaCores: () => quotaCores,
    coreCount: 4,
    processMs: () => processMs,
    mainThreadMs: () => undefined,
  };
  const process = createProcessClock(free, known);
  const clocks = [createWorkClock(free, known), () => process().processMs];
  /** A second passes, in which the process runs for 100 ms. */
  const second = (): readonly number[] => {
    const before = clocks.map((clock) => clock());
    [nowMs, processMs] = [nowMs + 1_001, processMs + 100];
    return clocks.map((clock, index) => Math.round(clock() - (before[index] ?? 0)));
  };
  assert.deepEqual(second(), [200, 200]);
  quotaCores = 0.125;
  assert.deepEqual(second(), [800, 800]);
  quotaCores = undefined;
  assert.deepEqual(second(), [1_001, 0]);
  quotaCores = 2;
  assert.deepEqual(second(), [1_001, 0]);
  quotaCores = 0.5;
  assert.deepEqual(second(), [200, 200]);
});

test('all that a process does takes time from an engine that uses all that there is, and from no other', () => {
  assert.deepEqual(createProcessClock(free, facts(0.25))(), { processMs: 320, mainMs: 80 });
  assert.deepEqual(
    createProcessClock({ ...free, threadCount: 4 }, facts())(),
    { processMs: 20, mainMs: 5 },
    'all cores compute',
  );
  assert.deepEqual(
    createProcessClock({ ...free, threadCount: 4 }, facts(8))(),
    { processMs: 20, mainMs: 5 },
    'a quota above the machine is none',
  );
  assert.deepEqual(
    createProcessClock({ ...free, workerCount: 4 }, facts())(),
    { processMs: 80, mainMs: 20 },
    'four workers share the four cores',
  );
  assert.deepEqual(
    createProcessClock(free, { ...facts(0.25), mainThreadMs: () => undefined })(),
    { processMs: 320 },
    'no word of threads',
  );
  for (const clock of [
    createProcessClock(free, facts()),
    createProcessClock(free, facts(1.5)),
    createProcessClock({ ...free, workerCount: 3 }, facts()),
    createProcessClock({ ...free, maxCpu: 0.5 }, facts(0.25)),
    createProcessClock({ ...free, isCourteous: true }, facts(0.25)),
  ])
    assert.deepEqual(clock(50), { processMs: 0, mainMs: 0, computeMs: 0 });
});

test('the time that the engine’s thread has run is reported from its beginning, if known', () => {
  const clock = createProcessClock(free, facts(0.25));
  assert.deepEqual(clock(30), { processMs: 320, mainMs: 80, computeMs: 120 });
  assert.deepEqual(clock(), { processMs: 640, mainMs: 160 });
  assert.deepEqual(clock(70), { processMs: 960, mainMs: 240, computeMs: 280 });
});

test('a thread’s clock is of that thread alone, to the microsecond', {
  skip: process.platform !== 'linux' && 'Linux only',
}, async () => {
  const clock = openThreadClock() ?? assert.fail('no clock');
  const spin = (ms: number): void => {
    for (const until = performance.now() + ms; performance.now() < until; ) Math.sqrt(until);
  };
  const worker = new Worker('for (;;) Math.sqrt(2)', { eval: true });
  try {
    const startMs = clock();
    await once(worker, 'online');
    spin(20);
    const [spunMs, before] = [clock() - startMs, clock()];
    assert.ok(spunMs > 2 && spunMs < 60, `${spunMs} ms`);
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.ok(clock() - before < 50, `${clock() - before} ms while it slept and another worked`);
    let last = clock();
    for (let piece = 0; piece < 100; piece++) {
      spin(0.05);
      const now = clock();
      assert.ok(now > last, `piece ${piece}`);
      last = now;
    }
  } finally {
    await worker.terminate();
  }
});

test('elsewhere time is time: no quota, one that is no limit, other limits that change', (context) => {
  let nowMs = 0;
  context.mock.method(performance, 'now', () => nowMs);
  for (const clock of [
    createWorkClock(free, facts()),
    createWorkClock(free, facts(1)),
    createWorkClock({ ...free, isCourteous: true }, facts(0.25)),
  ]) {
    const before = clock();
    nowMs += 7;
    assert.equal(clock() - before, 7);
  }
});

test('what this machine says of the process is its processor time', () => {
  const cpu = (): number => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  };
  const clock = createWorkClock(free, { ...processorFacts(), quotaCores: () => 0.5 });
  const [before, cpuBefore] = [clock(), cpu()];
  for (let until = performance.now() + 100; performance.now() < until; ) Math.sqrt(until);
  const [workMs, cpuMs] = [clock() - before, cpu() - cpuBefore];
  assert.ok(workMs > 2 * 0.9 * cpuMs && workMs <= 2 * cpuMs + 1, `${workMs} ms of work, ${cpuMs} ms of the process`);
  // To the microsecond, not to the tick: of a hundred pieces of some 25 us none takes nothing. Each step needs the one
  // before, so no processor does them sooner.
  let value = 0;
  for (let piece = 0; piece < 100; piece++) {
    const startMs = clock();
    for (let index = 0; index < 20_000; index++) value = value * 0.999 + 1;
    assert.ok(clock() > startMs, `piece ${piece}`);
  }
  assert.ok(value > 999 && value < 1001, 'all of it was computed');
});
