// Puts the code of the command, and of the threads that it starts, into few files below dist/bundle: a command starts in half the time that its hundreds of
// modules take one by one. Run by `npm run build` after the compiler, whose output stays for the library and the tests; the command's entries then import the
// bundle. Without it the command works as well.

import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const at = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
const entries = ['cli/main', 'engine/compute-thread-entry', 'runtime/worker/stages-ahead-entry'];
const own = at('src');

/** A module finds its neighbours where the compiler put it, wherever its code is. */
const places = {
  name: 'places',
  setup: ({ onLoad }) =>
    onLoad({ filter: /\.ts$/ }, ({ path }) => {
      const place = `../${relative(own, path).replaceAll('\\', '/').replace(/\.ts$/, '.js')}`;
      const contents = readFileSync(path, 'utf8').replaceAll('import.meta.url', `new URL(${JSON.stringify(place)}, import.meta.url).href`);
      return { contents, loader: 'ts' };
    }),
};

rmSync(at('dist/bundle'), { recursive: true, force: true });
await build({
  entryPoints: entries.map((entry) => ({ in: at(`src/${entry}.ts`), out: basename(entry) })),
  outdir: at('dist/bundle'),
  bundle: true,
  splitting: true,
  format: 'esm',
  platform: 'node',
  target: 'node20',
  // Packages that are loaded only where they are needed, some of which look for files of their own.
  external: ['onnxruntime-*', 'mnist', 'bonjour-service', '@peculiar/x509', 'reflect-metadata'],
  // CommonJS packages among ours ask for Node.js's modules.
  banner: { js: "import { createRequire as requireFrom } from 'node:module'; const require = requireFrom(import.meta.url);" },
  plugins: [places],
  logLevel: 'warning',
});
for (const entry of entries) {
  const bundled = `${'../'.repeat(dirname(entry).split('/').length)}bundle/${basename(entry)}.js`;
  writeFileSync(at(`dist/${entry}.js`), `${entry === 'cli/main' ? '#!/usr/bin/env node\n' : ''}import '${bundled}';\n`);
}
