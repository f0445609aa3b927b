// The pages under docs/ that describe the code: lines that fit a screen, decisions that fit a paragraph, and no path
// that has moved away.
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { test } from 'node:test';
import { repository as root } from './source-files.ts';

const documents = readdirSync(join(root, 'docs'))
  .filter((name) => name.endsWith('.md'))
  .map((name) => ({ name, text: readFileSync(join(root, 'docs', name), 'utf8') }));
const generated = ['commands.md', 'models.md', 'operators.md', 'reproduction.md'];

const maxLineLength = 120;
const maxEntryWords = 120;
const fields = ['Decision', 'Why', 'Price', 'Where', 'Evidence'];

/** Lines of a text that are longer than a screen is wide; rows of tables and commands cannot be wrapped. */
function longLines(text: string): string[] {
  const isFixed = (line: string): boolean => line.startsWith('|') || line.startsWith('$ asteroid');
  const prose = text.replace(/^```sh\n.*?^```/gmsu, '').split('\n');
  return prose.filter((line) => !isFixed(line) && [...line].length > maxLineLength);
}

/** The entries of the section "Decisions": a heading of the third level and its text. */
function decisions(text: string): readonly { readonly title: string; readonly body: string }[] {
  const section = /^## Decisions\n(?<body>.*?)^## /msu.exec(text)?.groups?.['body'] ?? '';
  return section
    .split(/^### /mu)
    .slice(1)
    .map((entry) => ({ title: entry.slice(0, entry.indexOf('\n')), body: entry.slice(entry.indexOf('\n')) }));
}

/** What is wrong with an entry; empty if nothing is. */
function faultsOf(body: string): string[] {
  const words = body.split(/\s+/u).filter((word) => word !== '').length;
  const found = [...body.matchAll(/\*\*(\w+)\.\*\*/gu)].map(([, field]) => field ?? '');
  return [
    ...(words > maxEntryWords ? [`has ${words} words, at most ${maxEntryWords} are allowed`] : []),
    ...(found.join() === fields.join() ? [] : [`has the fields ${found.join()}, not ${fields.join()}`]),
  ];
}

const fileNames = new Set(
  readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' }).map((path) => basename(path)),
);

/** Paths that a text names, in code spans and links, and that are not there. */
function missingPaths(text: string, folder: string): string[] {
  const spans = [...text.replace(/^```.*?^```/gmsu, '').matchAll(/`([\w./-]+)`/gu)].map(([, span]) => span ?? '');
  const named = spans.filter((span) => /^(?:src|docs|bench|clusters|examples|tools|test)\//u.test(span));
  const bare = spans.filter((span) => /^[\w./-]+\.(?:ts|mjs)$/u.test(span) && !named.includes(span));
  const links = [...text.matchAll(/\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)/gu)].map(([, target]) => target ?? '');
  const rooms = ['', 'src', 'src/runtime', 'src/autodiff', 'src/engine', 'src/transport', 'src/graph'];
  return [
    ...named.filter((path) => !existsSync(join(root, path))),
    ...bare.filter((path) =>
      path.includes('/') ? !rooms.some((room) => existsSync(join(root, room, path))) : !fileNames.has(path),
    ),
    ...links.filter((path) => !existsSync(join(root, folder, path))),
  ];
}

test('lines of the pages that are written by hand are at most 120 wide', () => {
  for (const { name, text } of documents) if (!generated.includes(name)) assert.deepEqual(longLines(text), [], name);
});

test('every decision has its five fields in at most 120 words', () => {
  const { text } = documents.find(({ name }) => name === 'architecture.md') ?? assert.fail();
  const entries = decisions(text);
  assert.ok(entries.length >= 12 && entries.length <= 18, `${entries.length} decisions`);
  assert.deepEqual(
    entries.flatMap(({ title, body }) => faultsOf(body).map((fault) => `${title}: ${fault}`)),
    [],
  );
});

test('every path that a page under docs/ names exists', () => {
  const missing = documents.flatMap(({ name, text }) =>
    missingPaths(text, dirname(join('docs', name))).map((path) => `${name}: ${path}`),
  );
  assert.deepEqual(missing, []);
});

test('the checks find what they look for', () => {
  assert.equal(longLines(`${'x'.repeat(121)}\nshort`).length, 1);
  assert.deepEqual(faultsOf('**Decision.** a **Why.** b **Price.** c **Where.** d'), [
    'has the fields Decision,Why,Price,Where, not Decision,Why,Price,Where,Evidence',
  ]);
  assert.match(faultsOf('word '.repeat(121))[0] ?? '', /has 121 words/u);
  assert.deepEqual(missingPaths('`src/no/such.ts`, `nowhere.ts`, [a](nothing.md), `src/graph/layers.ts`', 'docs'), [
    'src/no/such.ts',
    'nowhere.ts',
    'nothing.md',
  ]);
});
