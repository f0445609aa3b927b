// The addresses of this machine, and whether a coordinator may listen on one.

import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { InputError } from '../../errors.ts';
import { isLoopback } from '../../transport/admission.ts';

/** The IPv4 addresses by which others on its networks reach this machine. */
export function ownAddresses(): string[] {
  const entries = Object.values(networkInterfaces()).flatMap((found) => found ?? []);
  return entries.filter(({ internal, family }) => !internal && family === 'IPv4').map(({ address }) => address);
}

/**
 * Throws InputError for an address that is not this machine's, or that nobody can dial, and for a certificate without
 * its key.
 */
export function checkHost({
  host,
  tlsCert,
  tlsKey,
}: {
  readonly host: string;
  readonly tlsCert?: string;
  readonly tlsKey?: string;
}): void {
  if ((tlsCert === undefined) !== (tlsKey === undefined))
    throw new InputError('--tls-cert and --tls-key belong together: give both.');
  if (host === 'localhost' || isLoopback(host)) return;
  const own = ownAddresses();
  const fix = own.length === 0 ? 'use 127.0.0.1' : `give one of ${own.join(', ')}`;
  if (host === '0.0.0.0' || host === '::')
    throw new InputError(`--host ${host} is not an address that other machines can dial: ${fix}.`);
  if (isIP(host) !== 0 && !allAddresses().has(host))
    throw new InputError(`--host ${host} is not an address of this machine: ${fix}.`);
}

function allAddresses(): Set<string> {
  return new Set(Object.values(networkInterfaces()).flatMap((found) => (found ?? []).map(({ address }) => address)));
}
