// What happens when the cluster changes: a device joins, leaves or slows, a link slows. The round before, the same plan afterwards where it
// can still run, the new plan, and the weights that devices must fetch for it. Pure: nothing is done to a cluster.

import type { Cluster, DeviceSpec, DeviceTimes, LinkSpeed, Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import { links } from '../cluster/links.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import { deviceTimes } from '../cluster/times.ts';
import { checkTogether, parseCluster } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { type PlanInput, plan } from './plan.ts';

export type Change =
  | { readonly kind: 'join'; readonly device: DeviceSpec }
  | { readonly kind: 'leave'; readonly device: string }
  /** The device runs at this share of its speed; above 1 it is faster. */
  | { readonly kind: 'slow'; readonly device: string; readonly share: number }
  /** Of one pair, or of all links that the cluster gives no speed of their own. What is not given stays. */
  | { readonly kind: 'link'; readonly between?: readonly [string, string]; readonly speed: Partial<LinkSpeed> };

export interface WhatIfInput extends Omit<PlanInput, 'profile'> {
  /** The cluster before. */
  readonly cluster: Cluster;
  /** Times for a cluster's devices; asked again where a device joins. */
  readonly profileFor: (cluster: Cluster) => Profile;
  /** The plan before; absent: what the planner finds. */
  readonly current?: PlanLayout;
  readonly changes: readonly Change[];
}

/** Weights that travel from one device to another. */
export interface Transfer {
  readonly from: string;
  readonly to: string;
  readonly bytes: number;
}

export interface Move {
  readonly transfers: readonly Transfer[];
  /** Sum of the transfers and what no device of the cluster holds any more. */
  readonly bytes: number;
  /** Of layers that only devices which left had: they come from a checkpoint or a replica. */
  readonly lostBytes: number;
  /** Until the last transfer has arrived, each link by itself. */
  readonly moveMs: number;
}

export interface WhatIf {
  readonly before: Plan;
  /** The plan before, run after the change; absent where one of its devices has left. */
  readonly kept?: Plan;
  readonly after: Plan;
  readonly move: Move;
}

/** Plans before and after the changes. Throws InputError for a change that the cluster cannot make, and where nothing fits afterwards. Not for planner hetpipe. */
export function whatIf(input: WhatIfInput): WhatIf {
  const { cluster, profileFor, current, changes, ...rest } = input;
  const profile = profileFor(cluster);
  const { batchSize, optimizerState } = input;
  if (current !== undefined) checkTogether(current, profile, cluster);
  const before = current === undefined ? plan({ ...rest, profile, cluster }) : predicted(current, profile, cluster, optimizerState);
  const changed = changedCluster(cluster, changes);
  const changedProfile = slowed(profileFor(changed), changed, changes);
  const after = plan({ ...rest, batchSize, profile: changedProfile, cluster: changed });
  const left = new Set(changes.flatMap((change) => (change.kind === 'leave' ? [change.device] : [])));
  if ([before, after].some(({ virtualWorkers }) => virtualWorkers !== undefined))
    throw new InputError('The plans of planner "hetpipe" are no pipelines of stages that could be kept or moved; use another planner.');
  const isKept = before.stages.every((stage) => stage.devices.every((device) => !left.has(device)));
  return {
    before,
    ...(isKept ? { kept: predicted(before, changedProfile, changed, optimizerState) } : {}),
    after,
    move: weightsToMove(before, after, changedProfile, changed, optimizerState),
  };
}

function predicted(layout: PlanLayout, profile: Profile, cluster: Cluster, optimizerState: OptimizerState): Plan {
  const { planner, schedule, batchSize, microBatchSize, microBatchCount, stages } = layout;
  const { roundMs, samplesPerS, devices } = simulate(program(layout), layout, profile, cluster, { optimizerState, events: false });
  const used = stages.flatMap((stage) => stage.devices);
  const peakMemoryMiB = Object.fromEntries(used.map((name) => [name, devices[name]?.peakMemoryMiB ?? 0]));
  const prediction = { roundMs, samplesPerS, peakMemoryMiB };
  return { planner, schedule, batchSize, microBatchSize, microBatchCount, stages, predicted: prediction };
}

/** The cluster after the changes, in their order. Throws InputError. */
export function changedCluster(cluster: Cluster, changes: readonly Change[]): Cluster {
  const result = changes.reduce(applyChange, cluster);
  return parseCluster(result, 'the changed cluster');
}

function applyChange(cluster: Cluster, change: Change): Cluster {
  const { devices, links: speeds, dataDevice } = cluster;
  const mustHave = (name: string): void => {
    if (devices.some((device) => device.name === name)) return;
    throw new InputError(`The cluster has no device "${name}"; name one of ${devices.map((device) => device.name).join(', ')}.`);
  };
  switch (change.kind) {
    case 'join':
      return { ...cluster, devices: [...devices, change.device] };
    case 'slow':
      mustHave(change.device);
      return cluster;
    case 'leave': {
      mustHave(change.device);
      if (dataDevice === change.device)
        throw new InputError(`Device "${change.device}" holds the data and cannot leave; name another dataDevice in the cluster first.`);
      const pairs = speeds.pairs?.filter(({ between }) => !between.includes(change.device));
      return {
        ...cluster,
        devices: devices.filter((device) => device.name !== change.device),
        links: { ...speeds, ...(pairs === undefined ? {} : { pairs }) },
      };
    }
    case 'link': {
      const { between, speed } = change;
      if (between === undefined) return { ...cluster, links: { ...speeds, default: { ...speeds.default, ...speed } } };
      between.forEach(mustHave);
      const isThis = (pair: readonly [string, string]): boolean => between.every((name) => pair.includes(name));
      const known = speeds.pairs?.find((pair) => isThis(pair.between)) ?? speeds.default;
      const others = (speeds.pairs ?? []).filter((pair) => !isThis(pair.between));
      return { ...cluster, links: { ...speeds, pairs: [...others, { ...known, ...speed, between }] } };
    }
  }
}

function slowed(profile: Profile, cluster: Cluster, changes: readonly Change[]): Profile {
  const devices: Record<string, DeviceTimes> = { ...profile.devices };
  for (const change of changes) {
    if (change.kind !== 'slow') continue;
    const { device: name, share } = change;
    if (!(share > 0))
      throw new InputError(`Device "${name}" at ${share} of its speed does no work; give a share above 0, or let it leave.`);
    const device = cluster.devices.find((spec) => spec.name === name);
    if (device === undefined) continue;
    const { forwardMs, backwardMs, updateMs } = deviceTimes({ ...profile, devices }, device);
    const scaled = (values: readonly number[]): number[] => values.map((ms) => ms / share);
    devices[name] = {
      forwardMs: forwardMs.map(scaled),
      backwardMs: backwardMs.map(scaled),
      ...(updateMs === undefined ? {} : { updateMs: scaled(updateMs) }),
    };
  }
  return { ...profile, devices };
}

/** What each device of `after` must fetch: weights and optimizer state of layers that it did not have before, each from the holder whose link is done first. */
export function weightsToMove(
  before: PlanLayout,
  after: PlanLayout,
  profile: Profile,
  cluster: Cluster,
  optimizerState: OptimizerState,
): Move {
  const table = links(cluster);
  const present = new Set(cluster.devices.map((device) => device.name));
  const holders = profile.layers.map((_, layer) => {
    const stage = before.stages.find(({ layers: [first, end] }) => first <= layer && layer < end);
    return new Set((stage?.devices ?? []).filter((name) => present.has(name)));
  });
  const loads = new Map<string, { readonly transfer: Transfer; readonly busyMs: number }>();
  let lostBytes = 0;
  for (const { layers: range, devices } of after.stages) {
    for (const to of devices) {
      for (let layer = range[0]; layer < range[1]; layer++) {
        const { weightBytes = 0, frozenBytes = 0 } = profile.layers[layer] ?? {};
        const bytes = weightBytes + optimizerState * (weightBytes - frozenBytes);
        const sources = holders[layer] ?? new Set();
        if (bytes === 0 || sources.has(to)) continue;
        const options = [...sources].map((from) => {
          const key = `${from}->${to}`;
          const ownMs = table.occupancyMs(table.deviceIndex(from), table.deviceIndex(to), bytes);
          const load = loads.get(key);
          return { key, from, busyMs: (load?.busyMs ?? 0) + ownMs, bytes: (load?.transfer.bytes ?? 0) + bytes };
        });
        const best = options.sort((a, b) => a.busyMs - b.busyMs)[0];
        if (best === undefined) lostBytes += bytes;
        else loads.set(best.key, { transfer: { from: best.from, to, bytes: best.bytes }, busyMs: best.busyMs });
      }
    }
  }
  const latency = ({ from, to }: Transfer): number => table.latencyMs(table.deviceIndex(from), table.deviceIndex(to));
  const all = [...loads.values()];
  return {
    transfers: all.map(({ transfer }) => transfer),
    bytes: all.reduce((sum, { transfer }) => sum + transfer.bytes, lostBytes),
    lostBytes,
    moveMs: all.reduce((latest, { transfer, busyMs }) => Math.max(latest, busyMs + latency(transfer)), 0),
  };
}
