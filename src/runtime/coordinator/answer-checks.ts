// What devices say of themselves, held against what they were asked.

import { defined } from '../../assert.ts';
import type { DeviceTimes } from '../../cluster/cluster.ts';
import { timeTables } from '../../cluster/times.ts';
import { ProtocolError } from '../../errors.ts';
import type { LinkMeasurement, ToCoordinator } from '../protocol/messages.ts';

/** Links are measured once each, to others of the run. Throws ProtocolError. */
export function checkMeasured(
  device: string,
  links: readonly LinkMeasurement[],
  members: readonly { readonly name: string }[],
): void {
  const peers = new Set(links.map(({ peer }) => peer));
  const isKnown = (peer: string): boolean => peer !== device && members.some(({ name }) => name === peer);
  if (peers.size !== links.length || ![...peers].every(isKnown))
    throw new ProtocolError(`${device} measured links that it does not have.`);
}

/** A profile has a time for each layer of the model at each batch size that was asked for. Throws ProtocolError. */
export function checkProfile(
  device: string,
  { layers, times }: ToCoordinator['profiled'],
  layerCount: number,
  rowCount: number,
): void {
  const hasUpdates = times.updateMs === undefined || times.updateMs.length === layerCount;
  const isWhole = timeTables(times).every(
    ([, rows]) => rows.length === rowCount && rows.every((row) => row.length === layerCount),
  );
  if (!hasUpdates || layers.length !== layerCount || !isWhole)
    throw new ProtocolError(`${device} sent a profile that is not of ${layerCount} layers at ${rowCount} batch sizes.`);
}

/** Milliseconds of forward and backward for one sample, at the largest batch measured. */
export function sampleMs(times: DeviceTimes, batchSizes: readonly number[]): number {
  const last = batchSizes.length - 1;
  const total = [...(times.forwardMs[last] ?? []), ...(times.backwardMs[last] ?? [])].reduce((sum, ms) => sum + ms, 0);
  return total / defined(batchSizes[last], 'a batch size');
}
