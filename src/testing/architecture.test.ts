// The import directions hold over all of src/, the check notices each kind of breach, and the linter is told the same
// table.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import test from 'node:test';
import { folders, lintOverrides, reachable, violations } from './architecture.ts';
import { repository as root, sourceTexts } from './source-files.ts';

const biome = join(root, 'node_modules', '@biomejs', 'biome', 'bin', 'biome');

/**
 * Lints `files` (path to text) under this repository's biome.json in a folder of their own; returns the rules broken in
 * each file.
 */
function lint(files: Record<string, string>): Record<string, string[]> {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-lint-'));
  try {
    const config = JSON.parse(readFileSync(join(root, 'biome.json'), 'utf8')) as object;
    copyFileSync(join(root, 'biome.imports.json'), join(folder, 'biome.imports.json'));
    writeFileSync(join(folder, 'biome.json'), JSON.stringify({ ...config, vcs: { enabled: false } }));
    for (const [path, source] of Object.entries(files)) {
      mkdirSync(dirname(join(folder, path)), { recursive: true });
      writeFileSync(join(folder, path), source);
    }
    const result = spawnSync(process.execPath, [biome, 'lint', '--reporter=json', '.'], {
      cwd: folder,
      encoding: 'utf8',
    });
    assert.equal(result.error, undefined);
    const report = JSON.parse(result.stdout) as {
      diagnostics: { category: string; location: { path: string | { file: string } } }[];
    };
    const broken: Record<string, string[]> = Object.fromEntries(Object.keys(files).map((path) => [path, []]));
    for (const { category, location } of report.diagnostics) {
      const path = typeof location.path === 'string' ? location.path : location.path.file;
      broken[path.replace(/^\.\//, '')]?.push(category.split('/').at(-1) ?? '');
    }
    return broken;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test('no file of src breaks the import directions', () => {
  const sources = sourceTexts('src');
  assert.ok(sources.size > 20);
  assert.deepEqual(violations(sources), []);
});

test('the table is the one of the design', () => {
  assert.deepEqual([...reachable('engine')].sort(), ['autodiff', 'engine', 'graph', 'leaf', 'lowering']);
  assert.deepEqual([...reachable('planner')].sort(), ['cluster', 'leaf', 'planner', 'schedule', 'simulator']);
  assert.deepEqual([...reachable('storage')].sort(), ['graph', 'leaf', 'storage', 'training']);
  assert.deepEqual([...reachable('transport')].sort(), ['leaf', 'transport']);
  const pure = Object.keys(folders).filter((name) => folders[name]?.kind === 'pure');
  assert.deepEqual(pure.sort(), [
    'autodiff',
    'cluster',
    'graph',
    'lowering',
    'planner',
    'schedule',
    'simulator',
    'training',
  ]);
});

test('each kind of breach is noticed', () => {
  const breachesOf = (files: Record<string, string>): string[] => violations(new Map(Object.entries(files)));
  const leaf = { 'errors.ts': '' };
  assert.deepEqual(
    breachesOf({ ...leaf, 'graph/a.ts': "import { x } from '../errors.ts';\nimport './b.ts';", 'graph/b.ts': '' }),
    [],
  );
  assert.deepEqual(
    breachesOf({ 'graph/a.ts': "import type {\n  X,\n} from '../runtime/run/b.ts';", 'runtime/run/b.ts': '' }),
    ['graph/a.ts imports runtime/run/b.ts: graph builds on leaf'],
  );
  assert.deepEqual(breachesOf({ 'planner/a.ts': "export * from '../graph/b.ts';", 'graph/b.ts': '' }), [
    'planner/a.ts imports graph/b.ts: planner builds on simulator',
  ]);
  assert.deepEqual(
    breachesOf({
      'transport/a.ts': "import { b } from '../graph/tensor.ts';\nimport { c } from '../graph/c.ts';",
      'graph/tensor.ts': '',
      'graph/c.ts': '',
    }),
    ['transport/a.ts imports graph/c.ts: transport builds on leaf'],
  );
  assert.deepEqual(breachesOf({ 'cli/a.ts': "const b = await import('../testing/b.ts');", 'testing/b.ts': '' }), [
    'cli/a.ts imports testing/b.ts: cli builds on rehearsal, lab, window/server',
  ]);
  assert.deepEqual(breachesOf({ 'graph/a.ts': "import { readFile } from 'node:fs/promises';" }), [
    'graph/a.ts imports node:fs/promises: graph is pure',
  ]);
  assert.deepEqual(breachesOf({ 'graph/a.ts': 'export const x = Math.random() + Date.now(); // performance.now()' }), [
    'graph/a.ts uses Math.random: graph is pure',
    'graph/a.ts uses Date: graph is pure',
  ]);
  assert.deepEqual(
    breachesOf({
      'graph/a.ts': "import './b.ts';",
      'graph/b.ts': "import './c.ts';",
      'graph/c.ts': "import './b.ts';",
    }),
    ['imports run in a circle: graph/b.ts -> graph/c.ts -> graph/b.ts'],
  );
  assert.deepEqual(breachesOf({ 'utils/a.ts': '' }), [
    'utils/a.ts: the folder utils is not in the table of testing/architecture.ts',
  ]);
  assert.deepEqual(breachesOf({ 'graph/a.test.ts': "import 'node:fs';" }), []);
});

test('the linter is told the same table', () => {
  const file = join(root, 'biome.imports.json');
  const expected = `${JSON.stringify({ overrides: lintOverrides() }, null, 2)}\n`;
  if (process.env['UPDATE'] === '1') writeFileSync(file, expected);
  assert.equal(
    readFileSync(file, 'utf8'),
    expected,
    'after a change of the table: UPDATE=1 npm test -- testing/architecture',
  );
  assert.deepEqual((JSON.parse(readFileSync(join(root, 'biome.json'), 'utf8')) as { extends: unknown }).extends, [
    './biome.imports.json',
  ]);
});

test('the linter objects to wrong code, folder by folder', {
  skip: existsSync(biome) ? false : 'Biome is not installed here',
}, () => {
  const use = (path: string): string => `import { x } from '${path}';\nexport const y: number = x;\n`;
  const broken = lint({
    'src/graph/tensor.ts': 'export const x = 1;\n',
    'src/graph/upward.ts': use('../runtime/run/x.ts'),
    'src/graph/onnx/upward.ts': use('../../autodiff/x.ts'),
    'src/graph/upward.test.ts': use('../runtime/run/x.ts'),
    'src/schedule/right.ts': use('../cluster/x.ts'),
    'src/schedule/disk.ts': use('node:fs'),
    'src/schedule/promises.ts': use('node:fs/promises'),
    'src/transport/right.ts': use('../graph/tensor.ts'),
    'src/transport/wrong.ts': use('../graph/graph.ts'),
    'src/runtime/run/wrong.ts': use('../../testing/x.ts'),
    'src/planner/clock.ts': 'export const now: number = Date.now();\n',
    'src/cli/any.ts': 'export const y: any = 1;\n',
    'src/cli/unused.ts': "import { x } from './any.ts';\n",
    'src/cli/floating.ts': 'async function f(): Promise<void> {}\nexport function g(): void {\n  f();\n}\n',
    'src/cli/one.ts': "import { two } from './two.ts';\nexport const one = (): number => two();\n",
    'src/cli/two.ts': "import { one } from './one.ts';\nexport const two = (): number => one();\n",
  });
  assert.deepEqual(broken, {
    'src/graph/tensor.ts': [],
    'src/graph/upward.ts': ['noRestrictedImports'],
    'src/graph/onnx/upward.ts': ['noRestrictedImports'],
    'src/graph/upward.test.ts': [],
    'src/schedule/right.ts': [],
    'src/schedule/disk.ts': ['noRestrictedImports'],
    'src/schedule/promises.ts': ['noRestrictedImports'],
    'src/transport/right.ts': [],
    'src/transport/wrong.ts': ['noRestrictedImports'],
    'src/runtime/run/wrong.ts': ['noRestrictedImports'],
    'src/planner/clock.ts': ['noRestrictedGlobals'],
    'src/cli/any.ts': ['noExplicitAny'],
    'src/cli/unused.ts': ['noUnusedImports'],
    'src/cli/floating.ts': ['noFloatingPromises'],
    'src/cli/one.ts': ['noImportCycles'],
    'src/cli/two.ts': ['noImportCycles'],
  });
});
