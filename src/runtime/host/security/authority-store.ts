// This user's cluster authority: made at the first start, kept in the state folder in one file that only the user may
// read.

import { join } from 'node:path';
import { InputError } from '../../../errors.ts';
import {
  type Authority,
  type AuthorityMaterial,
  createAuthorityMaterial,
  openAuthority,
} from '../../../transport/node/tls/authority.ts';
import { readSecret, writeSecret } from './state-folder.ts';

/** The file of the authority's key and certificate, as PEM. */
export function authorityPath(folder: string): string {
  return join(folder, 'authority.pem');
}

/**
 * The cluster's authority, a new one if the folder has none. Throws InputError if its file is damaged or others may
 * read it.
 */
export async function loadAuthority(folder: string, now: () => number = Date.now): Promise<Authority> {
  const path = authorityPath(folder);
  const kept = await readSecret(path);
  if (kept !== undefined) return openAuthority(parse(kept, path), now);
  const made = await createAuthorityMaterial(now());
  await writeSecret(path, made.key + made.certificate);
  // Of two first starts at once the later file stays: both use it.
  return openAuthority(parse((await readSecret(path)) ?? '', path), now);
}

function parse(text: string, path: string): AuthorityMaterial {
  const [key] = /-----BEGIN PRIVATE KEY-----[\s\S]*?-----END PRIVATE KEY-----\n?/.exec(text) ?? [];
  const [certificate] = /-----BEGIN CERTIFICATE-----[\s\S]*?-----END CERTIFICATE-----\n?/.exec(text) ?? [];
  if (key === undefined || certificate === undefined) {
    throw new InputError(`${path} is damaged: delete it to begin a new cluster, whose devices join with a code again.`);
  }
  return { key, certificate };
}
