// A profile and a cluster, prepared for the simulation of many rounds: what does not depend on the plan. Pure.

import { defined } from '../assert.ts';
import type { Cluster, DeviceTimes, Profile } from '../cluster/cluster.ts';
import { type LinkTable, links } from '../cluster/links.ts';
import { type LayerSums, layerSums } from '../cluster/memory.ts';
import { type Overhead, overheadOf } from '../cluster/overhead.ts';
import { type KeptSums, keptSums, recomputeTable } from '../cluster/recomputation.ts';
import { deviceTimes, type LayerTimes, layerTimes, type RangeTimes, rangeTimes } from '../cluster/times.ts';

/** What does not depend on the plan, prepared once for many rounds. */
export interface Ground {
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly table: LinkTable;
  readonly sums: LayerSums;
  readonly kept: KeptSums;
  /** Of the device at a place in cluster.devices; `isStep` where it runs both passes of a micro-batch as one. */
  times(place: number, isStep: boolean): LayerTimes;
  /** Of computing all again that can be, on the device at a place: by layers and samples. */
  recomputeMs(place: number): RangeTimes;
  /** What the processor of the device at a place pays besides its layers. */
  overhead(place: number): Overhead;
}

export function prepareGround(profile: Profile, cluster: Cluster): Ground {
  const prepared = { step: new Map<DeviceTimes, LayerTimes>(), apart: new Map<DeviceTimes, LayerTimes>() };
  const measured = (place: number): DeviceTimes => deviceTimes(profile, defined(cluster.devices[place], 'a device'));
  const times = (place: number, isStep: boolean): LayerTimes => {
    const own = measured(place);
    const among = isStep ? prepared.step : prepared.apart;
    const known = among.get(own) ?? layerTimes(own, profile.batchSizes, isStep);
    among.set(own, known);
    return known;
  };
  const recomputeMs = (place: number): RangeTimes =>
    rangeTimes(recomputeTable(profile, measured(place)), profile.batchSizes);
  return {
    profile,
    cluster,
    table: links(cluster),
    sums: layerSums(profile),
    kept: keptSums(profile),
    times,
    recomputeMs,
    overhead: (place) => overheadOf(measured(place)),
  };
}
