// The README's second machine, as two that share no network but a cable: two network namespaces, joined by a veth pair,
// with a HOME each. Real processes, encrypted links. Needs root and iproute2; elsewhere it is skipped and says so.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdir, readdir, readFile, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { after, before, test } from 'node:test';
import { defined } from '../assert.ts';
import { type RunningCommand, startCommand, temporaryFolder, words } from '../testing/command.ts';
import { ip, missingNamespaces } from '../testing/network-namespaces.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';

const cwd = temporaryFolder();
/** A courteous worker gets what others leave: on a busy machine that is little. */
const timeout = 300_000;
const addresses = { here: '192.168.1.20', there: '192.168.1.21' } as const;
type Machine = keyof typeof addresses;
const spaceOf = (machine: Machine): string => `ast-${process.pid}-${machine}`;
const homeOf = (machine: Machine): string => join(cwd, machine);

const skip = missingNamespaces();

before(async () => {
  if (skip) return;
  for (const machine of ['here', 'there'] as const) {
    assert.equal(ip('netns', 'add', spaceOf(machine)), undefined);
    await mkdir(homeOf(machine));
  }
  const [here, there] = [spaceOf('here'), spaceOf('there')];
  assert.equal(
    ip('link', 'add', 'eth0', 'netns', here, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', there),
    undefined,
  );
  for (const machine of ['here', 'there'] as const) {
    for (const device of ['lo', 'eth0'])
      assert.equal(ip('-n', spaceOf(machine), 'link', 'set', device, 'up'), undefined);
    assert.equal(ip('-n', spaceOf(machine), 'address', 'add', `${addresses[machine]}/24`, 'dev', 'eth0'), undefined);
  }
});

after(() => {
  if (!skip) for (const machine of ['here', 'there'] as const) ip('netns', 'delete', spaceOf(machine));
});

/** The words of the README's line with this beginning, without `npx asteroid`. */
async function readmeLine(beginning: string): Promise<string[]> {
  let folder = import.meta.dirname;
  while (!existsSync(join(folder, 'README.md'))) folder = dirname(folder);
  const text = (await readFile(join(folder, 'README.md'), 'utf8')).replace(/\\\n\s*/g, '');
  const line = text.split('\n').find((candidate) => candidate.startsWith(`npx asteroid ${beginning}`));
  return defined(line, beginning)
    .replace(/\s+#.*$/, '')
    .split(/\s+/)
    .slice(2);
}

/** Runs a command on one of the machines, with a HOME of its own and nothing else that is the user's. */
function on(
  machine: Machine,
  args: readonly string[],
  environment: Readonly<Record<string, string>> = {},
): RunningCommand {
  const own = { HOME: homeOf(machine), ASTEROID_STATE: '', ASTEROID_CACHE: '', XDG_STATE_HOME: '', XDG_CACHE_HOME: '' };
  return startCommand(args, {
    cwd: homeOf(machine),
    environment: { ...own, ...environment },
    through: ['ip', 'netns', 'exec', spaceOf(machine)],
  });
}

/** The README's run over both machines, three rounds of it, with some words replaced and some more behind them. */
async function startRun(
  name: string,
  changes: Readonly<Record<string, string>> = {},
  ...more: readonly string[]
): Promise<RunningCommand> {
  const line = (await readmeLine('train --model digits')).map((word) => changes[word] ?? word);
  const few = line.toSpliced(line.indexOf('--epochs'), 2, '--steps', '3');
  return on('here', [...few, '--use-all', '--out', name, '--json', ...more]);
}

async function finished(run: RunningCommand, worker: RunningCommand): Promise<void> {
  const [end, workerEnd] = [await run.end, await worker.end];
  assert.equal(end.code, 0, end.stderr);
  assert.equal(workerEnd.code, 0, workerEnd.stderr);
}

test("a run over two machines by the README's lines; the second time without a code", { timeout, skip }, async () => {
  const run = await startRun('first');
  const { url, joinCode } = await run.event('listening');
  assert.equal(url, `wss://${addresses.here}:7700`);
  const workerArgs = await readmeLine('worker');
  const worker = on('there', [...workerArgs, '--name', 'laptop'], { ASTEROID_JOIN_CODE: String(joinCode) });
  await finished(run, worker);
  const events = await readFile(join(homeOf('here'), 'first', 'events.jsonl'), 'utf8');
  assert.match(events, /"device":"laptop"/);
  assert.doesNotMatch(events, new RegExp(String(joinCode)));

  // Keys lie in each machine's own HOME, readable by their owner only.
  const authority = join(homeOf('here'), '.local', 'state', 'asteroid', 'authority.pem');
  assert.equal((await stat(authority)).mode & 0o777, 0o600);
  const devices = join(homeOf('there'), '.local', 'state', 'asteroid', 'devices');
  const [device = ''] = await readdir(devices);
  assert.equal((await stat(join(devices, device))).mode & 0o777, 0o600);

  const again = await startRun('second');
  await again.event('listening');
  await finished(again, on('there', [...workerArgs, '--name', 'laptop']));

  // Without an address, too: found by multicast on the cable. With half of a processor all layers are measured again:
  // fewer are enough.
  const fixture = join(fixtureFolder('pytorch'), 'mlp');
  const small = {
    digits: join(fixture, 'opset17-dynamic.onnx'),
    mnist: `npy:${join(fixture, 'X.npy')},${join(fixture, 'Y.npy')}`,
  };
  const found = await startRun('third', small, '--batch', '48');
  const { url: announced } = await found.event('listening');
  const finder = on('there', words('worker --name laptop --max-cpu 50% --max-memory 1024 --courteous --json'));
  assert.equal((await finder.event('found'))['url'], announced);
  await finished(found, finder);
  assert.match(
    await readFile(join(homeOf('here'), 'third', 'events.jsonl'), 'utf8'),
    /"device":"laptop",[^}]*"memoryMiB":1024/,
  );
});
