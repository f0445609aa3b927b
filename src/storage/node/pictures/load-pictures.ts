// Folders and lists of pictures as data sets, whose samples are decoded when a batch is made.

import { availableParallelism } from 'node:os';
import { defined } from '../../../assert.ts';
import { InputError } from '../../../errors.ts';
import { elementCount, type Tensor, wrap } from '../../../graph/tensor.ts';
import type { Datasets } from '../../../training/data/arrays.ts';
import type { DataSettings } from '../../../training/data/data-settings.ts';
import { createDataset, type Dataset, labelField, type SampleReader } from '../../../training/data/dataset.ts';
import { parseAugment } from '../../../training/data/pictures/augment.ts';
import {
  type PictureForm,
  type PictureInput,
  parsePreprocessor,
  pictureFormOf,
} from '../../../training/data/pictures/picture-form.ts';
import type { Disk } from '../../disk.ts';
import { isTableName, readTable } from '../tables/read-table.ts';
import { readSource, readTextFile } from '../text-file.ts';
import { badPictures } from './check-pictures.ts';
import type { Recipe } from './decode.ts';
import { DecodeThreads } from './decode-threads.ts';
import { findPictures, type LabelledFiles } from './find-pictures.ts';
import { listedPictures } from './listed-pictures.ts';
import { loadSharp, type Sharp } from './sharp.ts';

/** How pictures are loaded. */
export interface PictureOptions {
  readonly settings: DataSettings;
  readonly input: PictureInput;
  readonly seed: number;
  readonly disk: Disk;
  /** The classes by number; undefined: the folders that are found. */
  readonly classNames: readonly string[] | undefined;
  /** The form of a trained model's pictures; undefined: by input and settings. */
  readonly form: PictureForm | undefined;
}

/**
 * The pictures in a folder, or those that a table lists. Throws InputError for files that cannot be used, unless they
 * are to be skipped.
 */
export async function loadPictures(path: string, options: PictureOptions): Promise<Datasets> {
  const { settings, input, seed, disk, classNames } = options;
  const found = isTableName(path)
    ? listedPictures(await readTable(await readSource(path, disk)), settings, classNames)
    : await findPictures(path, classNames);
  const config =
    settings.preprocessor === undefined
      ? undefined
      : parsePreprocessor(await readTextFile(settings.preprocessor, disk), settings.preprocessor);
  const form = options.form ?? pictureFormOf(input, settings.imageSize, config);
  const augment = settings.augment === undefined ? [] : parseAugment(settings.augment);
  const sharp = await loadSharp();
  const findings: string[] = [];
  const part = async (files: LabelledFiles, recipe: Recipe): Promise<Dataset> => {
    const good = await goodFiles(sharp, files, settings.onBadFile, findings);
    const { classNames: names, areNumbers = false } = found;
    return pictureDataset(path, good, { recipe, settings, classNames: areNumbers ? undefined : names });
  };
  const train = await part(found.train, { form, augment, seed });
  const test = found.test && (await part(found.test, { form, augment: [], seed }));
  if (found.otherCount > 0)
    findings.push(`${found.otherCount} files that are no pictures by their names were left out`);
  return { train, ...(test === undefined ? {} : { test }), findings };
}

/** Pictures without labels, in a form that a model says. Throws InputError for a file that cannot be used. */
export async function loadUnlabelled(
  files: readonly string[],
  form: PictureForm,
  settings: DataSettings,
): Promise<Dataset> {
  const labels = files.map(() => 0);
  await goodFiles(await loadSharp(), { files, labels }, 'refuse', []);
  const recipe = { form, augment: [], seed: 0 };
  return pictureDataset('the pictures', { files, labels }, { recipe, settings, classNames: [] });
}

async function goodFiles(
  sharp: Sharp,
  { files, labels }: LabelledFiles,
  onBadFile: DataSettings['onBadFile'],
  findings: string[],
): Promise<LabelledFiles> {
  const bad = await badPictures(sharp, files);
  const [first] = bad;
  if (first === undefined) return { files, labels };
  const path = defined(files[first.index], 'a file');
  const others = bad.length > 1 ? ` and ${bad.length - 1} more cannot be used either` : '';
  if (onBadFile === 'refuse')
    throw new InputError(
      `${path} cannot be used: ${first.problem}${others}; replace or remove it, or leave such files out with ` +
        '--on-bad-file skip.',
    );
  for (const { index, problem } of bad) findings.push(`${files[index]} was left out: ${problem}`);
  const isBad = new Set(bad.map(({ index }) => index));
  const kept = <T>(values: readonly T[]): T[] => values.filter((_, index) => !isBad.has(index));
  if (isBad.size === files.length)
    throw new InputError(`${path} and all other pictures cannot be used: ${first.problem}.`);
  return { files: kept(files), labels: kept(labels) };
}

function pictureDataset(
  name: string,
  { files, labels }: LabelledFiles,
  {
    recipe,
    settings,
    classNames,
  }: { readonly recipe: Recipe; readonly settings: DataSettings; readonly classNames: readonly string[] | undefined },
): Dataset {
  const { channels, height, width } = recipe.form;
  const shape = [files.length, channels, height, width];
  const values: Tensor = { type: 'float32', shape, data: new Float32Array(0) };
  const reader = pictureReader({ files, labels }, recipe, settings);
  const input = { name: 'input', values, reader, type: 'float32', divisor: 1, source: name } as const;
  const targets =
    classNames === undefined
      ? wrap('float32', [files.length, 1], Float32Array.from(labels))
      : wrap('int32', [files.length], Int32Array.from(labels));
  return {
    ...createDataset(name, [input], labelField(targets, name), classNames?.length),
    ...(classNames === undefined ? {} : { classNames }),
    preparation: { kind: 'pictures', form: recipe.form },
    rowName: (row) => files[row] ?? `picture ${row}`,
  };
}

/** Reads samples by threads of its own. */
function pictureReader({ files, labels }: LabelledFiles, recipe: Recipe, settings: DataSettings): SampleReader {
  const threads = settings.dataThreads ?? Math.max(1, Math.min(4, availableParallelism() - 1));
  const pool = new DecodeThreads({ files, recipe }, { threads, cacheBytes: settings.dataCache * 2 ** 20 });
  const { channels, height, width } = recipe.form;
  const size = elementCount([channels, height, width]);
  return {
    async read(rows, epoch) {
      const data = new Float32Array(rows.length * size);
      await Promise.all(
        Array.from(rows, async (row, place) => {
          const spare = settings.onBadFile === 'skip' ? labels : undefined;
          data.set(await readSample(pool, { files, labels: spare }, row, epoch), place * size);
        }),
      );
      return wrap('float32', [rows.length, channels, height, width], data);
    },
  };
}

/**
 * A sample. In place of one that turns out to be damaged comes the next of its class; without `labels`, none.
 */
async function readSample(
  pool: DecodeThreads,
  { files, labels }: { readonly files: readonly string[]; readonly labels: readonly number[] | undefined },
  row: number,
  epoch: number | undefined,
): Promise<Float32Array> {
  let problem = '';
  for (let tried = 0; tried < files.length; tried++) {
    const sample = (row + tried) % files.length;
    if (tried > 0 && labels?.[sample] !== labels?.[row]) continue;
    const reply = await pool.ask(sample, epoch);
    if ('values' in reply) return reply.values;
    problem = reply.problem;
    if (labels === undefined) break;
  }
  throw new InputError(
    `${files[row]} cannot be decoded (${problem}): replace or remove it, or use another picture of its class in its ` +
      'place with --on-bad-file skip.',
  );
}
