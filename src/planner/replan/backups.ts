// Topology-driven replication (Asteroid §3.4, module 2): a stage on a single device keeps a copy of its model on one
// device of the next stage, the last stage on one of the stage before it (in the paper: of the first). Stages on
// several devices are copies of each other already.

import type { PlanLayout } from '../../cluster/cluster.ts';
import { layerCountOf } from './survivors.ts';

export interface BackupOptions {
  /**
   * Free memory of a device, in bytes, after its own stage. If given, the device of a group with the most keeps the
   * copy.
   */
  readonly spareBytes?: (device: string) => number;
  /**
   * Where the last stage is copied to. With 'previous', the stage that takes over the last one's layers, which often
   * hold most of the model's weights, has them already, and the first and the last stage may be lost together; but
   * losing both of the last two loses both. 'first' is the paper's ring: losing two neighbours, including the last and
   * the first, loses one stage. Default: what the plan says, else 'previous'.
   */
  readonly lastTo?: 'first' | 'previous';
}

/**
 * By stage on a single device: the device that keeps its copy. Of several in the next stage, the one with the most
 * spare memory, then the smallest share of samples, then the first in the plan. Empty for a plan of one stage.
 */
export function backups(
  { stages, lastCopyTo }: PlanLayout,
  { spareBytes = () => 0, lastTo = lastCopyTo ?? 'previous' }: BackupOptions = {},
): ReadonlyMap<number, string> {
  const found = new Map<number, string>();
  if (stages.length < 2) return found;
  for (const [index, { devices }] of stages.entries()) {
    if (devices.length > 1) continue;
    const next = stages[index + 1] ?? stages[lastTo === 'first' ? 0 : index - 1];
    const candidates = (next?.devices ?? []).map((device, place) => ({
      device,
      share: next?.samples[place] ?? 0,
      spare: spareBytes(device),
    }));
    // Array.sort is stable: the plan's order decides last.
    const chosen = candidates.sort((a, b) => b.spare - a.spare || a.share - b.share)[0];
    if (chosen !== undefined) found.set(index, chosen.device);
  }
  return found;
}

/**
 * By layer: the devices that hold its state after the plan's `lost` devices are gone: those of its stage, and the one
 * that keeps its stage's copy. Empty if only a checkpoint has it. `copies` says where stages are copied to; default:
 * `backups`, as if all copies were up to date.
 */
export function holdersAfter(
  plan: PlanLayout,
  lost: readonly string[],
  copies: ReadonlyMap<number, string> = backups(plan),
): readonly (readonly string[])[] {
  const holders: string[][] = Array.from({ length: layerCountOf(plan) }, () => []);
  for (const [index, { layers, devices }] of plan.stages.entries()) {
    const copy = copies.get(index);
    const all = copy === undefined || devices.includes(copy) ? devices : [...devices, copy];
    const alive = all.filter((device) => !lost.includes(device));
    for (let layer = layers[0]; layer < layers[1]; layer++) holders[layer] = alive;
  }
  return holders;
}
