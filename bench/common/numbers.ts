// Statistics and figures of measurements.

import { cpus } from 'node:os';

/** The value at a part (0 to 1) of the sorted values; `values` are not changed. Throws a RangeError without any. */
export function quantile(values: readonly number[], part: number): number {
  const value = values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(part * values.length))];
  if (value === undefined) throw new RangeError('no values were measured');
  return value;
}

/** The sum of all values. */
export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/** "12.3 %" of 0.123. */
export function percent(value: number): string {
  return `${(100 * value).toFixed(1)} %`;
}

/** Processor time of this process so far, all threads, in milliseconds. */
export function cpuMs(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

/** Processor time of a piece of work, in milliseconds. */
export async function cpuMsOf(work: () => unknown): Promise<number> {
  const before = cpuMs();
  await work();
  return cpuMs() - before;
}

/** "2 cores (Intel(R) Xeon(R) Processor)". */
export function machine(): string {
  return `${cpus().length} cores (${(cpus()[0]?.model ?? 'unknown').trim()})`;
}

/** An element that is there. Throws a RangeError if it is not. */
export function at<T>(values: readonly T[], index: number): T {
  const value = values.at(index);
  if (value === undefined) throw new RangeError(`no element ${index} of ${values.length}`);
  return value;
}
