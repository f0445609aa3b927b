import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { operatorsDocument } from './operators-doc.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

test('docs/operators.md is what the tables say', () => {
  const path = join(fixtureFolder('pytorch'), '..', '..', '..', 'docs', 'operators.md');
  assert.equal(
    readFileSync(path, 'utf8'),
    operatorsDocument(),
    'run: npm run build && node dist/testing/generate-operators-doc.js',
  );
});
