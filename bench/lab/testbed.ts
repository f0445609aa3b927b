// @ts-nocheck
// A lab, and training runs in it through the command line, with what is only seen from outside: bytes on each link, processor time and memory of each device.

import { execFileSync, spawn } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { makeLab, removeLab } from '../../dist/lab/lab.js';
import { keepAwake } from './awake.ts';

const main = new URL('../../dist/cli/main.js', import.meta.url).pathname;
const sampler = new URL('./sampler.js', import.meta.url).pathname;
const memorySampleMs = 200;
/** A port that sends less than this in a sample's 10 ms sends no tensors. */
const idleBytes = 4096;
/** Segments leave the shaper in lumps of at most so many bytes: a pause of three of them is no sending any more. */
const lumpBytes = 65_536;

/**
 * A lab for a cluster on cores that are kept awake, its files in a temporary folder. `caches` is a folder that holds measured profiles between labs of the same
 * devices: they do not depend on links.
 */
export async function openTestbed(cluster, { name, priority, caches }) {
  const folder = mkdtempSync(join(tmpdir(), 'asteroid-bench-'));
  const state = join(folder, 'state');
  await removeLab(name, state); // of a run that was killed
  const lab = await makeLab(cluster, { name, network: 'links', priority, coreCount: availableParallelism() }, state);
  const pairs = lab.layout.devices.map(({ name: device, cores }, index) => ({
    own: join(lab.folder, String(index + 1), 'cache'),
    kept: join(caches, `${device}@${cores}`),
  }));
  for (const { own, kept } of pairs) if (existsSync(kept)) cpSync(kept, own, { recursive: true });
  const letSleep = keepAwake();
  let runCount = 0;
  let closing: Promise<void> | undefined;
  return {
    lab,
    /** `asteroid train ...args`: see below. */
    train: (args, options) => train({ lab, state, folder: join(folder, `run-${++runCount}`) }, args, options),
    /** Ends all processes of a device at once, as if it had lost its power. */
    killDevice: (device) => processesOf(lab, device).forEach((id) => process.kill(id, 'SIGKILL')),
    /** Both directions of a link carry so much from now on. */
    setBandwidth: (a, b, mbps) =>
      [
        [a, b],
        [b, a],
      ].forEach(([from, to]) => shape(lab, from, to, mbps)),
    /** A device has another quota from now on. */
    setCores: (device, cores) => limit(lab, device, cores),
    /** By device, the memory limit of its control group, and processes that the system has killed for it. */
    limits: () => lab.layout.devices.map(({ name }) => limitOf(lab, name)),
    /** The next run measures all devices anew. */
    forgetProfiles: () => pairs.forEach(({ own }) => rmSync(own, { recursive: true, force: true })),
    writePlan(plan) {
      const file = join(folder, 'plan.json');
      writeFileSync(file, JSON.stringify(plan));
      return file;
    },
    /** Whoever calls again waits for the same end. */
    close: () => (closing ??= remove()),
  };
  async function remove() {
    letSleep();
    for (const { own, kept } of pairs) if (existsSync(own)) cpSync(own, kept, { recursive: true });
    await removeLab(name, state);
    rmSync(folder, { recursive: true, force: true });
  }
}

/** What devices told of the rounds of so long before those that are measured is kept: of so many at least. */
const [settledMs, leastSettled] = [30_000, 3];

/**
 * Runs `asteroid train` in the lab. The first `warmUp` rounds are not measured. Returns the other rounds' times, and what each device told of each of
 * them, and of the last rounds before them (`settled`); what each link carried and each device computed between the end of the warm-up and the end of the last round; the most memory of each device's
 * process; and the run folder's documents. `onEvent` sees each event of the run, with the time at which it came; the run is stopped after one of which `isEnough` says so.
 */
function train({ lab, state, folder }, args, { warmUp = 0, batch, onEvent = () => {}, isEnough = () => false }) {
  const words = ['lab', 'run', '--name', lab.layout.name, '--json', '--', 'train', ...args, '--out', folder];
  const child = spawn(process.execPath, [main, ...words], {
    env: { ...process.env, ASTEROID_STATE: state },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ports = samplePorts(lab);
  const roundMs = [];
  const memory = watchMemory(lab);
  const marks = {};
  const rounds = {};
  const before = [];
  let errors = '';
  let isStopped = false;
  child.stderr.setEncoding('utf8').on('data', (text) => (errors += text));
  createInterface({ input: child.stdout }).on('line', (line) => {
    const event = JSON.parse(line);
    onEvent(event, performance.now());
    if (!isStopped && isEnough(event)) isStopped = child.kill('SIGINT');
    if (event.event !== 'round') return;
    const mark = { ...counters(lab), sample: ports.samples.length };
    const ms = (batch / event.samplesPerS) * 1000;
    const told = Object.fromEntries(
      Object.entries(event.busyFraction).map(([device, fraction]) => [
        device,
        { busyMs: fraction * ms, ...event.work[device] },
      ]),
    );
    if (event.round < warmUp) {
      marks.before = mark;
      before.push({ told, atMs: mark.atMs });
      return;
    }
    // What has ended is not counted any more.
    if (Object.values(mark.usedMs).every((ms) => ms >= 0)) marks.after = mark;
    roundMs.push(ms);
    for (const [device, one] of Object.entries(told)) rounds[device] = [...(rounds[device] ?? []), one];
  });
  return new Promise((resolve, reject) => {
    child.once('close', (code) => {
      memory.end();
      ports.end();
      if (code !== (isStopped ? 130 : 0))
        return reject(new Error(`train ${args.join(' ')} ended with ${code}: ${errors.slice(-2000)}`));
      const document = (name) =>
        existsSync(join(folder, name)) ? JSON.parse(readFileSync(join(folder, name), 'utf8')) : undefined;
      const { before: start, after } = marks;
      const settled = before.filter(
        ({ atMs }, index) => index >= before.length - leastSettled || atMs > start.atMs - settledMs,
      );
      resolve({
        roundMs,
        rounds,
        settled: settled.map(({ told }) => told),
        ...(start === undefined || after === undefined
          ? { links: [], sending: {}, coresUsed: {}, stolen: 0 }
          : between(lab, start, after, ports.samples)),
        peakMemoryMiB: memory.peakMiB(),
        profile: document('profile.json'),
        cluster: document('cluster.json'),
        plan: document('plan.json'),
      });
    });
  });
}

/** What a device sends to another is let through at so much. */
function shape({ layout: { devices } }, from, to, mbps) {
  const { namespace } = devices.find(({ name }) => name === from);
  const id = `1:${(devices.findIndex(({ name }) => name === to) + 1).toString(16)}`;
  const rate = ['rate', `${mbps}mbit`, 'burst', '64kb', 'cburst', '64kb', 'quantum', '60000'];
  execFileSync('tc', [
    '-n',
    namespace,
    'class',
    'change',
    'dev',
    'eth0',
    'parent',
    '1:',
    'classid',
    id,
    'htb',
    ...rate,
  ]);
}

function limit({ cgroups }, device, cores) {
  const folder = dirname(cgroups.devices[device][0]);
  const periodUs = 10_000;
  const [file, value] = existsSync(join(folder, 'cpu.max'))
    ? ['cpu.max', `${cores * periodUs} ${periodUs}`]
    : ['cpu.cfs_quota_us', String(cores * periodUs)];
  const burst = ['cpu.max.burst', 'cpu.cfs_burst_us']
    .map((name) => join(folder, name))
    .find((path) => existsSync(path));
  // A burst is never more than the quota.
  const burstUs = burst === undefined ? 0 : Math.min(Number(readFileSync(burst, 'utf8')), cores * periodUs);
  if (burst !== undefined) writeFileSync(burst, '0');
  writeFileSync(join(folder, file), value);
  if (burst !== undefined) writeFileSync(burst, String(burstUs));
}

function limitOf({ cgroups }, device) {
  const read = (file) =>
    cgroups.devices[device]
      .map((path) => path.replace('cgroup.procs', file))
      .filter((path) => existsSync(path))
      .map((path) => readFileSync(path, 'utf8'))[0];
  const limitMiB = Number(read('memory.limit_in_bytes') ?? read('memory.max')) / 2 ** 20;
  return {
    device,
    limitMiB,
    killCount: Number(/^oom_kill (\d+)$/m.exec(read('memory.oom_control') ?? read('memory.events'))[1]),
  };
}

/** The most memory that each device's processes have had in memory at once, files included. */
function watchMemory(lab) {
  const peak = new Map();
  const peakMiB = (id) => {
    const status = existsSync(`/proc/${id}/status`) ? readFileSync(`/proc/${id}/status`, 'utf8') : '';
    return Number(/^VmHWM:\s+(\d+)/m.exec(status)?.[1] ?? 0) / 1024;
  };
  const timer = setInterval(() => {
    for (const { name } of lab.layout.devices)
      peak.set(name, Math.max(peak.get(name) ?? 0, ...processesOf(lab, name).map(peakMiB)));
  }, memorySampleMs);
  return { end: () => clearInterval(timer), peakMiB: () => Object.fromEntries(peak) };
}

/** Samples of [ms, bytes sent by each device …], which grow while the run goes on. */
function samplePorts({ layout }) {
  const child = spawn(
    'ip',
    ['netns', 'exec', layout.switchNamespace, process.execPath, sampler, String(layout.devices.length)],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const samples = [];
  createInterface({ input: child.stdout }).on('line', (line) => samples.push(line.split(' ').map(Number)));
  return { samples, end: () => child.kill() };
}

/** Bytes that have left each device for each other, and processor time of each, with the time of looking. */
function counters(lab) {
  const { layout } = lab;
  const bytes = {};
  for (const { name, namespace } of layout.devices) {
    const text = execFileSync('tc', ['-s', '-n', namespace, 'class', 'show', 'dev', 'eth0'], { encoding: 'utf8' });
    for (const [, id, sent] of text.matchAll(/class htb 1:([0-9a-f]+)[^\n]*\n\s*Sent (\d+) bytes/g)) {
      bytes[`${name}->${layout.devices[Number.parseInt(id, 16) - 1].name}`] = Number(sent);
    }
  }
  return {
    bytes,
    usedMs: Object.fromEntries(layout.devices.map(({ name }) => [name, usedTimeMs(processesOf(lab, name))])),
    stolenMs: stolenTimeMs(),
    atMs: performance.now(),
  };
}

/** Processor time of all cores that the host gave to others while something here would have computed, to 10 ms. */
function stolenTimeMs() {
  const [, steal = 0] = /^cpu +(?:\d+ ){7}(\d+)/.exec(readFileSync('/proc/stat', 'utf8')) ?? [];
  return Number(steal) * 10;
}

/** The ids of a device's processes. */
function processesOf({ cgroups }, device) {
  const [processes] = cgroups.devices[device];
  return readFileSync(processes, 'utf8')
    .split('\n')
    .filter((id) => id !== '')
    .map(Number);
}

/** Processor time that a device's processes have used, to 10 ms; not a number when they have ended, as after the last round. */
function usedTimeMs(ids) {
  if (ids.length === 0) return Number.NaN;
  return ids.reduce((sum, id) => {
    const status = existsSync(`/proc/${id}/stat`) ? readFileSync(`/proc/${id}/stat`, 'utf8') : '';
    const fields = status.slice(status.lastIndexOf(')') + 2).split(' ');
    return sum + (Number(fields[11] ?? 0) + Number(fields[12] ?? 0)) * 10;
  }, 0);
}

function between({ layout: { devices } }, before, after, samples) {
  const ms = after.atMs - before.atMs;
  /** With the bytes that its shaper let through, headers included. */
  const links = Object.entries(after.bytes).map(([link, end]) => {
    const [from, to] = link.split('->').map((name) => devices.findIndex((device) => device.name === name));
    const mbps = devices[from].bandwidthMbps[to];
    const bytes = end - before.bytes[link];
    return { link, mbps, bytes, use: (bytes * 8) / 1000 / ms / mbps };
  });
  const window = samples.slice(before.sample, after.sample);
  const sending = Object.fromEntries(
    devices.map(({ name, bandwidthMbps }, port) => {
      const mbps = Math.max(...bandwidthMbps);
      const busyMs = sendingMs(window, port + 1, mbps);
      const bytes = links.filter(({ link }) => link.startsWith(`${name}->`)).reduce((sum, link) => sum + link.bytes, 0);
      return [name, { busyMs, bytes, use: busyMs === 0 ? 0 : (bytes * 8) / 1000 / busyMs / mbps }];
    }),
  );
  const coresUsed = Object.fromEntries(
    Object.entries(after.usedMs).map(([device, used]) => [device, (used - before.usedMs[device]) / ms]),
  );
  const stolen = (after.stolenMs - before.stolenMs) / ms / availableParallelism();
  return { links, sending, coresUsed, stolen };
}

/**
 * How long a port was sending. What it sent is counted by its shaper, headers included: here, lumps of many packets count as one. In the first sample after a pause,
 * and in the last before one, it sent for as long as their bytes take: whole samples would be 8 ms too long (of a port that sends for 1136 ms).
 */
function sendingMs(samples, port, mbps) {
  const pauseMs = Math.max(30, (3 * lumpBytes * 8) / 1000 / mbps);
  let [busyMs, lastMs, unsentMs] = [0, Number.NEGATIVE_INFINITY, 0];
  for (let index = 1; index < samples.length; index++) {
    const [startMs, endMs] = [samples[index - 1][0], samples[index][0]];
    const sent = samples[index][port] - samples[index - 1][port];
    if (sent < idleBytes) continue;
    const sentMs = Math.min(endMs - startMs, (sent * 8) / 1000 / mbps);
    if (startMs - lastMs > pauseMs) {
      busyMs += sentMs - unsentMs;
      unsentMs = 0;
    } else {
      // What a lump took began with the end of the one before it.
      busyMs += endMs - lastMs;
      unsentMs = endMs - startMs - sentMs;
    }
    lastMs = endMs;
  }
  return busyMs - unsentMs;
}
