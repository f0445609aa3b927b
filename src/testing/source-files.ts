// The files of src/ as text, for tests that hold all of them to a rule.

import { readdirSync, readFileSync } from 'node:fs';
import { join, sep } from 'node:path';
import { fixtureFolder } from './pytorch-fixtures.ts';

/** The folder of the repository. */
export const repository: string = join(fixtureFolder('pytorch'), '..', '..', '..');

/** Texts of the .ts files below a folder of the repository, by their path in it. */
export function sourceTexts(folder: string): Map<string, string> {
  const root = join(repository, folder);
  const paths = readdirSync(root, { recursive: true, encoding: 'utf8' }).filter((path) => path.endsWith('.ts'));
  return new Map(paths.map((path) => [path.split(sep).join('/'), readFileSync(join(root, path), 'utf8')]));
}
