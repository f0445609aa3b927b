// What is only seen from outside of a lab's devices: bytes on each link, processor time and memory.

import { execFileSync, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { createInterface } from 'node:readline';
import { defined } from '../../dist/assert.js';
import type { Lab } from '../../dist/lab/lab.js';
import { sum } from '../common/numbers.ts';

const sampler = new URL('./sampler.js', import.meta.url).pathname;
const memorySampleMs = 200;
/** A port that sends less than this in a sample's 10 ms sends no tensors. */
const idleBytes = 4096;
/** Segments leave the shaper in lumps of at most this: after a pause of three of them a port no longer sends. */
const lumpBytes = 65_536;

/** What a link carried in a time. `use`: the fraction of what it can carry. */
export interface LinkUse {
  readonly link: string;
  readonly mbps: number;
  /** What its shaper let through, headers included. */
  readonly bytes: number;
  readonly use: number;
}

/** What a device sent, and for how long it was sending. `use`: of its bandwidth in that time. */
export interface PortUse {
  readonly busyMs: number;
  readonly bytes: number;
  readonly use: number;
}

/** Counters between two looks. */
export interface Use {
  readonly links: readonly LinkUse[];
  readonly sending: Readonly<Record<string, PortUse>>;
  /** Processor time of each device, a millisecond of time. */
  readonly coresUsed: Readonly<Record<string, number>>;
  /** Of the machine's processor time, what its host gave to others. */
  readonly stolen: number;
}

/** A look at all counters. */
export interface Counters {
  /** That have left each device for each other. */
  readonly bytes: Readonly<Record<string, number>>;
  /** Not a number for a device whose processes have ended. */
  readonly usedMs: Readonly<Record<string, number>>;
  readonly stolenMs: number;
  readonly atMs: number;
}

/** [ms, bytes sent by each device …] */
export type PortSample = readonly number[];

/** The most memory that each device's processes have had at once, files included. */
export function watchMemory(lab: Lab): { end(): void; peakMiB(): Record<string, number> } {
  const peak = new Map<string, number>();
  const peakMiB = (id: number) => {
    const status = existsSync(`/proc/${id}/status`) ? readFileSync(`/proc/${id}/status`, 'utf8') : '';
    return Number(/^VmHWM:\s+(\d+)/m.exec(status)?.[1] ?? 0) / 1024;
  };
  const timer = setInterval(() => {
    for (const { name } of lab.layout.devices)
      peak.set(name, Math.max(peak.get(name) ?? 0, ...processesOf(lab, name).map(peakMiB)));
  }, memorySampleMs);
  return { end: () => clearInterval(timer), peakMiB: () => Object.fromEntries(peak) };
}

/** Samples of what ports have sent, which grow while the run goes on. */
export function samplePorts({ layout }: Lab): { readonly samples: readonly PortSample[]; end(): void } {
  const child = spawn(
    'ip',
    ['netns', 'exec', layout.switchNamespace, process.execPath, sampler, String(layout.devices.length)],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const samples: PortSample[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => samples.push(line.split(' ').map(Number)));
  return { samples, end: () => void child.kill() };
}

/** All counters now. */
export function counters(lab: Lab): Counters {
  const { devices } = lab.layout;
  const bytes: Record<string, number> = {};
  for (const { name, namespace } of devices) {
    const text = execFileSync('tc', ['-s', '-n', namespace, 'class', 'show', 'dev', 'eth0'], { encoding: 'utf8' });
    for (const [, id = '', sent] of text.matchAll(/class htb 1:([0-9a-f]+)[^\n]*\n\s*Sent (\d+) bytes/g))
      bytes[`${name}->${devices[Number.parseInt(id, 16) - 1]?.name}`] = Number(sent);
  }
  return {
    bytes,
    usedMs: Object.fromEntries(devices.map(({ name }) => [name, usedTimeMs(processesOf(lab, name))])),
    stolenMs: stolenTimeMs(),
    atMs: performance.now(),
  };
}

/** Processor time of all cores that the host gave to others while something here could have computed, to 10 ms. */
function stolenTimeMs(): number {
  const [, steal = 0] = /^cpu +(?:\d+ ){7}(\d+)/.exec(readFileSync('/proc/stat', 'utf8')) ?? [];
  return Number(steal) * 10;
}

/** The ids of a device's processes. */
export function processesOf({ cgroups }: Lab, device: string): number[] {
  const file = defined(cgroups.devices[device]?.[0], `the group of ${device}`);
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((id) => id !== '')
    .map(Number);
}

/** Processor time of processes, to 10 ms; not a number if they have ended, as after the last round. */
function usedTimeMs(ids: readonly number[]): number {
  if (ids.length === 0) return Number.NaN;
  return sum(
    ids.map((id) => {
      const status = existsSync(`/proc/${id}/stat`) ? readFileSync(`/proc/${id}/stat`, 'utf8') : '';
      const fields = status.slice(status.lastIndexOf(')') + 2).split(' ');
      return (Number(fields[11] ?? 0) + Number(fields[12] ?? 0)) * 10;
    }),
  );
}

/** What was used between two looks; `samples` of the time between them. */
export function between(
  { layout: { devices } }: Lab,
  before: Counters,
  after: Counters,
  samples: readonly PortSample[],
): Use {
  const ms = after.atMs - before.atMs;
  const links = Object.entries(after.bytes).map(([link, end]): LinkUse => {
    const [from, to = -1] = link.split('->').map((name) => devices.findIndex((device) => device.name === name));
    const mbps = defined(devices[from ?? -1]?.bandwidthMbps[to], `the bandwidth of ${link}`);
    const bytes = end - (before.bytes[link] ?? 0);
    return { link, mbps, bytes, use: (bytes * 8) / 1000 / ms / mbps };
  });
  const sending = Object.fromEntries(
    devices.map(({ name, bandwidthMbps }, port): [string, PortUse] => {
      const mbps = Math.max(...bandwidthMbps);
      const busyMs = sendingMs(samples, port + 1, mbps);
      const bytes = sum(links.flatMap((link) => (link.link.startsWith(`${name}->`) ? [link.bytes] : [])));
      return [name, { busyMs, bytes, use: busyMs === 0 ? 0 : (bytes * 8) / 1000 / busyMs / mbps }];
    }),
  );
  const coresUsed = Object.fromEntries(
    Object.entries(after.usedMs).map(([device, used]) => [device, (used - (before.usedMs[device] ?? Number.NaN)) / ms]),
  );
  const stolen = (after.stolenMs - before.stolenMs) / ms / availableParallelism();
  return { links, sending, coresUsed, stolen };
}

/**
 * How long a port was sending. What it sent is counted by its shaper, headers included: here, lumps of many packets
 * count as one. In the first sample after a pause, and in the last before one, it sent for as long as their bytes take:
 * whole samples would be 8 ms too long (of a port that sends for 1136 ms).
 */
function sendingMs(samples: readonly PortSample[], port: number, mbps: number): number {
  const pauseMs = Math.max(30, (3 * lumpBytes * 8) / 1000 / mbps);
  let [busyMs, lastMs, unsentMs] = [0, Number.NEGATIVE_INFINITY, 0];
  for (const [index, sample] of samples.entries()) {
    const before = samples[index - 1];
    if (before === undefined) continue;
    const [startMs, endMs] = [before[0] ?? 0, sample[0] ?? 0];
    const sent = (sample[port] ?? 0) - (before[port] ?? 0);
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
