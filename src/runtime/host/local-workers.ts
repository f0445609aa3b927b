// Worker processes on this machine, started and ended with the run. The join code reaches them through their
// environment, never through the list of processes; each ends by itself when its link to the coordinator ends, and by
// force where it does not.

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
  /** Whether the run still waits for its workers. One that ends later is a lost device like any other. */
  isAwaited(): boolean;
}

export interface LocalWorkers {
  /** Rejects when a worker ends that is awaited; never resolves. */
  readonly failed: Promise<never>;
  /** Resolves when all processes are gone; those that linger for 2 s after the links closed are killed. */
  ended(): Promise<void>;
}

/** The environment variable that carries a join code. */
export const joinCodeVariable = 'ASTEROID_JOIN_CODE';

const lingerMs = 2000;
const keptErrorCharacters = 2000;

/** Starts the processes; they join by themselves. */
export function startLocalWorkers(options: LocalWorkerOptions): LocalWorkers {
  const command = fileURLToPath(new URL('../../cli/main.js', import.meta.url));
  const exits: Promise<void>[] = [];
  const children: ChildProcess[] = [];
  const failed = new Promise<never>((_, reject) => {
    for (let index = 1; index <= options.count; index++) {
      const name = `worker-${index}`;
      const flags = [
        '--join',
        options.url,
        '--name',
        name,
        '--threads',
        String(options.threads),
        '--engine',
        options.engine,
        '--managed',
        String(options.count),
        ...(options.insecure ? ['--insecure'] : []),
      ];
      const child = spawn(process.execPath, [command, 'worker', ...flags], {
        env: { ...computeEnvironment(process.env), [joinCodeVariable]: options.joinCode },
        stdio: ['ignore', 'ignore', 'pipe'],
      });
      let errors = '';
      child.stderr?.setEncoding('utf8').on('data', (text: string) => {
        errors = (errors + text).slice(-keptErrorCharacters);
      });
      children.push(child);
      exits.push(
        new Promise((resolve) => {
          child.once('error', (error) => {
            reject(new RunError(`${name} could not be started: ${error.message}.`));
            resolve();
          });
          child.once('close', (code) => {
            // A worker that is killed is noticed by its link; one that says why it failed says it here.
            if (code !== 0 && code !== null && options.isAwaited())
              reject(new RunError(`${name} ended: ${errors.trim() || `exit code ${code}`}`));
            resolve();
          });
        }),
      );
    }
  });
  failed.catch(() => {}); // read by the run, which may have ended already
  return {
    failed,
    async ended() {
      const timer = setTimeout(() => {
        for (const child of children) if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
      }, lingerMs);
      await Promise.all(exits);
      clearTimeout(timer);
    },
  };
}
