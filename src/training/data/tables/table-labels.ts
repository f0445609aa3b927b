// The labels of a table: classes with names or numbers, or numbers to come near.

import { InputError } from '../../../errors.ts';
import { type Tensor, wrap } from '../../../graph/tensor.ts';
import type { Column, Table, TextColumn } from './table.ts';

/** The texts of a column, sorted. */
export function textsOf({ values }: Pick<TextColumn, 'values'>): string[] {
  return [...new Set(values.filter((value) => value !== null))].sort();
}

/** Labels, and the names of their classes where they are texts. */
export interface FoundLabels {
  readonly field: Tensor;
  readonly classNames?: readonly string[];
}

/**
 * The labels of one column: texts are classes, sorted or those that are known; whole numbers from 0 are classes, too;
 * others are numbers [rows, 1]. Throws InputError.
 */
export function labelsOf(table: Table, column: Column, classNames?: readonly string[]): FoundLabels {
  checkPresent(table, column);
  if (column.kind === 'text' || classNames !== undefined) return namedClasses(table, column, classNames);
  const { values } = column;
  const areClasses = values.every((label) => Number.isInteger(label) && label >= 0 && label < 2 ** 31);
  return {
    field: areClasses
      ? wrap('int32', [table.rowCount], Int32Array.from(values))
      : wrap('float32', [table.rowCount, 1], Float32Array.from(values)),
  };
}

function namedClasses(table: Table, { values, name, ...column }: Column, known?: readonly string[]): FoundLabels {
  const { source, rowCount, lineOf } = table;
  const classNames = known ?? textsOf({ ...column, values, name } as TextColumn);
  if (classNames.length === 1 && known === undefined)
    throw new InputError(
      `${source} has one class only (${classNames[0]}) in the column ${name}, and nothing can be told apart: ` +
        'add rows of another, or name another column with --label.',
    );
  const numbers = new Map(classNames.map((text, index) => [text, index]));
  const labels = Int32Array.from({ length: rowCount }, (_, row) => {
    const label = numbers.get(String(values[row]));
    if (label !== undefined) return label;
    throw new InputError(
      `${source}, line ${lineOf(row)}, has the label ${JSON.stringify(values[row])}, which the training data do not ` +
        `have; these have ${classNames.slice(0, 8).join(', ')}${classNames.length > 8 ? ' and others' : ''}: ` +
        'correct that label, or train with rows of it.',
    );
  });
  return { field: wrap('int32', [rowCount], labels), classNames };
}

function checkPresent({ source }: Table, { name, missingCount, missingLines }: Column): void {
  if (missingCount === 0) return;
  throw new InputError(
    `${source}, line ${missingLines[0]}, has no value in the label column ${name}` +
      `${missingCount > 1 ? `, and ${missingCount - 1} more lines neither` : ''}: complete or remove them.`,
  );
}

/** Numbers [rows, columns]. Throws InputError. */
export function severalLabels(table: Table, columns: readonly Column[]): FoundLabels {
  const data = new Float32Array(table.rowCount * columns.length);
  for (const [index, column] of columns.entries()) {
    checkPresent(table, column);
    if (column.kind === 'text')
      throw new InputError(
        `${table.source} has texts in the label column ${column.name}: several labels a sample are numbers, 0 or 1 ` +
          'for --loss binary-cross-entropy.',
      );
    for (let row = 0; row < table.rowCount; row++) data[row * columns.length + index] = column.values[row] as number;
  }
  return { field: wrap('float32', [table.rowCount, columns.length], data) };
}
