// The portable part of the product, bundled for a browser: planner, simulator, the device's executor, coordinator,
// worker and runs. Nothing of Node may be needed for it.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { build } from 'esbuild';
import { folderOf, folders } from './architecture.ts';
import { repository, sourceTexts } from './source-files.ts';

/** What a bundle of these files for a browser imports from outside of it. */
async function outsideImports(files: readonly string[]): Promise<string[]> {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-portable-'));
  try {
    const entry = join(folder, 'entry.ts');
    writeFileSync(entry, files.map((file) => `import ${JSON.stringify(file)};`).join('\n'));
    const { metafile } = await build({
      entryPoints: [entry],
      absWorkingDir: repository,
      nodePaths: [join(repository, 'node_modules')],
      bundle: true,
      write: false,
      metafile: true,
      ignoreAnnotations: true,
      treeShaking: false,
      platform: 'browser',
      format: 'esm',
      logLevel: 'silent',
      external: ['node:*', ...builtinModules, 'onnxruntime-web'],
    });
    const found = Object.values(metafile.inputs).flatMap(({ imports }) => imports);
    return [...new Set(found.filter(({ external }) => external === true).map(({ path }) => path))].sort();
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const isPortable = (path: string): boolean => folders[folderOf(path)]?.kind !== 'host';
const portable = [...sourceTexts('src').keys()].filter((path) => !path.endsWith('.test.ts') && isPortable(path));

test('all portable rooms bundle for a browser without a module of Node', async () => {
  const rooms = new Set(portable.map(folderOf));
  for (const room of ['runtime/worker', 'runtime/coordinator', 'runtime/device', 'runtime/run', 'planner', 'engine'])
    assert.ok(rooms.has(room), room);
  const files = portable.map((path) => join(repository, 'src', path));
  assert.deepEqual(await outsideImports(files), ['onnxruntime-web', 'onnxruntime-web/wasm', 'onnxruntime-web/webgpu']);
});

test('a module of Node would be noticed', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-planted-'));
  try {
    const planted = join(folder, 'planted.ts');
    writeFileSync(
      planted,
      "import { readFileSync } from 'node:fs';\nimport { join } from 'path';\nreadFileSync(join('a'));",
    );
    assert.deepEqual(await outsideImports([planted]), ['node:fs', 'path']);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
