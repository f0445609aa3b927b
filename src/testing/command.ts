// Runs the compiled command line as a user would, in processes of its own. Used by tests only.

import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { computeEnvironment } from '../engine/node/host-node.ts';

const main = fileURLToPath(new URL('../cli/main.js', import.meta.url));

/** Names the cache that all commands of a run of tests share; where it is not set, each test's folder has one. */
export const sharedCacheVariable = 'ASTEROID_TEST_CACHE';

/** How a command ended. */
export interface CommandEnd {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** A command that runs. */
export interface RunningCommand {
  readonly process: ChildProcess;
  readonly end: Promise<CommandEnd>;
  /**
   * The first line of stdout so far or to come that `accepts`; rejects with all output when the command ends before.
   */
  line(accepts: (line: string) => boolean): Promise<string>;
  /** The first JSON event of a kind. */
  event(kind: string, accepts?: (event: CommandEvent) => boolean): Promise<CommandEvent>;
  /** All JSON events of a kind so far. */
  events(kind: string): CommandEvent[];
  /** What it printed last, for whoever looks for the reason of a failed test. */
  lastLines(): string;
}

/** A line of `--json` output. */
export type CommandEvent = Readonly<Record<string, unknown>>;

export interface CommandOptions {
  readonly cwd: string;
  readonly environment?: Readonly<Record<string, string>>;
  /** A process group of its own, as a terminal gives each command. */
  readonly detached?: boolean;
  /** A command that runs the rest of its arguments, such as `ip netns exec NAME`. */
  readonly through?: readonly string[];
}

/**
 * The environment of a command: this process's, with a cache and a state folder of the tests' own, and such that the
 * command computes in its own process (compute-process.ts).
 */
export function commandEnvironment(folder: string): NodeJS.ProcessEnv {
  const { NODE_TEST_CONTEXT: _, ...own } = process.env;
  return {
    ...computeEnvironment(own),
    ASTEROID_CACHE: process.env[sharedCacheVariable] ?? join(folder, '.cache'),
    ASTEROID_STATE: join(folder, '.state'),
  };
}

/** Lines of each stream in `lastLines`. */
const lastLineCount = 20;

/** Starts `asteroid ...args`. */
export function startCommand(args: readonly string[], options: CommandOptions): RunningCommand {
  const { cwd, environment = {}, detached = false, through = [] } = options;
  const env = { ...commandEnvironment(cwd), ...environment };
  const [command = process.execPath, ...rest] = [...through, process.execPath, main, ...args];
  const child = spawn(command, rest, { cwd, env, detached, stdio: ['ignore', 'pipe', 'pipe'] });
  let [stdout, stderr] = ['', ''];
  const lines: string[] = [];
  let unfinished = '';
  const listeners = new Set<() => void>();
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
    const parts = (unfinished + text).split('\n');
    unfinished = parts.pop() ?? '';
    lines.push(...parts);
    for (const listener of listeners) listener();
  });
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  const end = new Promise<CommandEnd>((resolve) => {
    child.once('close', (code, signal) => resolve({ code, signal, stdout, stderr }));
  });
  const line = (accepts: (line: string) => boolean): Promise<string> =>
    new Promise((resolve, reject) => {
      let seenCount = 0;
      const look = (): void => {
        const found = lines.slice(seenCount).find(accepts);
        seenCount = lines.length;
        if (found === undefined) return;
        listeners.delete(look);
        resolve(found);
      };
      listeners.add(look);
      look();
      void end.then(() => reject(new Error(`The command ended without the line.\n${stdout}\n${stderr}`)));
    });
  const parsed: CommandEvent[] = [];
  const events = (kind: string): CommandEvent[] => {
    for (const text of lines.slice(parsed.length)) parsed.push(JSON.parse(text) as CommandEvent);
    return parsed.filter((found) => found['event'] === kind);
  };
  const event = async (kind: string, accepts: (event: CommandEvent) => boolean = () => true): Promise<CommandEvent> => {
    const fits = (text: string): boolean => {
      const found = JSON.parse(text) as CommandEvent;
      return found['event'] === kind && accepts(found);
    };
    return JSON.parse(await line(fits)) as CommandEvent;
  };
  const lastLines = (): string =>
    [...lines.slice(-lastLineCount), unfinished, ...stderr.split('\n').slice(-lastLineCount)].join('\n');
  return { process: child, end, line, event, events, lastLines };
}

/** Runs `asteroid ...args` to its end. */
export function runCommand(args: readonly string[], options: CommandOptions): Promise<CommandEnd> {
  return startCommand(args, options).end;
}

/** A folder for the files of a test file; removed when this process ends. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-test-'));
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** The objects in a file of JSON lines. */
export async function jsonLines(path: string): Promise<CommandEvent[]> {
  const text = await readFile(path, 'utf8');
  return text.split('\n').flatMap((line) => (line === '' ? [] : [JSON.parse(line) as CommandEvent]));
}

/** The ids of a process's children (Linux). */
export async function childrenOf(pid: number): Promise<number[]> {
  const found: number[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const status = await readFile(`/proc/${name}/stat`, 'utf8').catch(() => ''); // ended meanwhile
    // "pid (name) state parent …": the name may hold anything.
    const [state, parent] = status.slice(status.lastIndexOf(')') + 2).split(' ');
    if (Number(parent) === pid && state !== 'Z') found.push(Number(name));
  }
  return found.sort((a, b) => a - b);
}

/** True while there is a process of this id that is not just waiting to be buried. */
export async function isAlive(pid: number): Promise<boolean> {
  const status = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => '');
  return status !== '' && status.slice(status.lastIndexOf(')') + 2, status.lastIndexOf(')') + 3) !== 'Z';
}

/** Milliseconds until `condition` holds; throws after `limitMs`. */
export async function until(condition: () => Promise<boolean>, limitMs: number, what: string): Promise<number> {
  const startMs = performance.now();
  for (;;) {
    if (await condition()) return performance.now() - startMs;
    if (performance.now() - startMs > limitMs) throw new Error(`After ${limitMs} ms still not: ${what}.`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** The words of a command line without quotes, such as '--batch 4'. */
export function words(line: string): string[] {
  return line.split(' ');
}
