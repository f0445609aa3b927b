import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { type LinuxFacts, linuxFacts } from './host-linux.ts';

/** What is found where these files are all there is. */
function factsOf(files: Readonly<Record<string, string>>): LinuxFacts {
  const root = mkdtempSync(join(tmpdir(), 'asteroid-host-'));
  try {
    for (const [path, text] of Object.entries(files)) {
      mkdirSync(dirname(join(root, path)), { recursive: true });
      writeFileSync(join(root, path), `${text}\n`);
    }
    return linuxFacts(root);
  } finally {
    rmSync(root, { recursive: true });
  }
}

test('control groups, version 2: the tightest quota from the own group outwards', () => {
  const files = {
    'proc/self/cgroup': '0::/user.slice/run',
    'sys/fs/cgroup/user.slice/cpu.max': '150000 100000',
    'sys/fs/cgroup/user.slice/run/cpu.max': 'max 100000',
  };
  assert.deepEqual(factsOf(files), { cpuQuota: { cores: 1.5, periodMs: 100 } });
  assert.deepEqual(factsOf({ ...files, 'sys/fs/cgroup/user.slice/run/cpu.max': '3500 10000' }), {
    cpuQuota: { cores: 0.35, periodMs: 10 },
  });
  assert.deepEqual(factsOf({ 'proc/self/cgroup': '0::/', 'sys/fs/cgroup/cpu.max': 'max 100000' }), {});
  // In a container the path is one that it cannot see.
  assert.deepEqual(factsOf({ 'proc/self/cgroup': '0::/../outside/pod', 'sys/fs/cgroup/cpu.max': '50000 100000' }), {
    cpuQuota: { cores: 0.5, periodMs: 100 },
  });
});

test('control groups, version 1: the controller of the processor, under any of its names', () => {
  const quota = (mount: string, group: string, us: number): Record<string, string> => ({
    [`sys/fs/cgroup/${mount}/${group}cpu.cfs_quota_us`]: String(us),
    [`sys/fs/cgroup/${mount}/${group}cpu.cfs_period_us`]: '50000',
  });
  const lines = '12:memory:/lab\n4:cpu,cpuacct:/lab/a\n0::/';
  const expected = { cpuQuota: { cores: 0.2, periodMs: 50 } };
  assert.deepEqual(
    factsOf({ 'proc/self/cgroup': lines, ...quota('cpu,cpuacct', 'lab/a/', 10_000), ...quota('cpu,cpuacct', '', -1) }),
    expected,
  );
  assert.deepEqual(
    factsOf({ 'proc/self/cgroup': '4:cpu:/lab/a', ...quota('cpu', 'lab/a/', -1), ...quota('cpu', 'lab/', 10_000) }),
    expected,
  );
  assert.deepEqual(factsOf({ 'proc/self/cgroup': lines, ...quota('cpu,cpuacct', 'lab/a/', -1) }), {});
});

test('control groups, version 2: the tightest memory limit; kills as counted by the outermost group', () => {
  const files = {
    'proc/self/cgroup': '0::/system.slice/asteroid.service',
    'sys/fs/cgroup/system.slice/memory.max': '1073741824',
    'sys/fs/cgroup/system.slice/memory.events': 'low 0\nhigh 3\nmax 80\noom 4\noom_kill 3\noom_group_kill 0',
    'sys/fs/cgroup/system.slice/asteroid.service/memory.max': 'max',
    'sys/fs/cgroup/system.slice/asteroid.service/memory.events': 'low 0\nhigh 0\nmax 12\noom 1\noom_kill 1',
  };
  assert.deepEqual(factsOf(files), { memoryLimitBytes: 2 ** 30, oomKillCount: 3 });
  assert.deepEqual(factsOf({ ...files, 'sys/fs/cgroup/system.slice/asteroid.service/memory.max': '268435456' }), {
    memoryLimitBytes: 2 ** 28,
    oomKillCount: 3,
  });
  // In a container its own group is all there is; a kernel before 4.13 does not count.
  const own = {
    'proc/self/cgroup': '0::/../outside/pod',
    'sys/fs/cgroup/memory.max': '4096',
    'sys/fs/cgroup/memory.events': 'oom 7',
  };
  assert.deepEqual(factsOf(own), { memoryLimitBytes: 4096 });
});

test('control groups, version 1: the tightest memory limit, and the kills of the own group', () => {
  const memory = (group: string, limit: string, killCount: number): Record<string, string> => ({
    [`sys/fs/cgroup/memory/${group}memory.limit_in_bytes`]: limit,
    [`sys/fs/cgroup/memory/${group}memory.oom_control`]: `oom_kill_disable 0\nunder_oom 0\noom_kill ${killCount}`,
  });
  const none = '9223372036854771712';
  const files = {
    'proc/self/cgroup': '12:memory:/lab/a\n0::/',
    ...memory('', none, 9),
    ...memory('lab/', '536870912', 5),
  };
  assert.deepEqual(factsOf({ ...files, ...memory('lab/a/', none, 2) }), { memoryLimitBytes: 2 ** 29, oomKillCount: 2 });
  assert.deepEqual(factsOf({ 'proc/self/cgroup': '12:memory:/', ...memory('', none, 0) }), { oomKillCount: 0 });
});

test('the battery of the machine, not of a mouse', () => {
  const supply = (name: string, values: Record<string, string>): Record<string, string> =>
    Object.fromEntries(Object.entries(values).map(([key, value]) => [`sys/class/power_supply/${name}/${key}`, value]));
  const mouse = supply('A_mouse', { type: 'Battery', scope: 'Device', capacity: '5', status: 'Discharging' });
  const files = { ...supply('AC', { type: 'Mains', online: '0' }), ...mouse };
  assert.deepEqual(factsOf(files), {});
  const own = (status: string): LinuxFacts =>
    factsOf({ ...files, ...supply('BAT0', { type: 'Battery', capacity: '81', status }) });
  assert.deepEqual(own('Discharging'), { battery: { percent: 81, isDischarging: true } });
  assert.deepEqual(own('Charging'), { battery: { percent: 81, isDischarging: false } });
});

test('the temperature of the processor; of the hottest place where none says what it is', () => {
  const zone = (index: number, type: string, temp: number): Record<string, string> => ({
    [`sys/class/thermal/thermal_zone${index}/type`]: type,
    [`sys/class/thermal/thermal_zone${index}/temp`]: String(temp),
  });
  const cooling = { 'sys/class/thermal/cooling_device0/type': 'Fan' };
  assert.deepEqual(
    factsOf({
      ...zone(0, 'iwlwifi', 70_000),
      ...zone(1, 'x86_pkg_temp', 55_500),
      ...zone(2, 'acpitz', 40_000),
      ...cooling,
    }),
    {
      temperatureC: 55.5,
    },
  );
  assert.deepEqual(factsOf({ ...zone(0, 'iwlwifi', 70_000), ...zone(1, 'pch', 48_000) }), { temperatureC: 70 });
  // Sensors that are off say nonsense.
  assert.deepEqual(factsOf({ ...zone(0, 'cpu', -273_150), ...zone(1, 'cpu', 999_000) }), {});
});

test('where there are no such files, nothing is known', () => {
  assert.deepEqual(factsOf({}), {});
});
