// The folder with the keys and certificates of this user's devices and clusters. Only the user may read its files.

import { lstat, mkdir, open, readFile, rename, rm } from 'node:fs/promises';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { InputError, RunError } from '../../../errors.ts';

/** $ASTEROID_STATE, or asteroid/ in $XDG_STATE_HOME, or ~/.local/state/asteroid. */
export function stateFolder(environment: Readonly<Record<string, string | undefined>> = process.env): string {
  const { ASTEROID_STATE: own, XDG_STATE_HOME: xdg } = environment;
  if (own !== undefined && own !== '') return own;
  return join(xdg !== undefined && xdg !== '' ? xdg : join(homedir(), '.local', 'state'), 'asteroid');
}

/** A secret file's text; undefined if there is none. Throws InputError if others may read it. */
export async function readSecret(path: string): Promise<string | undefined> {
  try {
    const { mode } = await lstat(path);
    if (process.platform !== 'win32' && (mode & 0o077) !== 0) {
      throw new InputError(
        `${path} holds a key and can be read by others: run "chmod 600 ${path}", or delete it to begin a new cluster.`,
      );
    }
    return await readFile(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    if (error instanceof InputError) throw error;
    throw new RunError(`${path} cannot be read: ${(error as Error).message}.`);
  }
}

/** Writes a secret file with mode 0600 in a folder with 0700; it appears whole. Throws RunError. */
export async function writeSecret(path: string, text: string): Promise<void> {
  const temporary = `${path}.${process.pid}.tmp`;
  try {
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    await rm(temporary, { force: true });
    const file = await open(temporary, 'wx', 0o600);
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    throw new RunError(`${path} cannot be written: ${(error as Error).message}.`);
  }
}
