import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { asyncPictures } from './async-pictures.ts';
import { throughputPath, throughputPicture } from './async-throughput.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

test('the pictures of docs/async.md are what the simulator and the rule of staleness give', () => {
  const text = readFileSync(join(fixtureFolder('zoo'), '..', '..', '..', 'docs', 'async.md'), 'utf8');
  for (const [name, picture] of Object.entries(asyncPictures))
    assert.ok(text.includes(`\`\`\`\n${picture()}\n\`\`\``), `${name}:\n${picture()}`);
});

test('docs/async.md is at most two screens', () => {
  const text = readFileSync(join(fixtureFolder('zoo'), '..', '..', '..', 'docs', 'async.md'), 'utf8');
  assert.ok(text.split('\n').length <= 110);
});

test('the picture of throughput is what the tables of its results say', () => {
  assert.equal(readFileSync(throughputPath, 'utf8'), throughputPicture());
});
