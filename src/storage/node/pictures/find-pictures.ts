// The pictures of a data set and their labels: a folder for each class, as torchvision's ImageFolder has it, with parts
// for training and testing or without.

import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { InputError } from '../../../errors.ts';
import { readError } from '../../disk.ts';

/** Files and the number of each one's class. */
export interface LabelledFiles {
  readonly files: readonly string[];
  readonly labels: readonly number[];
}

/** The pictures of a folder, by part. */
export interface FoundPictures {
  readonly classNames: readonly string[];
  readonly train: LabelledFiles;
  readonly test?: LabelledFiles;
  /** Files that are no pictures by their names. */
  readonly otherCount: number;
  /** Labels are numbers to come near, not classes. */
  readonly areNumbers?: boolean;
}

const pictureName = /\.(jpe?g|png|webp|gif|tiff?|avif)$/i;
const testNames: readonly string[] = ['val', 'valid', 'validation', 'test'];

/** True for a file that is a picture by its name. */
export function isPictureName(name: string): boolean {
  return pictureName.test(name);
}

/** Finds the pictures of a folder. Classes are its folders, sorted by name, or `known`. Throws InputError. */
export async function findPictures(folder: string, known?: readonly string[]): Promise<FoundPictures> {
  const names = await foldersOf(folder);
  const isWhole = !names.includes('train');
  const trainFolder = isWhole ? folder : join(folder, 'train');
  const { classNames, ...train } = await classesIn(trainFolder, isWhole ? names : await foldersOf(trainFolder), known);
  if (isWhole) return { classNames, train, otherCount: train.otherCount };
  const testName = testNames.find((name) => names.includes(name));
  if (testName === undefined) return { classNames, train, otherCount: train.otherCount };
  const testFolder = join(folder, testName);
  const test = await classesIn(testFolder, await foldersOf(testFolder), classNames);
  return { classNames, train, test, otherCount: train.otherCount + test.otherCount };
}

async function classesIn(
  folder: string,
  names: readonly string[],
  known?: readonly string[],
): Promise<LabelledFiles & { readonly classNames: readonly string[]; readonly otherCount: number }> {
  const classNames = known ?? names;
  if (known === undefined) checkClasses(folder, names);
  const [files, labels]: [string[], number[]] = [[], []];
  let otherCount = 0;
  for (const name of names) {
    const label = classNames.indexOf(name);
    if (label < 0)
      throw new InputError(
        `${join(folder, name)} is a class that the training pictures do not have; these are ${listed(classNames)}: ` +
          'rename or move that folder, or train with pictures of the class.',
      );
    const { pictures, others } = await picturesBelow(join(folder, name));
    otherCount += others;
    if (pictures.length === 0 && known === undefined)
      throw new InputError(
        `The class folder ${join(folder, name)} holds no picture (JPEG, PNG, WebP, GIF, TIFF or AVIF by its name): ` +
          'add some, or remove it.',
      );
    for (const file of pictures) {
      files.push(file);
      labels.push(label);
    }
  }
  return { files, labels, classNames, otherCount };
}

function checkClasses(folder: string, names: readonly string[]): void {
  if (names.length === 0)
    throw new InputError(
      `${folder} holds no folders; pictures lie in one folder for each class, such as ${join(folder, 'cat')} and ` +
        `${join(folder, 'dog')}.`,
    );
  if (names.length === 1)
    throw new InputError(
      `${folder} holds one class only (${names[0]}), and nothing can be told apart: add another class folder.`,
    );
}

/** A few names, and how many more there are. */
export function listed(names: readonly string[]): string {
  const shown = names.slice(0, 8).join(', ');
  return names.length > 8 ? `${shown} and ${names.length - 8} more` : shown;
}

/** Folders in a folder, sorted by name, without hidden ones. */
async function foldersOf(folder: string): Promise<readonly string[]> {
  try {
    const entries = await readdir(folder, { withFileTypes: true });
    const isFolder = await Promise.all(
      entries.map(async (entry) =>
        entry.isSymbolicLink()
          ? await stat(join(folder, entry.name)).then(
              (found) => found.isDirectory(),
              () => false,
            )
          : entry.isDirectory(),
      ),
    );
    return entries
      .filter(({ name }, index) => isFolder[index] === true && !name.startsWith('.'))
      .map(({ name }) => name)
      .sort(byCodePoint);
  } catch (error) {
    throw readError(error, folder);
  }
}

async function picturesBelow(
  folder: string,
): Promise<{ readonly pictures: readonly string[]; readonly others: number }> {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true }).catch((error: unknown) => {
    throw readError(error, folder);
  });
  const files = entries.filter((entry) => !entry.isDirectory() && !entry.name.startsWith('.'));
  const pictures = files
    .filter(({ name }) => isPictureName(name))
    .map(({ parentPath, name }) => join(parentPath, name));
  return { pictures: pictures.sort(byCodePoint), others: files.length - pictures.length };
}

/** Python's order of strings, so that class numbers are those of ImageFolder. */
function byCodePoint(a: string, b: string): number {
  const [left, right] = [[...a], [...b]];
  for (let index = 0; index < Math.min(left.length, right.length); index++) {
    const difference = (left[index]?.codePointAt(0) ?? 0) - (right[index]?.codePointAt(0) ?? 0);
    if (difference !== 0) return difference;
  }
  return left.length - right.length;
}
