// A device's side of admission: it looks for the key that the join code (or an earlier enrolment) names among the
// server's certificates, trusts nothing else, and only then sends the code's secret with a certificate request. After
// that both sides show certificates.

import { createPrivateKey, createPublicKey, X509Certificate } from 'node:crypto';
import type { PeerCertificate } from 'node:tls';
import { z } from 'zod';
import { InputError, RunError } from '../../../errors.ts';
import { protocolVersion } from '../../../transport/handshake.ts';
import { matchesKeyHash, splitJoinCode } from '../../../transport/node/join-code.ts';
import { createRequest } from '../../../transport/node/tls/authority.ts';
import { pemOf, serverCertificates } from '../../../transport/node/tls/chain.ts';
import { type DeviceId, deviceOf, deviceUri, type Identity, keyHash } from '../../../transport/node/tls/identity.ts';
import { connect, type TlsOptions } from '../../../transport/node/websocket.ts';
import { coordinatorName } from './admission.ts';
import type { DeviceStore, Membership } from './device-store.ts';

export interface EnrolmentOptions {
  /** wss://HOST:PORT of a coordinator. */
  readonly url: string;
  /** The name that the device asks for. */
  readonly name: string;
  /** Asked for when the device has no certificate of this cluster yet. */
  joinCode(): Promise<string>;
  /** Keeps certificates of earlier enrolments. Absent: nothing is kept. */
  readonly store?: DeviceStore;
  readonly signal?: AbortSignal;
}

/** What a device needs to join: its certificate, and how it recognizes the coordinator. */
export interface Admission {
  readonly identity: Identity;
  readonly name: string;
  readonly tls: TlsOptions;
}

const issuedSchema = z.object({ certificate: z.string().max(4096), authority: z.string().max(4096) });

/**
 * A certificate of the cluster at `url`: one kept from an earlier enrolment, or a new one for the join code. Throws
 * InputError and RunError.
 */
export async function enrol(options: EnrolmentOptions): Promise<Admission> {
  const { store, name, signal } = options;
  const shown = await serverCertificates(new URL(options.url), signal === undefined ? {} : { signal });
  for (const pinned of shown) {
    const kept = await store?.read(keyHash(pinned).toString('hex'));
    if (kept?.wantedName !== name) continue;
    const identity = store?.isRenewalDue(kept) === true ? await renewed(options, store, pinned, kept) : kept;
    return { identity, name: kept.name, tls: { ...coordinatorTls(pinned), ...ownTls(identity) } };
  }
  const parts = splitJoinCode(await options.joinCode());
  if (parts === undefined)
    throw new InputError('the join code is not complete: copy all of what asteroid train printed');
  if (parts.keyHash === undefined) {
    throw new InputError(
      'this join code is one for unencrypted links: use the code and the address that asteroid train printed together',
    );
  }
  const pinned = shown.find((certificate) => matchesKeyHash(keyHash(certificate), parts));
  if (pinned === undefined) {
    throw new InputError(
      `${options.url} does not have the key that the join code names: check the address and the code; ` +
        'if both are right, somebody else answers there',
    );
  }
  const membership = await request(options, parts.secret, coordinatorTls(pinned));
  await store?.write(keyHash(pinned).toString('hex'), membership);
  return { identity: membership, name: membership.name, tls: { ...coordinatorTls(pinned), ...ownTls(membership) } };
}

/**
 * A new key and certificate for the old ones, over a link on which both sides have shown theirs. If that fails, the old
 * ones remain.
 */
async function renewed(
  options: EnrolmentOptions,
  store: DeviceStore,
  pinned: string,
  kept: Membership,
): Promise<Membership> {
  try {
    const membership = await request(options, '', { ...coordinatorTls(pinned), ...ownTls(kept) });
    if (membership.name !== kept.name) return kept;
    await store.write(keyHash(pinned).toString('hex'), membership);
    return membership;
  } catch (error) {
    // joining with it says what is wrong, if it is
    if (error instanceof InputError || error instanceof RunError) return kept;
    throw error;
  }
}

async function request({ url, name, signal }: EnrolmentOptions, secret: string, tls: TlsOptions): Promise<Membership> {
  const { key, request: wanted } = await createRequest();
  const hello = {
    protocol: protocolVersion,
    purpose: 'enrol',
    name,
    credential: secret,
    facts: { request: wanted },
  } as const;
  const { link, welcome } = await connect(url, { hello, tls, ...(signal && { abortSignal: signal }) });
  await link.close('the certificate has come');
  const issued = issuedSchema.safeParse(welcome.facts);
  if (!issued.success) throw new RunError(`${url} sent no certificate: use the same version on both.`);
  const { certificate, authority } = issued.data;
  checkIssued(certificate, authority, key, welcome.name);
  return { name: welcome.name, wantedName: name, key, certificate, authority };
}

function checkIssued(certificate: string, authority: string, key: string, name: string): void {
  let isRight = false;
  try {
    const [own, issuer] = [new X509Certificate(certificate), new X509Certificate(authority)];
    const device = deviceOf(own.subjectAltName);
    const isOurs = own.publicKey.equals(createPublicKey(createPrivateKey(key)));
    isRight =
      isOurs &&
      own.checkIssued(issuer) &&
      own.verify(issuer.publicKey) &&
      device?.role === 'worker' &&
      device.name === name;
  } catch {
    // Not readable: not right.
  }
  if (!isRight)
    throw new RunError(
      'The certificate that the coordinator issued is not for this device: use the same version on both.',
    );
}

/**
 * Trusts one certificate, found by its key's hash: the cluster's authority (for its coordinator), or the server's own.
 */
function coordinatorTls(pinned: string): TlsOptions {
  const expected = checkDevice({ role: 'coordinator', name: coordinatorName });
  return {
    ca: pinned,
    allowPartialTrustChain: true,
    checkServerIdentity: (host, certificate) =>
      pemOf(certificate.raw) === pemOf(new X509Certificate(pinned).raw) ? undefined : expected(host, certificate),
  };
}

function ownTls({ certificate, key }: Identity): TlsOptions {
  return { cert: certificate, key };
}

/** For links to another device of the cluster: both show certificates, and the other's must bear its name. */
export function peerTls(identity: Identity, peer: DeviceId): TlsOptions {
  return { ...ownTls(identity), ca: identity.authority, checkServerIdentity: checkDevice(peer) };
}

/** For a server that only devices of the cluster may call. */
export function peerServerTls(identity: Identity): TlsOptions {
  return { ...ownTls(identity), ca: identity.authority };
}

function checkDevice(expected: DeviceId): (host: string, certificate: PeerCertificate) => Error | undefined {
  return (host, { subjectaltname }) =>
    subjectaltname === `URI:${deviceUri(expected)}`
      ? undefined
      : new RunError(
          `the device at ${host} is not the ${expected.role} ${expected.name}: its certificate is another's`,
        );
}
