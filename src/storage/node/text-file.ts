// A small text file, such as a configuration.

import { type Disk, readError } from '../disk.ts';

/** The file as UTF-8. Throws InputError that names it. */
export async function readTextFile(path: string, disk: Disk): Promise<string> {
  try {
    return new TextDecoder().decode(await disk.read(path));
  } catch (error) {
    throw readError(error, path);
  }
}
