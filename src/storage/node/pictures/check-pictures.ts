// Looks at every picture of a data set before training begins: is it one that can be decoded, and is it whole? Only the
// first and last bytes are read; damage in between shows when a file is decoded.

import { open } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import type { Sharp } from './sharp.ts';

/** A file that cannot be used, and why. */
export interface BadPicture {
  readonly index: number;
  readonly problem: string;
}

/** Files that are looked at side by side. */
const width = 4 * availableParallelism();
/** Bytes at the end in which a format's last mark is looked for: cameras write some more behind it. */
const tailBytes = 4096;

/** The files that cannot be used, in their order. */
export async function badPictures(sharp: Sharp, files: readonly string[]): Promise<readonly BadPicture[]> {
  const found: BadPicture[] = [];
  let next = 0;
  const look = async (): Promise<void> => {
    while (next < files.length) {
      const index = next++;
      const problem = await problemOf(sharp, files[index] as string);
      if (problem !== undefined) found.push({ index, problem });
    }
  };
  await Promise.all(Array.from({ length: width }, look));
  return found.sort((a, b) => a.index - b.index);
}

async function problemOf(sharp: Sharp, path: string): Promise<string | undefined> {
  try {
    const file = await open(path);
    try {
      const { size } = await file.stat();
      if (size === 0) return 'it is empty';
      const tail = Buffer.alloc(Math.min(size, tailBytes));
      await file.read(tail, 0, tail.length, size - tail.length);
      const { format = '' } = await sharp(path, { failOn: 'error' }).metadata();
      return isCutOff(format, tail) ? `it is a ${format.toUpperCase()} file that is cut off` : undefined;
    } finally {
      await file.close();
    }
  } catch (error) {
    return `it is no picture that can be decoded (${reasonOf(error)})`;
  }
}

/** Whether the mark at the end of a JPEG, PNG or GIF is missing. */
function isCutOff(format: string, tail: Buffer): boolean {
  switch (format) {
    case 'jpeg':
      return tail.lastIndexOf(Buffer.of(0xff, 0xd9)) < 0;
    case 'png':
      return tail.lastIndexOf('IEND') < 0;
    case 'gif':
      return tail.lastIndexOf(0x3b) < 0;
    default:
      return false;
  }
}

/** What a decoder said, on one line. */
export function reasonOf(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  const lines = text.split('\n').map((line) => line.trim().replace(/^.*: (?=Vips)/, ''));
  return [...new Set(lines.filter((line) => line !== ''))].join('; ').slice(0, 200);
}
