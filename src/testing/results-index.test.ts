// The index of bench/results names every file there, and no other.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

const folder = new URL('../../bench/results/', import.meta.url);

test('bench/results/README.md names every result once', () => {
  const index = readFileSync(new URL('README.md', folder), 'utf8');
  const named = [...index.matchAll(/\]\((\d{4}-[^)/]*)\)/g)].map(([, file]) => file);
  const files = readdirSync(folder).filter((file) => file !== 'README.md');
  assert.deepEqual(named.toSorted(), files.toSorted());
});
