// Writes a file so that a reader, and a machine that loses power at any moment, finds the old contents or the new,
// whole: a temporary file in its folder, its sync, a rename, a sync of the folder.

import { RunError } from '../errors.ts';
import { basename, dirname, join } from '../paths.ts';
import { type Disk, type DiskFile, errorCode, writeError } from './disk.ts';

/** Left by a writer that died; whoever owns the folder may remove them. */
const temporary = /^\..+\.\d+\.tmp$/;
/** Temporary names tried; more abandoned ones than this is an error. */
const maxAttempts = 100;

/** True for the name of a temporary file of `writeFileAtomically`. */
export function isTemporary(name: string): boolean {
  return temporary.test(name);
}

/**
 * Writes the pieces in order as the file `path`. When it resolves, the file survives a power cut. Throws RunError; the
 * old file stands then, unless only the last sync failed.
 */
export async function writeFileAtomically(path: string, pieces: Iterable<Uint8Array>, disk: Disk): Promise<void> {
  let temporaryPath: string | undefined;
  try {
    const created = await createTemporary(path, disk);
    temporaryPath = created.path;
    try {
      for (const piece of pieces) await created.file.write(piece);
      await created.file.sync();
    } finally {
      await created.file.close();
    }
    await disk.rename(temporaryPath, path);
    temporaryPath = undefined;
    await disk.syncFolder(dirname(path));
  } catch (error) {
    // A full disk gets its room back. When even that fails, the first error is the one to report.
    if (temporaryPath !== undefined) await disk.remove(temporaryPath).catch(() => undefined);
    throw writeError(error, path);
  }
}

/** The first free name wins: two writers of one file never share a temporary one. */
async function createTemporary(path: string, disk: Disk): Promise<{ path: string; file: DiskFile }> {
  for (let attempt = 0; ; attempt++) {
    const candidate = join(dirname(path), `.${basename(path)}.${attempt}.tmp`);
    try {
      return { path: candidate, file: await disk.create(candidate) };
    } catch (error) {
      if (errorCode(error) !== 'EEXIST' || attempt + 1 === maxAttempts) throw error;
    }
  }
}

/** Makes a folder and those it lies in, where they are absent. Throws RunError. */
export async function makeFolders(folder: string, disk: Disk): Promise<void> {
  const parent = dirname(folder);
  try {
    const made = await makeFolder(folder, disk).catch(async (error: unknown) => {
      if (errorCode(error) !== 'ENOENT' || parent === folder) throw error;
      await makeFolders(parent, disk);
      return makeFolder(folder, disk);
    });
    if (made) await disk.syncFolder(parent);
  } catch (error) {
    throw error instanceof RunError ? error : writeError(error, folder);
  }
}

/** False where the folder was there already. */
async function makeFolder(folder: string, disk: Disk): Promise<boolean> {
  try {
    await disk.makeFolder(folder);
    return true;
  } catch (error) {
    if (errorCode(error) !== 'EEXIST') throw error;
    return false;
  }
}
