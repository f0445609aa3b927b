// Where what can be made again is kept from one run to the next.

import { homedir } from 'node:os';
import { join } from 'node:path';

/** $ASTEROID_CACHE, or asteroid/ in $XDG_CACHE_HOME, or ~/.cache/asteroid. */
export function cacheFolder(environment: Readonly<Record<string, string | undefined>> = process.env): string {
  const { ASTEROID_CACHE: own, XDG_CACHE_HOME: xdg } = environment;
  if (own !== undefined && own !== '') return own;
  return join(xdg !== undefined && xdg !== '' ? xdg : join(homedir(), '.cache'), 'asteroid');
}
