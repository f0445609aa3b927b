// What a processor pays besides its layers has one room: each of its constants is named in few files outside it, so
// that another constant is a change there. Fuzzing and made-up profiles count, tests do not.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { overheadShapes } from '../cluster/overhead.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

const src = join(fixtureFolder('pytorch'), '..', '..', '..', 'src');
const mostFiles = 5;
/** An oracle, which must work by itself. */
const oracle = 'testing/slow-simulator.ts';
/** By constant, the file that owns it. */
const rooms: Readonly<Record<string, string>> = {
  ...Object.fromEntries(Object.keys(overheadShapes).map((name) => [name, 'cluster/overhead.ts'])),
  wakeMs: 'cluster/overhead.ts',
  frameWakeMs: 'cluster/overhead.ts',
  transferMsPerMiB: 'cluster/overhead.ts',
  reduceMsPerMiB: 'cluster/overhead.ts',
  runtimeBytes: 'cluster/memory.ts',
};

test('each constant of the cost model is named in at most five source files outside its room', () => {
  const paths = readdirSync(src, { recursive: true, encoding: 'utf8' }).filter(
    (path) => path.endsWith('.ts') && !path.endsWith('.test.ts') && path !== oracle,
  );
  const words = new Map(paths.map((path) => [path, new Set(readFileSync(join(src, path), 'utf8').match(/\w+/g))]));
  for (const [name, room] of Object.entries(rooms)) {
    const named = paths.filter((path) => words.get(path)?.has(name));
    assert.ok(named.includes(room), `${room} does not name ${name}`);
    const outside = named.filter((path) => path !== room);
    assert.ok(outside.length <= mostFiles, `${name} is named in ${outside.join(', ')}`);
  }
});
