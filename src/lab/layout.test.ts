// What a lab is made of, by literal values; what cannot be built is refused in one sentence.

import assert from 'node:assert/strict';
import test from 'node:test';
import type { Cluster } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';
import { deviceCores, labLayout } from './layout.ts';

const memoryMiB = 1024;
const cluster: Cluster = {
  devices: [
    { name: 'a', memoryMiB },
    { name: 'b', memoryMiB: 512 },
  ],
  links: { default: { bandwidthMbps: 100 } },
};
const options = { name: 'lab', network: 'links', coreCount: 2 } as const;

function refuses(action: () => unknown, message: string): void {
  assert.throws(action, (error: unknown) => {
    assert.ok(error instanceof InputError);
    assert.equal(error.message, message);
    return true;
  });
}

test('names, addresses, cores, memory and links of each device', () => {
  assert.deepEqual(labLayout(cluster, options), {
    name: 'lab',
    network: 'links',
    devices: [
      {
        name: 'a',
        namespace: 'asteroid-lab-1',
        address: '10.77.0.1',
        cores: 0.875,
        memoryMiB: 1024,
        bandwidthMbps: [0, 100],
      },
      {
        name: 'b',
        namespace: 'asteroid-lab-2',
        address: '10.77.0.2',
        cores: 0.875,
        memoryMiB: 512,
        bandwidthMbps: [100, 0],
      },
    ],
    switchNamespace: 'asteroid-lab-switch',
    coordinator: { namespace: 'asteroid-lab-coordinator', address: '10.77.0.254' },
  });
});

test('the coordinator runs where the data are', () => {
  const { coordinator } = labLayout({ ...cluster, dataDevice: 'b' }, options);
  assert.deepEqual(coordinator, { namespace: 'asteroid-lab-2', address: '10.77.0.2', device: 'b' });
});

test('a pair has its own speed', () => {
  const pairs = [{ between: ['a', 'c'], bandwidthMbps: 20 }] as const;
  const three = { devices: [...cluster.devices, { name: 'c', memoryMiB }], links: { ...cluster.links, pairs } };
  const { devices } = labLayout(three, options);
  assert.deepEqual(
    devices.map(({ bandwidthMbps }) => bandwidthMbps),
    [
      [0, 100, 20],
      [100, 0, 100],
      [20, 100, 0],
    ],
  );
  refuses(
    () => labLayout(three, { ...options, network: 'switch' }),
    'a has links of 100 and 20 Mbps, and on a switch all of them share one port: ' +
      'use --network links, or give it one speed.',
  );
});

test('cores: five equal devices on two cores, the ratio of kinds, one core at most', () => {
  const kinds = (...names: string[]): { name: string; kind: string; memoryMiB: number }[] =>
    names.map((kind, index) => ({ name: `d${index}`, kind, memoryMiB }));
  assert.deepEqual(deviceCores(kinds(...Array<string>(5).fill('jetson-nano')), 2), [0.35, 0.35, 0.35, 0.35, 0.35]);
  // 665 : 236 gigaflops; 0.848 + 3 x 0.301 = 1.75.
  assert.deepEqual(
    deviceCores(kinds('jetson-tx2', 'jetson-nano', 'jetson-nano', 'jetson-nano'), 2),
    [0.848, 0.301, 0.301, 0.301],
  );
  assert.deepEqual(deviceCores(kinds('rcc-ve', 'rcc-ve@25%'), 16), [1, 0.25]);
  assert.deepEqual(deviceCores([{ name: 'a', memoryMiB, cores: 0.2 }], 2), [0.2]);
});

test('what a lab cannot be is refused', () => {
  const cores = (...all: (number | undefined)[]): unknown =>
    deviceCores(
      all.map((own, index) => ({ name: `d${index}`, memoryMiB, ...(own === undefined ? {} : { cores: own }) })),
      2,
    );
  refuses(
    () => cores(1.5, 0.75),
    'The devices of the cluster want 2.25 cores together, and this machine has 2: ' +
      'lower their cores, or leave cores out to have them scaled.',
  );
  refuses(
    () => cores(1, undefined),
    'Device "d1" has no cores and others have: give cores to all devices, or to none.',
  );
  assert.throws(
    () => deviceCores([{ name: 'x', kind: 'abacus', memoryMiB }], 2),
    /Device "x" has the kind "abacus", whose speed is not known/,
  );
  refuses(
    () => labLayout({ ...cluster, links: { default: { bandwidthMbps: 100, latencyMs: 5 } } }, options),
    "The cluster's links have a latencyMs of 5, and a lab adds no delay to its links (about 0.1 ms): " +
      'leave latencyMs out.',
  );
  refuses(
    () => labLayout(cluster, { ...options, name: 'My Lab' }),
    '--name My Lab must be 1 to 32 small letters, digits and dashes: choose another name for the lab.',
  );
  const many = Array.from({ length: 254 }, (_, index) => ({ name: `d${index}`, memoryMiB }));
  refuses(
    () => labLayout({ ...cluster, devices: many }, options),
    'The cluster has 254 devices, and a lab holds 253: leave some out.',
  );
});
