// What Linux tells of a machine in its files: this process's processor quota, the battery, the temperature. Read once, when asked; what is not there, or
// not readable, is left out. `root` is where the file system begins, for tests.

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** Processor time that this process may take: `cores` of every `periodMs`. */
export interface CpuQuota {
  readonly cores: number;
  readonly periodMs: number;
}

export interface Battery {
  /** 0 to 100. */
  readonly percent: number;
  readonly isDischarging: boolean;
}

export interface LinuxFacts {
  readonly cpuQuota?: CpuQuota;
  readonly battery?: Battery;
  /** Of the hottest sensor of the processor, or of any where none says that it is the processor's. */
  readonly temperatureC?: number;
}

/** Reads the files. */
export function linuxFacts(root = '/'): LinuxFacts {
  const [cpuQuota, battery, temperatureC] = [readQuota(root), readBattery(root), readTemperature(root)];
  return {
    ...(cpuQuota === undefined ? {} : { cpuQuota }),
    ...(battery === undefined ? {} : { battery }),
    ...(temperatureC === undefined ? {} : { temperatureC }),
  };
}

/** The tightest of the control groups that hold this process: its own, and those around it. Version 2 has one file, version 1 two. */
function readQuota(root: string): CpuQuota | undefined {
  const quotas = (read(root, 'proc/self/cgroup') ?? '').split('\n').flatMap((line) => {
    const [, id = '', controllers = '', path = ''] = /^(\d+):([^:]*):(.*)$/.exec(line) ?? [];
    if (id === '0' && controllers === '') return around(path).flatMap((group) => quotaV2(root, group) ?? []);
    if (!controllers.split(',').includes('cpu')) return [];
    return around(path).flatMap((group) => quotaV1(root, [controllers, 'cpu', 'cpu,cpuacct'], group) ?? []);
  });
  return quotas.length === 0 ? undefined : quotas.reduce((a, b) => (b.cores < a.cores ? b : a));
}

/** "/a/b", "/a", "": a group and those around it. In a container the path may be one outside; the last is its own group then. */
function around(path: string): readonly string[] {
  const names = path.split('/').filter((name) => name !== '' && name !== '..');
  return names.map((_, index) => names.slice(0, names.length - index).join('/')).concat('');
}

/** "35000 100000", in microseconds, or "max 100000". */
function quotaV2(root: string, group: string): CpuQuota | undefined {
  const [quota, period] = (read(root, 'sys/fs/cgroup', group, 'cpu.max') ?? '').split(/\s+/);
  return quotaOf(Number(quota), Number(period));
}

/** −1 for none. */
function quotaV1(root: string, mounts: readonly string[], group: string): CpuQuota | undefined {
  for (const mount of new Set(mounts)) {
    const quota = Number(read(root, 'sys/fs/cgroup', mount, group, 'cpu.cfs_quota_us') ?? Number.NaN);
    const period = Number(read(root, 'sys/fs/cgroup', mount, group, 'cpu.cfs_period_us') ?? Number.NaN);
    if (!Number.isNaN(quota)) return quotaOf(quota, period);
  }
  return undefined;
}

function quotaOf(quotaUs: number, periodUs: number): CpuQuota | undefined {
  return quotaUs > 0 && periodUs > 0 ? { cores: quotaUs / periodUs, periodMs: periodUs / 1000 } : undefined;
}

/** The machine's own battery; a mouse has one too, of scope "Device". */
function readBattery(root: string): Battery | undefined {
  for (const supply of list(root, 'sys/class/power_supply')) {
    const value = (name: string): string | undefined => read(root, 'sys/class/power_supply', supply, name);
    const percent = Number(value('capacity') ?? Number.NaN);
    if (value('type') !== 'Battery' || value('scope') === 'Device' || !(percent >= 0 && percent <= 100)) continue;
    return { percent, isDischarging: value('status') === 'Discharging' };
  }
  return undefined;
}

const processorSensor = /cpu|x86_pkg|soc|core|acpitz|k10temp/i;

function readTemperature(root: string): number | undefined {
  const sensors = list(root, 'sys/class/thermal').flatMap((zone) => {
    const degrees = Number(read(root, 'sys/class/thermal', zone, 'temp') ?? Number.NaN) / 1000;
    const isSane = zone.startsWith('thermal_zone') && degrees > 0 && degrees < 150;
    return isSane ? [{ degrees, isProcessor: processorSensor.test(read(root, 'sys/class/thermal', zone, 'type') ?? '') }] : [];
  });
  const own = sensors.filter(({ isProcessor }) => isProcessor);
  const counted = own.length > 0 ? own : sensors;
  return counted.length === 0 ? undefined : Math.max(...counted.map(({ degrees }) => degrees));
}

function read(...path: readonly string[]): string | undefined {
  try {
    return readFileSync(join(...path), 'utf8').trim();
  } catch {
    return undefined; // Not there, or not for us: then it is not known.
  }
}

function list(...path: readonly string[]): readonly string[] {
  try {
    return readdirSync(join(...path)).sort();
  } catch {
    return [];
  }
}
