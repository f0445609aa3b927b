// Worker processes on this machine, started and ended with the run. The join code reaches them through their
// environment, never through the list of processes. Each ends by itself when its link to the coordinator ends, or else
// is killed.

import { type ChildProcess, spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { computeEnvironment } from '../../engine/node/host-node.ts';
import { RunError } from '../../errors.ts';

export interface LocalWorkerOptions {
  readonly count: number;
  readonly url: string;
  readonly joinCode: string;
  readonly threads: number;
  readonly engine: 'onnxruntime' | 'reference';
  /** The coordinator listens on an address of the network: its peers may be elsewhere. */
  readonly insecure: boolean;
  /** True while the run waits for its workers. One that ends later is a lost device like any other. */
  isAwaited(): boolean;
}

export interface LocalWorkers {
  /** Rejects when a worker ends while it is awaited; never resolves. */
  readonly failed: Promise<never>;
  /** Resolves when all processes have ended; processes that linger for 2 s after the links closed are killed. */
  ended(): Promise<void>;
}

/** The environment variable that carries a join code. */
export const joinCodeVariable = 'ASTEROID_JOIN_CODE';

const lingerMs = 2000;
const keptErrorCharacters = 2000;

/** Starts the processes; they join by themselves. */
export function startLocalWorkers(options: LocalWorkerOptions): LocalWorkers {
  const workers = Array.from({ length: options.count }, (_, index) => startWorker(`worker-${index + 1}`, options));
  const failed = new Promise<never>((_, reject) => {
    for (const worker of workers) worker.failed.catch(reject);
  });
  failed.catch(() => {}); // read by the run, which may have ended already
  return {
    failed,
    async ended() {
      const timer = setTimeout(() => {
        for (const { child } of workers)
          if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
      }, lingerMs);
      await Promise.all(workers.map(({ exited }) => exited));
      clearTimeout(timer);
    },
  };
}

interface LocalWorker {
  readonly child: ChildProcess;
  readonly exited: Promise<void>;
  /** Rejects when the process could not be started, or ends while it is awaited; never resolves. */
  readonly failed: Promise<never>;
}

function startWorker(name: string, options: LocalWorkerOptions): LocalWorker {
  const { url, threads, engine, count, insecure, joinCode } = options;
  const command = fileURLToPath(new URL('../../cli/main.js', import.meta.url));
  const flags = [
    ...['--join', url, '--name', name, '--threads', String(threads), '--engine', engine, '--managed', String(count)],
    ...(insecure ? ['--insecure'] : []),
  ];
  const child = spawn(process.execPath, [command, 'worker', ...flags], {
    env: { ...computeEnvironment(process.env), [joinCodeVariable]: joinCode },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let errors = '';
  child.stderr?.setEncoding('utf8').on('data', (text: string) => {
    errors = (errors + text).slice(-keptErrorCharacters);
  });
  const failed = new Promise<never>((_, reject) => {
    child.once('error', (error) => reject(new RunError(`${name} could not be started: ${error.message}.`)));
    child.once('close', (code) => {
      // A worker that is killed is noticed by its link; one that says why it failed says it here.
      if (code !== 0 && code !== null && options.isAwaited())
        reject(new RunError(`${name} ended: ${errors.trim() || `exit code ${code}`}`));
    });
  });
  const exited = new Promise<void>((resolve) => {
    child.once('error', () => resolve());
    child.once('close', () => resolve());
  });
  return { child, exited, failed };
}
