// Training over four real worker processes that are to be disturbed, and the run that nobody disturbs, with which it is
// compared. Used by tests and by bench/faults.ts.

import assert from 'node:assert/strict';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { defined } from '../assert.ts';
import { loadLatestCheckpoint } from '../storage/checkpoints.ts';
import { nodeDisk } from '../storage/node/disk.ts';
import { type CommandEvent, childrenOf, jsonLines, type RunningCommand, runCommand, startCommand } from './command.ts';
import { difference, type Outcome } from './memory-cluster.ts';

/** A single device first and last, two replicas between them; a batch is two micro-batches. */
function planOf(microBatchSize: number): object {
  return {
    schedule: '1f1b',
    batchSize: 2 * microBatchSize,
    microBatchSize,
    microBatchCount: 2,
    stages: [
      { layers: [0, 2], devices: ['worker-1'], samples: [microBatchSize], inFlight: 3 },
      {
        layers: [2, 5],
        devices: ['worker-2', 'worker-3'],
        samples: [microBatchSize / 2, microBatchSize / 2],
        inFlight: 2,
      },
      { layers: [5, 6], devices: ['worker-4'], samples: [microBatchSize], inFlight: 1 },
    ],
  };
}

export const workerNames = ['worker-1', 'worker-2', 'worker-3', 'worker-4'] as const;

const defaultMicroBatch = 8;

/** Those that a run has in common with the one that it is compared with. */
function settingsOf({ microBatch = defaultMicroBatch, strict = false }: RunOptions): string[] {
  const subject = [
    '--model',
    'digits',
    '--data',
    'mnist',
    '--batch',
    String(2 * microBatch),
    '--micro-batch',
    String(microBatch),
  ];
  return [
    ...subject,
    '--lr',
    '0.01',
    '--momentum',
    '0.5',
    '--eval-every',
    '0',
    '--json',
    ...(strict ? ['--strict'] : []),
  ];
}

/** More rounds than anybody waits for: a run is disturbed for as long as that takes, then stopped and compared. */
const endless = '100000';

/** A run whose workers are processes of their own that joined it. */
export interface JoinedRun {
  readonly run: RunningCommand;
  readonly workers: ReadonlyMap<string, RunningCommand>;
  readonly url: string;
  /** Starts another worker. */
  join(name: string, options?: WorkerOptions): RunningCommand;
}

/** How a worker is started. */
export interface WorkerOptions {
  /** Where it finds the coordinator. Default: where that listens. */
  readonly url?: string;
  /** A command that runs the worker's. */
  readonly through?: readonly string[];
}

/** Where `startRun` and `startJoinedRun` work. */
export interface RunOptions {
  readonly cwd: string;
  /** The run folder's name in it. */
  readonly out: string;
  /** More settings of the run. */
  readonly more?: readonly string[];
  /** Devices and links are measured, and a planner decides over all devices. Default false: the plan is given. */
  readonly isMeasured?: boolean;
  /** Samples of a micro-batch, half a batch. Default 8. */
  readonly microBatch?: number;
  /** Strict training, there and in the run that it is compared with: the same bits whatever the plan. */
  readonly strict?: boolean;
  /** Of the coordinator. */
  readonly environment?: Readonly<Record<string, string>>;
}

/** Starts training over four workers of its own, each checkpoint ten rounds after the last. */
export async function startRun(options: RunOptions): Promise<RunningCommand> {
  const { cwd, out, more = [], isMeasured = false, microBatch = defaultMicroBatch, environment = {} } = options;
  await mkdir(join(cwd, 'plans'), { recursive: true });
  const planPath = join(cwd, 'plans', `plan-${microBatch}.json`);
  await writeFile(planPath, JSON.stringify(planOf(microBatch)));
  const planned = isMeasured ? ['--use-all'] : ['--plan', planPath];
  const over = ['--workers', '4', ...planned, '--steps', endless, '--checkpoint-every', '10', '--out', join(cwd, out)];
  return startCommand(['train', ...settingsOf(options), ...over, ...more], { cwd, environment, detached: true });
}

/**
 * Starts training and four workers that join it by themselves, each when the one before has been asked about: where it
 * finds the coordinator that listens at `url`, and how it is started.
 */
export async function startJoinedRun(
  options: RunOptions,
  howOf: (name: string, url: string) => Promise<WorkerOptions> = async () => ({}),
): Promise<JoinedRun> {
  const { cwd } = options;
  const run = await startRun({ ...options, more: ['--workers', '0', '--remote', '4', ...(options.more ?? [])] });
  const { url, joinCode } = await run.event('listening');
  const start = (name: string, how: WorkerOptions = {}): RunningCommand =>
    startCommand(['worker', '--join', how.url ?? String(url), '--name', name, '--json'], {
      cwd,
      environment: { ASTEROID_JOIN_CODE: String(joinCode), ASTEROID_STATE: join(cwd, options.out, '.state', name) },
      ...(how.through === undefined ? {} : { through: how.through }),
    });
  const workers = new Map<string, RunningCommand>();
  for (const name of workerNames) workers.set(name, start(name, await howOf(name, String(url))));
  return { run, workers, url: String(url), join: start };
}

/** Resolves when a round of at least this number has committed. */
export function reached(run: RunningCommand, round: number): Promise<CommandEvent> {
  return run.event('round', (event) => Number(event['round']) >= round);
}

/** The id of a worker process that a run started itself. */
export async function workerPid(run: RunningCommand, name: string): Promise<number> {
  for (const pid of await childrenOf(defined(run.process.pid, 'the process'))) {
    const words = (await readFile(`/proc/${pid}/cmdline`, 'utf8')).split('\0');
    if (words.includes(name)) return pid;
  }
  throw new Error(`There is no process of ${name}.`);
}

/** Asks a run to stop, as Ctrl-C does, and waits for its end; returns the rounds that it did. */
export async function stopRun(run: RunningCommand): Promise<number> {
  run.process.kill('SIGINT');
  const end = await run.end;
  assert.equal(end.code, 130, end.stderr);
  const done = JSON.parse(defined(end.stdout.trimEnd().split('\n').at(-1), 'a line')) as { readonly rounds: number };
  return done.rounds;
}

/**
 * A stopped run's losses and weights are those of training on one device that nobody disturbed: every round committed
 * once and in order, and nothing differs by more than 1e-5 of its size. Returns the largest differences.
 */
export async function checkUndisturbed(
  options: RunOptions,
  rounds: number,
): Promise<{ readonly loss: number; readonly weight: number }> {
  const { cwd, out } = options;
  const alone = `alone-${basename(out)}`;
  const until = ['--steps', String(rounds), '--checkpoint-every', String(rounds), '--out', join(cwd, alone)];
  const end = await runCommand(['train', ...settingsOf(options), ...until], { cwd });
  assert.equal(end.code, 0, end.stderr);
  const [found, expected] = await Promise.all([outcomeOf(join(cwd, out), rounds), outcomeOf(join(cwd, alone), rounds)]);
  const { loss, weight, worst } = difference(found, expected);
  assert.ok(loss <= 1e-5, `${out}: losses of ${rounds} rounds differ by ${loss}`);
  assert.ok(weight <= 1e-5, `${out}: after ${rounds} rounds ${worst} differs by ${weight}`);
  return { loss, weight };
}

/** What lies in the folder of a run that did so many rounds. */
async function outcomeOf(folder: string, rounds: number): Promise<Outcome> {
  const lines = await jsonLines(join(folder, 'metrics.jsonl'));
  assert.deepEqual(
    lines.map(({ round }) => round),
    Array.from({ length: rounds }, (_, round) => round),
    `the rounds of ${folder}`,
  );
  const { checkpoint, warnings } = await loadLatestCheckpoint(join(folder, 'checkpoints'), { disk: nodeDisk });
  assert.deepEqual(warnings, []);
  assert.equal(checkpoint?.round, rounds, `${folder}: ${await readdir(join(folder, 'checkpoints'))}`);
  const { parameters: parameter, buffers: buffer, optimizerState: optimizer } = checkpoint;
  return {
    end: { round: rounds, stopped: false },
    losses: lines.map(({ loss }) => Number(loss)),
    correctCounts: [],
    checkpoints: new Map(),
    state: { parameter, buffer, optimizer },
  };
}
