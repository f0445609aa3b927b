import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { version } from './version.ts';

test('V8 takes the code cache of the command that the build made; with other flags, for which it is none, the command works as well', () => {
  const { isCacheTaken } = createRequire(import.meta.url)('../bundle/command-line.cjs') as { isCacheTaken: boolean };
  assert.equal(isCacheTaken, true);
  const main = fileURLToPath(new URL('main.js', import.meta.url));
  for (const flags of [[], ['--no-opt']]) {
    assert.equal(execFileSync(process.execPath, [...flags, main, '--version'], { encoding: 'utf8' }), `${version}\n`);
  }
});
