// The package's own version.

import { readFileSync } from 'node:fs';

/** From package.json, which is two folders above this file in the package. */
export const version: string = (
  JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string }
).version;
