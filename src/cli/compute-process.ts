// Commands that compute need settings of the C library and of V8 (computeEnvironment) that only take effect when a
// process starts. If they are missing, the command starts itself again as a child that has them: same terminal, same
// signals, same exit code. The predicted memory of a step depends on them, and a fifth of a large net's time. This file
// is loaded before all others, and alone: the process that waits should be small.

import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import { allocatorEnvironment, computeEnvironment } from '../engine/node/host-node.ts';

/** Commands that may run operators in their own process. */
const computing: ReadonlySet<string | undefined> = new Set(['worker', 'train', 'profile']);

/** Set for the child. */
const parentVariable = 'ASTEROID_PARENT';

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/**
 * Whether this command should run in a child with settings for computing: on Linux, unless one of them is already set.
 */
export function needsComputeProcess(
  args: readonly string[],
  environment: NodeJS.ProcessEnv,
  platform: NodeJS.Platform,
): boolean {
  if (platform !== 'linux' || !computing.has(args[0]) || args.includes('--help')) return false;
  return Object.keys(allocatorEnvironment(0)).every((name) => environment[name] === undefined);
}

/**
 * Runs this process's command in a child. Resolves with its exit code, or with 128 plus the number of the signal that
 * ended it, as in shells.
 */
export function runComputeProcess(): Promise<number> {
  const [program, ...args] = process.argv as [string, ...string[]];
  const child = spawn(program, [...process.execArgv, ...args], {
    env: { ...computeEnvironment(process.env, memoryLimit(args)), [parentVariable]: String(process.pid) },
    // The channel closes when this process ends, in whatever way: the child notices.
    stdio: ['inherit', 'inherit', 'inherit', 'ipc'],
  });
  // Arguments, which may hold a join code, are visible to all users in the list of processes.
  process.title = `asteroid ${args[1] ?? ''}`;
  // A terminal sends a signal to both: signals that come together count once (interruptSignal).
  for (const signal of signals) process.on(signal, () => child.kill(signal));
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => resolve(code ?? 128 + constants.signals[signal ?? 'SIGKILL']));
  });
}

/** MiB that a worker's own flag leaves it; undefined: all that there is. */
export function memoryLimit(args: readonly string[]): number | undefined {
  const flag = '--max-memory';
  const given = args.find((_, index) => args[index - 1] === flag) ?? args.find((arg) => arg.startsWith(`${flag}=`));
  const limit = Number(given?.replace(`${flag}=`, ''));
  return Number.isFinite(limit) ? limit : undefined;
}

/** In the child: ends when the parent was killed. */
export function endWithParent(): void {
  if (process.channel === undefined || process.env[parentVariable] !== String(process.ppid)) return;
  process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  process.channel.unref();
}
