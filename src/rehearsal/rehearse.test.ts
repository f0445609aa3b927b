// Runs under faults, and what must hold. The ten thousand are `npm run simulate:faults -- --seeds 10000`.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { scenarioIn } from './modes.ts';
import { rehearse } from './rehearse.ts';
import { scenarioOf } from './scenario.ts';
import { rehearseOnThreads, rehearseSeeds } from './seeds.ts';

test('200 seeds: what must hold does, and the traces are those of 2026-11-28', async () => {
  const { failures, seedCount, eventCount, traceHash } = await rehearseSeeds({ first: 0, end: 200 });
  assert.deepEqual(failures, []);
  assert.deepEqual(
    { seedCount, eventCount, traceHash },
    { seedCount: 200, eventCount: 81_088, traceHash: 2_668_883_603 },
  );
});

test('100 more seeds: what must hold does', async () => {
  const { failures, seedCount, eventCount } = await rehearseSeeds({ first: 200, end: 300 });
  assert.deepEqual(failures, []);
  assert.equal(seedCount, 100);
  assert.ok(eventCount > 100 * seedCount, `${eventCount} events`);
});

test('80 seeds with rounds that overlap: every state is that of the delayed oracle', async () => {
  const summary = await rehearseSeeds({ first: 0, end: 80, modes: 'async' });
  assert.deepEqual(summary.failures, []);
});

test('80 seeds of forward gradients: every state is that of the oracle with the same directions', async () => {
  const summary = await rehearseSeeds({ first: 0, end: 80, modes: 'forward-gradient' });
  assert.deepEqual(summary.failures, []);
});

test('40 seeds with layers that are not trained: whoever takes a place has their weights', async () => {
  const summary = await rehearseSeeds({ first: 0, end: 40, modes: 'frozen' });
  assert.deepEqual(summary.failures, []);
});

test('60 seeds of requests: each is answered once, in order, with what the model gives', async () => {
  const summary = await rehearseSeeds({ first: 0, end: 60, modes: 'infer' });
  assert.deepEqual(summary.failures, []);
  const wholeCount = summary.outcomes['the run is done after # rounds'] ?? 0;
  assert.ok(wholeCount > 50, `${wholeCount} runs have answered all`);
});

test('a device is drained when a layout has answered, and the end of its state is still on its way', async () => {
  const { violations, outcome } = await rehearse(scenarioIn('infer', 2415));
  assert.deepEqual(violations, []);
  assert.equal(outcome, 'the run is done after 20 rounds');
});

test('the same seed is the same run, to the last event', async () => {
  for (const seed of [3, 57, 210]) {
    const [first, second] = [
      await rehearse(scenarioOf(seed), { isTraced: true }),
      await rehearse(scenarioOf(seed), { isTraced: true }),
    ];
    assert.deepEqual(second, first);
    assert.ok(first.eventCount > 20, `${first.eventCount} events`);
  }
});

test('another seed is another run', async () => {
  const hashes = new Set<string>();
  for (let seed = 0; seed < 20; seed++) hashes.add((await rehearse(scenarioOf(seed))).traceHash);
  assert.equal(hashes.size, 20);
});

test('several threads find the same as one', async () => {
  const range = { first: 1000, end: 1060 };
  const alone = await rehearseSeeds(range);
  let progressCount = 0;
  const together = await rehearseOnThreads(range, { threadCount: 2, onProgress: () => progressCount++ });
  assert.deepEqual({ ...together, virtualSeconds: 0 }, { ...alone, virtualSeconds: 0 });
  assert.ok(Math.abs(together.virtualSeconds - alone.virtualSeconds) < 1e-6);
  assert.equal(progressCount, 2);
});

test('without faults every plan trains to the end', async () => {
  for (let seed = 0; seed < 60; seed++) {
    const scenario = { ...scenarioOf(seed), faults: [] };
    const { violations, outcome } = await rehearse(scenario);
    assert.deepEqual(violations, [], `seed ${seed}`);
    assert.equal(outcome, `the run is done after ${scenario.endRound} rounds`, `seed ${seed}`);
  }
});

test('rounds of fewer samples, between whole ones, survive the same faults', async () => {
  let smallerCount = 0;
  for (let seed = 0; seed < 100; seed++) {
    const scenario = { ...scenarioOf(seed), smallerEvery: 2 };
    const { violations, lines } = await rehearse(scenario, { isTraced: true });
    assert.deepEqual(violations, [], `seed ${seed}`);
    smallerCount += lines?.filter((line) => line.includes('committed 1')).length ?? 0;
  }
  assert.ok(smallerCount > 50, `${smallerCount} smaller rounds`);
});
