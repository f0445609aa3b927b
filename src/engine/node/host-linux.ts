// What Linux reports of a machine in its files: this process's processor quota and memory limit, the battery, the
// temperature. Read once, when asked; what is not there, or not readable, is left out. `root` is where the file system
// begins, for tests.

import { openSync, readdirSync, readFileSync, readSync } from 'node:fs';
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
  /** The tightest memory limit of the control groups that hold this process. */
  readonly memoryLimitBytes?: number;
  /**
   * Processes of its control group that the system has killed for want of memory; with version 2, of the groups around
   * it too.
   */
  readonly oomKillCount?: number;
  readonly battery?: Battery;
  /** Of the hottest sensor of the processor, or of any where none says that it is the processor's. */
  readonly temperatureC?: number;
}

/** Reads the files. */
export function linuxFacts(root = '/'): LinuxFacts {
  const [cpuQuota, battery, temperatureC] = [readCpuQuota(root), readBattery(root), readTemperature(root)];
  const [memoryLimitBytes, oomKillCount] = [readMemoryLimit(root), readOomKillCount(root)];
  return {
    ...(cpuQuota === undefined ? {} : { cpuQuota }),
    ...(memoryLimitBytes === undefined ? {} : { memoryLimitBytes }),
    ...(oomKillCount === undefined ? {} : { oomKillCount }),
    ...(battery === undefined ? {} : { battery }),
    ...(temperatureC === undefined ? {} : { temperatureC }),
  };
}

/** Processor time of this process's main thread, in milliseconds; undefined where the kernel does not count it. */
export function readMainThreadMs(root = '/'): number | undefined {
  const [nanoseconds] = (read(root, 'proc/self/schedstat') ?? '').split(' ');
  return nanoseconds === undefined || nanoseconds === '' ? undefined : Number(nanoseconds) / 1e6;
}

/**
 * A clock of the calling thread's processor time, in milliseconds, for that thread alone; undefined where the kernel
 * does not count it.
 */
export function openThreadClock(root = '/'): (() => number) | undefined {
  let file: number;
  try {
    file = openSync(join(root, 'proc/thread-self/schedstat'), 'r');
  } catch {
    return undefined;
  }
  const text = Buffer.alloc(64);
  return () => {
    process.cpuUsage(); // the kernel counts up to now what the calling thread has run, else up to its last tick
    const length = readSync(file, text, 0, text.length, 0);
    return Number(text.toString('latin1', 0, length).split(' ', 1)[0]) / 1e6;
  };
}

/**
 * Control groups that hold this process, the innermost first, in one hierarchy. Version 2 has one for all controllers.
 */
interface Hierarchy {
  readonly version: 1 | 2;
  /** Of version 1, as its folder is called: "cpu,cpuacct". */
  readonly controllers: string;
  readonly groups: readonly string[];
}

/** The hierarchies in which this controller may be. */
function hierarchies(root: string, controller: string): readonly Hierarchy[] {
  return (read(root, 'proc/self/cgroup') ?? '').split('\n').flatMap((line): Hierarchy[] => {
    const [, id = '', controllers = '', path = ''] = /^(\d+):([^:]*):(.*)$/.exec(line) ?? [];
    if (id === '0' && controllers === '') return [{ version: 2, controllers, groups: around(path) }];
    return controllers.split(',').includes(controller) ? [{ version: 1, controllers, groups: around(path) }] : [];
  });
}

/**
 * The tightest of the control groups that hold this process: its own, and those around it. Version 2 has one file,
 * version 1 two.
 */
export function readCpuQuota(root = '/'): CpuQuota | undefined {
  const quotas = hierarchies(root, 'cpu').flatMap(({ version, controllers, groups }) =>
    groups.flatMap(
      (group) =>
        (version === 2 ? quotaV2(root, group) : quotaV1(root, [controllers, 'cpu', 'cpu,cpuacct'], group)) ?? [],
    ),
  );
  return quotas.length === 0 ? undefined : quotas.reduce((a, b) => (b.cores < a.cores ? b : a));
}

/**
 * "/a/b", "/a", "": a group and those around it. In a container the path may be one outside; the last is its own group
 * then.
 */
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

/** Version 1 writes a number beyond all memory for none. */
const noLimitBytes = 2 ** 60;

/** The tightest, as for the processor. "max" in version 2: none. */
function readMemoryLimit(root: string): number | undefined {
  const limits = hierarchies(root, 'memory').flatMap(({ version, groups }) =>
    groups.map((group) =>
      Number(
        (version === 2
          ? read(root, 'sys/fs/cgroup', group, 'memory.max')
          : read(root, 'sys/fs/cgroup/memory', group, 'memory.limit_in_bytes')) ?? Number.NaN,
      ),
    ),
  );
  const real = limits.filter((bytes) => bytes > 0 && bytes < noLimitBytes);
  return real.length === 0 ? undefined : Math.min(...real);
}

/**
 * Version 1 counts each group's own, version 2 with those within it. There the outermost group that can be seen is
 * asked: a service that is started again may get a new group of its own, with a count of zero.
 */
function readOomKillCount(root: string): number | undefined {
  const counts = hierarchies(root, 'memory').flatMap(({ version, groups }) => {
    const found = groups.flatMap((group) => {
      const text =
        version === 2
          ? read(root, 'sys/fs/cgroup', group, 'memory.events')
          : read(root, 'sys/fs/cgroup/memory', group, 'memory.oom_control');
      return Number(/^oom_kill (\d+)$/m.exec(text ?? '')?.[1] ?? Number.NaN);
    });
    const known = found.filter((count) => !Number.isNaN(count));
    return version === 2 ? known.slice(-1) : known.slice(0, 1);
  });
  return counts[0];
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
    return isSane
      ? [{ degrees, isProcessor: processorSensor.test(read(root, 'sys/class/thermal', zone, 'type') ?? '') }]
      : [];
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
