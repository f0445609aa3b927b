// Texts with a class or a number each, from a table.

import { InputError } from '../../../errors.ts';
import type { Datasets } from '../arrays.ts';
import { createDataset, type Dataset, inferClassCount, labelField } from '../dataset.ts';
import { type Column, columnOf, type Table } from '../tables/table.ts';
import { labelsOf } from '../tables/table-labels.ts';
import type { TextForm, TextInput, TokenEncoder } from './text-form.ts';
import { checkedIds, cut, inputNames, lengthFor, type TokenRow, tokenFields } from './token-rows.ts';

/** What texts are read for. */
export interface TextOptions {
  readonly encoder: TokenEncoder;
  readonly input: TextInput;
  readonly maxLength: number;
  /** The columns of texts; default: "text" or the like. */
  readonly columns?: readonly string[];
  readonly label?: string;
  readonly classNames?: readonly string[];
  /** A trained model's form. */
  readonly form?: TextForm;
}

const textNames: readonly string[] = ['text', 'sentence', 'content', 'review', 'document'];
const labelNames: readonly string[] = ['label', 'labels', 'target', 'class', 'y'];

/** The label column of a table, if there is one: the named one, or one that is called label. Throws InputError. */
export function labelColumnOf(table: Table, label: string | undefined): Column | undefined {
  if (label !== undefined) return columnOf(table, label, '--label');
  return table.columns.find(({ name }) => labelNames.includes(name.toLowerCase()));
}

/** The columns of texts: those that are named, or one that is called text, or the first that is text. */
export function textColumnsOf(table: Table, names: readonly string[] | undefined, label?: Column): readonly Column[] {
  if (names !== undefined) {
    if (names.length > 2) throw new InputError(`--columns ${names.join(',')} names more than two columns of texts.`);
    return names.map((name) => columnOf(table, name, '--columns'));
  }
  const others = table.columns.filter((column) => column !== label);
  const found =
    others.find(({ name }) => textNames.includes(name.toLowerCase())) ?? others.find(({ kind }) => kind === 'text');
  if (found !== undefined) return [found];
  throw new InputError(`${table.source} has no column of texts; name one with --columns.`);
}

/** The data set of a table with a label column. Throws InputError. */
export function labelledTexts(table: Table, label: Column, options: TextOptions): Datasets {
  const { input, maxLength, encoder } = options;
  const columns = textColumnsOf(table, options.form?.columns ?? options.columns, label);
  const rows = tokenRows(table, columns, options);
  const length = options.form?.length ?? lengthFor(longestOf(rows), input, maxLength);
  const form: TextForm = {
    task: 'labels',
    length,
    columns: columns.map(({ name }) => name),
    inputs: inputNames(input),
  };
  const found = labelsOf(table, label, options.classNames);
  const labels = labelField(found.field, table.source);
  const fields = tokenFields(
    rows.map((row) => cut(row, length)),
    form,
    { padId: encoder.padId, source: table.source },
  );
  const classCount = found.classNames?.length ?? inferClassCount(labels);
  const dataset = createDataset(table.source, fields, labels, classCount);
  const named = found.classNames === undefined ? {} : { classNames: found.classNames };
  const { lineOf } = table;
  const rowName = (row: number): string => `line ${lineOf(row)}`;
  const tokenCounts = Uint32Array.from(rows, ({ ids }) => Math.min(ids.length, length));
  return {
    train: { ...dataset, ...named, preparation: { kind: 'text', form }, rowName, tokenCounts },
    findings: findingsOf(rows, length, encoder),
  };
}

/** Texts without labels in a trained model's form. Throws InputError. */
export function unlabelledTexts(table: Table, form: TextForm, encoder: TokenEncoder): Dataset {
  const columns = form.columns.map((name) => columnOf(table, name, 'the model'));
  const input = { names: form.inputs, length: form.length };
  const rows = tokenRows(table, columns, { encoder, input, maxLength: form.length });
  const fields = tokenFields(
    rows.map((row) => cut(row, form.length)),
    form,
    {
      padId: encoder.padId,
      source: table.source,
    },
  );
  const field = labelField({ type: 'int32', shape: [rows.length], data: new Int32Array(rows.length) }, table.source);
  return createDataset(table.source, fields, field);
}

function tokenRows(table: Table, columns: readonly Column[], { encoder, input }: TextOptions): readonly TokenRow[] {
  const [first, second] = columns;
  const textOf = (column: Column | undefined, row: number): string | undefined => {
    if (column === undefined) return undefined;
    const value = column.values[row];
    return value === null || Number.isNaN(value) ? '' : String(value);
  };
  return Array.from({ length: table.rowCount }, (_, row) => {
    const { ids, types } = encoder.encode(textOf(first, row) ?? '', textOf(second, row));
    return { ids: checkedIds(ids, `${table.source}, line ${table.lineOf(row)},`, input), types };
  });
}

function longestOf(rows: readonly TokenRow[]): number {
  return rows.reduce((most, { ids }) => Math.max(most, ids.length), 0);
}

function findingsOf(rows: readonly TokenRow[], length: number, { unknownId }: TokenEncoder): readonly string[] {
  const total = rows.reduce((sum, { ids }) => sum + Math.min(ids.length, length), 0);
  const cutCount = rows.filter(({ ids }) => ids.length > length).length;
  const unknown = rows.filter(({ ids }) => unknownId !== undefined && ids.includes(unknownId)).length;
  const share = Math.round((100 * total) / (rows.length * length));
  return [
    `Texts are filled up to ${length} tokens; ${share} % of these are texts.`,
    ...(cutCount > 0 ? [`${cutCount} texts are longer than ${length} tokens, and their ends are cut off.`] : []),
    ...(unknown > 0 ? [`${unknown} texts have words that the tokenizer does not know.`] : []),
  ];
}
