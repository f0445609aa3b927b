// Runs the compiled tests with node's own runner: `npm test`, or `npm test -- graph planner/cost` for the files whose
// path contains one of the words; `npm run test:long` for those that take minutes. Node 20's --test takes no globs, so
// the files are found here. The exit code is the runner's.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, sep } from 'node:path';
import { sharedCacheVariable } from './command.ts';

/** Of a file; tests that may hang have limits of their own. */
const timeoutMs = 600_000;
/** Files at a time, on a machine with two cores: the third computes while others wait for processes and time-outs. */
const concurrency = 3;
/** Files whose tests measure what processes of their own take or get, with both cores: one at a time. */
const alone = /\/(?:cli\/(?:quickstart|infer-faults\.long)|lab\/[\w.]+)\.test\.js$/;

/** Files that take minutes: clusters of processes that are killed, browsers, labs, the examples. */
const long = /\.long\.test\.js$/;

/**
 * The compiled test files below `folder` whose path contains one of `words`; without words, those that take minutes, or
 * all others. A file whose source is gone is left out: a stale build.
 */
function testFiles(folder: string, words: readonly string[], isLong: boolean): string[] {
  const sources = join(folder, '..', 'src');
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.test.js'))
    .filter((path) => !existsSync(sources) || existsSync(join(sources, path.replace(/\.js$/, '.ts'))))
    .filter((path) =>
      words.length === 0 ? long.test(path) === isLong : words.some((word) => path.split(sep).join('/').includes(word)),
    )
    .sort()
    .map((path) => join(folder, path));
}

const given = process.argv.slice(2);
const words = given.filter((word) => word !== '--long');
const files = testFiles(join(import.meta.dirname, '..'), words, given.includes('--long'));
if (files.length === 0) {
  console.error(
    words.length === 0
      ? 'There are no tests: run `npm run build` first.'
      : `No test file matches ${words.join(' or ')}.`,
  );
  process.exit(1);
}
// What a device has measured and compiled once, all tests' commands may use.
const cache = mkdtempSync(join(tmpdir(), 'asteroid-cache-'));

/** Runs files; the runner's exit code. */
function runFiles(paths: readonly string[], concurrent: number): number {
  if (paths.length === 0) return 0;
  const options = ['--test', '--test-reporter=spec', `--test-concurrency=${concurrent}`, `--test-timeout=${timeoutMs}`];
  const env = { ...process.env, [sharedCacheVariable]: cache };
  const run = spawnSync(process.execPath, ['--enable-source-maps', ...options, ...paths], { stdio: 'inherit', env });
  if (run.error !== undefined) throw run.error;
  return run.status ?? 1;
}

const isAlone = (file: string): boolean => alone.test(file.split(sep).join('/'));
const codes = [
  runFiles(
    files.filter((file) => !isAlone(file)),
    concurrency,
  ),
  runFiles(files.filter(isAlone), 1),
];
rmSync(cache, { recursive: true, force: true });
process.exitCode = Math.max(...codes);
