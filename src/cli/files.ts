// Reads and writes the documents that commands exchange. A missing or broken file is one clear error.

import { access, readFile } from 'node:fs/promises';
import { readDocument } from '../cluster/document.ts';
import { InputError, RunError } from '../errors.ts';
import { writeFileAtomically } from '../storage/atomic.ts';

/** The text of a file, or InputError naming it. */
export async function readText(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : String(error);
    throw new InputError(`${path} cannot be read (${code === 'ENOENT' ? 'there is no such file' : code}): check the path.`);
  }
}

/** True where there is something at this path. */
export async function isThere(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

/** A settings file as an object. */
export async function readConfig(path: string): Promise<Record<string, unknown>> {
  const value = readDocument(await readText(path), path);
  if (value === null || value === undefined) return {};
  if (typeof value !== 'object' || Array.isArray(value)) throw new InputError(`${path} must hold settings as "name: value" lines.`);
  return value as Record<string, unknown>;
}

/** Writes a document as JSON, whole or not at all. */
export async function writeJson(path: string, value: unknown): Promise<void> {
  await writeText(path, `${JSON.stringify(value, null, 2)}\n`);
}

/** Writes a text, whole or not at all. Throws InputError: the user named the file. */
export async function writeText(path: string, text: string): Promise<void> {
  try {
    await writeFileAtomically(path, [new TextEncoder().encode(text)]);
  } catch (error) {
    throw error instanceof RunError ? new InputError(error.message, { cause: error }) : error;
  }
}
