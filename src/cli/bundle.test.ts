import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { version } from './version.ts';

test('V8 takes the code cache that the build made; under flags that reject it the command still works', () => {
  const { isCacheTaken } = createRequire(import.meta.url)('../bundle/command-line.cjs') as { isCacheTaken: boolean };
  assert.equal(isCacheTaken, true);
  const main = fileURLToPath(new URL('main.js', import.meta.url));
  for (const flags of [[], ['--no-opt']]) {
    assert.equal(execFileSync(process.execPath, [...flags, main, '--version'], { encoding: 'utf8' }), `${version}\n`);
  }
});
