// Files and lines keep to a size: at most 400 lines a file of src/, 600 a test, and 120 characters a line in src/ and
// bench/. The length of functions is the linter's (biome.json).

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sourceTexts } from './source-files.ts';

const [maxLines, maxTestLines, maxCharacters] = [400, 600, 120] as const;

/** Pure tables, which may be of any length, as generated code may. */
const tables: readonly string[] = ['testing/gradient-cases/neural.ts', 'testing/operator-cases.ts'];

/** Files that are still to be split. The list only shrinks. */
const longFiles: readonly string[] = ['cli/errors.test.ts'];

/** Files with lines still to be wrapped. The list only shrinks. */
const wideFiles: readonly string[] = [];

type Texts = ReadonlyMap<string, string>;

const isGenerated = (path: string): boolean => path.includes('/generated/');
const linesOf = (text: string): string[] => text.trimEnd().split('\n');

/** The files with more lines than they may have. */
function longIn(texts: Texts): string[] {
  const isLong = (path: string, text: string): boolean =>
    linesOf(text).length > (path.endsWith('.test.ts') ? maxTestLines : maxLines);
  const long = [...texts].filter(([path, text]) => isLong(path, text)).map(([path]) => path);
  return long.filter((path) => !isGenerated(path) && !tables.includes(path)).sort();
}

/** The files with lines of more characters (code points) than they may have. */
function wideIn(texts: Texts): string[] {
  const isWide = (text: string): boolean => linesOf(text).some((line) => Array.from(line).length > maxCharacters);
  return [...texts].flatMap(([path, text]) => (!isGenerated(path) && isWide(text) ? [path] : [])).sort();
}

test('files have at most 400 lines, tests 600', () => {
  assert.deepEqual(longIn(sourceTexts('src')), longFiles, 'split the files, and remove from the list what is split');
});

test('lines have at most 120 characters', () => {
  const bench = [...sourceTexts('bench')].map(([path, text]) => [`bench/${path}`, text] as const);
  const texts = new Map([...sourceTexts('src'), ...bench]);
  assert.deepEqual(wideIn(texts), wideFiles, 'wrap the lines, and remove from the list what is wrapped');
});

test('a file that is too long and a line that is too wide are found', () => {
  const lines = (count: number): string => 'a\n'.repeat(count);
  const texts = new Map([
    ['fitting.ts', lines(400)],
    ['long.ts', lines(401)],
    ['fitting.test.ts', lines(600)],
    ['long.test.ts', lines(601)],
    ['graph/generated/long.ts', lines(401)],
    ['testing/operator-cases.ts', lines(401)],
    ['wide.ts', `a\n${'a'.repeat(121)}\n`],
    ['surrogates.ts', '🙂'.repeat(120)],
  ]);
  assert.deepEqual(longIn(texts), ['long.test.ts', 'long.ts']);
  assert.deepEqual(wideIn(texts), ['wide.ts']);
});
