// Commits with a window: which round waits for which, and which commit counts.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Commits } from './commits.ts';

test('with a window of 2, round 2 waits for the commit of round 0, and round 3 for that of round 1', async () => {
  const commits = new Commits();
  const order: string[] = [];
  const note = (what: string) => (scale: number) => void order.push(`${what} at ${scale}`);
  assert.equal(commits.of(-2), undefined);
  const first = commits.expect(0, note('update 0'));
  assert.equal(commits.of(-1), undefined);
  const second = commits.expect(1, note('update 1'));
  assert.equal(commits.of(0), first);
  assert.equal(commits.of(1), second);
  assert.equal(commits.arrived(0, 0.5), true);
  await first;
  assert.equal(commits.of(0), undefined, 'what has committed is not waited for');
  assert.equal(commits.arrived(1, 1), true);
  await second;
  assert.deepEqual(order, ['update 0 at 0.5', 'update 1 at 1']);
});

test('a commit counts once, in the order of the rounds, and not after they were given up', () => {
  const commits = new Commits();
  assert.equal(commits.arrived(0, 1), false, 'nothing waits');
  void commits.expect(3);
  void commits.expect(4);
  assert.equal(commits.arrived(4, 1), false, 'round 3 comes first');
  assert.equal(commits.arrived(3, 1), true);
  assert.equal(commits.arrived(3, 1), false, 'it has committed');
  commits.forget();
  assert.equal(commits.arrived(4, 1), false, 'it was given up');
  assert.equal(commits.of(4), undefined);
});
