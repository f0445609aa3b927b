// Pictures that a table lists: a column of files, beside the table, and a column of labels.

import { dirname, isAbsolute, join } from 'node:path';
import { InputError } from '../../../errors.ts';
import { toNumbers } from '../../../graph/tensor.ts';
import type { DataSettings } from '../../../training/data/data-settings.ts';
import { type Column, columnOf, type Table } from '../../../training/data/tables/table.ts';
import { labelsOf } from '../../../training/data/tables/table-labels.ts';
import type { FoundPictures } from './find-pictures.ts';

const fileNames: readonly string[] = ['file_name', 'file', 'filename', 'image', 'picture', 'path'];
const labelNames: readonly string[] = ['label', 'labels', 'target', 'class', 'y'];

/** The files and labels of a table, whose path the files' names start from. Throws InputError. */
export function listedPictures(
  table: Table,
  { label, columns }: Pick<DataSettings, 'label' | 'columns'>,
  known?: readonly string[],
): FoundPictures {
  const named = (names: readonly string[]): Column | undefined =>
    table.columns.find(({ name }) => names.includes(name.toLowerCase()));
  const files = columns === undefined ? named(fileNames) : columnOf(table, columns, '--columns');
  if (files === undefined)
    throw new InputError(`${table.source} has no column of files, such as file_name; name one with --columns.`);
  const labels = label === undefined ? named(labelNames) : columnOf(table, label, '--label');
  if (labels === undefined)
    throw new InputError(`${table.source} has no column of labels, such as label; name one with --label.`);
  const { field, classNames = [] } = labelsOf(table, labels, known);
  const paths = Array.from({ length: table.rowCount }, (_, row) => {
    const name = files.values[row];
    if (typeof name !== 'string')
      throw new InputError(`${table.source}, line ${table.lineOf(row)}, names no file: complete or remove it.`);
    return isAbsolute(name) ? name : join(dirname(table.source), name);
  });
  const numbers = toNumbers(field);
  const areNumbers = field.type === 'float32';
  const names = classNames.length > 0 || areNumbers ? classNames : numberedClasses(numbers);
  return { classNames: names, train: { files: paths, labels: numbers }, otherCount: 0, areNumbers };
}

/** Class numbers name themselves. */
function numberedClasses(labels: readonly number[]): readonly string[] {
  const count = labels.reduce((most, label) => Math.max(most, label), 0) + 1;
  return Array.from({ length: count }, (_, label) => String(label));
}
