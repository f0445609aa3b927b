// Reads the text of a JSON or YAML document into a value, and turns what a schema refuses into one sentence: what, where, the mend.
// Not here: what the documents mean (validate.ts).

import { LineCounter, parseDocument } from 'yaml';
import type { z } from 'zod';
import { InputError } from '../errors.ts';

/** The value of a JSON or YAML text. `where` names the source in the error's sentence. */
export function readDocument(text: string, where: string): unknown {
  const start = text.trimStart()[0];
  if (start === '{' || start === '[') {
    try {
      return JSON.parse(text) as unknown;
    } catch {
      // YAML's flow style also opens with a bracket, and its parser knows the line of a mistake.
    }
  }
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  const error = document.errors[0];
  if (error !== undefined) {
    const { line, col } = lines.linePos(error.pos[0]);
    throw new InputError(
      `${where}: line ${line}, column ${col} is neither JSON nor YAML (${firstLine(error.message)}); correct that line.`,
    );
  }
  try {
    return document.toJS({ maxAliasCount: 100 }) as unknown;
  } catch (cause) {
    throw new InputError(`${where}: the YAML cannot be read (${firstLine(String(cause))}); write it without aliases.`);
  }
}

function firstLine(message: string): string {
  return (message.split('\n')[0] ?? '').replace(/[.:;]\s*$/, '');
}

/** The value of a document that is either text or a value already. */
export function documentValue(document: unknown, where: string): unknown {
  return typeof document === 'string' ? readDocument(document, where) : document;
}

/** Applies `schema`, whose messages each name what is expected ("a number above 0"), to a value. */
export function applySchema<Output>(schema: z.ZodType<Output>, value: unknown, where: string): Output {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const path = issue?.path ?? [];
  return refuse(where, path, shown(value, path), `give ${issue?.message ?? 'another value'}`);
}

/** Throws the sentence `where: path is what; mend.` */
export function refuse(where: string, path: readonly PropertyKey[], what: string, mend: string): never {
  throw new InputError(`${where}: ${pathText(path)} ${what}; ${mend}.`);
}

/** `devices[2].memoryMiB`; the empty path is the document itself. */
function pathText(path: readonly PropertyKey[]): string {
  if (path.length === 0) return 'the document';
  let text = '';
  for (const key of path) {
    if (typeof key === 'number') text += `[${key}]`;
    else if (/^[A-Za-z_$][\w$]*$/.test(String(key))) text += text === '' ? String(key) : `.${String(key)}`;
    else text += `[${JSON.stringify(String(key))}]`;
  }
  return text;
}

function shown(document: unknown, path: readonly PropertyKey[]): string {
  let value: unknown = document;
  for (const key of path) value = typeof value === 'object' && value !== null ? (value as Record<PropertyKey, unknown>)[key] : undefined;
  if (value === undefined) return 'is missing';
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? typeof value);
  return `is ${text.length > 40 ? `${text.slice(0, 37)}...` : text}`;
}
