// Who a certificate says its holder is. Every certificate of a cluster carries one name, a URI such as
// `asteroid:worker:board-2`, and no address: devices move between networks, their names do not. Also the hash by which
// a key is known beforehand.

import { createHash, X509Certificate } from 'node:crypto';

/** What a device may do. A worker's certificate never passes for a coordinator's. */
export type Role = 'coordinator' | 'worker';

/** A device of a cluster. */
export interface DeviceId {
  readonly role: Role;
  readonly name: string;
}

/** A device's key and certificate, and that of the authority that issued it, in PEM. */
export interface Identity {
  readonly key: string;
  readonly certificate: string;
  readonly authority: string;
}

const prefix = 'URI:asteroid:';

/** The URI in the certificate of this device. */
export function deviceUri({ role, name }: DeviceId): string {
  return `asteroid:${role}:${encodeURIComponent(name)}`;
}

/**
 * Reads a certificate's alternative names as Node writes them. Undefined where they are not exactly one name of a
 * device.
 */
export function deviceOf(alternativeNames: string | undefined): DeviceId | undefined {
  if (alternativeNames === undefined || !alternativeNames.startsWith(prefix)) return undefined;
  const [role, encoded, ...more] = alternativeNames.slice(prefix.length).split(':');
  if ((role !== 'coordinator' && role !== 'worker') || encoded === undefined || more.length > 0) return undefined;
  try {
    const device: DeviceId = { role, name: decodeURIComponent(encoded) };
    return `URI:${deviceUri(device)}` === alternativeNames ? device : undefined;
  } catch {
    return undefined; // no encoding of a name
  }
}

/** SHA-256 of a certificate's public key (SubjectPublicKeyInfo): what a join code holds the beginning of. */
export function keyHash(certificate: string): Buffer {
  return createHash('sha256')
    .update(new X509Certificate(certificate).publicKey.export({ type: 'spki', format: 'der' }))
    .digest();
}
