// Runs the compiled tests with node's own runner: `npm test`, or `npm test -- graph planner/cost` for the files whose path contains one of
// the words. Node 20's --test takes no globs, so the files are found here. The exit code is the runner's.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, sep } from 'node:path';
import { sharedCacheVariable } from './command.ts';

const timeoutMs = 300_000;
// Two at a time: many tests start worker processes of their own, and timing tests must not starve on a machine with two cores.
const concurrency = 2;

/** The compiled test files below `folder` whose path contains one of `words`, or all. A file whose source is gone is left out: a stale build. */
function testFiles(folder: string, words: readonly string[]): string[] {
  const sources = join(folder, '..', 'src');
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.test.js'))
    .filter((path) => !existsSync(sources) || existsSync(join(sources, path.replace(/\.js$/, '.ts'))))
    .filter((path) => words.length === 0 || words.some((word) => path.split(sep).join('/').includes(word)))
    .sort()
    .map((path) => join(folder, path));
}

const words = process.argv.slice(2);
const files = testFiles(join(import.meta.dirname, '..'), words);
if (files.length === 0) {
  console.error(words.length === 0 ? 'There are no tests: run `npm run build` first.' : `No test file matches ${words.join(' or ')}.`);
  process.exit(1);
}
const options = ['--test', '--test-reporter=spec', `--test-concurrency=${concurrency}`, `--test-timeout=${timeoutMs}`];
// What a device has measured and compiled once, all tests' commands may use: half of their time otherwise.
const cache = mkdtempSync(join(tmpdir(), 'asteroid-cache-'));
const run = spawnSync(process.execPath, ['--enable-source-maps', ...options, ...files], {
  stdio: 'inherit',
  env: { ...process.env, [sharedCacheVariable]: cache },
});
rmSync(cache, { recursive: true, force: true });
if (run.error !== undefined) throw run.error;
process.exitCode = run.status ?? 1;
