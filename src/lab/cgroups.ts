// Control groups of a lab: one below the lab's own for each device, with its processor quota and its memory limit.
// Version 1 (a folder in each controller's hierarchy) and version 2 (one hierarchy). Pure: which folders, and what to
// write into which file.

import { InputError } from '../errors.ts';
import type { LabLayout } from './layout.ts';

/** Where this machine has its control groups. */
export type CgroupMounts =
  | { readonly version: 1; readonly cpu: string; readonly memory: string }
  | { readonly version: 2; readonly root: string };

/** The control groups of a lab. */
export interface CgroupPlan {
  /** In the order in which to make them; removed in reverse. */
  readonly folders: readonly string[];
  readonly writes: readonly (readonly [file: string, value: string])[];
  /**
   * Written after `writes`, if the kernel has the file (Linux 5.14): a device may use a little of the quota that it
   * could not use in one period, because others had the cores, in the next.
   */
  readonly bursts: readonly (readonly [file: string, value: string])[];
  /** By device: where a process writes its id to be in the group. */
  readonly devices: Readonly<Record<string, readonly string[]>>;
  /** Where a coordinator with a place of its own writes its id. */
  readonly coordinator: readonly string[];
}

/** Quota period: short, so that short steps run smoothly. A quota below the kernel's least, 1 ms, gets a longer one. */
const periodUs = 10_000;
const leastQuotaUs = 1_000;
/**
 * Part of an unused quota that carries over. More would let a device that waited run its next pass at the speed of a
 * whole core: a pipeline's stages wait in every round.
 */
const burstFraction = 0.15;
/** Processor weight of a device with a whole core: the kernel's default, which the coordinator has too. */
const weightOfCore = { 1: 1024, 2: 100 } as const;

/**
 * What a worker takes on top of its memory for training, which the cluster names: Node.js, ONNX Runtime, the model's
 * code.
 */
export const frameworkMiB = 256;

/** Processor weight of the lab against other work on this machine. */
export type Priority = 'normal' | 'high';

/** Finds the hierarchies in the text of /proc/mounts. Throws InputError if there are none. */
export function findCgroups(mounts: string): CgroupMounts {
  const entries = mounts.split('\n').map((line) => line.split(' '));
  const controller = (name: string): string | undefined =>
    entries.find(([, , type, options]) => type === 'cgroup' && options?.split(',').includes(name))?.[1];
  const [cpu, memory] = [controller('cpu'), controller('memory')];
  if (cpu !== undefined && memory !== undefined) return { version: 1, cpu, memory };
  const root = entries.find(([, , type]) => type === 'cgroup2')?.[1];
  if (root !== undefined && cpu === undefined && memory === undefined) return { version: 2, root };
  throw new InputError(
    'A lab needs control groups for cpu and memory, and this machine has none of one version mounted: ' +
      'mount cgroup2 at /sys/fs/cgroup.',
  );
}

/** The control groups of a lab on such a machine. */
export function cgroupPlan(layout: LabLayout, mounts: CgroupMounts, priority: Priority): CgroupPlan {
  const groups = [...layout.devices.map((_, index) => String(index + 1)), 'coordinator'];
  const roots = mounts.version === 1 ? [mounts.cpu, mounts.memory] : [mounts.root];
  const parents = roots.map((root) => `${root}/asteroid-${layout.name}`);
  const processes = (group: string): string[] => parents.map((parent) => `${parent}/${group}/cgroup.procs`);
  const [cpu = '', memory = cpu] = parents;
  const periodOf = (cores: number): number => Math.max(periodUs, Math.ceil(leastQuotaUs / cores));
  const quotaOf = (cores: number): number => Math.round(cores * periodOf(cores));
  const limits = layout.devices.flatMap(({ cores, memoryMiB }, index) => {
    const [quota, period] = [quotaOf(cores), periodOf(cores)];
    // In proportion to the cores: with equal weights, a device of 0.85 cores next to three of 0.3 on two cores gets 90
    // to 93 % of its quota; so it gets 98 %.
    const weight = String(Math.max(2, Math.round(cores * weightOfCore[mounts.version])));
    const bytes = Math.round((memoryMiB + frameworkMiB) * 2 ** 20);
    return (
      mounts.version === 1
        ? [
            [`${cpu}/${index + 1}/cpu.cfs_period_us`, String(period)],
            [`${cpu}/${index + 1}/cpu.cfs_quota_us`, String(quota)],
            [`${cpu}/${index + 1}/cpu.shares`, weight],
            [`${memory}/${index + 1}/memory.limit_in_bytes`, String(bytes)],
          ]
        : [
            [`${cpu}/${index + 1}/cpu.max`, `${quota} ${period}`],
            [`${cpu}/${index + 1}/cpu.weight`, weight],
            [`${memory}/${index + 1}/memory.max`, String(bytes)],
          ]
    ) as [string, string][];
  });
  return {
    folders: parents.flatMap((parent) => [parent, ...groups.map((group) => `${parent}/${group}`)]),
    writes: [...enabled(mounts, cpu), ...weight(mounts, cpu, priority), ...limits],
    bursts: layout.devices.map(({ cores }, index) => [
      `${cpu}/${index + 1}/${mounts.version === 1 ? 'cpu.cfs_burst_us' : 'cpu.max.burst'}`,
      String(Math.round(burstFraction * quotaOf(cores))),
    ]),
    devices: Object.fromEntries(layout.devices.map(({ name }, index) => [name, processes(String(index + 1))])),
    coordinator: processes('coordinator'),
  };
}

/** In version 2 a group's children have only the controllers that it enables for them. */
function enabled(mounts: CgroupMounts, parent: string): [string, string][] {
  if (mounts.version === 1) return [];
  return [mounts.root, parent].map((folder) => [`${folder}/cgroup.subtree_control`, '+cpu +memory']);
}

function weight({ version }: CgroupMounts, parent: string, priority: Priority): [string, string][] {
  if (priority === 'normal') return [];
  return [version === 1 ? [`${parent}/cpu.shares`, '200000'] : [`${parent}/cpu.weight`, '10000']];
}
