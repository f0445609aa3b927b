// Turns a cluster into the virtual one on one Linux machine: names, addresses, cores, memory and links. Pure:
// commands.ts and cgroups.ts turn these numbers into commands and files. What cannot be built on the machine is refused
// here.

import { assert } from '../assert.ts';
import type { Cluster, DeviceSpec } from '../cluster/cluster.ts';
import { deviceKinds, kindModel } from '../cluster/device-kinds.ts';
import { links } from '../cluster/links.ts';
import { InputError } from '../errors.ts';

/**
 * What limits a message. 'links': each pair of devices has a link of its own, as the simulator has it. 'switch': each
 * device has one port to a switch, and all its links share the port's bandwidth in each direction, as on a real local
 * network.
 */
export type NetworkForm = 'links' | 'switch';

/** A device of a lab. */
export interface LabDevice {
  readonly name: string;
  /** The network namespace that is its network. */
  readonly namespace: string;
  readonly address: string;
  /** Seconds of processor time per second. */
  readonly cores: number;
  /** For training, as the cluster says. */
  readonly memoryMiB: number;
  /** Bandwidth to each other device: in its order, Mbps. Its own place holds 0. */
  readonly bandwidthMbps: readonly number[];
}

/** All that makes a lab, and all that is needed to remove it. */
export interface LabLayout {
  readonly name: string;
  readonly network: NetworkForm;
  readonly devices: readonly LabDevice[];
  /** The namespace of the bridge. */
  readonly switchNamespace: string;
  /** Where the coordinator runs: a place of its own with unshaped links, or the device that holds the data. */
  readonly coordinator: { readonly namespace: string; readonly address: string; readonly device?: string };
}

export interface LabOptions {
  /** Of the lab; several may be up at once. Letters, digits and dashes, at most 32. */
  readonly name: string;
  readonly network: NetworkForm;
  /** Cores of this machine. */
  readonly coreCount: number;
}

/**
 * Fraction of the machine's processor time for all devices together; the rest is for the coordinator and the network
 * itself. Five devices on two cores get 0.35 each.
 */
export const deviceCoreFraction = 0.875;

/** Addresses 1 to 253 of the lab's own network are devices. */
const maxDeviceCount = 253;

/** The lab of a cluster. Throws InputError for what cannot be built. */
export function labLayout(cluster: Cluster, { name, network, coreCount }: LabOptions): LabLayout {
  if (!/^[a-z0-9][a-z0-9-]{0,31}$/.test(name))
    throw new InputError(
      `--name ${name} must be 1 to 32 small letters, digits and dashes: choose another name for the lab.`,
    );
  const { devices, dataDevice } = cluster;
  if (devices.length > maxDeviceCount)
    throw new InputError(
      `The cluster has ${devices.length} devices, and a lab holds ${maxDeviceCount}: leave some out.`,
    );
  const bandwidths = bandwidthTable(cluster, network);
  const cores = deviceCores(devices, coreCount);
  const members = devices.map(({ name: device, memoryMiB }, index): LabDevice => {
    const [own, row] = [cores[index], bandwidths[index]];
    assert(own !== undefined && row !== undefined, 'each device has cores and links');
    const namespace = `asteroid-${name}-${index + 1}`;
    return { name: device, namespace, address: addressOf(index + 1), cores: own, memoryMiB, bandwidthMbps: row };
  });
  const holder = members.find((device) => device.name === dataDevice);
  const apart = { namespace: `asteroid-${name}-coordinator`, address: addressOf(maxDeviceCount + 1) };
  return {
    name,
    network,
    devices: members,
    switchNamespace: `asteroid-${name}-switch`,
    coordinator:
      holder === undefined ? apart : { namespace: holder.namespace, address: holder.address, device: holder.name },
  };
}

function addressOf(host: number): string {
  return `10.77.0.${host}`;
}

function bandwidthTable(cluster: Cluster, network: NetworkForm): number[][] {
  const { devices } = cluster;
  const delayed = [cluster.links.default, ...(cluster.links.pairs ?? [])].find(({ latencyMs = 0 }) => latencyMs > 0);
  if (delayed !== undefined) {
    throw new InputError(
      `The cluster's links have a latencyMs of ${delayed.latencyMs}, and a lab adds no delay to its links ` +
        '(about 0.1 ms): leave latencyMs out.',
    );
  }
  const table = links(cluster);
  const rows = devices.map((_, from) => devices.map((_other, to) => (from === to ? 0 : table.bandwidthMbps(from, to))));
  if (network === 'switch') {
    for (const [index, { name }] of devices.entries()) {
      const speeds = new Set(rows[index]?.filter((_, to) => to !== index));
      if (speeds.size > 1) {
        throw new InputError(
          `${name} has links of ${[...speeds].join(' and ')} Mbps, and on a switch all of them share one port: ` +
            'use --network links, or give it one speed.',
        );
      }
    }
  }
  return rows;
}

/**
 * Cores of each device: its `cores` if the cluster has them, else in proportion to the speeds of the devices' kinds
 * (equal without kinds), scaled so that all together take `deviceCoreFraction` of the machine and the fastest at most
 * one core.
 */
export function deviceCores(devices: readonly DeviceSpec[], coreCount: number): number[] {
  const given = devices.flatMap(({ cores }) => cores ?? []);
  if (given.length === devices.length) {
    const sum = given.reduce((total, cores) => total + cores, 0);
    if (sum <= coreCount) return given;
    throw new InputError(
      `The devices of the cluster want ${round(sum)} cores together, and this machine has ${coreCount}: ` +
        'lower their cores, or leave cores out to have them scaled.',
    );
  }
  const without = devices.find(({ cores }) => cores === undefined);
  if (given.length > 0)
    throw new InputError(
      `Device "${without?.name}" has no cores and others have: give cores to all devices, or to none.`,
    );
  const speeds = devices.map((device) => speedOf(device, devices));
  const sum = speeds.reduce((total, speed) => total + speed, 0);
  const scale = Math.min((deviceCoreFraction * coreCount) / sum, 1 / Math.max(...speeds));
  return speeds.map((speed) => round(speed * scale));
}

/** Speed relative to other kinds; 1 if no device has a kind. */
function speedOf({ name, kind }: DeviceSpec, devices: readonly DeviceSpec[]): number {
  if (devices.every((device) => device.kind === undefined)) return 1;
  const model = kind === undefined ? undefined : kindModel(kind);
  if (model !== undefined) return model.gigaflops;
  const what = kind === undefined ? 'has no kind and others have' : `has the kind "${kind}", whose speed is not known`;
  throw new InputError(
    `Device "${name}" ${what}: give it one of ${Object.keys(deviceKinds).join(', ')}, or give all devices cores.`,
  );
}

/** To a thousandth of a core. */
function round(cores: number): number {
  return Math.round(cores * 1000) / 1000;
}
