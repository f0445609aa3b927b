// What a cluster's owner can list and revoke: devices that have a certificate, and join codes of current runs. Each is
// a small file in the state folder, so that concurrent runs do not overwrite each other. It holds no secret: of a code
// only its times.

import { mkdir, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { RunError } from '../../../errors.ts';
import { readSecret, writeSecret } from './state-folder.ts';

/** A device with a certificate. Times are milliseconds of the wall clock. */
export interface EnrolledDevice {
  readonly name: string;
  /** SHA-256 of its public key, hexadecimal. */
  readonly key: string;
  readonly issuedAtMs: number;
  readonly expiresAtMs: number;
}

/** A join code that can still be shown. */
export interface OpenCode {
  /** Not the code: a number for its file. */
  readonly id: string;
  readonly madeAtMs: number;
  readonly expiresAtMs: number;
}

/** The registry of one state folder. */
export interface Registry {
  noteDevice(device: EnrolledDevice): Promise<void>;
  noteCode(code: OpenCode): Promise<void>;
  devices(): Promise<readonly EnrolledDevice[]>;
  codes(): Promise<readonly OpenCode[]>;
  /** From now on the device with this key is refused, in current runs too. */
  revokeDevice(key: string): Promise<void>;
  /** Forgets a code: nobody enrols with it any more. */
  revokeCode(id: string): Promise<void>;
  isDeviceRevoked(key: string): Promise<boolean>;
  isCodeOpen(id: string): Promise<boolean>;
}

const time = z.number().nonnegative();
const key = z.string().regex(/^[0-9a-f]{64}$/);
const deviceSchema: z.ZodType<EnrolledDevice> = z.object({
  name: z.string().max(300),
  key,
  issuedAtMs: time,
  expiresAtMs: time,
});
const codeSchema: z.ZodType<OpenCode> = z.object({
  id: z.string().regex(/^[0-9a-f]{1,64}$/),
  madeAtMs: time,
  expiresAtMs: time,
});

/** The registry in a state folder. Its calls throw RunError if the folder cannot be read or written. */
export function createRegistry(folder: string): Registry {
  const [enrolled, revoked, codes] = ['enrolled', 'revoked', 'codes'].map((name) => join(folder, name)) as [
    string,
    string,
    string,
  ];
  const file = (place: string, id: string): string => join(place, `${id.slice(0, 64)}.json`);
  const write = (path: string, value: unknown): Promise<void> => writeSecret(path, `${JSON.stringify(value)}\n`);
  const exists = async (path: string): Promise<boolean> => (await readSecret(path)) !== undefined;
  return {
    noteDevice: (device) => write(file(enrolled, device.key), device),
    noteCode: (code) => write(file(codes, code.id), code),
    devices: () => readAll(enrolled, deviceSchema),
    codes: () => readAll(codes, codeSchema),
    async revokeDevice(device) {
      await mkdir(revoked, { recursive: true, mode: 0o700 });
      await rename(file(enrolled, device), file(revoked, device));
    },
    revokeCode: (id) => rm(file(codes, id), { force: true }),
    isDeviceRevoked: (device) => exists(file(revoked, device)),
    isCodeOpen: (id) => exists(file(codes, id)),
  };
}

/** The contents of a folder's files, without damaged ones. */
async function readAll<T>(folder: string, schema: z.ZodType<T>): Promise<readonly T[]> {
  let names: readonly string[];
  try {
    names = await readdir(folder);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw new RunError(`${folder} cannot be read: ${(error as Error).message}.`);
  }
  const found: T[] = [];
  for (const name of names.filter((entry) => entry.endsWith('.json')).sort()) {
    const text = await readSecret(join(folder, name));
    const parsed = schema.safeParse(text === undefined ? undefined : jsonOf(text));
    if (parsed.success) found.push(parsed.data);
  }
  return found;
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined; // cut by a crash: counts as absent
  }
}
