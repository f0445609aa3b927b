// Commands that compute want settings of the C library and of V8 (computeEnvironment) that only count when a process
// starts. Where they are not there the command starts once more as a child with them: same terminal, same signals, same
// end. That a step needs the memory predicted depends on it, and a fifth of a large net's time. This file is loaded
// before all others, and alone: the process that waits should be small.

import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import { allocatorEnvironment, computeEnvironment } from '../engine/node/host-node.ts';

/** Commands in whose own process operators may run. */
const computing: ReadonlySet<string | undefined> = new Set(['worker', 'train', 'profile']);

/** Set for the child. */
const parentVariable = 'ASTEROID_PARENT';

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;

/**
 * Whether this command should run in a child with settings for computing: on Linux, unless somebody has set one of them
 * already.
 */
export function needsComputeProcess(
  args: readonly string[],
  environment: NodeJS.ProcessEnv,
  platform: NodeJS.Platform,
): boolean {
  if (platform !== 'linux' || !computing.has(args[0]) || args.includes('--help')) return false;
  return Object.keys(allocatorEnvironment()).every((name) => environment[name] === undefined);
}

/**
 * Runs this process's command in a child. Resolves with its exit code; of a signal that ended it, with 128 and its
 * number, as shells say it.
 */
export function runComputeProcess(): Promise<number> {
  const [program, ...args] = process.argv as [string, ...string[]];
  const child = spawn(program, [...process.execArgv, ...args], {
    env: { ...computeEnvironment(process.env), [parentVariable]: String(process.pid) },
    // The channel tells the child that this process is gone, however it ended.
    stdio: ['inherit', 'inherit', 'inherit', 'ipc'],
  });
  // Arguments, a join code among them, stand in the list of processes for all users.
  process.title = `asteroid ${args[1] ?? ''}`;
  // From a terminal both get it: signals that come together count once (interruptSignal).
  for (const signal of signals) process.on(signal, () => child.kill(signal));
  return new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (code, signal) => resolve(code ?? 128 + constants.signals[signal ?? 'SIGKILL']));
  });
}

/** In the child: ends as the parent did, if that was killed. */
export function endWithParent(): void {
  if (process.channel === undefined || process.env[parentVariable] !== String(process.ppid)) return;
  process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  process.channel.unref();
}
