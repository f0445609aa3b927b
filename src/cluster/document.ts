// Reads the text of a JSON or YAML document into a value, and turns what a schema refuses into one sentence: what,
// where, the fix. Not here: what the documents mean (validate.ts).

import { isMap, isScalar, isSeq, LineCounter, parseDocument } from 'yaml';
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
  // warnings would go past us to the terminal
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false, logLevel: 'error' });
  const error = document.errors[0];
  if (error !== undefined) {
    const { line, col } = lines.linePos(error.pos[0]);
    throw new InputError(
      `${where}: line ${line}, column ${col} is neither JSON nor YAML (${firstLine(error.message)}); correct ` +
        'that line.',
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

/** Where a document comes from, for the sentences of its errors. */
export interface Source {
  readonly name: string;
  /** The text it was read from; of one with several lines, errors name the line. */
  readonly text?: string;
  /** The path in the text of what is checked. */
  readonly within?: readonly PropertyKey[];
}

/** The source of a document that is either text or a value already. */
export function sourceOf(document: unknown, name: string): Source {
  return typeof document === 'string' ? { name, text: document } : { name };
}

/** Applies `schema`, whose messages each name what is expected ("a number above 0"), to a value. */
export function applySchema<Output>(schema: z.ZodType<Output>, value: unknown, source: Source): Output {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const issue = result.error.issues[0];
  const path = issue?.path ?? [];
  return refuse(source, path, shown(value, path), `give ${issue?.message ?? 'another value'}`);
}

/** Throws the sentence `source, line N: path is what; fix.` */
export function refuse(source: Source, path: readonly PropertyKey[], what: string, fix: string): never {
  const line = lineOf(source, path);
  throw new InputError(
    `${source.name}${line === undefined ? '' : `, line ${line}`}: ${pathText(path)} ${what}; ${fix}.`,
  );
}

/**
 * The line of what stands at a path, or of the nearest that is there; undefined where all is on one line or there is no
 * text.
 */
function lineOf({ text, within = [] }: Source, path: readonly PropertyKey[]): number | undefined {
  if (text === undefined || !text.trim().includes('\n')) return undefined;
  const lines = new LineCounter();
  let node: unknown = parseDocument(text, { lineCounter: lines }).contents;
  let offset: number | undefined;
  for (const key of [...within, ...path]) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isScalar(item.key) && String(item.key.value) === String(key));
      if (pair === undefined) break;
      offset = isScalar(pair.key) ? pair.key.range?.[0] : offset;
      node = pair.value;
    } else if (isSeq(node)) {
      node = node.items[Number(key)];
      if (isMap(node) || isSeq(node) || isScalar(node)) offset = node.range?.[0] ?? offset;
    } else break;
  }
  return offset === undefined ? undefined : lines.linePos(offset).line;
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
  for (const key of path)
    value = typeof value === 'object' && value !== null ? (value as Record<PropertyKey, unknown>)[key] : undefined;
  if (value === undefined) return 'is missing';
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? typeof value);
  return `is ${text.length > 40 ? `${text.slice(0, 37)}...` : text}`;
}
