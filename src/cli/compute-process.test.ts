// Commands that compute run in a child with settings of the C library. From outside it cannot be told apart from a
// command in one process.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { text } from 'node:stream/consumers';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { defined } from '../assert.ts';
import { allocatorEnvironment, computeEnvironment } from '../engine/node/host-node.ts';
import { childrenOf, commandEnvironment, isAlive, temporaryFolder, until } from '../testing/command.ts';
import { memoryLimit, needsComputeProcess } from './compute-process.ts';

const cwd = temporaryFolder();
const skip = process.platform !== 'linux' && 'processes are looked for in /proc';
/** Accepts links and says nothing: a worker that joins there waits. */
const silent = createServer();
const secret = 'open-sesame';
const settings = Object.entries(allocatorEnvironment());

before(() => once(silent.listen(0, '127.0.0.1'), 'listening'));
after(() => silent.close());

test('only commands that compute, only on Linux, and not where the settings are already set', () => {
  const cases: readonly (readonly [string, NodeJS.ProcessEnv, NodeJS.Platform, boolean])[] = [
    ['worker --join here', {}, 'linux', true],
    ['train', { HOME: '/' }, 'linux', true],
    ['worker --help', {}, 'linux', false],
    ['plan', {}, 'linux', false],
    ['', {}, 'linux', false],
    ['worker', {}, 'darwin', false],
    ['worker', { MALLOC_ARENA_MAX: '4' }, 'linux', false],
    ['worker', { GLIBC_TUNABLES: 'glibc.malloc.check=3' }, 'linux', false],
    ['worker', allocatorEnvironment(0), 'linux', false],
    ['worker', { MALLOC_MMAP_MAX_: '0' }, 'linux', true],
  ];
  for (const [words, environment, platform, expected] of cases)
    assert.equal(
      needsComputeProcess(words.split(' '), environment, platform),
      expected,
      `${words} ${JSON.stringify(environment)} ${platform}`,
    );
});

test('the settings are added once to what is already set', () => {
  const option = '--max-semi-space-size=2';
  const { NODE_OPTIONS, HOME, MALLOC_ARENA_MAX, ...others } = computeEnvironment({
    HOME: '/home',
    MALLOC_ARENA_MAX: '4',
    NODE_OPTIONS: '--no-warnings',
  });
  assert.deepEqual([NODE_OPTIONS, HOME, MALLOC_ARENA_MAX], [`--no-warnings ${option}`, '/home', '4']);
  assert.deepEqual(Object.keys(others).length, settings.length - 1);
  const once = computeEnvironment({});
  assert.equal(once.NODE_OPTIONS, option);
  assert.deepEqual(computeEnvironment(once), once);
  assert.equal(
    computeEnvironment({ NODE_OPTIONS: '--max-semi-space-size=64' }).NODE_OPTIONS,
    '--max-semi-space-size=64',
  );
});

test('blocks are mappings of their own where memory is scarce: on a board, and where a flag says so', () => {
  const mappings = (memoryMiB: number): string | undefined => computeEnvironment({}, memoryMiB)['MALLOC_MMAP_MAX_'];
  assert.deepEqual([450, 4096, 6144, 24_576].map(mappings), [undefined, undefined, '0', '0']);
  assert.equal(computeEnvironment({ MALLOC_MMAP_MAX_: '9' }, 24_576)['MALLOC_MMAP_MAX_'], '9');
  const given = (...args: readonly string[]): number | undefined => memoryLimit(['worker', ...args]);
  assert.equal(given('--max-memory', '450', '--quick'), 450);
  assert.equal(given('--quick', '--max-memory=512'), 512);
  assert.equal(given('--quick'), undefined);
});

/** A command as a user starts it: without the settings that tests give to commands. */
function startPlainly(...args: readonly string[]) {
  const environment = Object.fromEntries(
    Object.entries(commandEnvironment(cwd)).filter(([name]) => !settings.some(([own]) => own === name)),
  );
  const main = fileURLToPath(new URL('main.js', import.meta.url));
  const child = spawn(process.execPath, [main, ...args], { cwd, env: environment, stdio: ['ignore', 'pipe', 'pipe'] });
  return {
    pid: defined(child.pid, 'a process'),
    exit: once(child, 'exit'),
    output: text(child.stdout),
    errors: text(child.stderr),
  };
}

/** A worker that waits for an answer, and the process in which it does. */
async function waitingWorker() {
  const linked = once(silent, 'connection');
  const { port } = silent.address() as AddressInfo;
  const worker = startPlainly('worker', '--join', `ws://127.0.0.1:${port}`, '--code', secret);
  await linked;
  const [child] = await childrenOf(worker.pid);
  return { ...worker, child: defined(child, 'a child') };
}

test('a worker computes with the settings, and ends when its first process is killed', { skip }, async () => {
  const { pid, child, exit } = await waitingWorker();
  const environment = readFileSync(`/proc/${child}/environ`, 'utf8').split('\0');
  assert.ok(environment.some((entry) => entry.startsWith('NODE_OPTIONS=') && entry.includes('--max-semi-space-size=')));
  // The C library ends each of its tunables where it reads them.
  for (const [name, value] of settings)
    for (const entry of `${name}=${value}`.split(':'))
      assert.ok(environment.includes(entry), `${entry} of ${environment.join(' ')}`);
  for (const each of [pid, child])
    assert.ok(!readFileSync(`/proc/${each}/cmdline`, 'utf8').includes(secret), 'others do not see the join code');
  process.kill(pid, 'SIGKILL');
  assert.deepEqual(await exit, [null, 'SIGKILL']);
  await until(async () => !(await isAlive(child)), 5000, 'the worker is gone');
});

test('signals reach the worker, and its exit code comes back', { skip }, async () => {
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    const { pid, child, exit, output } = await waitingWorker();
    process.kill(pid, signal);
    assert.deepEqual(await exit, [130, null], signal);
    assert.match(await output, /Leaving …/);
    assert.equal(await isAlive(child), false);
  }
  const killed = await waitingWorker();
  process.kill(killed.child, 'SIGKILL');
  assert.deepEqual(await killed.exit, [137, null]);
});

test('a wrong input gets its message and exit code', { skip }, async () => {
  const { exit, errors } = startPlainly('worker', '--threads', '0');
  assert.deepEqual(await exit, [2, null]);
  assert.equal(await errors, 'asteroid: --threads 0 must be a whole number of at least 1.\n');
});
