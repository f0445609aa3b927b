// Samples without labels, made as the samples were on which a model was trained.

import { readdir, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { InputError } from '../../errors.ts';
import { defaultDataSettings } from '../../training/data/data-settings.ts';
import type { Dataset } from '../../training/data/dataset.ts';
import type { Preparation } from '../../training/data/preparation.ts';
import type { Source } from '../../training/data/source.ts';
import { type Table, TableBuilder } from '../../training/data/tables/table.ts';
import { unlabelledRows } from '../../training/data/tables/table-dataset.ts';
import { unlabelledTexts } from '../../training/data/texts/labelled-texts.ts';
import type { TextForm } from '../../training/data/texts/text-form.ts';
import { readError } from '../disk.ts';
import { nodeDisk } from './disk.ts';
import { isPictureName } from './pictures/find-pictures.ts';
import { loadUnlabelled } from './pictures/load-pictures.ts';
import { isTableName, readTable } from './tables/read-table.ts';
import { linesOf } from './tables/text-pieces.ts';
import { readSource } from './text-file.ts';
import { loadTokenizer } from './texts/tokenizer.ts';

/** Samples, and a name for each: its file, or its place in one. */
export interface Samples {
  readonly dataset: Dataset;
  readonly names: readonly string[];
}

/** Loads the samples in `paths`, files or folders. `model` is named in errors. Throws InputError. */
export async function loadSamples(
  paths: readonly string[],
  preparation: Preparation | undefined,
  model: string,
): Promise<Samples> {
  switch (preparation?.kind) {
    case 'pictures': {
      const names = (await Promise.all(paths.map(picturesIn))).flat();
      return { dataset: await loadUnlabelled(names, preparation.form, defaultDataSettings), names };
    }
    case 'table': {
      const tables = await Promise.all(paths.map(async (path) => readTable(await readSource(path, nodeDisk))));
      const [table, ...others] = tables;
      if (table === undefined || others.length > 0)
        throw new InputError('Rows to predict are taken from one table: name a single file.');
      const names = Array.from({ length: table.rowCount }, (_, row) => `line ${table.lineOf(row)}`);
      return { dataset: unlabelledRows(table, preparation.form), names };
    }
    case 'text':
      return loadUnlabelledTexts(paths, preparation.form, model);
    case undefined:
      throw new InputError(
        `${model} was trained on arrays, and what they were made of is not known: asteroid eval tests it on arrays.`,
      );
  }
}

/** Texts of tables, or lines of other files, by the tokenizer beside the model. */
async function loadUnlabelledTexts(paths: readonly string[], form: TextForm, model: string): Promise<Samples> {
  if (form.task === 'language')
    throw new InputError(`${model} is a language model, which classes nothing: asteroid eval tests it.`);
  const { encoder } = await loadTokenizer(dirname(model), nodeDisk);
  const tables = await Promise.all(paths.map(async (path) => textTable(await readSource(path, nodeDisk), form)));
  const [table, ...others] = tables;
  if (table === undefined || others.length > 0)
    throw new InputError('Texts to predict are taken from one file: name a single one.');
  const names = Array.from({ length: table.rowCount }, (_, row) => `line ${table.lineOf(row)}`);
  return { dataset: unlabelledTexts(table, form, encoder), names };
}

/** A table, or the lines of a file that is none. */
async function textTable(source: Source, { columns }: TextForm): Promise<Table> {
  if (isTableName(source.name)) return readTable(source);
  const builder = new TableBuilder(source.name, columns, true);
  for (const { text, line } of linesOf(source)) builder.add([text.trim()], line);
  return builder.build();
}

async function picturesIn(path: string): Promise<readonly string[]> {
  try {
    if (!(await stat(path)).isDirectory()) return [path];
    const entries = await readdir(path, { recursive: true });
    const names = entries.filter(isPictureName).sort();
    if (names.length === 0) throw new InputError(`${path} holds no pictures (JPEG, PNG, WebP, GIF, TIFF or AVIF).`);
    return names.map((name) => join(path, name));
  } catch (error) {
    throw error instanceof InputError ? error : readError(error, path);
  }
}
