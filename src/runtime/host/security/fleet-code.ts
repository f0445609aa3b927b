// A join code that lasts: for devices that scripts set up, of which nobody is there to type each run's code. It is in
// the state folder, beside the authority whose key it names, and lets devices enrol in every encrypted run of this user
// until it is revoked.

import { randomBytes } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import {
  createJoinCode,
  joinCodeBytes,
  sameSecret,
  splitJoinCode,
  withKeyHash,
} from '../../../transport/node/join-code.ts';
import { keyHash } from '../../../transport/node/tls/identity.ts';
import { loadAuthority } from './authority-store.ts';
import { readSecret, writeSecret } from './state-folder.ts';

/** The file of the code. */
export function fleetCodePath(folder: string): string {
  return join(folder, 'fleet-code');
}

/** The cluster's lasting code; made where there is none. Throws InputError for files that others may read. */
export async function fleetCode(folder: string): Promise<string> {
  const path = fleetCodePath(folder);
  const kept = await readSecret(path);
  if (kept !== undefined) return kept.trim();
  const { certificate } = await loadAuthority(folder);
  await writeSecret(path, `${withKeyHash(keyHash(certificate), createJoinCode(randomBytes(joinCodeBytes)))}\n`);
  // Of two first calls at once the later file stays: both tell it.
  return ((await readSecret(path)) ?? '').trim();
}

/** Whether a secret is that of the lasting code, if there is one at this moment. */
export async function isFleetCode(folder: string, secret: string): Promise<boolean> {
  const kept = splitJoinCode((await readSecret(fleetCodePath(folder))) ?? '');
  return kept !== undefined && sameSecret(kept.secret, splitJoinCode(secret)?.secret ?? '');
}

/** Ends the code's validity; devices that have joined stay. */
export async function removeFleetCode(folder: string): Promise<void> {
  await rm(fleetCodePath(folder), { force: true });
}
