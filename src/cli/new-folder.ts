// The folder of a new run, which is removed if no round was done: a folder that stays holds at least one round.

import { rm, rmdir } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { InputError, RunError } from '../errors.ts';
import { nodeDisk } from '../storage/node/disk.ts';
import { createRunFolder, type RunFolder } from '../storage/run-folder.ts';
import { isThere } from './files.ts';

/** A run's folder and how to remove it. */
export interface NewFolder {
  readonly folder: RunFolder;
  /**
   * Removes what the run wrote and the folders that were made for it; other files in them stay. The folder must be
   * closed.
   */
  discard(): Promise<void>;
}

const written = [
  'config.yaml',
  'cluster.json',
  'profile.json',
  'plan.json',
  'trace.json',
  'model.onnx',
  'best.onnx',
  'best.json',
  'evaluation.json',
  'report.html',
  'labels.txt',
  'data.json',
  'tokenizer.json',
  'tensorboard',
  'metrics.jsonl',
  'events.jsonl',
];

/** Makes the folder `out`, or the next of the day in runs/. Throws InputError if it is in use or cannot be made. */
export async function makeRunFolder(out: string | undefined, onWarning: (message: string) => void): Promise<NewFolder> {
  const absent = await firstAbsent(resolve(out ?? 'runs'));
  const folder = await create(out, onWarning);
  const path = resolve(folder.path);
  return {
    folder,
    async discard() {
      for (const name of written) await rm(join(path, name), { force: true, recursive: true });
      const made = [join(path, 'checkpoints'), ...upTo(path, absent ?? (out === undefined ? path : undefined))];
      for (const name of made) await rmdir(name).catch(() => {}); // not empty: it holds other files
    },
  };
}

/** The folders from `path` upwards to `top`; none if `top` is undefined. */
function upTo(path: string, top: string | undefined): string[] {
  if (top === undefined) return [];
  return path === top ? [path] : [path, ...upTo(dirname(path), top)];
}

async function create(out: string | undefined, onWarning: (message: string) => void): Promise<RunFolder> {
  try {
    return await createRunFolder(
      { date: new Date(), ...(out === undefined ? {} : { out }) },
      { disk: nodeDisk, onWarning },
    );
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    throw new InputError(`The run folder cannot be made: ${error.message}`, { cause: error });
  }
}

/** The topmost folder on the way to `path` that does not exist; undefined if `path` does. */
async function firstAbsent(path: string): Promise<string | undefined> {
  if (await isThere(path)) return undefined;
  return path === dirname(path) ? path : ((await firstAbsent(dirname(path))) ?? path);
}
