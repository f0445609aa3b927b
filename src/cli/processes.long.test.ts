// Runs over real processes that are killed, interrupted, refused and damaged at any time: what is said, what is left,
// and that a resumed run equals the run that was never interrupted, bit for bit.

import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, truncate, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { defined } from '../assert.ts';
import { loadLatestCheckpoint } from '../storage/checkpoints.ts';
import { nodeDisk } from '../storage/node/disk.ts';
import {
  type CommandEnd,
  childrenOf,
  isAlive,
  jsonLines,
  type RunningCommand,
  runCommand,
  startCommand,
  temporaryFolder,
  until,
  words,
} from '../testing/command.ts';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';

const cwd = temporaryFolder();
const at = (...names: readonly string[]): string => join(cwd, ...names);
const fixture = join(fixtureFolder('pytorch'), 'residual');
/** Enough that a run which is to be disturbed early is not done before, on a busy machine. */
const roundCount = 80;
/** Processes are looked for in /proc. */
const skip = process.platform !== 'linux';
const timeout = 120_000;

const plan = {
  schedule: '1f1b',
  batchSize: 16,
  microBatchSize: 8,
  microBatchCount: 2,
  stages: [
    { layers: [0, 3], devices: ['worker-1'], samples: [8], inFlight: 2 },
    { layers: [3, 6], devices: ['worker-2'], samples: [8], inFlight: 2 },
    { layers: [6, 8], devices: ['worker-3'], samples: [8], inFlight: 1 },
  ],
};

const planOfTwo = {
  ...plan,
  stages: [
    { layers: [0, 4], devices: ['first'], samples: [8], inFlight: 2 },
    { layers: [4, 8], devices: ['second'], samples: [8], inFlight: 1 },
  ],
};

const subject = [
  ...[
    '--model',
    join(fixture, 'opset17-dynamic.onnx'),
    '--data',
    `npy:${join(fixture, 'X.npy')},${join(fixture, 'Y.npy')}`,
  ],
  ...['--batch', '16', '--lr', '0.02', '--momentum', '0.9'],
];
const overThree = ['--workers', '3', '--plan', at('plan.json')];

/** Starts a run in a process group of its own, as a terminal does. */
function train(out: string, ...more: readonly string[]): RunningCommand {
  return startCommand(['train', ...subject, '--checkpoint-every', '10', '--json', '--out', at(out), ...more], {
    cwd,
    detached: true,
  });
}

function pidOf(run: RunningCommand): number {
  return defined(run.process.pid, 'the process');
}

async function reached(run: RunningCommand, round: number): Promise<void> {
  await run.event('round', (event) => Number(event['round']) >= round);
}

async function allGone(processes: readonly number[]): Promise<boolean> {
  const alive = await Promise.all(processes.map(isAlive));
  return !alive.includes(true);
}

async function metricsOf(folder: string): Promise<{ readonly rounds: unknown[]; readonly losses: unknown[] }> {
  const lines = await jsonLines(at(folder, 'metrics.jsonl'));
  return { rounds: lines.map(({ round }) => round), losses: lines.map(({ loss }) => loss) };
}

const allRounds = Array.from({ length: roundCount }, (_, round) => round);

/** The folder's run is the one that was never interrupted: every round once, every loss and every weight. */
async function checkIsWhole(folder: string): Promise<void> {
  const [expected, found] = [await metricsOf('whole'), await metricsOf(folder)];
  assert.deepEqual(found.rounds, allRounds);
  assert.deepEqual(found.losses, expected.losses);
  assert.deepEqual(await readFile(at(folder, 'model.onnx')), await readFile(at('whole', 'model.onnx')));
}

async function resume(folder: string): Promise<void> {
  const end = await runCommand(['train', '--resume', at(folder), '--steps', String(roundCount), '--json'], { cwd });
  assert.equal(end.code, 0, end.stderr);
}

/** The undisturbed run, with which the others are compared. */
let whole: { readonly end: CommandEnd; readonly workers: readonly number[] };

before(async () => {
  if (skip) return;
  await writeFile(at('plan.json'), JSON.stringify(plan));
  await writeFile(at('plan-of-two.json'), JSON.stringify(planOfTwo));
  const run = train('whole', ...overThree, '--steps', String(roundCount));
  await reached(run, 0);
  const workers = await childrenOf(pidOf(run));
  whole = { end: await run.end, workers };
});

test('three processes train to the end and end with the run', { timeout, skip }, async () => {
  const { end, workers } = whole;
  assert.equal(workers.length, 3);
  assert.equal(end.code, 0, end.stderr);
  assert.ok(await allGone(workers));
  assert.deepEqual((await metricsOf('whole')).rounds, allRounds);
});

test('while a worker computes for a long time, its main thread goes on', { timeout, skip }, async () => {
  const stages = [
    { layers: [0, 3], devices: ['worker-1'], samples: [128], inFlight: 1 },
    { layers: [3, 11], devices: ['worker-2'], samples: [128], inFlight: 1 },
  ];
  await writeFile(
    at('plan-of-halves.json'),
    JSON.stringify({ ...plan, batchSize: 128, microBatchSize: 128, microBatchCount: 1, stages }),
  );
  const convolutions = [...words('--model conv-l --data synthetic:1x28x28 --batch 128 --steps 4 --eval-every 0')];
  const overTwo = ['--workers', '2', '--plan', at('plan-of-halves.json')];
  const end = await runCommand(['train', ...convolutions, ...overTwo, '--json', '--out', at('long')], { cwd });
  assert.equal(end.code, 0, end.stderr);
  const { traceEvents } = JSON.parse(await readFile(at('long', 'trace.json'), 'utf8')) as {
    traceEvents: { name: string; dur: number }[];
  };
  const longestMs = Math.max(
    ...traceEvents.filter(({ name }) => name.startsWith('backward')).map(({ dur }) => dur / 1000),
  );
  const events = await jsonLines(at('long', 'events.jsonl'));
  const statistics = events.filter(({ event }) => event === 'statistics');
  assert.deepEqual(new Set(statistics.map(({ device }) => device)), new Set(['worker-1', 'worker-2']));
  // Processes that compete for the cores delay each other by some tens of milliseconds; a blocked thread is as late as
  // the instruction takes.
  for (const { device, eventLoopDelayP99Ms } of statistics)
    assert.ok(
      Number(eventLoopDelayP99Ms) <= longestMs / 3,
      `${device}: ${eventLoopDelayP99Ms} ms late, with instructions of ${longestMs} ms`,
    );
});

test('a worker is killed: the others go on; when all are killed, the run resumes from the last checkpoint', {
  timeout,
  skip,
}, async () => {
  const run = train('killed', ...overThree, '--steps', '100000');
  await reached(run, 14);
  const workers = await childrenOf(pidOf(run));
  process.kill(defined(workers[1], 'a worker'), 'SIGKILL');
  const { cause, lost } = await run.event('recovering');
  assert.match(String(cause), /^worker-2 left (in round \d+|while snapshotting) \(the connection was lost\)$/);
  assert.deepEqual(lost, ['worker-2']);
  const { round } = await run.event('recovered');
  await reached(run, Number(round) + 5);
  for (const worker of await childrenOf(pidOf(run))) process.kill(worker, 'SIGKILL');
  const end = await run.end;
  assert.equal(end.code, 1);
  const reason = /^asteroid: Training ended: worker-[13] left (?:in round \d+|while \w+) \(the connection was lost\); /;
  assert.match(end.stderr, reason);
  const saved = /^the last checkpoint is after round (\d+); continue with: npx asteroid train --resume (.+)\n$/;
  const said = defined(saved.exec(end.stderr.replace(reason, '')), end.stderr);
  assert.equal(said[2], at('killed'));
  assert.ok(await allGone(workers));
  const { checkpoint, warnings } = await loadLatestCheckpoint(at('killed', 'checkpoints'), { disk: nodeDisk });
  assert.equal(checkpoint?.round, Number(said[1]));
  assert.deepEqual(warnings, []);
  const more = checkpoint.round + 2;
  const resumed = await runCommand(['train', '--resume', at('killed'), '--steps', String(more), '--json'], { cwd });
  assert.equal(resumed.code, 0, resumed.stderr);
  assert.deepEqual((await metricsOf('killed')).rounds, [...Array(more).keys()]);
});

test('Ctrl-C: a checkpoint, the workers gone, exit code 130; the run goes on as if nothing had been', {
  timeout,
  skip,
}, async () => {
  const run = train('interrupted', ...overThree, '--steps', '100000');
  await reached(run, 12);
  const workers = await childrenOf(pidOf(run));
  // The terminal signals the whole group, and npm signals its child again.
  process.kill(-pidOf(run), 'SIGINT');
  process.kill(pidOf(run), 'SIGINT');
  const end = await run.end;
  assert.equal(end.code, 130);
  assert.equal(end.stderr, 'Stopping after this round; Ctrl-C again stops at once …\n');
  assert.ok(await allGone(workers));
  const done = JSON.parse(defined(end.stdout.trimEnd().split('\n').at(-1), 'a line')) as {
    stopped: boolean;
    rounds: number;
  };
  assert.equal(done.stopped, true);
  assert.equal(
    (await loadLatestCheckpoint(at('interrupted', 'checkpoints'), { disk: nodeDisk })).checkpoint?.round,
    done.rounds,
  );
  assert.deepEqual((await metricsOf('interrupted')).rounds, allRounds.slice(0, done.rounds));
  await resume('interrupted');
  await checkIsWhole('interrupted');
});

test('a damaged checkpoint is reported and passed over; the one before it is whole', { timeout, skip }, async () => {
  const files = await readdir(at('interrupted', 'checkpoints'));
  const tensors = defined(
    files.find((name) => name.startsWith(`round-000000${roundCount}`) && name.endsWith('.safetensors')),
    'the last checkpoint',
  );
  await truncate(at('interrupted', 'checkpoints', tensors), 1000);
  const end = await runCommand(['train', '--resume', at('interrupted'), '--json'], { cwd });
  assert.equal(end.code, 0, end.stderr);
  const first = JSON.parse(defined(end.stdout.split('\n')[0], 'a line')) as { event: string; message: string };
  assert.equal(first.event, 'warning');
  assert.match(
    first.message,
    /^The checkpoint .*round-00000080\.json is passed over: .* has 1000 bytes, not the \d+ that were written\.$/,
  );
  await checkIsWhole('interrupted');
  for (const name of await readdir(at('interrupted', 'checkpoints'))) {
    if (name.endsWith('.json')) await truncate(at('interrupted', 'checkpoints', name), 10);
  }
  const none = await runCommand(['train', '--resume', at('interrupted')], { cwd });
  assert.equal(none.code, 2);
  assert.match(
    none.stderr,
    /^asteroid: .*interrupted holds no whole checkpoint to resume from \(3 are damaged\): start a new run\.\n$/,
  );
});

test('numbers that are not finite end a run with the fix and the way back', { timeout, skip }, async () => {
  const end = await train('diverged', '--steps', '40', '--lr', '1e18', '--checkpoint-every', '1').end;
  assert.equal(end.code, 1);
  const fix = 'lower the learning rate (--lr) or clip gradients (--clip-norm)';
  const saved = `the last checkpoint is after round 1; continue with: npx asteroid train --resume ${at('diverged')}`;
  const why = 'the first layer whose output is not finite is block1.conv1, and its weights were finite';
  assert.equal(
    end.stderr,
    `asteroid: Training ended: the loss or a gradient of round 1 is not a finite number (${why}): ${fix}; ${saved}\n`,
  );
});

test('a second Ctrl-C ends the run at once, whatever a worker does', { timeout, skip }, async (context) => {
  const run = train('twice', ...overThree, '--steps', '100000');
  await reached(run, 1);
  const workers = await childrenOf(pidOf(run));
  const stuck = defined(workers[0], 'a worker');
  context.after(() => isAlive(stuck).then((alive) => alive && process.kill(stuck, 'SIGKILL')));
  process.kill(stuck, 'SIGSTOP');
  process.kill(-pidOf(run), 'SIGINT');
  // Signals within 300 ms are one Ctrl-C. False: there is no process any more.
  await until(async () => !run.process.kill('SIGINT'), 5000, 'ended');
  assert.equal((await run.end).code, 130);
  process.kill(stuck, 'SIGCONT');
  await until(() => allGone(workers), 10_000, 'the workers are gone');
});

test('Ctrl-C before the first round leaves nothing', { timeout, skip }, async () => {
  const folder = await mkdtemp(at('empty-'));
  const run = startCommand(
    ['train', ...subject, '--workers', '1', '--remote', '1', '--json', '--out', join(folder, 'a', 'b')],
    {
      cwd,
      detached: true,
    },
  );
  await run.event('joined');
  const workers = await childrenOf(pidOf(run));
  process.kill(-pidOf(run), 'SIGINT');
  const end = await run.end;
  assert.equal(end.code, 130);
  assert.match(end.stdout, /"event":"done","stopped":true,"rounds":0,.*"runFolder":null/);
  assert.deepEqual(await readdir(folder), []);
  assert.ok(await allGone(workers));
});

test('a run in this process stops on a request to end, and goes on', { timeout, skip }, async () => {
  const run = train('alone', '--steps', '100000');
  await reached(run, 3);
  process.kill(pidOf(run), 'SIGTERM');
  assert.equal((await run.end).code, 130);
  const { rounds } = await metricsOf('alone');
  const more = String(rounds.length + 2);
  const end = await runCommand(['train', '--resume', at('alone'), '--steps', more, '--json'], { cwd });
  assert.equal(end.code, 0, end.stderr);
  assert.deepEqual(
    (await metricsOf('alone')).rounds,
    Array.from({ length: rounds.length + 2 }, (_, round) => round),
  );
  const again = await runCommand(['train', '--resume', at('alone'), '--json'], { cwd });
  assert.equal(again.code, 2);
  assert.equal(
    again.stderr,
    `asteroid: The run has done its ${more} rounds already: give more with --epochs or --steps.\n`,
  );
});

test('the coordinator is killed: its workers end by themselves', { timeout, skip }, async () => {
  const run = train('headless', ...overThree, '--steps', '100000');
  await reached(run, 1);
  const workers = await childrenOf(pidOf(run));
  process.kill(pidOf(run), 'SIGKILL');
  await run.end;
  await until(() => allGone(workers), 5000, 'the workers are gone');
});

test('a reader that goes away stops the run in good order', { timeout, skip }, async () => {
  const run = train('unread', '--steps', '100000');
  await reached(run, 1);
  run.process.stdout?.destroy();
  const code = await new Promise((resolve) => run.process.once('exit', resolve));
  assert.equal(code, 130);
  assert.notEqual((await loadLatestCheckpoint(at('unread', 'checkpoints'), { disk: nodeDisk })).checkpoint, undefined);
});

test('a reader that goes away ends a short command without a word', { timeout }, async () => {
  const help = startCommand(['--help'], { cwd });
  help.process.stdout?.destroy();
  const { code, signal, stderr } = await help.end;
  assert.deepEqual({ code, signal, stderr }, { code: 141, signal: null, stderr: '' });
});

test('a worker joins by hand with the code; a wrong code is refused; the run names a worker that leaves', {
  timeout,
  skip,
}, async () => {
  const run = train('by-hand', ...words('--workers 1 --remote 1 --plan'), at('plan-of-two.json'), '--steps', '100000');
  const { url, joinCode, remoteCount } = await run.event('listening');
  assert.equal(remoteCount, 1);
  const join = (code: string, ...more: readonly string[]): RunningCommand => {
    return startCommand(['worker', '--join', String(url), '--json', ...more], {
      cwd,
      environment: { ASTEROID_JOIN_CODE: code },
    });
  };
  const stranger = await join('0000-0000-0000-0000').end;
  assert.equal(stranger.stderr, 'asteroid: the join code is wrong: use the one that asteroid train printed.\n');
  assert.equal(stranger.code, 2);
  const worker = join(String(joinCode), '--name', 'laptop');
  assert.equal((await worker.event('joined'))['name'], 'laptop');
  await reached(run, 2);
  const stages = (JSON.parse(await readFile(at('by-hand', 'plan.json'), 'utf8')) as { stages: { devices: string[] }[] })
    .stages;
  assert.deepEqual(
    stages.map(({ devices }) => devices),
    [['laptop'], ['worker-1']],
  );
  process.kill(pidOf(worker), 'SIGINT');
  const left = await worker.end;
  assert.equal(left.code, 130);
  assert.match(left.stdout, /"event":"ended","clean":true,"reason":"the device was drained"/);
  const { cause, repeatedRounds } = await run.event('recovering');
  assert.equal(cause, 'laptop leaves');
  assert.equal(repeatedRounds, 0);
  const { round } = await run.event('recovered');
  await reached(run, Number(round) + 2);
  process.kill(-pidOf(run), 'SIGINT');
  assert.equal((await run.end).code, 130);
});

test('a worker that joined by hand ends with the run', { timeout, skip }, async () => {
  const run = train('together', '--remote', '1', '--steps', '5');
  const { url, joinCode } = await run.event('listening');
  const worker = await runCommand(['worker', '--join', String(url), '--code', String(joinCode), '--name', 'board'], {
    cwd,
  });
  assert.equal(worker.stdout, 'Joined as board; waiting for work. Ctrl-C leaves.\nEnded: the run is done.\n');
  assert.equal(worker.code, 0, worker.stderr);
  assert.equal((await run.end).code, 0);
});

test('a port in use is one sentence, and nothing stays', { timeout, skip }, async () => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  const folder = await mkdtemp(at('empty-'));
  const end = await runCommand(
    ['train', ...subject, '--workers', '1', '--port', String(port), '--out', join(folder, 'run')],
    { cwd },
  );
  server.close();
  assert.equal(end.stderr, `asteroid: port ${port} of 127.0.0.1 is taken: choose another with --port.\n`);
  assert.equal(end.code, 2);
  assert.deepEqual(await readdir(folder), []);
});
