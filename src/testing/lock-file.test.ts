import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { addressed, completed, type LockFile, missingOptional } from './lock-file.ts';
import { fixtureFolder } from './pytorch-fixtures.ts';

test('package-lock.json holds every optional package that it names, and no address', () => {
  const file = join(fixtureFolder('pytorch'), '..', '..', '..', 'package-lock.json');
  const read = (): LockFile => JSON.parse(readFileSync(file, 'utf8')) as LockFile;
  if (process.env['UPDATE'] === '1') writeFileSync(file, completed(read()));
  assert.deepEqual(
    Object.keys(missingOptional(read())),
    [],
    'npm ci would refuse it; run: UPDATE=1 npm test -- testing/lock-file',
  );
  assert.deepEqual(addressed(read()), []);
});

test('a missing package for another system gets the entry that npm writes for it', () => {
  const owner = {
    version: '1.2.3',
    dev: true,
    license: 'MIT',
    optionalDependencies: { '@a/b-darwin-arm64': '1.2.3', '@a/b-linux-x64-musl': '1.2.3' },
  };
  const lock: LockFile = {
    packages: { '': {}, 'node_modules/@a/b': owner, 'node_modules/c': { version: '1.0.0', resolved: 'somewhere' } },
  };
  assert.deepEqual(missingOptional(lock), {
    'node_modules/@a/b-darwin-arm64': {
      version: '1.2.3',
      cpu: ['arm64'],
      os: ['darwin'],
      dev: true,
      license: 'MIT',
      optional: true,
    },
    'node_modules/@a/b-linux-x64-musl': {
      version: '1.2.3',
      cpu: ['x64'],
      os: ['linux'],
      libc: ['musl'],
      dev: true,
      license: 'MIT',
      optional: true,
    },
  });
  assert.deepEqual(addressed(lock), ['node_modules/c']);
  const folders = Object.keys((JSON.parse(completed(lock)) as LockFile).packages);
  assert.deepEqual(folders, [
    '',
    'node_modules/@a/b',
    'node_modules/@a/b-darwin-arm64',
    'node_modules/@a/b-linux-x64-musl',
    'node_modules/c',
  ]);
  assert.deepEqual(missingOptional(JSON.parse(completed(lock)) as LockFile), {});
});
