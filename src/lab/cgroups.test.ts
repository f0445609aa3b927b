// Control groups of both versions, literally.

import assert from 'node:assert/strict';
import test from 'node:test';
import { InputError } from '../errors.ts';
import { cgroupPlan, findCgroups } from './cgroups.ts';
import { labLayout } from './layout.ts';

const layout = labLayout(
  {
    devices: [
      { name: 'a', memoryMiB: 768, cores: 0.35 },
      { name: 'b', memoryMiB: 256, cores: 0.05 },
    ],
    links: { default: { bandwidthMbps: 100 } },
  },
  { name: 'x', network: 'links', coreCount: 2 },
);

test('version 1: a folder in each hierarchy', () => {
  const mounts = findCgroups(
    [
      'tmpfs /sys/fs/cgroup tmpfs rw 0 0',
      'cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0',
      'cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0',
      'cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0',
    ].join('\n'),
  );
  const [cpu, memory] = ['/sys/fs/cgroup/cpu,cpuacct', '/sys/fs/cgroup/memory'];
  assert.deepEqual(mounts, { version: 1, cpu, memory });
  assert.deepEqual(cgroupPlan(layout, mounts, 'high'), {
    folders: [cpu, memory].flatMap((root) =>
      ['', '/1', '/2', '/coordinator'].map((group) => `${root}/asteroid-x${group}`),
    ),
    writes: [
      [`${cpu}/asteroid-x/cpu.shares`, '200000'],
      [`${cpu}/asteroid-x/1/cpu.cfs_period_us`, '10000'],
      [`${cpu}/asteroid-x/1/cpu.cfs_quota_us`, '3500'],
      // Of the usual 1024, in proportion to the cores.
      [`${cpu}/asteroid-x/1/cpu.shares`, '358'],
      [`${memory}/asteroid-x/1/memory.limit_in_bytes`, '1073741824'],
      // A twentieth of 10 ms is below the kernel's least quota: the period is longer.
      [`${cpu}/asteroid-x/2/cpu.cfs_period_us`, '20000'],
      [`${cpu}/asteroid-x/2/cpu.cfs_quota_us`, '1000'],
      [`${cpu}/asteroid-x/2/cpu.shares`, '51'],
      [`${memory}/asteroid-x/2/memory.limit_in_bytes`, '536870912'],
    ],
    bursts: [
      [`${cpu}/asteroid-x/1/cpu.cfs_burst_us`, '525'],
      [`${cpu}/asteroid-x/2/cpu.cfs_burst_us`, '150'],
    ],
    devices: {
      a: [`${cpu}/asteroid-x/1/cgroup.procs`, `${memory}/asteroid-x/1/cgroup.procs`],
      b: [`${cpu}/asteroid-x/2/cgroup.procs`, `${memory}/asteroid-x/2/cgroup.procs`],
    },
    coordinator: [`${cpu}/asteroid-x/coordinator/cgroup.procs`, `${memory}/asteroid-x/coordinator/cgroup.procs`],
  });
});

test('version 2: one hierarchy, whose controllers are enabled for the groups', () => {
  const mounts = findCgroups('cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n');
  assert.deepEqual(mounts, { version: 2, root: '/sys/fs/cgroup' });
  assert.deepEqual(cgroupPlan(layout, mounts, 'high'), {
    folders: ['', '/1', '/2', '/coordinator'].map((group) => `/sys/fs/cgroup/asteroid-x${group}`),
    writes: [
      ['/sys/fs/cgroup/cgroup.subtree_control', '+cpu +memory'],
      ['/sys/fs/cgroup/asteroid-x/cgroup.subtree_control', '+cpu +memory'],
      ['/sys/fs/cgroup/asteroid-x/cpu.weight', '10000'],
      ['/sys/fs/cgroup/asteroid-x/1/cpu.max', '3500 10000'],
      ['/sys/fs/cgroup/asteroid-x/1/cpu.weight', '35'],
      ['/sys/fs/cgroup/asteroid-x/1/memory.max', '1073741824'],
      ['/sys/fs/cgroup/asteroid-x/2/cpu.max', '1000 20000'],
      ['/sys/fs/cgroup/asteroid-x/2/cpu.weight', '5'],
      ['/sys/fs/cgroup/asteroid-x/2/memory.max', '536870912'],
    ],
    bursts: [
      ['/sys/fs/cgroup/asteroid-x/1/cpu.max.burst', '525'],
      ['/sys/fs/cgroup/asteroid-x/2/cpu.max.burst', '150'],
    ],
    devices: { a: ['/sys/fs/cgroup/asteroid-x/1/cgroup.procs'], b: ['/sys/fs/cgroup/asteroid-x/2/cgroup.procs'] },
    coordinator: ['/sys/fs/cgroup/asteroid-x/coordinator/cgroup.procs'],
  });
});

test('a machine without control groups is refused', () => {
  assert.throws(() => findCgroups('tmpfs / tmpfs rw 0 0'), InputError);
});
