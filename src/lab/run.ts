// Runs `asteroid train`, `infer` or `serve` over the devices of a lab: the coordinator in its place, a worker on every
// device, joined as on real machines, by code and certificate. The workers are detached from the terminal, so that only
// the coordinator gets Ctrl-C; it ends them in good order.

import { type ChildProcess, spawn } from 'node:child_process';
import { createWriteStream } from 'node:fs';
import { access, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { processMiB } from '../cluster/memory.ts';
import { InputError } from '../errors.ts';
import { commandOn, endDevices, type Lab } from './lab.ts';
import type { LabDevice } from './layout.ts';

export interface LabRunOptions {
  /** Of the workers. */
  readonly environment: NodeJS.ProcessEnv;
  /** Called when something happens to a worker. */
  onWarning(message: string): void;
}

/** How a command in the lab ended. */
export interface LabEnd {
  readonly code: number;
}

const port = 7700;
/** Workers end with the run; those that linger are ended. */
const lingerMs = 5_000;
const lookAgainMs = 50;
const keptErrorCharacters = 2_000;
const main = fileURLToPath(new URL('../cli/main.js', import.meta.url));

/** The flags that a lab gives itself. */
const ownFlags = ['--host', '--port', '--remote', '--workers', '--code-file'];
/** The flags that workers get too: true if they have a value. */
const sharedFlags: Readonly<Record<string, boolean>> = { '--threads': true, '--engine': true, '--insecure': false };

/** Runs a program on a device, or in the coordinator's place; its terminal is ours. */
export async function runOn(lab: Lab, device: string, command: readonly string[]): Promise<LabEnd> {
  const [program, ...args] = commandOn(lab, device, command);
  const child = spawn(program, args, { stdio: 'inherit' });
  return { code: await exitOf(child, passSignals(child)) };
}

/** The commands that a lab's devices can be the workers of. */
export const labCommands: readonly string[] = ['train', 'infer', 'serve'];

/** Runs `asteroid COMMAND ...args` with all devices of the lab. */
export async function runIn(
  lab: Lab,
  [command = '', ...args]: readonly string[],
  options: LabRunOptions,
): Promise<LabEnd> {
  const own = args.find((arg) => ownFlags.some((flag) => arg === flag || arg.startsWith(`${flag}=`)));
  if (own !== undefined) throw new InputError(`${own} is set by the lab: leave it out.`);
  const { layout, folder } = lab;
  const { address } = layout.coordinator;
  const codeFile = join(folder, 'coordinator', 'join-code');
  await rm(codeFile, { force: true });
  const joined = [
    '--host',
    address,
    '--port',
    String(port),
    '--workers',
    '0',
    '--remote',
    String(layout.devices.length),
    '--code-file',
    codeFile,
  ];
  const [program, ...rest] = commandOn(lab, 'coordinator', [process.execPath, main, command, ...args, ...joined]);
  const environment = { ...process.env, ASTEROID_STATE: join(folder, 'coordinator', 'state') };
  const coordinator = spawn(program, rest, { stdio: 'inherit', env: environment });
  const ended = exitOf(coordinator, passSignals(coordinator));
  const workers: Worker[] = [];
  let failed = false;
  try {
    if (!(await isListening(codeFile, coordinator))) return { code: await ended };
    const url = `${args.includes('--insecure') ? 'ws' : 'wss'}://${address}:${port}`;
    const flags = ['--join', url, '--code-file', codeFile, ...sharedArguments(args)];
    for (const [index, device] of layout.devices.entries())
      workers.push(startWorker(lab, device, index, flags, options));
    for (const worker of workers) {
      void worker.failed.then((message) => {
        options.onWarning(message);
        if (worker.hasJoined() || failed) return;
        // The coordinator would wait for it forever.
        failed = true;
        coordinator.kill('SIGTERM');
      });
    }
    const code = await ended;
    const lingering = new AbortController();
    await Promise.race([
      Promise.all(workers.map((worker) => worker.ended)),
      setTimeout(lingerMs, undefined, { signal: lingering.signal }),
    ]);
    lingering.abort();
    return { code: failed ? 1 : code };
  } finally {
    await endDevices(lab);
  }
}

interface Worker {
  /** Resolves with the message when it fails; else never. */
  readonly failed: Promise<string>;
  readonly ended: Promise<void>;
  hasJoined(): boolean;
}

function startWorker(
  lab: Lab,
  device: LabDevice,
  index: number,
  flags: readonly string[],
  { environment }: LabRunOptions,
): Worker {
  const { name, memoryMiB } = device;
  const home = join(lab.folder, String(index + 1));
  // The cluster names the memory for training alone.
  const own = ['--name', name, '--max-memory', String(Math.floor(memoryMiB) + processMiB), '--json'];
  const [program, ...args] = commandOn(lab, name, [process.execPath, main, 'worker', ...flags, ...own]);
  const child = spawn(program, args, {
    // A device of its own: no certificates, no profiles of other devices.
    env: { ...environment, ASTEROID_STATE: join(home, 'state'), ASTEROID_CACHE: join(home, 'cache') },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  });
  const log = createWriteStream(join(home, 'worker.log'), { flags: 'a' });
  let hasJoined = false;
  let errors = '';
  createInterface({ input: child.stdout }).on('line', (line) => {
    if (line.startsWith('{"event":"joined"')) hasJoined = true;
    log.write(`${line}\n`);
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    errors = (errors + text).slice(-keptErrorCharacters);
    log.write(text);
  });
  const code = exitOf(child, () => log.end());
  return {
    hasJoined: () => hasJoined,
    ended: code.then(() => {}),
    failed: new Promise((resolve) => {
      void code.then((value) => {
        if (value !== 0) resolve(`${name} ended: ${errors.trim() || `exit code ${value}`}`);
      });
    }),
  };
}

/** True when the join code is there, false when the coordinator has ended before. */
async function isListening(codeFile: string, coordinator: ChildProcess): Promise<boolean> {
  for (;;) {
    const isThere = await access(codeFile).then(
      () => true,
      () => false,
    );
    if (isThere) return true;
    if (coordinator.exitCode !== null || coordinator.signalCode !== null) return false;
    await setTimeout(lookAgainMs);
  }
}

function sharedArguments(args: readonly string[]): string[] {
  return args.flatMap((arg, index) => {
    const [flag = ''] = arg.split('=');
    if (!Object.hasOwn(sharedFlags, flag)) return [];
    return arg.includes('=') || sharedFlags[flag] === false ? [arg] : [arg, args[index + 1] ?? ''];
  });
}

/**
 * Passes signals to this process on to the child while it runs. Ctrl-C reaches the child twice; it counts both as one.
 */
function passSignals(child: ChildProcess): () => void {
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  const pass = (signal: NodeJS.Signals): void => void child.kill(signal);
  for (const signal of signals) process.on(signal, pass);
  return () => {
    for (const signal of signals) process.off(signal, pass);
  };
}

/** The exit code; 128 plus the signal's number for one that was killed, as in shells. */
function exitOf(child: ChildProcess, after: () => void): Promise<number> {
  return new Promise((resolve, reject) => {
    child.once('error', (error) => {
      after();
      reject(error);
    });
    child.once('close', (code, signal) => {
      after();
      resolve(code ?? (signal === 'SIGKILL' ? 137 : 143));
    });
  });
}
