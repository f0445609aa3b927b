// asteroid devices: who may join this user's runs, and how to revoke that.

import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import { fleetCode, removeFleetCode } from '../../runtime/host/security/fleet-code.ts';
import { createRegistry, type EnrolledDevice, type Registry } from '../../runtime/host/security/registry.ts';
import { stateFolder } from '../../runtime/host/security/state-folder.ts';
import { createOutput, type Output } from '../output.ts';

interface DevicesOptions {
  readonly revoke?: string;
  readonly revokeCodes?: boolean;
  readonly fleetCode?: boolean;
  readonly json?: boolean;
}

/** Adds the command. */
export function addDevices(program: Command): Command {
  return program
    .command('devices')
    .description(
      'list the devices that have a certificate of your cluster and the join codes of current runs, ' +
        'or revoke them',
    )
    .option(
      '--revoke <DEVICE>',
      'revoke a device, by its name or the beginning of its key; it needs a new code to come back',
    )
    .option(
      '--revoke-codes',
      'end the join codes of all current runs and the lasting one; devices that have joined stay',
    )
    .option('--fleet-code', 'print a join code that lasts until it is revoked, for devices that scripts set up')
    .addHelpText('after', '\nExample:\n  $ asteroid devices --revoke old-laptop')
    .action((options: DevicesOptions) => devices(options));
}

async function devices(options: DevicesOptions): Promise<void> {
  const output = createOutput(options);
  const folder = stateFolder();
  const registry = createRegistry(folder);
  const revoked = options.revoke === undefined ? [] : await revokeDevices(registry, options.revoke);
  if (options.revokeCodes === true) {
    for (const { id } of await registry.codes()) await registry.revokeCode(id);
    await removeFleetCode(folder);
  }
  if (options.fleetCode === true) return printFleetCode(await fleetCode(folder), output);
  const nowMs = Date.now();
  const enrolled = (await registry.devices()).filter(({ expiresAtMs }) => expiresAtMs > nowMs);
  const codes = (await registry.codes()).filter(({ expiresAtMs }) => expiresAtMs > nowMs);
  output.json({ devices: enrolled, codes, revoked });
  if (output.isJson) return;
  const { terminal } = output;
  for (const { name, key } of revoked)
    terminal.print(`${name} (${key.slice(0, 12)}) is revoked: its certificate is no longer accepted.`);
  if (enrolled.length === 0) terminal.print('No device has a certificate of this cluster.');
  for (const { name, key, expiresAtMs } of enrolled)
    terminal.print(`${name.padEnd(24)}  ${key.slice(0, 12)}  until ${day(expiresAtMs)}`);
  for (const { madeAtMs, expiresAtMs } of codes)
    terminal.print(`A join code of ${minute(madeAtMs)} is valid until ${minute(expiresAtMs)}, or until its run ends.`);
}

function printFleetCode(code: string, output: Output): void {
  output.json({ fleetCode: code });
  if (!output.isJson) output.terminal.print(code);
}

/** All devices with this name, or the one whose key begins with it. */
async function revokeDevices(registry: Registry, wanted: string): Promise<readonly EnrolledDevice[]> {
  const all = await registry.devices();
  const byKey = /^[0-9a-f]{8,}$/.test(wanted) ? all.filter(({ key }) => key.startsWith(wanted)) : [];
  const found = byKey.length > 0 ? byKey : all.filter(({ name }) => name === wanted);
  if (found.length === 0)
    throw new InputError(`--revoke ${wanted} names no device of this cluster: asteroid devices lists them.`);
  for (const { key } of found) await registry.revokeDevice(key);
  return found;
}

function day(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10);
}

function minute(ms: number): string {
  return new Date(ms).toISOString().slice(11, 16);
}
