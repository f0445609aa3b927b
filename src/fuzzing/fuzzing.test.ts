// Random and damaged input, to everything that reads any. A million inputs are `npm run fuzz -- --inputs 1000000`.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { fuzzRange } from './fuzz.ts';
import { shareInputs } from './target.ts';
import { targetOf, targets } from './targets.ts';
import { fuzzOnThreads } from './threads.ts';

const inputCount = 300;
const sharing = targets.filter(({ share }) => share > 0);

for (const entry of sharing) {
  test(`${entry.name}: ${inputCount} inputs are taken or refused with a sentence`, async () => {
    const summary = await fuzzRange(entry, await entry.create(), { target: entry.name, first: 0, end: inputCount });
    assert.deepEqual(summary.failures, []);
    assert.equal(summary.acceptedCount + summary.refusedCount, inputCount);
    // Both must happen, or nothing is tried.
    assert.ok(summary.acceptedCount > 0 && summary.refusedCount > 0, JSON.stringify(summary));
  });
}

test('equal seeds have equal outcomes in any thread', async () => {
  const [target, first, end] = ['safetensors', 1000, 2100];
  const entry = targetOf(target);
  const alone = await fuzzRange(entry, await entry.create(), { target, first, end });
  const limits = { limitMs: 2000, limitMiB: 64 };
  const together = (await fuzzOnThreads([{ target, first, end }], { threadCount: 2, limits })).get(target);
  assert.deepEqual({ ...together, milliseconds: 0 }, { ...alone, milliseconds: 0 });
  const other = await fuzzRange(entry, await entry.create(), { target, first: 0, end: 1100 });
  assert.notEqual(other.outcomeHash, alone.outcomeHash);
});

test('a million inputs are shared as the table says', () => {
  const counts = shareInputs(targets, 1_000_000);
  assert.equal(
    [...counts.values()].reduce((sum, count) => sum + count, 0),
    1_000_000,
  );
  assert.deepEqual(
    [...counts.keys()],
    sharing.map(({ name }) => name),
  );
});

/** The command line, as `npm run fuzz --` calls it. */
function run(...flags: readonly string[]): {
  readonly code: number | null;
  readonly out: string;
  readonly err: string;
} {
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [fileURLToPath(new URL('main.js', import.meta.url)), ...flags],
    {
      encoding: 'utf8',
    },
  );
  return { code: status, out: stdout, err: stderr };
}

for (const [name, pattern] of [
  ['planted-type-error', /TypeError: Cannot read properties of undefined/],
  ['planted-loop', /it did not end within 1\.5 s/],
  ['planted-silence', /it did not end within 1\.5 s/],
  ['planted-memory', /it took [789]\d MiB of memory, more than 64 MiB/],
  ['planted-array', /it took [89]\d MiB of memory, more than 64 MiB/],
  ['planted-page', /no sentence for a person/],
] as const) {
  test(`${name} is found, and nothing else`, async () => {
    const options = { threadCount: 2, limits: { limitMs: 1000, limitMiB: 64 }, hangMs: 1500 };
    const summary = (await fuzzOnThreads([{ target: name, first: 0, end: 40 }], options)).get(name);
    const failures = summary?.failures ?? [];
    assert.ok(failures.length > 0 && failures.length < 10, `${failures.length} failures`);
    for (const { problem } of failures) assert.match(problem, pattern);
    assert.equal(summary?.inputCount, 40);
  });
}

test('the printed command takes the failing input again', () => {
  const first = run('--only', 'planted-type-error', '--inputs', '40');
  assert.equal(first.code, 1);
  const [, flags] = /see it again: npm run fuzz -- (.+)/.exec(first.out) ?? [];
  const again = run(...(flags ?? '').split(' '));
  assert.equal(again.code, 1);
  assert.match(again.out, /TypeError: Cannot read properties of undefined/);
  assert.match(again.out, /1 inputs in/);
});

test('a wrong flag is one sentence, and exit code 2', () => {
  for (const flags of [
    ['--inputs', 'many'],
    ['--inputs', '0'],
    ['--start', '-1'],
    ['--only', 'nothing'],
    ['--nonsense'],
    ['12'],
  ]) {
    const { code, out, err } = run(...flags);
    assert.deepEqual([code, out], [2, '']);
    assert.match(err, /^[^\n]{10,600}\.\n$/);
  }
});
