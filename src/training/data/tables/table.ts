// A table in memory, column by column: numbers as numbers, everything else as texts. Whatever its file was.

import { InputError } from '../../../errors.ts';

/** What a file's cell may hold. */
export type Cell = string | number | bigint | boolean | null | undefined;

interface ColumnFacts {
  readonly name: string;
  readonly missingCount: number;
  /** Lines of the first few missing cells. */
  readonly missingLines: readonly number[];
}

/** A column of numbers; a missing one is NaN. */
export interface NumberColumn extends ColumnFacts {
  readonly kind: 'number';
  readonly values: Float64Array;
}

/** A column of texts; a missing one is null. */
export interface TextColumn extends ColumnFacts {
  readonly kind: 'text';
  readonly values: readonly (string | null)[];
}

export type Column = NumberColumn | TextColumn;

export interface Table {
  /** The file, for messages. */
  readonly source: string;
  /** Whether the file names its columns; else they are named by their number, from 1. */
  readonly hasNames: boolean;
  readonly columns: readonly Column[];
  readonly rowCount: number;
  /** The line of a row, from 1; of files without lines, the row. */
  lineOf(row: number): number;
}

const numberText = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$/;
/** What stands for a missing value in tables, in lower case. */
const missingTexts: ReadonlySet<string> = new Set(['', 'na', 'n/a', 'nan', 'null', 'none', '?']);
const shownLineCount = 3;

/** True for a cell that is written as a number. */
export function isNumberText(text: string): boolean {
  return numberText.test(text);
}

/** Collects rows. Throws InputError for a row of another length, or a number that float32 cannot hold. */
export class TableBuilder {
  readonly #source: string;
  readonly #names: readonly string[];
  readonly #hasNames: boolean;
  readonly #columns: ColumnBuilder[];
  readonly #lines: number[] = [];

  constructor(source: string, names: readonly string[], hasNames: boolean) {
    const twice = names.find((name, index) => names.indexOf(name) !== index);
    if (twice !== undefined)
      throw new InputError(`${source} has two columns named ${JSON.stringify(twice)}: rename one of them.`);
    this.#source = source;
    this.#names = names;
    this.#hasNames = hasNames;
    this.#columns = names.map((name, index) => new ColumnBuilder(source, name, index));
  }

  add(cells: readonly Cell[], line: number): void {
    if (cells.length !== this.#names.length)
      throw new InputError(
        `${this.#source}, line ${line}, has ${cells.length} columns, but the first line has ${this.#names.length}; ` +
          'every line needs the same.',
      );
    this.#lines.push(line);
    for (const [index, column] of this.#columns.entries()) column.add(cells[index], line);
  }

  build(): Table {
    const lines = this.#lines;
    return {
      source: this.#source,
      hasNames: this.#hasNames,
      columns: this.#columns.map((column) => column.build()),
      rowCount: lines.length,
      lineOf: (row) => lines[row] ?? 0,
    };
  }
}

/** One column: numbers until the first text. */
class ColumnBuilder {
  readonly #source: string;
  readonly #name: string;
  readonly #index: number;
  #numbers = new Float64Array(256);
  #texts: (string | null)[] | undefined;
  #count = 0;
  #missingCount = 0;
  readonly #missingLines: number[] = [];

  constructor(source: string, name: string, index: number) {
    this.#source = source;
    this.#name = name;
    this.#index = index;
  }

  add(cell: Cell, line: number): void {
    const text = typeof cell === 'string' ? cell : undefined;
    if (cell === null || cell === undefined || (text !== undefined && missingTexts.has(text.toLowerCase())))
      return this.#addMissing(line);
    if (text !== undefined && (this.#texts !== undefined || !isNumberText(text))) return this.#addText(text);
    this.#addNumber(Number(cell), String(cell), line);
  }

  #addMissing(line: number): void {
    this.#missingCount++;
    if (this.#missingLines.length < shownLineCount) this.#missingLines.push(line);
    if (this.#texts === undefined) this.#push(Number.NaN);
    else this.#texts.push(null);
  }

  #addText(text: string): void {
    this.#texts ??= Array.from(this.#numbers.subarray(0, this.#count), (value) =>
      Number.isNaN(value) ? null : String(value),
    );
    this.#texts.push(text);
  }

  #addNumber(value: number, text: string, line: number): void {
    // A number beyond float32's range would be trained on as infinity.
    if (!Number.isFinite(Math.fround(value)))
      throw new InputError(
        `${this.#source}, line ${line}, column ${this.#index + 1}, is ${JSON.stringify(text.slice(0, 40))}, which is ` +
          'not a finite number; correct or remove that line.',
      );
    if (this.#texts === undefined) this.#push(value);
    else this.#texts.push(text);
  }

  #push(value: number): void {
    if (this.#count === this.#numbers.length) {
      const larger = new Float64Array(this.#count * 2);
      larger.set(this.#numbers);
      this.#numbers = larger;
    }
    this.#numbers[this.#count++] = value;
  }

  build(): Column {
    const facts = { name: this.#name, missingCount: this.#missingCount, missingLines: this.#missingLines };
    return this.#texts === undefined
      ? { kind: 'number', ...facts, values: this.#numbers.slice(0, this.#count) }
      : { kind: 'text', ...facts, values: this.#texts };
  }
}

/** The column of a name. Throws InputError that lists the columns. */
export function columnOf({ source, columns, hasNames }: Table, name: string, flag: string): Column {
  const found = columns.find((column) => column.name === name);
  if (found !== undefined) return found;
  if (!hasNames)
    throw new InputError(
      `${source} has no line of column names, so the column ${name} of ${flag} cannot be found; add one.`,
    );
  throw new InputError(
    `${source} has no column ${name}; its columns are ${columns.map((one) => one.name).join(', ')}.`,
  );
}
