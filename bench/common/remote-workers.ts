// A command of asteroid and workers that join it, as processes of their own, and what they take of memory.

import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { computeEnvironment } from '../../dist/engine/node/host-node.js';

const main = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));

/** A command that runs. */
export interface Running {
  readonly child: ChildProcess;
  /** Its lines so far. */
  readonly lines: string[];
  /** Resolves with its lines; rejects where it failed. */
  readonly ended: Promise<readonly string[]>;
}

/** Starts `asteroid ...args` in a folder, with a cache of its own. */
export function startAsteroid(
  folder: string,
  args: readonly string[],
  environment: Readonly<Record<string, string>> = {},
): Running {
  const env = { ...computeEnvironment(process.env), ASTEROID_CACHE: join(folder, 'cache'), ...environment };
  const child = spawn(process.execPath, [main, ...args], { cwd: folder, env, stdio: ['ignore', 'pipe', 'inherit'] });
  const lines: string[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => lines.push(line));
  const ended = new Promise<readonly string[]>((resolve, reject) => {
    child.once('close', (code, signal) => {
      if (code === 0 || signal !== null) resolve(lines);
      else reject(new Error(`asteroid ${args.join(' ')} ended with ${code}:\n${ofInterest(lines).join('\n')}`));
    });
  });
  ended.catch(() => {}); // awaited later
  return { child, lines, ended };
}

/** Which devices left and why, and the last lines; the beginnings of long ones. */
function ofInterest(lines: readonly string[]): readonly string[] {
  const left = lines.filter((line) => /"event":"(left|failed)"/.test(line));
  return [...new Set([...left, ...lines.slice(-3)])].map((line) => line.slice(0, 400));
}

/** Starts a worker that joins; its code is in the file `code` of the folder as soon as somebody listens. */
export function startWorker(folder: string, port: number, name: string, flags: readonly string[] = []): Running {
  const code = readFileSync(join(folder, 'code'), 'utf8').trim();
  const own = ['worker', '--join', `ws://127.0.0.1:${port}`, '--name', name, '--json', ...flags];
  return startAsteroid(folder, own, { ASTEROID_JOIN_CODE: code, ASTEROID_STATE: join(folder, name) });
}

/** A port of 127.0.0.1 that is free now. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** Resolves when the command that was given `--code-file code` listens. */
export async function listening(folder: string, { child }: Running): Promise<void> {
  while (!existsSync(join(folder, 'code'))) {
    if (child.exitCode !== null) throw new Error('the coordinator ended before it listened');
    await setTimeout(100);
  }
}

/** VmHWM in MiB; undefined where the process has ended. */
export function peakMiBOf(pid: number | undefined): number | undefined {
  try {
    const found = /VmHWM:\s*(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'));
    return found === null ? undefined : Number(found[1]) / 1024;
  } catch {
    return undefined;
  }
}
