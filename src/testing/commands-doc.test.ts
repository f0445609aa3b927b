import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { commandsDocument } from './commands-doc.ts';
import { repository } from './source-files.ts';

test('docs/commands.md is what the commands say of themselves', async () => {
  assert.equal(
    readFileSync(join(repository, 'docs', 'commands.md'), 'utf8'),
    await commandsDocument(),
    'run: npm run build && node dist/testing/generate-commands-doc.js',
  );
});

test('every page under docs/ is reached from docs/README.md', () => {
  const index = readFileSync(join(repository, 'docs', 'README.md'), 'utf8');
  const pages = readdirSync(join(repository, 'docs')).filter((name) => name.endsWith('.md') && name !== 'README.md');
  assert.deepEqual(
    pages.filter((name) => !index.includes(`(${name})`)),
    [],
  );
});
