// Reads and writes the documents that commands exchange. A missing or broken file is one clear error.

import { readFile } from 'node:fs/promises';
import { parse as parseYaml } from 'yaml';
import { InputError } from '../errors.ts';
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

/** A settings file as an object. */
export async function readConfig(path: string): Promise<Record<string, unknown>> {
  const text = await readText(path);
  let value: unknown;
  try {
    value = parseYaml(text);
  } catch (error) {
    throw new InputError(`${path} is no valid YAML: ${error instanceof Error ? (error.message.split('\n')[0] ?? '') : String(error)}`);
  }
  if (value === null || value === undefined) return {};
  if (typeof value !== 'object' || Array.isArray(value)) throw new InputError(`${path} must hold settings as "name: value" lines.`);
  return value as Record<string, unknown>;
}

/** Writes a document as JSON, whole or not at all. */
export async function writeJson(path: string, value: unknown): Promise<void> {
  await writeFileAtomically(path, [new TextEncoder().encode(`${JSON.stringify(value, null, 2)}\n`)]);
}
