// Whole files by their path.

import type { Source } from '../../training/data/source.ts';
import { type Disk, readError } from '../disk.ts';

/** The file's bytes. Throws InputError that names it. */
export async function readSource(path: string, disk: Disk): Promise<Source> {
  try {
    return { name: path, bytes: await disk.read(path) };
  } catch (error) {
    throw readError(error, path);
  }
}

/** A small text file, such as a configuration, as UTF-8. Throws InputError that names it. */
export async function readTextFile(path: string, disk: Disk): Promise<string> {
  return new TextDecoder().decode((await readSource(path, disk)).bytes);
}
