// The coordinator's door: who may enrol, and who may join. Over TLS a device shows the join code once and gets a
// certificate, with which it may join for 30 days. Over plain links (this machine, or --insecure) a device shows the
// code each time.

import { randomBytes, X509Certificate } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Clock } from '../../../clock.ts';
import { InputError, ProtocolError } from '../../../errors.ts';
import { isLoopback } from '../../../transport/admission.ts';
import type { Hello, Refused } from '../../../transport/handshake.ts';
import {
  createJoinCodes,
  type JoinCodes,
  joinCodeBytes,
  joinCodeLifetimeMs,
  splitJoinCode,
  withKeyHash,
} from '../../../transport/node/join-code.ts';
import { type Authority, checkPair, createIdentity } from '../../../transport/node/tls/authority.ts';
import { deviceOf, keyHash } from '../../../transport/node/tls/identity.ts';
import type { TlsOptions } from '../../../transport/node/websocket.ts';
import type { Accepted } from '../../../transport/node/websocket-server.ts';
import { isThisMachine, parseAdvertised } from '../addresses.ts';
import { loadAuthority } from './authority-store.ts';
import { isFleetCode } from './fleet-code.ts';
import { createRegistry, type EnrolledDevice } from './registry.ts';
import { stateFolder } from './state-folder.ts';

/** Where a coordinator listens, and how. */
export interface DoorOptions {
  readonly host: string;
  /** Where others reach it, if not there. */
  readonly advertise?: string;
  /** Plain links beyond this machine. */
  readonly insecure: boolean;
  /** Files of the user's own certificate and key (PEM), instead of one of the cluster's authority. */
  readonly tlsCert?: string;
  readonly tlsKey?: string;
  readonly clock: Clock;
  /** Default: stateFolder(). */
  readonly folder?: string;
  /** The wall clock's milliseconds, for the registry. */
  readonly now?: () => number;
}

/** Admits devices. */
export interface Door {
  /** For the server; absent: plain links. */
  readonly tls?: TlsOptions;
  /** The code that a person gives to a device; valid for an hour. */
  readonly joinCode: string;
  /**
   * Refuses a caller, or gives it its name in this run. An enrolled device gets its certificate in the facts and joins
   * with its next call. Over plain links nothing tells a relay's callers apart: whoever knows the run's secret is taken
   * for the device that it says it is.
   */
  admit(hello: Hello, certificate: X509Certificate | undefined, address?: string): Promise<Accepted | Refused>;
  /** As `admit`, for a worker in a browser, which can have no certificate: it shows the code each time. */
  admitPage(hello: Hello): Promise<Accepted | Refused>;
  /** Ends the code's validity; devices with a certificate stay. */
  revoke(): Promise<void>;
}

/** The name of every run's coordinator. */
export const coordinatorName = 'coordinator';

/** True if nobody beyond this machine is to connect. What is advertised may lead here from elsewhere. */
export function staysHere({ host, advertise }: Pick<DoorOptions, 'host' | 'advertise'>): boolean {
  return isThisMachine(host) && (advertise === undefined || isThisMachine(parseAdvertised(advertise).host));
}

/** True if links to this address are encrypted: all beyond this machine are, unless the user decides otherwise. */
export function isEncrypted(options: Pick<DoorOptions, 'host' | 'advertise' | 'insecure' | 'tlsCert'>): boolean {
  return options.tlsCert !== undefined || !(options.insecure || staysHere(options));
}

/**
 * Opens the door; at the first start over TLS the cluster's authority is made. Throws InputError for certificates that
 * cannot be used.
 */
export async function openDoor(options: DoorOptions): Promise<Door> {
  const codes = createJoinCodes({ clock: options.clock });
  return isEncrypted(options) ? encryptedDoor(options, codes) : plainDoor(codes);
}

/** A door without certificates: callers show the code each time. */
function plainDoor(codes: JoinCodes): Door {
  const names = new Names();
  return {
    joinCode: codes.issue(randomBytes(joinCodeBytes)),
    async admit(hello) {
      if (hello.purpose === 'relay') return { kind: 'accepted', name: hello.name };
      if (hello.purpose !== 'worker') return refused('only workers join here');
      return wrongCode(codes, hello.credential) ?? { kind: 'accepted', name: names.free(hello.name) };
    },
    admitPage: async (hello) => pageWorker(codes, names, hello),
    async revoke() {
      codes.revoke();
    },
  };
}

async function encryptedDoor(options: DoorOptions, codes: JoinCodes): Promise<Door> {
  const { folder = stateFolder(), now = Date.now } = options;
  const names = new Names();
  const secret = codes.issue(randomBytes(joinCodeBytes));
  const authority = await loadAuthority(folder);
  const registry = createRegistry(folder);
  const codeId = randomBytes(8).toString('hex');
  await registry.noteCode({ id: codeId, madeAtMs: now(), expiresAtMs: now() + joinCodeLifetimeMs });
  const { certificate, key, pinned } = await serverCertificate(authority, options);
  return {
    tls: { cert: certificate, key, ca: authority.certificate, unknownCallers: true },
    joinCode: withKeyHash(keyHash(pinned), secret),
    async admit(hello, caller, address = '') {
      const device = deviceOf(caller?.subjectAltName);
      if (caller !== undefined && (await registry.isDeviceRevoked(hashOf(caller))))
        return refused('this device was put out of the cluster by its owner');
      if (hello.purpose !== 'enrol') return member(names, hello, caller);
      const renewed =
        hello.credential === '' && caller !== undefined && device?.role === 'worker'
          ? { name: device.name, key: hashOf(caller) }
          : undefined;
      if (renewed === undefined) {
        if (!(await registry.isCodeOpen(codeId))) codes.revoke();
        const refusal = wrongCode(codes, hello.credential);
        if (refusal !== undefined && !(await isFleetCode(folder, hello.credential))) return refusal;
      }
      const verdict = await enrol(authority, names, hello, renewed);
      // Workers of this machine get new certificates in each run, of which nobody needs a list.
      if (verdict.kind === 'accepted' && !isLoopback(address))
        await registry.noteDevice(enrolledDevice(verdict, now()));
      return verdict;
    },
    async admitPage(hello) {
      if (!(await registry.isCodeOpen(codeId))) codes.revoke();
      return pageWorker(codes, names, hello);
    },
    async revoke() {
      codes.revoke();
      await registry.revokeCode(codeId);
    },
  };
}

/** A worker in a browser. Its name is nobody's certificate's. */
function pageWorker(codes: JoinCodes, names: Names, hello: Hello): Accepted | Refused {
  if (hello.purpose !== 'worker') return refused('only workers join here');
  const refusal = wrongCode(codes, splitJoinCode(hello.credential)?.secret ?? hello.credential);
  if (refusal !== undefined) return refusal;
  const name = names.free(hello.name);
  names.replace(name, 'a page');
  return { kind: 'accepted', name };
}

/** The refusal of a code that is not valid. */
function wrongCode(codes: JoinCodes, typed: string): Refused | undefined {
  const verdict = codes.check(typed);
  if (verdict === 'valid') return undefined;
  return refused(
    verdict === 'expired'
      ? 'the join code has expired: start a new run and use its code'
      : 'the join code is wrong: use the one that asteroid train printed',
  );
}

function refused(reason: string): Refused {
  return { kind: 'refused', reason, retry: false };
}

/** A device's certificate, new or renewed: `renewed` is what the caller has shown to be. */
async function enrol(
  authority: Authority,
  names: Names,
  hello: Hello,
  renewed: { readonly name: string; readonly key: string } | undefined,
): Promise<Accepted | Refused> {
  const request = hello.facts?.['request'];
  if (typeof request !== 'string')
    return refused('the device sent no certificate request: use the same version on both');
  try {
    if (renewed !== undefined && !names.take(renewed.name, renewed.key))
      return refused(`another device is called ${renewed.name} in this run`);
    const name = renewed?.name ?? names.free(hello.name);
    const certificate = await authority.issue({ role: 'worker', name }, request);
    names.replace(name, keyHash(certificate).toString('hex'));
    return { kind: 'accepted', name, facts: { certificate, authority: authority.certificate } };
  } catch (error) {
    if (error instanceof ProtocolError) return refused(error.message);
    throw error;
  }
}

function hashOf(certificate: X509Certificate): string {
  return keyHash(certificate.toString()).toString('hex');
}

function enrolledDevice({ name, facts }: Accepted, nowMs: number): EnrolledDevice {
  const certificate = new X509Certificate(String(facts?.['certificate']));
  return { name, key: hashOf(certificate), issuedAtMs: nowMs, expiresAtMs: Date.parse(certificate.validTo) };
}

function member(names: Names, hello: Hello, certificate: X509Certificate | undefined): Accepted | Refused {
  if (hello.purpose !== 'worker' && hello.purpose !== 'relay') return refused('only workers join here');
  const device = deviceOf(certificate?.subjectAltName);
  if (certificate === undefined || device?.role !== 'worker')
    return refused('a device joins with a certificate: give it the join code');
  if (!names.take(device.name, hashOf(certificate))) {
    return refused(
      `another device is called ${device.name} in this run: start this one with another --name and the join code`,
    );
  }
  return { kind: 'accepted', name: device.name };
}

/** The server's certificate with those above it, and the one whose key the join code names. */
async function serverCertificate(
  authority: Authority,
  { tlsCert, tlsKey }: DoorOptions,
): Promise<{ readonly certificate: string; readonly key: string; readonly pinned: string }> {
  if (tlsCert === undefined || tlsKey === undefined) {
    const own = await createIdentity(authority, { role: 'coordinator', name: coordinatorName });
    return { certificate: own.certificate + authority.certificate, key: own.key, pinned: authority.certificate };
  }
  const { certificate, key } = await readCertificate(['--tls-cert', tlsCert], ['--tls-key', tlsKey]);
  return { certificate, key, pinned: certificate };
}

/** A flag and the path that it was given. */
type FileFlag = readonly [flag: string, path: string];

/** A certificate and its key, PEM, from files. Throws InputError that names the flags. */
export async function readCertificate(
  [certFlag, certPath]: FileFlag,
  [keyFlag, keyPath]: FileFlag,
): Promise<{ readonly certificate: string; readonly key: string }> {
  const [certificate, key] = await Promise.all([readPem(certFlag, certPath), readPem(keyFlag, keyPath)]);
  try {
    checkPair(key, certificate);
  } catch (error) {
    throw new InputError(
      `${certFlag} ${certPath} and ${keyFlag} ${keyPath}: ${error instanceof Error ? error.message : String(error)}.`,
    );
  }
  return { certificate, key };
}

async function readPem(flag: string, path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (error) {
    throw new InputError(
      `${flag} ${path} cannot be read (${(error as NodeJS.ErrnoException).code ?? 'error'}): name a PEM file.`,
    );
  }
}

const maxNames = 10_000;

/** The names of a run's devices, each with the key that goes by it. */
class Names {
  readonly #keys = new Map<string, string>();

  /** The name that a device asked for, with a number where it is taken; taken from here on. */
  free(wanted: string): string {
    let name = wanted;
    for (let number = 2; this.#keys.has(name); number++) name = `${wanted}-${number}`;
    if (this.#keys.size >= maxNames) throw new ProtocolError('too many devices have asked to join this run');
    this.#keys.set(name, '');
    return name;
  }

  /** Notes whose a name is; false where it is another's. */
  take(name: string, key: string): boolean {
    const known = this.#keys.get(name) ?? '';
    if (known !== '' && known !== key) return false;
    if (this.#keys.size >= maxNames && known === '')
      throw new ProtocolError('too many devices have asked to join this run');
    this.#keys.set(name, key);
    return true;
  }

  /** The device keeps its name with another key. */
  replace(name: string, key: string): void {
    this.#keys.set(name, key);
  }
}
