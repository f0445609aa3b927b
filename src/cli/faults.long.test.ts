// Training over four processes that are killed, frozen, cut off and starved, and a coordinator that is killed: it
// continues, and rounds, losses and weights equal those of undisturbed training (docs/faults.md has the list of faults;
// bench/faults.ts makes a hundred of the first kind).

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { chmod, mkdir, readFile, rm, rmdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { defined } from '../assert.ts';
import type { Plan } from '../cluster/cluster.ts';
import { createRandom } from '../random.ts';
import { type CommandEvent, type RunningCommand, startCommand, temporaryFolder, until } from '../testing/command.ts';
import {
  checkUndisturbed,
  type JoinedRun,
  type RunOptions,
  reached,
  startJoinedRun,
  startRun,
  stopRun,
  workerNames,
  workerPid,
} from '../testing/disturbed-run.ts';
import { type Relay, startRelay } from '../testing/relay.ts';
import { createSelfSigned } from '../testing/self-signed.ts';

const cwd = temporaryFolder();
const timeout = 180_000;
/** Processes are looked for in /proc. */
const skip = process.platform === 'linux' ? false : 'processes are looked for in /proc, which only Linux has';
const isRoot = process.getuid?.() === 0;

/** Ends all processes when a test fails, and shows their last output if it took too long. */
function endAfter(context: TestContext, ...commands: readonly RunningCommand[]): void {
  let isOver = false;
  // A test that is over is aborted, too, after its hooks.
  context.signal.addEventListener('abort', () => {
    if (isOver) return;
    for (const { process: child, lastLines } of commands)
      context.diagnostic(`${child.spawnargs.slice(2).join(' ')}\n${lastLines()}`);
  });
  context.after(() => {
    isOver = true;
    for (const { process: child } of commands) child.kill('SIGKILL');
  });
}

async function startFour(context: TestContext, options: Omit<RunOptions, 'cwd'>): Promise<RunningCommand> {
  const run = await startRun({ cwd, ...options });
  endAfter(context, run);
  return run;
}

function endAllAfter(context: TestContext, { run, workers }: JoinedRun): void {
  endAfter(context, run, ...workers.values());
}

async function kill(run: RunningCommand, ...names: readonly string[]): Promise<void> {
  const pids = await Promise.all(names.map((name) => workerPid(run, name)));
  for (const pid of pids) process.kill(pid, 'SIGKILL');
}

/**
 * The change of the layout after a loss of these devices, as it was announced; resolves when the layout stands and
 * rounds commit in it.
 */
async function recovered(run: RunningCommand, ...lost: readonly string[]): Promise<CommandEvent> {
  const isIt = (event: CommandEvent): boolean => lost.every((name) => (event['lost'] as string[]).includes(name));
  const change = await run.event('recovering', isIt);
  const { round } = await run.event('recovered', (event) => event['cause'] === change['cause']);
  await reached(run, Number(round) + Number(change['repeatedRounds']) + 2);
  return change;
}

async function stopAndCheck(run: RunningCommand, out: string): Promise<void> {
  await checkUndisturbed({ cwd, out }, await stopRun(run));
}

/** For links on which a device is known by its certificate: it bears the same name when it comes back. */
async function tlsFlags(): Promise<readonly string[]> {
  const { cert, key } = createSelfSigned();
  const [certificatePath, keyPath] = [join(cwd, 'cert.pem'), join(cwd, 'key.pem')];
  await Promise.all([writeFile(certificatePath, cert), writeFile(keyPath, key)]);
  return ['--tls-cert', certificatePath, '--tls-key', keyPath];
}

for (const seed of [1, 2, 3]) {
  test(`one of four workers is killed at a random moment (seed ${seed}): with --strict, not a bit shows`, {
    timeout,
    skip,
  }, async (context) => {
    const random = createRandom(seed, 90);
    const victim = defined(workerNames[random.integer(4)], 'a worker');
    const out = `killed-${seed}`;
    const run = await startFour(context, { out, strict: true });
    await reached(run, random.integer(12));
    // where in a round it strikes is what the seed draws
    await new Promise((resolve) => setTimeout(resolve, random.uniform() * 60));
    await kill(run, victim);
    const change = await recovered(run, victim);
    assert.match(
      String(change['cause']),
      new RegExp(`^${victim} left (in round \\d+|while \\w+) \\(the connection was lost\\)$`),
    );
    assert.deepEqual(await checkUndisturbed({ cwd, out, strict: true }, await stopRun(run)), { loss: 0, weight: 0 });
  });
}

test('the first stage, then the last, each on its only device: from their replicas, without a checkpoint', {
  timeout,
  skip,
}, async (context) => {
  const run = await startFour(context, { out: 'ends', more: ['--checkpoint-every', '100000'] });
  await run.event('replicated');
  await kill(run, 'worker-1');
  const first = await recovered(run, 'worker-1');
  assert.equal(first['source'], 'devices');
  await run.event('replicated', ({ round }) => Number(round) > Number(first['round']) + 2);
  const { stages } = first['plan'] as { readonly stages: readonly { readonly devices: readonly string[] }[] };
  const last = defined(stages.at(-1)?.devices[0], 'a last stage');
  await kill(run, last);
  assert.equal((await recovered(run, last))['source'], 'devices');
  await stopAndCheck(run, 'ends');
});

test('both replicas of a stage at once: what no device has any more comes from the last checkpoint', {
  timeout,
  skip,
}, async (context) => {
  const run = await startFour(context, { out: 'two' });
  await run.event('checkpoint');
  await reached(run, 13);
  await kill(run, 'worker-2', 'worker-3');
  const change = await recovered(run, 'worker-2', 'worker-3');
  assert.equal(change['source'], 'checkpoint');
  assert.equal(Number(change['round']) % 10, 0);
  await stopAndCheck(run, 'two');
});

test('frozen for a second: nothing happens; until it is given up: the others go on, and it comes back', {
  timeout,
  skip,
}, async (context) => {
  const joined = await startJoinedRun({ cwd, out: 'frozen' });
  endAllAfter(context, joined);
  const { run, workers } = joined;
  const frozen = defined(workers.get('worker-3'), 'a worker');
  await reached(run, 3);
  frozen.process.kill('SIGSTOP');
  await new Promise((resolve) => setTimeout(resolve, 1000));
  frozen.process.kill('SIGCONT');
  const [{ round: now } = { round: 0 }] = run.events('round').slice(-1);
  await reached(run, Number(now) + 20);
  assert.deepEqual(run.events('recovering'), []);

  frozen.process.kill('SIGSTOP');
  const { reason } = await run.event('left', ({ device }) => device === 'worker-3');
  assert.match(String(reason), /^no sign of life for \d+\.\d s, with \d+\.\d s allowed$/);
  const change = await recovered(run, 'worker-3');
  assert.equal(change['source'], 'devices');
  frozen.process.kill('SIGCONT');
  await frozen.event('lost');
  await frozen.event('joined', ({ name }) => name !== 'worker-3');
  await reached(run, Number(change['round']) + 20);
  await stopAndCheck(run, 'frozen');
  assert.equal((await frozen.end).code, 0);
});

test('the coordinator is killed and started again: its workers come back by themselves', {
  timeout,
  skip,
}, async (context) => {
  const tls = await tlsFlags(); // the join code is another one at each start
  const environment = { ASTEROID_STATE: join(cwd, 'coordinator-state') };
  const joined = await startJoinedRun({ cwd, out: 'restarted', more: tls, environment });
  endAllAfter(context, joined);
  await joined.run.event('checkpoint');
  joined.run.process.kill('SIGKILL');
  await joined.run.end;
  const startMs = performance.now();
  const again = startCommand(
    ['train', '--resume', join(cwd, 'restarted'), '--port', new URL(joined.url).port, '--json'],
    {
      cwd,
      environment,
    },
  );
  endAfter(context, again);
  const first = await again.event('round');
  context.diagnostic(
    `${((performance.now() - startMs) / 1000).toFixed(1)} s from the coordinator's restart to its first round`,
  );
  const checkpoints = joined.run.events('checkpoint').map(({ round }) => Number(round));
  assert.ok(
    checkpoints.includes(Number(first['round'])),
    `goes on from round ${first['round']}, checkpoints are after ${checkpoints}`,
  );
  await reached(again, Number(first['round']) + 5);
  await stopAndCheck(again, 'restarted');
  for (const worker of joined.workers.values()) assert.equal((await worker.end).code, 0);
});

test('a full or read-only disk: training goes on and warns; the next checkpoint is written when there is room', {
  timeout,
  skip,
}, async (context) => {
  const folder = join(cwd, 'disk');
  await mkdir(folder);
  if (isRoot) {
    const { status, stderr } = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=8m', 'tmpfs', folder], {
      encoding: 'utf8',
    });
    assert.equal(status, 0, stderr);
    context.after(() => spawnSync('umount', ['--lazy', folder]));
  }
  const run = await startFour(context, { out: 'disk/full' });
  await run.event('checkpoint');
  const checkpoints = join(folder, 'full', 'checkpoints');
  if (isRoot) spawnSync('dd', ['if=/dev/zero', `of=${join(folder, 'filler')}`, 'bs=64k']);
  else await chmod(checkpoints, 0o555);
  const { message } = await run.event('warning');
  assert.match(String(message), /^No checkpoint after round \d+: .+ Training goes on\.$/);
  const missed = Number(/after round (\d+)/.exec(String(message))?.[1]);
  await reached(run, missed + 3);
  if (isRoot) await rm(join(folder, 'filler'));
  else await chmod(checkpoints, 0o755);
  await run.event('checkpoint', ({ round }) => Number(round) > missed);
  await stopAndCheck(run, 'disk/full');
});

/** Four workers, one of which reaches the coordinator through a relay only. */
async function startRelayed(
  context: TestContext,
  out: string,
  name: string,
): Promise<{ joined: JoinedRun; relay: Relay; worker: RunningCommand }> {
  let relay: Relay | undefined;
  const joined = await startJoinedRun({ cwd, out }, async (worker, url) => {
    if (worker !== name) return {};
    relay = await startRelay({ port: Number(new URL(url).port), seed: 7 });
    return { url: `ws://127.0.0.1:${relay.port}` };
  });
  endAllAfter(context, joined);
  const between = defined(relay, 'the relay');
  context.after(() => between.close());
  return { joined, relay: between, worker: defined(joined.workers.get(name), 'a worker') };
}

test('a damaged and a reset connection: noticed, given up, made again; no wrong data gets in', {
  timeout,
  skip,
}, async (context) => {
  const { joined, relay, worker } = await startRelayed(context, 'relayed', 'worker-2');
  const { run } = joined;
  await reached(run, 5);
  relay.damage('toServer', 'flip-middle');
  const change = await recovered(run, 'worker-2');
  assert.equal(relay.damagedCount(), 1);
  assert.equal(change['source'], 'devices');
  await worker.event('joined', ({ name }) => name !== 'worker-2');
  relay.reset();
  await until(async () => run.events('left').length === 2, timeout, 'the second loss is noticed');
  await until(async () => worker.events('joined').length === 3, timeout, 'it has come back again');
  await stopAndCheck(run, 'relayed');
  assert.equal((await worker.end).code, 0);
});

test('cut off in one direction: given up, and back when it is heard again', { timeout, skip }, async (context) => {
  const { joined, relay, worker } = await startRelayed(context, 'cut-off', 'worker-4');
  const { run } = joined;
  await reached(run, 5);
  relay.conditions.toServer.silent = true;
  const { reason } = await run.event('left', ({ device }) => device === 'worker-4');
  assert.match(String(reason), /^no sign of life for /);
  await recovered(run, 'worker-4');
  relay.conditions.toServer.silent = false;
  await worker.event('joined', ({ name }) => name !== 'worker-4');
  await stopAndCheck(run, 'cut-off');
  assert.equal((await worker.end).code, 0);
});

test('a device that comes and goes every two seconds waits ever longer for work, and the others go on', {
  timeout,
  skip,
}, async (context) => {
  const options = { cwd, out: 'flapping', strict: true };
  const joined = await startJoinedRun({ ...options, more: await tlsFlags() });
  endAllAfter(context, joined);
  const { run, workers } = joined;
  await reached(run, 3);
  let flapper = defined(workers.get('worker-3'), 'a worker');
  for (const signal of ['SIGKILL', 'SIGTERM', 'SIGKILL', 'SIGTERM'] as const) {
    const [{ round } = { round: 0 }] = run.events('round').slice(-1);
    flapper.process.kill(signal);
    await flapper.end;
    flapper = joined.join('worker-3');
    endAfter(context, flapper);
    await flapper.event('joined');
    await new Promise((resolve) => setTimeout(resolve, 2000)); // as long as it stays
    await reached(run, Number(round) + 5);
  }
  await run.event('cool-down', ({ departureCount }) => departureCount === 4);
  const waits = run
    .events('cool-down')
    .map(({ departureCount, seconds }) => [Number(departureCount), Number(seconds)] as const);
  context.diagnostic(`waits of ${waits.map(([, seconds]) => seconds.toFixed(1)).join(', ')} s`);
  assert.deepEqual(waits.map(([count]) => count).slice(-3), [2, 3, 4]);
  for (const [index, [count, seconds]] of waits.entries()) {
    assert.ok(seconds <= 5 * 2 ** (count - 1), `${seconds} s after it left ${count} times`);
    assert.ok(seconds > (waits[index - 1]?.[1] ?? 0), 'each longer than the one before');
  }
  await checkUndisturbed(options, await stopRun(run));
  assert.equal((await flapper.end).code, 0);
});

const memoryFolder = '/sys/fs/cgroup/memory';
const noLimit = !isRoot
  ? 'a memory limit needs root'
  : existsSync(`${memoryFolder}/memory.limit_in_bytes`)
    ? false
    : 'a memory limit needs the memory controller of cgroup v1';

/** A control group for a worker, and what to start it through so that it is in there. */
async function startStarvedGroup(
  context: TestContext,
  limitBytes: number,
): Promise<{ group: string; through: readonly string[] }> {
  const group = join(memoryFolder, `asteroid-test-${process.pid}-${limitBytes}`);
  await mkdir(group);
  const isGone = (): Promise<boolean> =>
    rmdir(group).then(
      () => true,
      () => false,
    );
  context.after(() => until(isGone, 10_000, 'the group is empty'));
  await writeFile(join(group, 'memory.limit_in_bytes'), String(limitBytes));
  return { group, through: ['sh', '-c', `echo $$ > ${join(group, 'cgroup.procs')} && exec "$@"`, 'sh'] };
}

/** How many processes of a group the system has killed. */
async function killCount(group: string): Promise<number> {
  return Number(/^oom_kill (\d+)$/m.exec(await readFile(join(group, 'memory.oom_control'), 'utf8'))?.[1]);
}

test('a worker over its memory: the system kills it, and the others go on', {
  timeout,
  skip: skip || noLimit,
}, async (context) => {
  const { group } = await startStarvedGroup(context, 256 * 1024);
  const run = await startFour(context, { out: 'starved' });
  await reached(run, 3);
  // What it has stays counted where it was; all that it takes from now on is too much.
  await writeFile(join(group, 'cgroup.procs'), String(await workerPid(run, 'worker-3')));
  assert.match(String((await recovered(run, 'worker-3'))['cause']), /^worker-3 left .*\(the connection was lost\)$/);
  await stopAndCheck(run, 'starved');
});

test('a worker that its system killed for its memory comes back, and it does not happen a second time', {
  timeout,
  skip: skip || noLimit,
}, async (context) => {
  const { group, through } = await startStarvedGroup(context, 256 * 1024);
  const options = { cwd, out: 'killed-for-memory', microBatch: 256 };
  const joined = await startJoinedRun({ ...options, more: await tlsFlags() });
  endAllAfter(context, joined);
  const { run, workers } = joined;
  await reached(run, 3);
  const { process: starved, end: starvedEnd } = defined(workers.get('worker-3'), 'a worker');
  await writeFile(join(group, 'cgroup.procs'), String(starved.pid));
  await run.event('left', ({ device }) => device === 'worker-3');
  const leftMs = performance.now();
  assert.equal((await starvedEnd).signal, 'SIGKILL');
  assert.equal(await killCount(group), 1);
  // Enough to join (70 MiB), too little for its part of micro-batches of 256 samples (130 MiB).
  await writeFile(join(group, 'memory.limit_in_bytes'), String(100 * 2 ** 20));
  const again = joined.join('worker-3', { through });
  endAfter(context, again);
  const { fromMiB, toMiB } = await run.event('memory-lowered', ({ device }) => device === 'worker-3');
  // What was predicted for it when it was killed is less than what it has now.
  const { plan } = (await run.event('plan')) as unknown as { readonly plan: Plan };
  const predicted = defined(plan.predicted.peakMemoryMiB['worker-3'], 'a prediction');
  assert.ok(predicted > 0 && predicted < 100, `${predicted} MiB`);
  assert.deepEqual([fromMiB, toMiB], [predicted, predicted / 2]);
  await again.event('joined', ({ name }) => name === 'worker-3');
  // As long as it would take to be counted on again, and some rounds more.
  const { round } = await run.event('round', () => performance.now() - leftMs > 6500);
  await reached(run, Number(round) + 10);
  assert.equal(await killCount(group), 1);
  assert.equal(again.process.exitCode, null, 'it is there, and has no work');
  await checkUndisturbed(options, await stopRun(run));
  assert.equal((await again.end).code, 0);
});
