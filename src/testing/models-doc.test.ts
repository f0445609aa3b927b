import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { modelsDocument } from './models-doc.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

test('docs/models.md is what the zoo says', () => {
  const path = join(fixtureFolder('zoo'), '..', '..', '..', 'docs', 'models.md');
  assert.equal(
    readFileSync(path, 'utf8'),
    modelsDocument(),
    'run: npm run build && node dist/testing/generate-models-doc.js',
  );
});
