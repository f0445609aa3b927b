import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createLossClock, createWorkClock, type ProcessorFacts, processorFacts } from './work-clock.ts';

const free = { threadCount: 1, maxCpu: 1, isCourteous: false };

/** A process that has run for 80 ms. */
const facts = (quotaCores?: number): ProcessorFacts => ({ quotaCores, coreCount: 4, processMs: () => 80 });

const isWall = (clock: () => number): boolean => Math.abs(clock() - performance.now()) < 1000;

test('under a quota work counts for the processor time of its process over what that may use', () => {
  assert.equal(createWorkClock(free, facts(0.25))(), 320);
  assert.equal(createWorkClock({ ...free, threadCount: 2 }, facts(0.5))(), 160);
  assert.equal(createWorkClock({ ...free, maxCpu: 0.1 }, facts(0.25))(), 800, 'the tighter limit counts');
  assert.equal(createWorkClock({ ...free, maxCpu: 0.5 }, facts(0.25))(), 320);
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

test('elsewhere time is time: no quota, one that is no limit, other limits that change', () => {
  while (performance.now() < 1) {} // so that no processor time above is near
  for (const clock of [
    createWorkClock(free, facts()),
    createWorkClock(free, facts(1)),
    createWorkClock({ ...free, isCourteous: true }, facts(0.25)),
  ])
    assert.ok(isWall(clock));
});

test('what this machine says of the process is its processor time', () => {
  const cpu = (): number => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  };
  const clock = createWorkClock(free, { ...processorFacts(), quotaCores: 0.5 });
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
