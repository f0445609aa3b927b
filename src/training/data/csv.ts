// Tables of numbers as text: comma, semicolon or tab; with or without a line of column names; the label in the last
// column or a named one. Quoted cells are supported; cells over several lines are not.

import { InputError } from '../../errors.ts';
import { wrap } from '../../graph/tensor.ts';
import { datasetFromPair } from './arrays.ts';
import { type Dataset, inputField, labelField } from './dataset.ts';
import type { Source } from './source.ts';

/** Longer lines are refused: a file without line ends is not a table. */
const maxLineBytes = 16 * 1024 * 1024;
const number = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$/;

/**
 * Reads a table: inputs [rows, columns − 1] of float32; labels are classes (int64) if all are non-negative integers,
 * otherwise float32 [rows, 1]. Throws InputError with line and column.
 */
export function readCsv(source: Source, labelColumn?: string): Dataset {
  const lines = textLines(source);
  const first = lines.next();
  if (first.done === true) throw new InputError(`${source.name} is empty; a table with one line a sample is needed.`);
  const separator = separatorOf(first.value.text);
  const firstCells = cellsOf(source, first.value, separator);
  const columnCount = firstCells.length;
  if (columnCount < 2)
    throw new InputError(`${source.name} has a single column; inputs and a label are needed, separated by commas.`);
  const hasNames = firstCells.some((cell) => !number.test(cell));
  const labelIndex = labelIndexOf(source, firstCells, hasNames, labelColumn);
  const table = new NumberTable();
  if (!hasNames) table.add(source, first.value.line, firstCells);
  for (const line of lines) {
    const cells = cellsOf(source, line, separator);
    if (cells.length !== columnCount) {
      throw new InputError(
        `${source.name}, line ${line.line}, has ${cells.length} columns, but the first line has ` +
          `${columnCount}; every line needs the same.`,
      );
    }
    table.add(source, line.line, cells);
  }
  return toDataset(source, table.values(), columnCount, labelIndex);
}

interface Line {
  readonly text: string;
  /** Counted from 1. */
  readonly line: number;
}

/** A growing row-major table. */
class NumberTable {
  #values = new Float64Array(1024);
  #count = 0;

  add(source: Source, line: number, cells: readonly string[]): void {
    if (this.#count + cells.length > this.#values.length) {
      const larger = new Float64Array(Math.max(this.#values.length * 2, this.#count + cells.length));
      larger.set(this.#values);
      this.#values = larger;
    }
    cells.forEach((cell, column) => {
      const value = number.test(cell) ? Number(cell) : Number.NaN;
      // A number beyond float32's range would be trained on as infinity.
      if (!Number.isFinite(Math.fround(value))) {
        throw new InputError(
          `${source.name}, line ${line}, column ${column + 1}, is ${JSON.stringify(cell.slice(0, 40))}, which ` +
            'is not a finite number; correct or remove that line.',
        );
      }
      this.#values[this.#count++] = value;
    });
  }

  values(): Float64Array {
    return this.#values.subarray(0, this.#count);
  }
}

/** The lines that are not blank. */
function* textLines(source: Source): Generator<Line, void> {
  const { bytes } = source;
  const decoder = new TextDecoder('utf-8', { fatal: true });
  let start = 0;
  for (let line = 1; start < bytes.length; line++) {
    const found = bytes.indexOf(10, start);
    const end = found < 0 ? bytes.length : found;
    if (end - start > maxLineBytes)
      throw new InputError(
        `${source.name}, line ${line}, is longer than ${maxLineBytes} bytes; is it a table with one line a sample?`,
      );
    let text: string;
    try {
      text = decoder.decode(bytes.subarray(start, end)).trim();
    } catch {
      throw new InputError(`${source.name}, line ${line}, is not UTF-8 text; save the table as plain CSV.`);
    }
    start = end + 1;
    if (text !== '') yield { text, line };
  }
}

function separatorOf(text: string): string {
  return [',', ';', '\t'].find((separator) => text.includes(separator)) ?? ',';
}

function cellsOf(source: Source, line: Line, separator: string): string[] {
  const { text } = line;
  if (!text.includes('"')) return text.split(separator).map((cell) => cell.trim());
  const cells: string[] = [];
  let at = 0;
  while (at <= text.length) {
    const quoted = quotedCell(text, at);
    const next = text.indexOf(separator, quoted?.end ?? at);
    const end = next < 0 ? text.length : next;
    if (quoted === null || (quoted !== undefined && text.slice(quoted.end, end).trim() !== '')) {
      throw new InputError(
        `${source.name}, line ${line.line}, has a quotation mark that does not close; correct that line.`,
      );
    }
    cells.push(quoted === undefined ? text.slice(at, end).trim() : quoted.cell.trim());
    at = end + 1;
  }
  return cells;
}

/**
 * The quoted cell that starts at `start`; undefined if there is none, null if it is not closed. A doubled quotation
 * mark stands for one.
 */
function quotedCell(text: string, start: number): { readonly cell: string; readonly end: number } | undefined | null {
  let open = start;
  while (text[open] === ' ') open++;
  if (text[open] !== '"') return undefined;
  for (let close = text.indexOf('"', open + 1); close >= 0; close = text.indexOf('"', close + 2)) {
    if (text[close + 1] !== '"') return { cell: text.slice(open + 1, close).replaceAll('""', '"'), end: close + 1 };
  }
  return null;
}

function labelIndexOf(
  source: Source,
  names: readonly string[],
  hasNames: boolean,
  labelColumn: string | undefined,
): number {
  if (labelColumn === undefined) return names.length - 1;
  if (!hasNames)
    throw new InputError(
      `${source.name} has no line of column names, so the label column ${labelColumn} cannot be found; add ` +
        'one, or put the label last.',
    );
  const index = names.indexOf(labelColumn);
  if (index < 0)
    throw new InputError(`${source.name} has no column ${labelColumn}; its columns are ${names.join(', ')}.`);
  return index;
}

function toDataset(source: Source, values: Float64Array, columnCount: number, labelIndex: number): Dataset {
  const rowCount = values.length / columnCount;
  const inputs = new Float32Array(rowCount * (columnCount - 1));
  const labels = new Float64Array(rowCount);
  for (let row = 0, to = 0; row < rowCount; row++) {
    for (let column = 0; column < columnCount; column++) {
      const value = values[row * columnCount + column] as number;
      if (column === labelIndex) labels[row] = value;
      else inputs[to++] = value;
    }
  }
  const classes = labels.every((label) => Number.isInteger(label) && label >= 0 && label < 2 ** 31);
  const labelTensor = classes
    ? wrap('int32', [rowCount], Int32Array.from(labels))
    : wrap('float32', [rowCount, 1], Float32Array.from(labels));
  return datasetFromPair(
    source.name,
    inputField('input', wrap('float32', [rowCount, columnCount - 1], inputs), source.name),
    labelField(labelTensor, source.name),
  );
}
