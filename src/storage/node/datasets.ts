// Data specs (training/data/spec.ts) to data sets: finds and reads the files, parsing is training/data's. A file that
// is missing, unreadable or damaged is one InputError that names it. Part of storage/: Node only; imports training and
// below.

import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { InputError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { type Datasets, datasetFromPair, datasetsFromArrays } from '../../training/data/arrays.ts';
import { readCifar10 } from '../../training/data/cifar10.ts';
import { type DataSettings, defaultDataSettings } from '../../training/data/data-settings.ts';
import { createDataset, type Dataset, inferClassCount, inputField, labelField } from '../../training/data/dataset.ts';
import { readIdx } from '../../training/data/idx.ts';
import { mix } from '../../training/data/mix.ts';
import { readNpy } from '../../training/data/npy.ts';
import { readNpz } from '../../training/data/npz.ts';
import type { PictureInput } from '../../training/data/pictures/picture-form.ts';
import type { Preparation } from '../../training/data/preparation.ts';
import { checkSettings } from '../../training/data/settings-check.ts';
import { gunzip, type Source } from '../../training/data/source.ts';
import { type DataSpec, parseDataSpec } from '../../training/data/spec.ts';
import { split } from '../../training/data/split.ts';
import { makeSynthetic } from '../../training/data/synthetic.ts';
import { makeSyntheticTokens } from '../../training/data/synthetic-tokens.ts';
import { type TableTask, tableDataset } from '../../training/data/tables/table-dataset.ts';
import type { TextInput } from '../../training/data/texts/text-form.ts';
import { readTokens } from '../../training/data/tokens.ts';
import { type Disk, readError } from '../disk.ts';
import { nodeDisk } from './disk.ts';
import { inflate } from './inflate.ts';
import { loadPictures } from './pictures/load-pictures.ts';
import { readTable } from './tables/read-table.ts';
import { readSource } from './text-file.ts';
import { loadTexts } from './texts/load-texts.ts';

/** Real digits that come with the package, as tools/bundle.mjs has written them. */
const digitsFolder = fileURLToPath(new URL('../../mnist', import.meta.url));

export interface LoadOptions {
  readonly disk?: Disk;
  /** For synthetic data, augmentation and splitting; default 0. */
  readonly seed?: number;
  /** Default: `defaultDataSettings`. */
  readonly settings?: DataSettings;
  /** What the model takes, of a model for pictures; default: it leaves everything open. */
  readonly picture?: PictureInput;
  /** What the model takes, of a model for texts; default: ids, of any length. */
  readonly text?: TextInput;
  /** The classes by number, of data that name them; default: those that are found, sorted. */
  readonly classNames?: readonly string[];
  /** What was done to the data on which a model was trained, to do to these; default: what the data suggest. */
  readonly preparation?: Preparation | undefined;
}

/**
 * Loads what `spec` names. `test` is there for mnist (8,500 and 1,500 digits, each digit in proportion), cifar10, idx
 * with t10k files, npz with x_test and y_test, tokens (the last tenth), synthetic, pictures with val/ or test/, and
 * with `evalSplit`. Throws InputError.
 */
export async function loadDataset(spec: string, options: LoadOptions = {}): Promise<Datasets> {
  const { seed = 0, settings = defaultDataSettings } = options;
  const parsed = parseDataSpec(spec);
  checkSettings(parsed.kind, settings);
  const testPart = settings.evalSplit === 0 ? undefined : { fraction: settings.evalSplit, seed };
  const loaded = await load(parsed, { ...options, settings, testPart }, seed);
  if (loaded.test !== undefined || settings.evalSplit === 0) return loaded;
  return { ...loaded, ...split(loaded.train, settings.evalSplit, seed) };
}

type Loading = LoadOptions & Required<Pick<LoadOptions, 'settings'>> & Pick<TableTask, 'testPart'>;

async function load(spec: DataSpec, options: Loading, seed: number): Promise<Datasets> {
  const { disk = nodeDisk, settings, picture = {}, classNames, preparation } = options;
  switch (spec.kind) {
    case 'mnist':
      return loadIdxFolder(digitsFolder, disk);
    case 'cifar10':
      return loadCifar10(spec.folder, disk);
    case 'idx':
      return loadIdxFolder(spec.folder, disk);
    case 'images':
      return loadPictures(spec.path, {
        settings,
        input: picture,
        seed,
        disk,
        classNames,
        form: preparation?.kind === 'pictures' ? preparation.form : undefined,
      });
    case 'npy': {
      const [inputs, labels] = [
        readNpy(await readSource(spec.inputs, disk)),
        readNpy(await readSource(spec.labels, disk)),
      ];
      return {
        train: datasetFromPair(spec.inputs, inputField('input', inputs, spec.inputs), labelField(labels, spec.labels)),
      };
    }
    case 'npz':
      return datasetsFromArrays(spec.file, readNpz(await readSource(spec.file, disk), inflate));
    case 'csv':
    case 'table': {
      const label = spec.kind === 'csv' ? spec.labelColumn : undefined;
      return tableDataset(await readTable(await readSource(spec.file, disk)), tableTask(options, label));
    }
    case 'text': {
      const form = preparation?.kind === 'text' ? preparation.form : undefined;
      const texts = { settings, input: options.text ?? { names: [] }, disk, classNames, form };
      return loadTexts(await readSource(spec.file, disk), texts);
    }
    case 'tokens':
      return readTokens(await readSource(spec.file, disk), spec.blockLength);
    case 'synthetic':
      return makeSynthetic(spec, seed);
    case 'synthetic-tokens':
      return makeSyntheticTokens(spec, seed);
    case 'mix': {
      const parts = spec.parts.map(async ({ spec: own, share, text }) => ({
        ...{ data: await load(own, { ...options, testPart: undefined }, seed), share, text },
      }));
      return mix(await Promise.all(parts), seed);
    }
  }
}

function tableTask(
  { settings, preparation, classNames, testPart }: Loading,
  labelColumn: string | undefined,
): TableTask {
  const { label = labelColumn, columns, standardize } = settings;
  return {
    testPart,
    standardizes: standardize,
    ...(label === undefined ? {} : { labels: label.split(',') }),
    ...(columns === undefined ? {} : { columns: columns.split(',') }),
    ...(preparation?.kind === 'table' ? { form: preparation.form } : {}),
    ...(classNames === undefined ? {} : { classNames }),
  };
}

async function list(folder: string, disk: Disk): Promise<string[]> {
  try {
    return await disk.list(folder);
  } catch (error) {
    throw readError(error, folder);
  }
}

/** data_batch_1.bin … data_batch_5.bin and test_batch.bin, here or in cifar-10-batches-bin (as the archive unpacks). */
async function loadCifar10(folder: string, disk: Disk): Promise<Datasets> {
  let path = folder;
  let names = await list(path, disk);
  if (names.includes('cifar-10-batches-bin')) {
    path = join(folder, 'cifar-10-batches-bin');
    names = await list(path, disk);
  }
  const batches = names.filter((name) => /^data_batch_\d+\.bin$/.test(name));
  if (batches.length === 0)
    throw new InputError(`${folder} holds no data_batch_1.bin; unpack CIFAR-10's binary version there.`);
  const sources = async (files: readonly string[]): Promise<Source[]> =>
    Promise.all(files.map((name) => readSource(join(path, name), disk)));
  const train = readCifar10(await sources(batches));
  return names.includes('test_batch.bin') ? { train, test: readCifar10(await sources(['test_batch.bin'])) } : { train };
}

const idxName = /^(train|t10k|test)-(images|labels)[-.]idx\d-ubyte(\.gz)?$/;

/** train-images-idx3-ubyte and train-labels-idx1-ubyte, and t10k-… for testing; each may end in .gz. */
async function loadIdxFolder(folder: string, disk: Disk): Promise<Datasets> {
  const names = (await list(folder, disk)).filter((name) => idxName.test(name));
  const find = (parts: readonly string[], kind: string): string | undefined =>
    names.find((name) => parts.includes(idxName.exec(name)?.[1] ?? '') && idxName.exec(name)?.[2] === kind);
  const trainFiles = { images: find(['train'], 'images'), labels: find(['train'], 'labels') };
  const testFiles = { images: find(['t10k', 'test'], 'images'), labels: find(['t10k', 'test'], 'labels') };
  const train = await loadIdxPair(folder, trainFiles, 'train', disk);
  if (testFiles.images === undefined && testFiles.labels === undefined) return { train };
  return { train, test: await loadIdxPair(folder, testFiles, 't10k', disk) };
}

async function loadIdxPair(
  folder: string,
  files: { images: string | undefined; labels: string | undefined },
  part: string,
  disk: Disk,
): Promise<Dataset> {
  if (files.images === undefined || files.labels === undefined) {
    const missing = files.images === undefined ? `${part}-images-idx3-ubyte` : `${part}-labels-idx1-ubyte`;
    throw new InputError(`${folder} holds no ${missing} (nor ${missing}.gz); name the folder of the idx files.`);
  }
  const [imagesName, labelsName] = [join(folder, files.images), join(folder, files.labels)];
  const images = readIdx(gunzip(await readSource(imagesName, disk), inflate));
  const labels = readIdx(gunzip(await readSource(labelsName, disk), inflate));
  return imageDataset(basename(folder), { images, labels, imagesName, labelsName });
}

/** Grey images [n, h, w] get their channel: [n, 1, h, w]. */
function imageDataset(
  name: string,
  arrays: { images: Tensor; labels: Tensor; imagesName: string; labelsName: string },
): Dataset {
  const { images, labels, imagesName, labelsName } = arrays;
  const [n, ...rest] = images.shape;
  const shaped = rest.length === 2 ? { ...images, shape: [n as number, 1, ...rest] } : images;
  const field = labelField(labels, labelsName);
  return createDataset(name, [inputField('input', shaped, imagesName)], field, inferClassCount(field));
}
