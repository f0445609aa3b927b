// The files of the page, as tools/bundle.mjs made them: a fixed table, read once. What is asked for is looked up in it,
// and never is a path.

import { readFileSync } from 'node:fs';
import { RunError } from '../../errors.ts';

export interface PageFile {
  readonly type: string;
  readonly bytes: Uint8Array;
}

const files: Readonly<Record<string, readonly [name: string, type: string]>> = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/page.js': ['page.js', 'text/javascript; charset=utf-8'],
  '/page.css': ['page.css', 'text/css; charset=utf-8'],
  '/icon.svg': ['icon.svg', 'image/svg+xml'],
};

/** By the path of a request. Throws RunError where the package was not built. */
export function readPageFiles(): ReadonlyMap<string, PageFile> {
  try {
    return new Map(
      Object.entries(files).map(([path, [name, type]]) => [
        path,
        { type, bytes: readFileSync(new URL(`../page/${name}`, import.meta.url)) },
      ]),
    );
  } catch (error) {
    throw new RunError(`The window's page is not there (${(error as NodeJS.ErrnoException).code}): npm run build.`);
  }
}
