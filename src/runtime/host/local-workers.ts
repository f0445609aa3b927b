// Worker processes on this machine, started and ended with the run, or a little before it: a process takes half a
// second to begin, while which the run's model and data can be read. Whom to join, and the code, reach them through
// their standard input, never through the list of processes. Each ends by itself when its link to the coordinator
// ends, or when it is not told whom to join before the command ends, or else is killed.

import { type ChildProcess, spawn } from 'node:child_process';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import type { DeviceChoice } from '../../engine/engine.ts';
import { computeEnvironment, deviceFacts } from '../../engine/node/host-node.ts';
import { RunError } from '../../errors.ts';
import type { LocalWorkers, PlaceToJoin } from '../run/local-workers.ts';

export interface LocalWorkerOptions {
  readonly count: number;
  readonly threads: number;
  readonly engine: 'onnxruntime' | 'reference';
  /** Default 'cpu'. */
  readonly device?: DeviceChoice | undefined;
}

/** The environment variable that carries a join code. */
export const joinCodeVariable = 'ASTEROID_JOIN_CODE';

const lingerMs = 2000;
const keptErrorCharacters = 2000;

/** Starts the processes; they wait to be told whom to join. */
export function startLocalWorkers(options: LocalWorkerOptions): LocalWorkers {
  let isAwaited = (): boolean => true;
  const workers = Array.from({ length: options.count }, (_, index) =>
    startWorker(`worker-${index + 1}`, options, () => isAwaited()),
  );
  const failed = new Promise<never>((_, reject) => {
    for (const worker of workers) worker.failed.catch(reject);
  });
  failed.catch(() => {}); // read by the run, which may have ended already
  const kill = (): void => {
    for (const { child } of workers) if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
  };
  return {
    failed,
    join({ isAwaited: ask, ...place }) {
      isAwaited = ask;
      for (const { child } of workers) child.stdin?.end(`${JSON.stringify(place)}\n`);
    },
    async ended() {
      const timer = setTimeout(kill, lingerMs);
      await Promise.all(workers.map(({ exited }) => exited));
      clearTimeout(timer);
    },
    drop() {
      isAwaited = () => false;
      kill();
    },
  };
}

/** In a worker: reads whom to join; undefined where the command that started it has ended instead. */
export async function readPlaceToJoin(input: Readable): Promise<PlaceToJoin | undefined> {
  const told = await text(input).catch(() => ''); // the command was killed
  return told === '' ? undefined : placeSchema.parse(JSON.parse(told));
}

const placeSchema = z.object({ url: z.string(), joinCode: z.string(), insecure: z.boolean() });

interface LocalWorker {
  readonly child: ChildProcess;
  readonly exited: Promise<void>;
  /** Rejects when the process could not be started, or ends while it is awaited; never resolves. */
  readonly failed: Promise<never>;
}

function startWorker(
  name: string,
  { threads, engine, device = 'cpu', count }: LocalWorkerOptions,
  isAwaited: () => boolean,
): LocalWorker {
  const command = fileURLToPath(new URL('../../cli/main.js', import.meta.url));
  const flags = ['--name', name, '--threads', String(threads), '--engine', engine];
  flags.push('--device', device, '--managed', String(count));
  const child = spawn(process.execPath, [command, 'worker', ...flags], {
    env: computeEnvironment(process.env, deviceFacts().memoryMiB / count),
    stdio: ['pipe', 'ignore', 'pipe'],
  });
  child.stdin?.on('error', () => {}); // it has ended, and its end says so
  let errors = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    errors = (errors + text).slice(-keptErrorCharacters);
  });
  const failed = new Promise<never>((_, reject) => {
    child.once('error', (error) => reject(new RunError(`${name} could not be started: ${error.message}.`)));
    child.once('close', (code) => {
      // A worker that is killed is noticed by its link; one that says why it failed says it here.
      if (code !== 0 && code !== null && isAwaited())
        reject(new RunError(`${name} ended: ${errors.trim() || `exit code ${code}`}`));
    });
  });
  const exited = new Promise<void>((resolve) => {
    child.once('error', () => resolve());
    child.once('close', () => resolve());
  });
  return { child, exited, failed };
}
