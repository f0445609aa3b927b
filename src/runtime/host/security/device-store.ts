// What a device keeps of each cluster that it joined: its key and certificate, by the hash of the key that the
// coordinator must show. With them it joins without a code for as long as the certificate is valid.

import { X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { z } from 'zod';
import type { Identity } from '../../../transport/node/tls/identity.ts';
import { readSecret, writeSecret } from './state-folder.ts';

/** A device's membership of a cluster. */
export interface Membership extends Identity {
  /** The device's name in the cluster. */
  readonly name: string;
  /** The name that it had asked for. */
  readonly wantedName: string;
}

/** Keeps memberships. */
export interface DeviceStore {
  /**
   * The membership of the cluster whose coordinator has the key with this hash (SHA-256, hexadecimal); undefined if
   * there is none, or it is not valid any more.
   */
  read(keyHash: string): Promise<Membership | undefined>;
  /** Whether less than a third of a certificate's time is left. */
  isRenewalDue(membership: Membership): boolean;
  write(keyHash: string, membership: Membership): Promise<void>;
}

const text = z.string().max(20_000);
const membershipSchema: z.ZodType<Membership> = z.object({
  name: text,
  wantedName: text,
  key: text,
  certificate: text,
  authority: text,
});
const minLeftMs = 3_600_000;

/** The store in this user's state folder. `now`: the wall clock's milliseconds. */
export function createDeviceStore(folder: string, now: () => number = Date.now): DeviceStore {
  const pathOf = (keyHash: string): string => join(folder, 'devices', `${keyHash.slice(0, 32)}.json`);
  return {
    async read(keyHash) {
      const kept = await readSecret(pathOf(keyHash));
      if (kept === undefined) return undefined;
      try {
        const membership = membershipSchema.parse(JSON.parse(kept));
        const { validTo } = new X509Certificate(membership.certificate);
        return Date.parse(validTo) - now() > minLeftMs ? membership : undefined;
      } catch {
        return undefined; // damaged: the device asks for the join code again and the file is replaced
      }
    },
    isRenewalDue({ certificate }) {
      const { validFrom, validTo } = new X509Certificate(certificate);
      const [from, to] = [Date.parse(validFrom), Date.parse(validTo)];
      return to - now() < (to - from) / 3;
    },
    write: (keyHash, membership) => writeSecret(pathOf(keyHash), `${JSON.stringify(membership)}\n`),
  };
}
