// Cases that run in processes of their own: this script started again with other arguments; and what such a process
// sees of itself (Linux).

import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';

/**
 * Runs Node with `args` to its end; returns the JSON in its last line. Throws an Error with what it wrote to stderr.
 */
export function runJson<T>(args: readonly string[], environment: NodeJS.ProcessEnv = {}): T {
  const env = { ...process.env, ...environment };
  const ended = spawnSync(process.execPath, args, { env, encoding: 'utf8', maxBuffer: 2 ** 30 });
  if (ended.status !== 0) throw new Error(ended.stderr);
  return JSON.parse(ended.stdout.trim().split('\n').at(-1) ?? '') as T;
}

/** Resident memory of this process now and at most, in MiB. */
export function residentMiB(): { readonly now: number; readonly peak: number } {
  const status = readFileSync('/proc/self/status', 'utf8');
  const of = (key: string) => Number(new RegExp(`^${key}:\\s+(\\d+) kB`, 'm').exec(status)?.[1]) / 1024;
  return { now: of('VmRSS'), peak: of('VmHWM') };
}

/** The peak of resident memory begins anew. */
export function resetPeak(): void {
  writeFileSync('/proc/self/clear_refs', '5');
}
