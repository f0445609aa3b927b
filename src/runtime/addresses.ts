// The addresses of this machine, and which of them a coordinator may listen on.

import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { InputError } from '../errors.ts';
import { isLoopback } from '../transport/admission.ts';

/** The IPv4 addresses by which others on its networks reach this machine. */
export function ownAddresses(): string[] {
  const entries = Object.values(networkInterfaces()).flatMap((found) => found ?? []);
  return entries.filter(({ internal, family }) => !internal && family === 'IPv4').map(({ address }) => address);
}

/** Throws InputError for an address that is not this machine's, that nobody can dial, or whose links would be plain beyond this machine without consent. */
export function checkHost({ host, insecure }: { readonly host: string; readonly insecure: boolean }): void {
  if (host === 'localhost' || isLoopback(host)) return;
  const own = ownAddresses();
  const mend = own.length === 0 ? 'use 127.0.0.1' : `give one of ${own.join(', ')}`;
  if (host === '0.0.0.0' || host === '::') throw new InputError(`--host ${host} is no address that other machines can dial: ${mend}.`);
  if (isIP(host) !== 0 && !allAddresses().has(host)) throw new InputError(`--host ${host} is no address of this machine: ${mend}.`);
  if (insecure) return;
  throw new InputError(
    `--host ${host} would send everything unencrypted over the network: add --insecure if you trust that network, or use 127.0.0.1.`,
  );
}

function allAddresses(): Set<string> {
  return new Set(Object.values(networkInterfaces()).flatMap((found) => (found ?? []).map(({ address }) => address)));
}
