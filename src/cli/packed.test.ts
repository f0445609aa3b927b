// The package as npm packs it, in an empty project with the packages that it declares and no others, and without the
// native engine, or with one that does not load: everything works over WebAssembly where that is installed, and says in
// one line why it is slow; else it ends with a line that says what to install.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { before, test } from 'node:test';
import { defined } from '../assert.ts';
import { type CommandEnd, type CommandEvent, commandEnvironment, temporaryFolder } from '../testing/command.ts';
import { pytorchFixtures } from '../testing/pytorch-fixtures.ts';

const folder = temporaryFolder();
const timeout = 120_000;
const installed = rootOf(import.meta.dirname);
const slow = 'SLOW: this device computes over WebAssembly, several times slower than it could, because ';
const fix = '; run "npm install --ignore-scripts onnxruntime-node" where asteroid is installed';

function rootOf(start: string): string {
  let root = start;
  while (!existsSync(join(root, 'package.json'))) root = dirname(root);
  return root;
}

interface Manifest {
  readonly name: string;
  readonly bin: { readonly asteroid: string };
  readonly dependencies: Readonly<Record<string, string>>;
  readonly peerDependenciesMeta: Readonly<Record<string, { readonly optional: boolean }>>;
}

const manifest = JSON.parse(readFileSync(join(installed, 'package.json'), 'utf8')) as Manifest;

/** Makes a project with the packed package and what it depends on. */
async function makeProject(name: string, others: readonly string[] = ['onnxruntime-web']): Promise<string> {
  const modules = join(folder, name, 'node_modules');
  const own = join(modules, manifest.name);
  await mkdir(own, { recursive: true });
  execFileSync('tar', ['-xzf', join(folder, 'package.tgz'), '--strip-components=1', '-C', own]);
  for (const dependency of [...Object.keys(manifest.dependencies), ...others]) {
    await mkdir(dirname(join(modules, dependency)), { recursive: true });
    await symlink(join(installed, 'node_modules', dependency), join(modules, dependency));
  }
  return join(folder, name);
}

/** What npm says of a packed package; sizes in bytes. */
interface Packed {
  readonly filename: string;
  readonly size: number;
  readonly unpackedSize: number;
  readonly files: readonly { readonly path: string }[];
}

let packed: Packed;

before(() => {
  const pack = ['pack', '--ignore-scripts', '--json', '--pack-destination', folder];
  [packed] = JSON.parse(execFileSync('npm', pack, { cwd: installed, encoding: 'utf8', stdio: 'pipe' })) as [Packed];
  execFileSync('mv', [join(folder, packed.filename), join(folder, 'package.tgz')]);
});

/** Runs the packed command in its project; resolves with its JSON lines, too. */
async function run(project: string, ...args: string[]): Promise<CommandEnd & { readonly said: CommandEvent[] }> {
  const main = join('node_modules', manifest.name, manifest.bin.asteroid);
  const child = spawn(process.execPath, [main, ...args, '--json'], { cwd: project, env: commandEnvironment(project) });
  let [stdout, stderr] = ['', ''];
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr += text));
  const [code, signal] = await new Promise<[number | null, NodeJS.Signals | null]>((resolve) =>
    child.once('close', (...end) => resolve(end)),
  );
  const said = stdout.split('\n').flatMap((line) => (line === '' ? [] : [JSON.parse(line) as CommandEvent]));
  return { code, signal, stdout, stderr, said };
}

const warnings = (said: readonly CommandEvent[]): unknown[] =>
  said.filter(({ event }) => event === 'warning').map(({ message }) => message);

test('the package is small, has the digits, and leaves heavy packages to those who need them', () => {
  assert.ok(packed.size < 9e6 && packed.unpackedSize < 24e6, `${packed.size} bytes, unpacked ${packed.unpackedSize}`);
  const paths = packed.files.map(({ path }) => path);
  assert.equal(paths.filter((path) => path.startsWith('dist/mnist/')).length, 4);
  assert.deepEqual(
    paths.filter((path) => !/^(dist|clusters)\/|^(README|CHANGELOG)\.md$|^LICENSE$|^package\.json$/.test(path)),
    [],
  );
  assert.deepEqual(
    paths.filter((path) => /\.test\.|\.map$|^dist\/(testing|fuzzing)\//.test(path)),
    [],
  );
  const heavy = ['mnist', 'onnxruntime-web', 'onnxruntime-node', 'sharp'];
  assert.deepEqual(
    heavy.filter((name) => Object.hasOwn(manifest.dependencies, name)),
    [],
  );
  assert.equal(manifest.peerDependenciesMeta['onnxruntime-web']?.optional, true);
  // npm's next major version refuses keys that it does not know.
  assert.doesNotMatch(readFileSync(join(installed, '.npmrc'), 'utf8'), /onnxruntime/);
});

test('without any engine a run ends with what to install', { timeout }, async () => {
  const project = await makeProject('bare', []);
  const { code, stderr } = await run(project, 'train', '--model', 'digits', '--data', 'mnist', '--steps', '1');
  assert.equal(code, 2, stderr);
  assert.match(
    stderr,
    /^[^\n]*needs the package onnxruntime-node, which is not installed: run "npm install --ignore-/m,
  );
  assert.match(stderr, /"npm install onnxruntime-web", which is several times slower/);
});

test('without the native engine: the doctor, a worker and a run say why, and it trains', { timeout }, async () => {
  const fixture = defined(
    pytorchFixtures().find(({ name }) => name === 'mlp/opset17-dynamic'),
    'the fixture',
  );
  const { modelPath, inputsPath, labelsPath, batchSize, learningRate, momentum } = fixture;
  const [missing, broken] = await Promise.all([makeProject('missing'), makeProject('broken')]);
  const native = join(broken, 'node_modules', 'onnxruntime-node');
  await mkdir(native);
  await writeFile(join(native, 'package.json'), '{ "name": "onnxruntime-node", "version": "1.0.0" }');
  await writeFile(join(native, 'index.js'), "throw new Error('libonnxruntime.so.1: cannot open it\\nand more');");
  const data = ['--data', `npy:${inputsPath},${labelsPath}`, '--batch', `${batchSize}`, '--no-shuffle'];
  const [trained, examined, joined] = await Promise.all([
    run(
      missing,
      ...['train', '--model', modelPath, ...data, '--steps', '3'],
      ...['--lr', `${learningRate}`, '--momentum', `${momentum}`],
    ),
    run(missing, 'doctor'),
    run(broken, 'worker', '--join', 'ws://127.0.0.1:1', '--code', 'x'),
  ]);
  const absent = `${slow}the package onnxruntime-node is not installed${fix}`;
  assert.equal(trained.code, 0, trained.stderr);
  assert.deepEqual(warnings(trained.said), [`${absent}.`]);
  const losses = trained.said.filter(({ event }) => event === 'round').map(({ loss }) => Number(loss));
  assert.equal(losses.length, 3);
  for (const [round, loss] of losses.entries())
    assert.ok(Math.abs(loss - defined(fixture.losses[round], 'a loss')) < 1e-4, `round ${round}: ${loss}`);

  const findings = examined.said[0]?.['findings'] as readonly { check: string; state: string; text: string }[];
  const engine = findings.find(({ check }) => check === 'engine');
  assert.equal(engine?.state, 'warning', examined.stderr);
  assert.match(engine?.text ?? '', /^onnxruntime-web \d+\.\d+\.\d+ wasm \(1 thread\)\. /);
  assert.ok(engine?.text.endsWith(absent), engine?.text);

  // Nobody is there to join; what the engine is stands before that.
  assert.equal(joined.code, 1);
  assert.deepEqual(warnings(joined.said), [
    `${slow}the package onnxruntime-node does not load (libonnxruntime.so.1: cannot open it)${fix}.`,
  ]);
});
