import assert from 'node:assert/strict';
import { posix } from 'node:path';
import { test } from 'node:test';
import { basename, dirname, join } from './paths.ts';

test('folders, names and joined paths are what node:path says of them', () => {
  for (const path of ['a', 'a/b', '/a', '/a/b.c', './a/b', '../x', 'a/b/', '/', 'a\\b/c']) {
    assert.equal(dirname(path), posix.dirname(path), path);
    assert.equal(basename(path), posix.basename(path), path);
  }
  for (const parts of [
    ['a', 'b'],
    ['/a', 'b', 'c.d'],
    ['a/', 'b'],
    ['.', 'b'],
    ['', 'b'],
    ['/', 'b'],
    ['../a', 'b/c'],
  ])
    assert.equal(join(...parts), posix.join(...parts), parts.join(' '));
});

test('an absolute path of Windows has backslashes between its parts', () => {
  assert.equal(dirname('C:\\runs\\x'), 'C:\\runs');
  assert.equal(basename('\\\\host\\runs\\x'), 'x');
});
