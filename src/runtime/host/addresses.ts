// The addresses of this machine: whether one can listen on an address, and at which one others dial it.

import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { InputError } from '../../errors.ts';
import { isLoopback } from '../../transport/admission.ts';

/** What others dial: an address or a name, and a port where it is not the one that is listened on. */
export interface AdvertisedAddress {
  readonly host: string;
  readonly port?: number;
}

/** The IPv4 addresses by which others on its networks reach this machine. */
export function ownAddresses(): string[] {
  const entries = Object.values(networkInterfaces()).flatMap((found) => found ?? []);
  return entries.filter(({ internal, family }) => !internal && family === 'IPv4').map(({ address }) => address);
}

/** True for an address that stands for all of a machine's addresses. Nobody can dial it. */
export function isWildcard(host: string): boolean {
  return host === '0.0.0.0' || host === '::';
}

/** True for a name or an address that leads nowhere but to the machine that uses it. */
export function isThisMachine(host: string): boolean {
  return host === 'localhost' || isLoopback(host);
}

/** The address by which processes of this machine reach what listens on `host`, and others if nothing else is said. */
export function dialledAt(host: string): string {
  return isWildcard(host) ? (ownAddresses()[0] ?? '127.0.0.1') : host;
}

/**
 * Reads ADDRESS[:PORT]: an IPv4 address or a name, 2001:db8::1, [2001:db8::1] or [2001:db8::1]:7700. Throws InputError
 * for anything else, and for what nobody can dial.
 */
export function parseAdvertised(text: string): AdvertisedAddress {
  const form = /^(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::(\d{1,5}))?$/i.exec(text);
  const host = isIP(text) === 6 ? text : (form?.[1] ?? form?.[2]);
  const port = isIP(text) === 6 || form?.[3] === undefined ? undefined : Number(form[3]);
  const isRight =
    host !== undefined &&
    (form?.[1] === undefined || isIP(host) === 6) &&
    (!/^[\d.]+$/.test(host) || isIP(host) === 4) &&
    (port === undefined || (port >= 1 && port <= 65_535));
  if (!isRight)
    throw new InputError(
      `--advertise ${text} is not ADDRESS or ADDRESS:PORT, such as 192.168.1.20:7700: give what other machines dial.`,
    );
  if (isWildcard(host))
    throw new InputError(
      `--advertise ${text} is no address that other machines can dial: give one of this machine's, ` +
        'or of the router or host that leads to it.',
    );
  return { host, ...(port === undefined ? {} : { port }) };
}

/**
 * Throws InputError for an address that is not this machine's, one to advertise that nobody can dial, and for a
 * certificate without its key.
 */
export function checkHost({
  host,
  advertise,
  tlsCert,
  tlsKey,
}: {
  readonly host: string;
  readonly advertise?: string;
  readonly tlsCert?: string;
  readonly tlsKey?: string;
}): void {
  if ((tlsCert === undefined) !== (tlsKey === undefined))
    throw new InputError('--tls-cert and --tls-key belong together: give both.');
  if (advertise !== undefined) parseAdvertised(advertise);
  checkListening(host);
}

/** Throws InputError for an address that is not this machine's. Names are looked up when somebody listens. */
export function checkListening(host: string): void {
  if (isThisMachine(host) || isWildcard(host) || isIP(host) === 0 || allAddresses().has(host)) return;
  const own = ownAddresses();
  const fix = own.length === 0 ? 'use 127.0.0.1' : `give one of ${own.join(', ')}`;
  throw new InputError(`--host ${host} is not an address of this machine: ${fix}.`);
}

function allAddresses(): Set<string> {
  return new Set(Object.values(networkInterfaces()).flatMap((found) => (found ?? []).map(({ address }) => address)));
}
