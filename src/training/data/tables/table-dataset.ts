// A table as a data set: columns of numbers standardised, columns of texts as one number for each category, and the
// label. How the columns were made is plain data, so that new rows are made alike.

import { InputError } from '../../../errors.ts';
import { type Tensor, wrap } from '../../../graph/tensor.ts';
import type { Datasets } from '../arrays.ts';
import { createDataset, type Dataset, inferClassCount, inputField, labelField } from '../dataset.ts';
import { split } from '../split.ts';
import { type Column, columnOf, type NumberColumn, type Table } from './table.ts';
import type { ColumnForm, TableForm } from './table-form.ts';
import { labelsOf, severalLabels, textsOf } from './table-labels.ts';

/** What a table is read for. */
export interface TableTask {
  /** Names of label columns. Default: "label" or the like, else the last. */
  readonly labels?: readonly string[];
  /** Names of input columns. Default: all others. */
  readonly columns?: readonly string[];
  /** Whether numbers are standardised. */
  readonly standardizes: boolean;
  /** Forms and class names of a trained model, by which to make these samples. */
  readonly form?: TableForm;
  readonly classNames?: readonly string[];
  /** Rows to set apart for testing (split.ts): statistics and categories are those of the other rows. */
  readonly testPart?: { readonly fraction: number; readonly seed: number } | undefined;
}

const labelNames: readonly string[] = ['label', 'labels', 'target', 'class', 'y'];
/** More texts than this in a column are taken for a mistake: names, or dates. */
const maxCategoryCount = 1000;

/** Makes the data set, with what was found. Throws InputError. */
export function tableDataset(table: Table, task: TableTask): Datasets {
  const labels = labelColumns(table, task);
  const inputs = inputColumns(table, task, labels);
  if (inputs.length === 0) throw new InputError(`${table.source} has no column beside the label to learn from.`);
  const found =
    labels.length === 1 ? labelsOf(table, labels[0] as Column, task.classNames) : severalLabels(table, labels);
  const { field: labelTensor, classNames } = found;
  const label = labelField(labelTensor, table.source);
  const classCount = classNames?.length ?? inferClassCount(label);
  const { testPart } = task;
  const labelled = createDataset(table.source, [], label, classCount);
  const parts = testPart === undefined ? undefined : split(labelled, testPart.fraction, testPart.seed);
  const form = task.form ?? formOf(table, inputs, parts?.train.rows, task.standardizes);
  const input = inputField('input', inputsOf(table, form), table.source);
  const dataset = createDataset(table.source, [input], label, classCount);
  const named = classNames === undefined ? {} : { classNames };
  const { lineOf } = table;
  const rowName = (row: number): string => `line ${lineOf(row)}`;
  const whole: Dataset = { ...dataset, ...named, preparation: { kind: 'table', form }, rowName };
  const part = ({ rows, sampleCount }: Dataset): Dataset => ({ ...whole, ...(rows && { rows }), sampleCount });
  const datasets = parts === undefined ? { train: whole } : { train: part(parts.train), test: part(parts.test) };
  return { ...datasets, findings: findingsOf(inputs) };
}

/** Rows without labels, made in a trained model's form. Throws InputError for a table without its columns. */
export function unlabelledRows(table: Table, form: TableForm): Dataset {
  const rows = wrap('int32', [table.rowCount], new Int32Array(table.rowCount));
  const input = inputField('input', inputsOf(table, form), table.source);
  return createDataset(table.source, [input], labelField(rows, table.source));
}

function labelColumns(table: Table, { labels }: TableTask): readonly Column[] {
  if (labels !== undefined) return labels.map((name) => columnOf(table, name, '--label'));
  const named = table.columns.find(({ name }) => labelNames.includes(name.toLowerCase()));
  return [named ?? (table.columns.at(-1) as Column)];
}

function inputColumns(table: Table, { columns, form }: TableTask, labels: readonly Column[]): readonly Column[] {
  if (form !== undefined) return form.columns.map(({ name }) => columnOf(table, name, '--data'));
  if (columns !== undefined) return columns.map((name) => columnOf(table, name, '--columns'));
  return table.columns.filter((column) => !labels.includes(column));
}

/** The forms of columns by what they hold in `rows`; undefined: in all. */
function formOf(
  { source, rowCount }: Table,
  columns: readonly Column[],
  rows: Uint32Array | undefined,
  standardizes: boolean,
): TableForm {
  const trained = rows ?? Uint32Array.from({ length: rowCount }, (_, row) => row);
  return { columns: columns.map((column) => columnForm(source, column, trained, standardizes)) };
}

function columnForm(source: string, column: Column, rows: Uint32Array, standardizes: boolean): ColumnForm {
  const { name } = column;
  if (rows.length > 0 && rows.every((row) => isMissing(column.values[row])))
    throw new InputError(`${source} has no value in the column ${name}: leave it out with --columns.`);
  if (column.kind === 'number') {
    const { mean, deviation } = momentsOf(column, rows);
    return { name, kind: 'number', ...(standardizes ? { mean, deviation } : { mean: 0, deviation: 1 }) };
  }
  const values = textsOf({ values: Array.from(rows, (row) => column.values[row] ?? null) });
  if (values.length > maxCategoryCount)
    throw new InputError(
      `${source} has ${values.length} different texts in the column ${name}, too many for categories: leave it out ` +
        'with --columns, or train on it as text (--data text:FILE).',
    );
  return { name, kind: 'category', values };
}

function isMissing(value: number | string | null | undefined): boolean {
  return value === null || value === undefined || Number.isNaN(value);
}

/** Mean and population deviation of what is there in some rows; a constant column has a deviation of 1. */
function momentsOf({ values }: NumberColumn, rows: Uint32Array): { readonly mean: number; readonly deviation: number } {
  let [count, sum, squares] = [0, 0, 0];
  const each = (add: (value: number) => void): void => {
    for (const row of rows) if (!isMissing(values[row])) add(values[row] as number);
  };
  each((value) => {
    sum += value;
    count++;
  });
  const mean = sum / count;
  each((value) => {
    squares += (value - mean) ** 2;
  });
  return { mean, deviation: Math.sqrt(squares / count) || 1 };
}

function inputsOf(table: Table, { columns }: TableForm): Tensor {
  const widths = columns.map((form) => (form.kind === 'number' ? 1 : form.values.length));
  const width = widths.reduce((sum, size) => sum + size, 0);
  const data = new Float32Array(table.rowCount * width);
  let at = 0;
  for (const [index, form] of columns.entries()) {
    const column = columnOf(table, form.name, '--data');
    if (form.kind === 'number') writeNumbers(table, column, { data, at, width, ...form });
    else writeCategories(column, form.values, { data, at, width });
    at += widths[index] as number;
  }
  return wrap('float32', [table.rowCount, width], data);
}

function writeNumbers(
  table: Table,
  column: Column,
  {
    data,
    at,
    width,
    mean,
    deviation,
  }: { data: Float32Array; at: number; width: number; mean: number; deviation: number },
): void {
  if (column.kind !== 'number') {
    const row = column.values.findIndex((value) => value !== null && Number.isNaN(Number(value)));
    throw new InputError(
      `${table.source}, line ${table.lineOf(row)}, has ${JSON.stringify(column.values[row])} in the column ` +
        `${column.name}, which held numbers in training: correct that line.`,
    );
  }
  for (let row = 0; row < table.rowCount; row++) {
    const value = column.values[row] as number;
    data[row * width + at] = Number.isNaN(value) ? 0 : (value - mean) / deviation;
  }
}

function writeCategories(
  column: Column,
  values: readonly string[],
  { data, at, width }: { data: Float32Array; at: number; width: number },
): void {
  const places = new Map(values.map((value, index) => [value, index]));
  for (let row = 0; row < column.values.length; row++) {
    const place = places.get(String(column.values[row]));
    if (place !== undefined) data[row * width + at + place] = 1;
  }
}

function findingsOf(columns: readonly Column[]): readonly string[] {
  return columns
    .filter(({ missingCount }) => missingCount > 0)
    .map(({ name, kind, missingCount, missingLines }) => {
      const lines = `${missingLines.join(', ')}${missingCount > missingLines.length ? ', …' : ''}`;
      const instead = kind === 'number' ? "the column's mean stands for them" : 'they are in no category';
      return `${name} has ${missingCount} missing values (line ${lines}): ${instead}.`;
    });
}
