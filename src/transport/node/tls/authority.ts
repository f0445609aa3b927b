// A cluster's certificate authority: one P-256 key that signs 30-day certificates for devices. The package that writes
// X.509 is loaded when it is first needed, since most commands never do.

import { createPrivateKey, createPublicKey, randomBytes, webcrypto, X509Certificate } from 'node:crypto';
import { isIP } from 'node:net';
import { InputError, ProtocolError } from '../../../errors.ts';
import { type DeviceId, deviceUri, type Identity } from './identity.ts';

/** Its key and certificate in PEM. The key never leaves the machine on which it was made. */
export interface AuthorityMaterial {
  readonly key: string;
  readonly certificate: string;
}

/** Signs certificates. */
export interface Authority {
  /** Its own certificate, in PEM. */
  readonly certificate: string;
  /**
   * A certificate in PEM for the key of `request` (PKCS #10, PEM). What the request asks to be called is not looked at.
   * `addresses`: IP addresses and names by which clients that know nothing of devices reach it; such a certificate is
   * no device's (`deviceOf`). Throws ProtocolError.
   */
  issue(device: DeviceId, request: string, addresses?: readonly string[]): Promise<string>;
}

const algorithm = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const;
const dayMs = 86_400_000;
const certificateDays = 30;
const authorityDays = 3650;
/** Certificates are valid from a day ago: clocks differ. */
const skewDays = 1;

type X509 = typeof import('@peculiar/x509');

async function load(): Promise<X509> {
  await import('reflect-metadata'); // the package's own dependency wants it first
  const x509 = await import('@peculiar/x509');
  x509.cryptoProvider.set(webcrypto as never);
  return x509;
}

/** A new authority's key and certificate. `nowMs` is the wall clock's time. */
export async function createAuthorityMaterial(nowMs: number): Promise<AuthorityMaterial> {
  const x509 = await load();
  const keys = await newKeys();
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({
    serialNumber: serialNumber(),
    name: [{ CN: ['Asteroid cluster'] }],
    ...validity(nowMs, authorityDays),
    signingAlgorithm: algorithm,
    keys,
    extensions: [
      new x509.BasicConstraintsExtension(true, 0, true),
      new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign, true),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  return { key: await pemOf(keys.privateKey), certificate: `${certificate.toString('pem')}\n` };
}

/**
 * An authority over its material. `now` gives the wall clock's milliseconds. Throws InputError where key and
 * certificate do not belong together.
 */
export async function openAuthority({ key, certificate }: AuthorityMaterial, now: () => number): Promise<Authority> {
  const x509 = await load();
  checkPair(key, certificate);
  const der = createPrivateKey(key).export({ type: 'pkcs8', format: 'der' });
  const signingKey = await webcrypto.subtle.importKey('pkcs8', der, algorithm, false, ['sign']);
  const issuer = new x509.X509Certificate(certificate);
  return {
    certificate,
    async issue(device, request, addresses = []) {
      const publicKey = await requestedKey(x509, request);
      const issued = await x509.X509CertificateGenerator.create({
        serialNumber: serialNumber(),
        subject: [{ CN: ['Asteroid device'] }],
        issuer: issuer.subjectName,
        ...validity(now(), certificateDays),
        signingAlgorithm: algorithm,
        signingKey,
        publicKey,
        extensions: [
          new x509.BasicConstraintsExtension(false, undefined, true),
          new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
          new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage.serverAuth, x509.ExtendedKeyUsage.clientAuth]),
          new x509.SubjectAlternativeNameExtension([
            { type: 'url', value: deviceUri(device) },
            ...addresses.map((value) => ({ type: isIP(value) === 0 ? ('dns' as const) : ('ip' as const), value })),
          ]),
        ],
      });
      return `${issued.toString('pem')}\n`;
    },
  };
}

/** A device's new key and the request for its certificate, in PEM. */
export async function createRequest(): Promise<{ readonly key: string; readonly request: string }> {
  const x509 = await load();
  const keys = await newKeys();
  const request = await x509.Pkcs10CertificateRequestGenerator.create({
    name: [{ CN: ['Asteroid device'] }],
    keys,
    signingAlgorithm: algorithm,
  });
  return { key: await pemOf(keys.privateKey), request: request.toString('pem') };
}

/** A new key of this machine with a certificate of the authority that is here too. */
export async function createIdentity(
  authority: Authority,
  device: DeviceId,
  addresses: readonly string[] = [],
): Promise<Identity> {
  const { key, request } = await createRequest();
  return { key, certificate: await authority.issue(device, request, addresses), authority: authority.certificate };
}

/** Throws InputError unless the certificate is that of the key. */
export function checkPair(key: string, certificate: string): void {
  let belongs = false;
  try {
    belongs = new X509Certificate(certificate).publicKey.equals(createPublicKey(createPrivateKey(key)));
  } catch {
    throw new InputError('a key or certificate is not PEM that can be read: give both as unencrypted PEM files');
  }
  if (!belongs)
    throw new InputError('a certificate does not belong to its key: give the two files that were made together');
}

async function requestedKey(x509: X509, text: string): Promise<webcrypto.CryptoKey> {
  try {
    const request = new x509.Pkcs10CertificateRequest(text);
    // Whoever asks has the key: the request is signed with it.
    if (await request.verify()) return await request.publicKey.export(algorithm, ['verify']);
  } catch {
    // Said below: what a peer sent is no matter for a stack trace.
  }
  throw new ProtocolError('the certificate request cannot be read');
}

async function newKeys(): Promise<webcrypto.CryptoKeyPair> {
  return (await webcrypto.subtle.generateKey(algorithm, true, ['sign', 'verify'])) as webcrypto.CryptoKeyPair;
}

async function pemOf(key: webcrypto.CryptoKey): Promise<string> {
  const der = Buffer.from(await webcrypto.subtle.exportKey('pkcs8', key));
  return createPrivateKey({ key: der, type: 'pkcs8', format: 'der' })
    .export({ type: 'pkcs8', format: 'pem' })
    .toString();
}

function validity(nowMs: number, days: number): { readonly notBefore: Date; readonly notAfter: Date } {
  return { notBefore: new Date(nowMs - skewDays * dayMs), notAfter: new Date(nowMs + days * dayMs) };
}

/** 127 random bits, positive. */
function serialNumber(): string {
  const bytes = randomBytes(16);
  bytes[0] = ((bytes[0] ?? 0) & 0x7f) | 0x40;
  return bytes.toString('hex');
}
