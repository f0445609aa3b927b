// Reads and writes the documents that commands exchange. A missing or broken file is one clear error.

import { constants } from 'node:fs';
import { access, readFile, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { readDocument } from '../cluster/document.ts';
import { InputError, RunError } from '../errors.ts';
import { writeFileAtomically } from '../storage/atomic.ts';
import { errorCode } from '../storage/disk.ts';
import { nodeDisk } from '../storage/node/disk.ts';

/** The text of a file, or InputError naming it. */
export async function readText(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    const code = errorCode(error) ?? String(error);
    throw new InputError(
      `${path} cannot be read (${code === 'ENOENT' ? 'there is no such file' : code}): check the path.`,
    );
  }
}

/** True where there is something at this path. */
export async function isThere(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

/** Finds out before long work whether a file can be written at its end. Throws InputError. */
export async function checkWritable(path: string): Promise<void> {
  const folder = dirname(path);
  const problem = await access(folder, constants.W_OK).then(
    () => stat(folder).then((found) => (found.isDirectory() ? undefined : 'ENOTDIR')),
    (error: unknown) => errorCode(error) ?? String(error),
  );
  if (problem === undefined) return;
  const reasons: Readonly<Record<string, string>> = {
    ENOENT: 'there is no such folder',
    ENOTDIR: 'a part of the path is a file',
  };
  throw new InputError(`${path} cannot be written (${reasons[problem] ?? problem}): choose another file.`);
}

/** A settings file as an object. */
export async function readConfig(path: string): Promise<Record<string, unknown>> {
  return configOf(await readText(path), path);
}

/** The settings in the text of a file. Throws InputError. */
export function configOf(text: string, path: string): Record<string, unknown> {
  const value = readDocument(text, path);
  if (value === null || value === undefined) return {};
  if (typeof value !== 'object' || Array.isArray(value))
    throw new InputError(`${path} must hold settings as "name: value" lines.`);
  return value as Record<string, unknown>;
}

/** Writes a document as JSON, whole or not at all. */
export async function writeJson(path: string, value: unknown): Promise<void> {
  await writeText(path, `${JSON.stringify(value, null, 2)}\n`);
}

/** Writes a text, whole or not at all. Throws InputError: the user named the file. */
export async function writeText(path: string, text: string): Promise<void> {
  try {
    await writeFileAtomically(path, [new TextEncoder().encode(text)], nodeDisk);
  } catch (error) {
    throw error instanceof RunError ? new InputError(error.message, { cause: error }) : error;
  }
}
