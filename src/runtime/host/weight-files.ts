// Weights of stages in files of the user's cache folder, one folder for each process. They are removed with their
// stages, at the latest when the process ends; what a killed process left, a later one removes.

import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { type FileHandle, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fileTensor } from '../../engine/node/file-tensor.ts';
import { RunError } from '../../errors.ts';
import { byteLength, tensorBytes } from '../../graph/tensor.ts';
import { cacheFolder } from '../../storage/node/cache-folder.ts';
import type { WeightFile, WeightFiles } from '../device/weight-files.ts';

/** Smaller tensors stay in memory: they are few bytes, and some decide what is compiled. */
const leastTensorBytes = 2 ** 16;
/** Tensors begin at pages, so that they can be mapped as they are. */
const alignment = 4096;
/** A younger folder may belong to a process of another container. */
const abandonedMs = 3_600_000;

/** `folder`: default `weights` in the cache folder. */
export function createWeightFiles(folder: string = join(cacheFolder(), 'weights')): WeightFiles {
  let own: string | undefined;
  let count = 0;
  return {
    open() {
      own ??= ownFolder(folder);
      return openFile(own, `${count++}.weights`);
    },
  };
}

function ownFolder(folder: string): string {
  try {
    mkdirSync(folder, { recursive: true });
    removeAbandoned(folder);
    const own = mkdtempSync(join(folder, `${process.pid}-`));
    process.once('exit', () => rmSync(own, { recursive: true, force: true }));
    return own;
  } catch (error) {
    throw noRoom(folder, error);
  }
}

function removeAbandoned(folder: string): void {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name);
    const isOld = Date.now() - (statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? Date.now()) > abandonedMs;
    if (isOld && !isAlive(Number.parseInt(name, 10))) rmSync(path, { recursive: true, force: true });
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

function openFile(folder: string, file: string): WeightFile {
  const path = join(folder, file);
  let handle: FileHandle | undefined;
  let end = 0;
  return {
    async keep(value) {
      if (byteLength(value) < leastTensorBytes) return value;
      const bytes = tensorBytes(value);
      const offset = Math.ceil(end / alignment) * alignment;
      try {
        handle ??= await open(path, 'w');
        for (let written = 0; written < bytes.length; )
          written += (await handle.write(bytes, written, bytes.length - written, offset + written)).bytesWritten;
      } catch (error) {
        throw noRoom(folder, error);
      }
      end = offset + bytes.length;
      return fileTensor(value, { folder, file, offset });
    },
    async remove() {
      await handle?.close();
      await rm(path, { force: true });
    },
  };
}

function noRoom(folder: string, error: unknown): RunError {
  const reason = error instanceof Error ? error.message : String(error);
  return new RunError(
    `This device cannot keep its weights in ${folder} (${reason}): make room there, or name another folder in ` +
      'ASTEROID_CACHE.',
  );
}
