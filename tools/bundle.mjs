// Bundles the code of the command, and of the threads that it starts, into a few files below dist/bundle: a command
// starts in a fraction of the time that loading its hundreds of modules takes. Run by `npm run build` after the
// compiler, whose output stays for the library and the tests; the entries then import the bundle. The command also
// works without it.
// The command's own code is one script next to V8's code cache of it (tools/command-line.cjs), so that what a short
// command runs need not be compiled first.

import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const at = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
const threads = [
  'engine/node/compute-thread-entry',
  'runtime/host/stages-ahead-entry',
  'storage/node/pictures/decode-thread-entry',
  'window/server/what-if-thread-entry',
];
/** Processes whose code is the command's, by their name there (src/cli/command-line.ts). */
const processes = { 'profile-apart': 'runtime/host/profile-apart-entry' };
const own = at('src');

/**
 * Bundled code resolves `import.meta.url` to the place where the compiler put its module, next to the folder of the
 * bundle at this URL, so that a module finds its neighbours. Packages and files that are not bundled are loaded by
 * `load`.
 */
const places = (url, load) => ({
  name: 'places',
  setup: ({ onLoad }) =>
    onLoad({ filter: /\.ts$/ }, ({ path }) => {
      const place = `../${relative(own, path).replaceAll('\\', '/').replace(/\.ts$/, '.js')}`;
      const contents = readFileSync(path, 'utf8')
        .replaceAll('import.meta.url', `new URL(${JSON.stringify(place)}, ${url}).href`)
        .replaceAll(/(?<!typeof )\bimport\((?!'\.)/g, `${load}(`);
      return { contents, loader: 'ts' };
    }),
});

const options = {
  bundle: true,
  platform: 'node',
  target: 'node20',
  // Packages that are loaded only when they are needed; some look for files of their own.
  external: ['onnxruntime-*', 'sharp', '@huggingface/*', 'hyparquet*', 'bonjour-service', '@peculiar/x509', 'reflect-metadata'],
  logLevel: 'warning',
};

rmSync(at('dist/bundle'), { recursive: true, force: true });
await build({
  ...options,
  entryPoints: threads.map((entry) => ({ in: at(`src/${entry}.ts`), out: basename(entry) })),
  outdir: at('dist/bundle'),
  splitting: true,
  format: 'esm',
  // CommonJS packages among ours ask for Node.js's modules.
  banner: {
    js: "import { createRequire as requireFrom } from 'node:module'; const require = requireFrom(import.meta.url);",
  },
  plugins: [places('import.meta.url', 'import')],
});
for (const entry of threads) {
  const bundled = `${'../'.repeat(dirname(entry).split('/').length)}bundle/${basename(entry)}.js`;
  writeFileSync(at(`dist/${entry}.js`), `import '${bundled}';\n`);
}
for (const [name, entry] of Object.entries(processes)) {
  const command = `${'../'.repeat(dirname(entry).split('/').length)}bundle/command-line.cjs`;
  const lines = [`import command from '${command}';`, `await command.processes['${name}']();`];
  writeFileSync(at(`dist/${entry}.js`), `${lines.join('\n')}\n`);
}

await build({
  ...options,
  entryPoints: [at('src/cli/command-line.ts')],
  outfile: at('dist/bundle/command-line.script'),
  format: 'cjs',
  banner: { js: '(function (exports, require, module, scriptUrl, importHere) {' },
  footer: { js: '})' },
  plugins: [places('scriptUrl', 'importHere')],
});
copyFileSync(at('tools/command-line.cjs'), at('dist/bundle/command-line.cjs'));

// The pages: everything that they need, for a browser that reaches nobody but the run. The engine's own files are served
// from its package (src/window/server/page-files.ts).
const engine = {
  name: 'engine',
  setup: ({ onResolve }) =>
    onResolve({ filter: /^onnxruntime-web/ }, ({ path }) => ({
      path: path.endsWith('/webgpu') ? '/ort-gpu.js' : '/ort.js',
      external: true,
    })),
};
const pageOptions = {
  bundle: true,
  minify: true,
  platform: 'browser',
  target: ['chrome109', 'firefox115', 'safari16.4'],
  format: 'esm',
  legalComments: 'none',
  entryNames: '[name]',
  logLevel: 'warning',
};
await build({
  ...pageOptions,
  jsx: 'automatic',
  jsxImportSource: 'preact',
  entryPoints: [at('src/window/page/main.tsx'), at('src/window/page/page.css')],
  outdir: at('dist/window/page'),
});
renameSync(at('dist/window/page/main.js'), at('dist/window/page/page.js'));
for (const name of ['index.html', 'icon.svg']) copyFileSync(at(`src/window/page/${name}`), at(`dist/window/page/${name}`));
await build({
  ...pageOptions,
  entryPoints: ['join.ts', 'join.css', 'compute.ts', 'engine.ts'].map((name) => at(`src/tab/page/${name}`)),
  outdir: at('dist/tab/page'),
  plugins: [engine],
});
copyFileSync(at('src/tab/page/join.html'), at('dist/tab/page/join.html'));

// The digits of the quickstart, from a package of 41 MB that nobody else needs: 1.6 MB as files of MNIST's form.
const digits = at('dist/mnist');
if (!existsSync(digits)) {
  const { convertDigits } = await import('../dist/training/data/digits.js');
  const { writeIdx } = await import('../dist/training/data/idx.js');
  const source = (digit) => createRequire(import.meta.url).resolve(`mnist/src/digits/${digit}.json`);
  const files = Array.from({ length: 10 }, (_, digit) => ({ name: source(digit), bytes: readFileSync(source(digit)) }));
  const { train, test } = convertDigits(files);
  mkdirSync(digits);
  for (const [name, { images, labels }] of Object.entries({ train, t10k: test })) {
    writeFileSync(join(digits, `${name}-images-idx3-ubyte.gz`), gzipSync(writeIdx(images), { level: 9 }));
    writeFileSync(join(digits, `${name}-labels-idx1-ubyte.gz`), gzipSync(writeIdx(labels), { level: 9 }));
  }
}

// The cache holds what was compiled by the time it is made: the start of all commands, and planning; for commands that
// compute, what makes graphs of layers too, where there is an engine.
const folder = mkdtempSync(join(tmpdir(), 'asteroid-build-'));
const plan = ['plan', '--model', 'mobilenetv2:input=32', '--batch', '8', '--json'];
plan.push('--cluster', at('clusters/asteroid-a.yaml'));
const commands = [['--help'], [...plan, '--planner', 'pipeedge'], [...plan, '--planner', 'best', '--time-limit', '1']];
// Commands that compute start themselves again with flags (src/engine/node/host-node.ts), and V8 has a cache for each.
const { computeEnvironment } = await import('../dist/engine/node/host-node.js');
const environment = { ...process.env, HOME: folder, NODE_OPTIONS: '' };
const warm = (words, env, stderr) => {
  const script = JSON.stringify(at('dist/bundle/command-line.cjs'));
  const run = `require(${script}).writeCodeCache(${JSON.stringify(words)})`;
  execFileSync(process.execPath, ['-e', run], { cwd: folder, env, stdio: ['ignore', 'ignore', stderr] });
};
const train = ['train', '--model', 'mobilenetv2:input=32', '--data', 'synthetic:3x32x32', '--batch', '2', '--steps', '1'];
try {
  for (const words of commands) warm(words, environment, 'inherit');
  const computing = computeEnvironment(environment);
  for (const words of commands) warm(words, computing, 'inherit');
  try {
    warm(train, computing, 'ignore');
  } catch {
    // No engine here: what it would compile is compiled when it is needed.
  }
} finally {
  rmSync(folder, { recursive: true });
}

// A process that only waits for its child (cli/compute-process.ts) loads this and nothing else.
const commandLine = {
  name: 'command-line',
  setup: ({ onResolve }) =>
    onResolve({ filter: /\/command-line\.ts$/ }, () => ({ path: '../bundle/command-line.cjs', external: true })),
};
await build({
  ...options,
  entryPoints: [at('src/cli/main.ts')],
  outfile: at('dist/cli/main.js'),
  format: 'esm',
  plugins: [commandLine],
});
