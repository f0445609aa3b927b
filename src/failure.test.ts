import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Failure } from './failure.ts';

test('a guarded wait gives its value or its own error, and leaves nothing behind', async () => {
  const failure = new Failure();
  assert.equal(await failure.guard(Promise.resolve(7)), 7);
  await assert.rejects(failure.guard(Promise.reject(new Error('own'))), /own/);
  assert.equal(failure.waitingCount, 0);
});

test('a failure ends all waits, now and later, with its first reason', async () => {
  const failure = new Failure();
  const waits = [failure.guard(new Promise(() => {})), failure.guard(new Promise(() => {}))];
  assert.equal(failure.waitingCount, 2);
  failure.fail(new Error('first'));
  failure.fail(new Error('second'));
  for (const wait of waits) await assert.rejects(wait, /first/);
  await assert.rejects(failure.guard(new Promise(() => {})), /first/);
  assert.equal(failure.waitingCount, 0);
});
