// Tables as JSON lines: an object a line, whose keys are the columns. What is no plain value stays as its JSON text.

import { z } from 'zod';
import { InputError } from '../../../errors.ts';
import type { Source } from '../../../training/data/source.ts';
import { type Cell, type Table, TableBuilder } from '../../../training/data/tables/table.ts';
import { linesOf } from './text-pieces.ts';

const row = z.record(z.string(), z.unknown());

/** Reads the file; columns are the keys of all lines, in the order in which they first occur. Throws InputError. */
export function readJsonLines(source: Source): Table {
  const names = new Set<string>();
  for (const { text, line } of linesOf(source))
    for (const name of Object.keys(parsed(source, text, line))) names.add(name);
  if (names.size === 0)
    throw new InputError(`${source.name} is empty; a line with an object for each sample is needed.`);
  const builder = new TableBuilder(source.name, [...names], true);
  for (const { text, line } of linesOf(source)) {
    const object = parsed(source, text, line);
    builder.add(
      [...names].map((name) => cellOf(object[name])),
      line,
    );
  }
  return builder.build();
}

function parsed({ name }: Source, text: string, line: number): Readonly<Record<string, unknown>> {
  try {
    return row.parse(JSON.parse(text));
  } catch {
    throw new InputError(
      `${name}, line ${line}, is no JSON object; write one sample a line, as {"text": "…", "label": 0}.`,
    );
  }
}

/** A value as a cell. */
export function cellOf(value: unknown): Cell {
  switch (typeof value) {
    case 'string':
    case 'number':
    case 'bigint':
    case 'boolean':
    case 'undefined':
      return value;
    default:
      return value === null ? null : JSON.stringify(value);
  }
}
