import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createLossClock, createWorkClock, type ProcessorFacts, processorFacts, type WorkClockOptions } from './work-clock.ts';

const free = { threadCount: 1, maxCpu: 1, isCourteous: false };

/** A process that runs for 80 ms from one look to the next. */
function facts(quotaCores?: number): ProcessorFacts {
  let processMs = 0;
  return { quotaCores: () => quotaCores, coreCount: 4, processMs: () => (processMs += 80) };
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
  const clock = createWorkClock(free, { quotaCores: () => quotaCores, coreCount: 4, processMs: () => processMs });
  /** A second passes, in which the process runs for 100 ms. */
  const second = (): number => {
    const before = clock();
    [nowMs, processMs] = [nowMs + 1_001, processMs + 100];
    return Math.round(clock() - before);
  };
  assert.equal(second(), 200);
  quotaCores = 0.125;
  assert.equal(second(), 800);
  quotaCores = undefined;
  assert.equal(second(), 1_001);
  quotaCores = 2;
  assert.equal(second(), 1_001);
  quotaCores = 0.5;
  assert.equal(second(), 200);
});

test('what a process does besides takes time from an engine that uses all that there is, and from no other', () => {
  assert.equal(createLossClock(free, facts(0.25))(), 320);
  assert.equal(createLossClock({ ...free, threadCount: 4 }, facts())(), 20, 'all cores compute');
  assert.equal(createLossClock({ ...free, threadCount: 4 }, facts(8))(), 20, 'a quota above the machine is none');
  for (const clock of [
    createLossClock(free, facts()),
    createLossClock(free, facts(1.5)),
    createLossClock({ ...free, maxCpu: 0.5 }, facts(0.25)),
  ])
    assert.equal(clock(), 0);
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
  // To the microsecond, not to the tick: of a hundred short pieces none takes nothing.
  for (let piece = 0; piece < 100; piece++) {
    const startMs = clock();
    for (let index = 0; index < 1000; index++) Math.sqrt(index);
    assert.ok(clock() > startMs, `piece ${piece}`);
  }
});
