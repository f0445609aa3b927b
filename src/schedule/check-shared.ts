// What the parts of the check share: names in messages, and ranges of samples.

import { type DeviceProgram, type SampleRange, samplesWithin } from './program.ts';
import type { Unrolled } from './unroll.ts';

/** What is checked: a stretch of rounds of a program. */
export interface Checked extends Unrolled {
  readonly microBatchSize: number;
  /** Samples of the last micro-batch. */
  readonly lastMicroBatchSize: number;
  readonly stageCount: number;
  /** Whether inputs and labels come from a data feed. */
  readonly hasFeed: boolean;
  /** See Schedule. */
  readonly gradients: 'backward' | 'tangent';
  /** Whether the schedule trains. */
  readonly trains: boolean;
  /** Layers below this one are not trained. */
  readonly forwardOnlyLayers: number;
}

/** Half-open range, for messages. */
export function rangeName(range: SampleRange): string {
  return `[${range.join(', ')})`;
}

/** A micro-batch by its number in the stretch, for messages. */
export function microBatchName({ roundCount, microBatchCount }: Unrolled, number: number): string {
  if (roundCount === 1) return `micro-batch ${number}`;
  const perRound = microBatchCount / roundCount;
  return `micro-batch ${number % perRound} of round ${Math.floor(number / perRound)}`;
}

export function title(device: DeviceProgram): string {
  return `"${device.device}" (stage ${device.stage})`;
}

export function isIdle({ samples }: Pick<DeviceProgram, 'samples'>): boolean {
  return samples[0] === samples[1];
}

/** A device's samples of a micro-batch. */
export function samplesAt(device: DeviceProgram, checked: Checked, microBatch: number): SampleRange {
  const { microBatchCount, microBatchSize, lastMicroBatchSize } = checked;
  return samplesWithin(device, microBatch === microBatchCount - 1 ? lastMicroBatchSize : microBatchSize);
}

/** Whether a device has no samples of a micro-batch. */
export function isIdleAt(device: DeviceProgram, checked: Checked, microBatch: number): boolean {
  return isIdle({ samples: samplesAt(device, checked, microBatch) });
}

/** Whether the ranges, in any order, cover `whole` exactly once. Empty ones count for nothing. */
export function tile(ranges: readonly SampleRange[], whole: SampleRange): boolean {
  let end = whole[0];
  for (const range of ranges.filter((each) => each[0] !== each[1]).sort((a, b) => a[0] - b[0])) {
    if (range[0] !== end || range[1] < range[0]) return false;
    end = range[1];
  }
  return end === whole[1];
}
