// The folder of one run (product.md, "The run folder"): made so that two runs never share one, its documents written
// whole or not at all, its logs growing line by line. What the documents mean is their writers' business. Part of
// storage/ (Node only).

import { InputError } from '../errors.ts';
import { join } from '../paths.ts';
import { isTemporary, makeFolders, writeFileAtomically } from './atomic.ts';
import { type Disk, errorCode, readError, writeError } from './disk.ts';
import { keepLines, type LineLog, openLineLog } from './line-log.ts';

/** The documents of a run. */
export type RunFile =
  | 'config.yaml'
  | 'cluster.json'
  | 'profile.json'
  | 'plan.json'
  | 'trace.json'
  | 'model.onnx'
  | 'best.onnx'
  | 'best.json'
  | 'evaluation.json'
  | 'report.html'
  | 'labels.txt'
  | 'data.json'
  | 'tokenizer.json';

/** One line of metrics.jsonl. A loss that is no number stands as null. */
export interface MetricsLine {
  /** From 0. */
  readonly round: number;
  readonly epoch: number;
  readonly loss: number;
  readonly samplesPerS: number;
  readonly lr: number;
  readonly [more: string]: unknown;
}

export interface RunFolderOptions {
  readonly disk: Disk;
  /**
   * Given: logs that cannot be written cost lines, not the run (line-log.ts). Documents and checkpoints always throw.
   */
  readonly onWarning?: (warning: string) => void;
}

/** An open run folder. Its owner closes it. */
export interface RunFolder {
  readonly path: string;
  readonly disk: Disk;
  /** For saveCheckpoint and loadLatestCheckpoint. */
  readonly checkpointsPath: string;
  /** metrics.jsonl: append MetricsLine. */
  readonly metrics: LineLog;
  /** events.jsonl. */
  readonly events: LineLog;
  /** Writes a document, replacing it atomically. Throws RunError. */
  write(name: RunFile, contents: string | Uint8Array): Promise<void>;
  /** Flushes and closes the logs. Throws RunError, after closing both, unless warnings were chosen. */
  close(): Promise<void>;
}

/** Where a new run goes. */
export interface NewRun {
  /** For the name, by local time. */
  readonly date: Date;
  /** The folder of all runs; default 'runs'. */
  readonly parent?: string;
  /** This very folder instead of `parent`/date-n: absent or empty. */
  readonly out?: string;
}

/** Runs a day; more is taken for a mistake. */
const maxRunsADay = 100_000;

/** Makes the folder of a new run. Throws InputError when `out` is in use, RunError when the disk refuses. */
export async function createRunFolder(run: NewRun, options: RunFolderOptions): Promise<RunFolder> {
  const { disk } = options;
  const path =
    run.out === undefined
      ? await makeNumbered(run.parent ?? 'runs', dateName(run.date), disk)
      : await claimOut(run.out, disk);
  return openFolder(path, options);
}

/**
 * Opens the folder of a run to go on with it; metrics of rounds from `completedRounds` on are dropped, for they will
 * come again. Throws InputError when it is no run's.
 */
export async function resumeRunFolder(
  path: string,
  completedRounds: number,
  options: RunFolderOptions,
): Promise<RunFolder> {
  const { disk } = options;
  const names = await listFolder(path, disk);
  if (!isRun(names))
    throw new InputError(
      `${path} is not the folder of a run (it has no checkpoints); ` +
        "name the folder that --out or the run's last lines named.",
    );
  for (const name of names) {
    // Left by a writer that died; a second try comes with the next resume.
    if (isTemporary(name)) await disk.remove(join(path, name)).catch(() => undefined);
  }
  await keepLines(
    join(path, 'metrics.jsonl'),
    (line) => typeof line.round === 'number' && line.round < completedRounds,
    disk,
  );
  return openFolder(path, options);
}

async function openFolder(path: string, options: RunFolderOptions): Promise<RunFolder> {
  const { disk } = options;
  const metrics = await openLineLog(join(path, 'metrics.jsonl'), options);
  const events = await openLineLog(join(path, 'events.jsonl'), options);
  return {
    path,
    disk,
    checkpointsPath: join(path, 'checkpoints'),
    metrics,
    events,
    write(name, contents) {
      const bytes = typeof contents === 'string' ? new TextEncoder().encode(contents) : contents;
      return writeFileAtomically(join(path, name), [bytes], disk);
    },
    async close() {
      const results = await Promise.allSettled([metrics.close(), events.close()]);
      for (const result of results) {
        if (result.status === 'rejected') throw result.reason;
      }
    },
  };
}

function isRun(names: readonly string[]): boolean {
  return names.includes('checkpoints') || names.includes('config.yaml');
}

function dateName(date: Date): string {
  const two = (value: number): string => String(value).padStart(2, '0');
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

/**
 * parent/date-n with the first n after all that exist: making a folder is atomic, so of two runs one tries the next
 * number.
 */
async function makeNumbered(parent: string, date: string, disk: Disk): Promise<string> {
  await makeFolders(parent, disk);
  const numbers = (await listFolder(parent, disk))
    .filter((name) => name.startsWith(`${date}-`))
    .map((name) => Number(name.slice(date.length + 1)))
    .filter(Number.isSafeInteger);
  for (let number = Math.max(0, ...numbers) + 1; number <= maxRunsADay; number++) {
    const path = join(parent, `${date}-${number}`);
    if (!(await makeNew(path, disk))) continue;
    await makeNew(join(path, 'checkpoints'), disk);
    await syncFolders([path, parent], disk);
    return path;
  }
  throw new InputError(`${parent} holds ${maxRunsADay} runs of ${date}; remove old ones or choose --out.`);
}

/** Makes `out`, or takes it where it is empty: the process that makes the checkpoints folder in it has it. */
async function claimOut(out: string, disk: Disk): Promise<string> {
  await makeFolders(out, disk);
  const names = await listFolder(out, disk);
  if (isRun(names))
    throw new InputError(`${out} holds a run already; go on with it by --resume ${out}, or choose another --out.`);
  if (names.length > 0) throw new InputError(`${out} is not empty (it holds ${names[0]}); choose another --out.`);
  if (!(await makeNew(join(out, 'checkpoints'), disk)))
    throw new InputError(`${out} was just taken by another run; choose another --out.`);
  await syncFolders([out], disk);
  return out;
}

/** False where there is something of this name. */
async function makeNew(path: string, disk: Disk): Promise<boolean> {
  try {
    await disk.makeFolder(path);
    return true;
  } catch (error) {
    if (errorCode(error) === 'EEXIST') return false;
    throw writeError(error, path);
  }
}

async function syncFolders(paths: readonly string[], disk: Disk): Promise<void> {
  for (const path of paths) {
    try {
      await disk.syncFolder(path);
    } catch (error) {
      throw writeError(error, path);
    }
  }
}

async function listFolder(path: string, disk: Disk): Promise<string[]> {
  try {
    return await disk.list(path);
  } catch (error) {
    throw readError(error, path);
  }
}
