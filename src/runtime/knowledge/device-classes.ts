// Devices of one class (processor, cores, quota, engine) measure themselves alike, but for noise: what else their
// processors did for a moment, and where a cache line fell. Together they know their times better than each alone, and
// a plan that finds them equal is simpler.

import type { DeviceTimes } from '../../cluster/cluster.ts';
import { combinedTimes } from '../../cluster/times.ts';
import { middle } from '../../statistics.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';

/** A device's own measurement. */
export interface MeasuredDevice {
  readonly name: string;
  readonly facts: DeviceFacts;
  readonly times: DeviceTimes;
}

/**
 * A device whose whole model takes this many times as long as its class's, or as much less, is really slower or faster,
 * as one that is too hot: measurements of equal devices are within 4 % (bench/results/2026-11-28-async-lab.md).
 */
const leastDifference = 1.1;

/**
 * By device, its times. Devices of one class share one object, which holds the middle of what they measured, layer by
 * layer; all others have their own.
 */
export function timesByClass(devices: readonly MeasuredDevice[]): ReadonlyMap<string, DeviceTimes> {
  const found = new Map(devices.map(({ name, times }) => [name, times]));
  const classes = new Map<string, MeasuredDevice[]>();
  for (const device of devices) {
    const own = classOf(device);
    classes.set(own, [...(classes.get(own) ?? []), device]);
  }
  for (const alike of classes.values()) {
    const usualMs = usualOf(alike.map(totalMs));
    const equal = alike.filter((device) => {
      const ratio = totalMs(device) / usualMs;
      return ratio < leastDifference && ratio > 1 / leastDifference;
    });
    if (equal.length < 2) continue;
    const times = together(equal.map((device) => device.times));
    for (const { name } of equal) found.set(name, times);
  }
  return found;
}

/** Equal for devices that nothing is known to tell apart. A device of an unknown processor is a class of its own. */
function classOf({ name, facts }: MeasuredDevice): string {
  return processorOf(facts) ?? `the device ${name}`;
}

function processorOf({ cpuModel, cores, cpuQuotaCores, engine }: DeviceFacts): string | undefined {
  return cpuModel === undefined ? undefined : JSON.stringify([cpuModel, cores, cpuQuotaCores?.toFixed(3), engine]);
}

/** Equal for devices of one class on one machine; undefined for one of an unknown processor. */
export function likenessOf(facts: DeviceFacts): string | undefined {
  const processor = processorOf(facts);
  return processor === undefined ? undefined : `${facts.machine} ${processor}`;
}

/** The lower median, one of the values: of two devices that differ, the faster is what their class can do. */
function usualOf(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[(values.length - 1) >> 1] ?? 0;
}

/** Forward and backward of the whole model at the largest size. */
function totalMs({ times: { forwardMs, backwardMs } }: MeasuredDevice): number {
  return sum([...(forwardMs.at(-1) ?? []), ...(backwardMs.at(-1) ?? [])]);
}

/**
 * The middle of each entry, and of each row's sum: noise makes times longer, seldom shorter, and the middles of many
 * entries add up to less than devices take. Fields that some of them lack are left out.
 */
function together(all: readonly DeviceTimes[]): DeviceTimes {
  return combinedTimes(all, (rows) => {
    const middles = (rows[0] ?? []).map((_, layer) => middle(rows.map((row) => row[layer] ?? 0)));
    const [expected, found] = [middle(rows.map(sum)), sum(middles)];
    return found === 0 ? middles : middles.map((ms) => (ms * expected) / found);
  });
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
