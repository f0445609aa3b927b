// Predicts how long a recovery takes and how fast training is afterwards: light (Asteroid §3.4's replay) against heavy
// (its straw man: gather all stage models, plan from scratch, distribute them again). Uses the plan before the loss.
// Planning takes time on a clock, which this module does not have: the caller passes the plans and their measured
// times.

import type { Cluster, Plan, PlanLayout, Profile } from '../../cluster/cluster.ts';
import type { OptimizerState } from '../../cluster/memory.ts';
import { deviceTimes, layerTimes } from '../../cluster/times.ts';
import { InputError } from '../../errors.ts';
import { program } from '../../schedule/generate.ts';
import { simulate } from '../../simulator/simulate.ts';
import { backups, holdersAfter } from './backups.ts';
import {
  type Delivery,
  fromCopies,
  type LinkLoad,
  linkLoads,
  type Move,
  moves,
  stateBytes,
  transferTimeMs,
} from './moves.ts';
import { layerCountOf, remaining } from './survivors.ts';

export interface RecoveryInput {
  /** The plan before the loss. */
  readonly plan: PlanLayout;
  readonly profile: Profile;
  /** Including the lost devices. */
  readonly cluster: Cluster;
  readonly lost: readonly string[];
  /** Optimizer copies of each weight, which travel with it. Default 0. */
  readonly optimizerState?: OptimizerState;
  /** Where stages are copied to. Default: `backups(plan)`, updated in the round before the loss. */
  readonly copies?: ReadonlyMap<number, string>;
  /** From the loss until it is detected for certain. */
  readonly detectionMs: number;
  /** From the new plan's arrival until a device computes, in addition to the transfer of weights. Default 0. */
  readonly compileMs?: number;
  readonly light: PlannedRecovery;
  readonly heavy: PlannedRecovery;
}

/** A plan for the remaining devices and the time it took to find; 0 for one held in reserve. */
export interface PlannedRecovery {
  readonly plan: Plan;
  readonly planningMs: number;
}

/** What was lost with a device. */
export interface Loss {
  readonly device: string;
  readonly stage: number;
  readonly layers: readonly [first: number, end: number];
  /** Who still has its layers: devices of its stage, the keeper of its copy, or only the coordinator's checkpoint. */
  readonly restoredFrom: 'peers' | 'copy' | 'checkpoint';
  readonly holders: readonly string[];
}

export interface Recovery {
  readonly plan: Plan;
  /** Layers that travel from device to device; for heavy, the distribution after planning. */
  readonly moves: readonly Move[];
  /**
   * Bytes that each link carries; for heavy, gathering and distribution together. Copies are without frozen weights:
   * the coordinator sends those of layers that a device has, or gets, from a copy.
   */
  readonly links: readonly LinkLoad[];
  readonly bytes: number;
  readonly detectionMs: number;
  readonly planningMs: number;
  /** All pairs at once, each link by itself. For light, only what a round cannot begin without. */
  readonly migrationMs: number;
  readonly compileMs: number;
  /** From the loss until the next forward pass. */
  readonly totalMs: number;
}

export interface RecoveryEstimate {
  readonly losses: readonly Loss[];
  readonly samplesPerSBefore: number;
  readonly light: Recovery;
  readonly heavy: Recovery & {
    /** Where the models are gathered and the plan is made: the most powerful remaining device. */
    readonly planner: string;
  };
  /** Heavy's recovery time divided by light's. */
  readonly speedup: number;
  /** Light's throughput divided by heavy's. */
  readonly throughputRatio: number;
}

/** Predicts both recoveries. Throws InputError if a lost device is not in the plan. */
export function recoveryEstimate(input: RecoveryInput): RecoveryEstimate {
  const { plan, profile, cluster, lost, optimizerState = 0, detectionMs, compileMs = 0 } = input;
  const copies = input.copies ?? backups(plan);
  const left = remaining(cluster, lost);
  const holders = holdersAfter(plan, lost, copies);
  const bytes = (layer: number): number => stateBytes(profile, layer, optimizerState);
  const recovery = (
    { plan: found, planningMs }: PlannedRecovery,
    all: readonly Move[],
    loads: readonly LinkLoad[],
    migrationMs: number,
  ): Recovery => {
    return {
      ...{ plan: found, moves: all, links: loads, bytes: loads.reduce((sum, load) => sum + load.bytes, 0) },
      ...{ detectionMs, planningMs, migrationMs, compileMs },
      totalMs: detectionMs + planningMs + migrationMs + compileMs,
    };
  };
  const own = moves({ holders, target: input.light.plan, bytes, cluster: left });
  const held = { profile, optimizerState, holders, owners: holdersAfter(plan, lost, new Map()) };
  const light = recovery(
    input.light,
    own,
    loadsOf(own, input.light.plan, held),
    transferTimeMs(loadsOf(own, input.light.plan, held, true), left),
  );
  const planner = mostPowerful(plan, profile, left);
  const gather = moves({ holders, target: wholeOn(plan, planner), bytes, cluster: left });
  const spread = moves({ holders: holders.map(() => [planner]), target: input.heavy.plan, bytes, cluster: left });
  const phases = [loadsOf(gather, wholeOn(plan, planner), held), linkLoads(spread, bytes)];
  const gatheredMs = phases.reduce((sum, loads) => sum + transferTimeMs(loads, left), 0);
  const heavy = recovery(input.heavy, spread, phases.flat(), gatheredMs);
  return {
    losses: lost.map((device) => lossOf(plan, device, lost, holders)),
    samplesPerSBefore: simulate(program(plan), plan, profile, cluster, { events: false }).samplesPerS,
    light,
    heavy: { ...heavy, planner },
    speedup: heavy.totalMs / light.totalMs,
    throughputRatio: input.light.plan.predicted.samplesPerS / input.heavy.plan.predicted.samplesPerS,
  };
}

interface Held {
  readonly profile: Profile;
  readonly optimizerState: OptimizerState;
  /** By layer: the devices that hold its state, and of those the ones that hold all of it, and not a copy. */
  readonly holders: readonly (readonly string[])[];
  readonly owners: readonly (readonly string[])[];
}

/**
 * What links carry by these moves into `target`: what is trained from a copy, its frozen weights from the coordinator,
 * and everything of layers that nobody has.
 *
 * @param isAwaited only what a round cannot begin without: optimizer state from devices travels during the round
 */
function loadsOf(
  travels: readonly Move[],
  target: PlanLayout,
  { profile, optimizerState, holders, owners }: Held,
  isAwaited = false,
): readonly LinkLoad[] {
  const frozenBytes = (layer: number): number => profile.layers[layer]?.frozenBytes ?? 0;
  const isFrozen = ({ layers: [first, end] }: Delivery): boolean =>
    profile.layers.slice(first, end).some((_, index) => frozenBytes(first + index) > 0);
  const frozen = fromCopies(target, travels, owners).filter(isFrozen);
  return linkLoads([...travels, ...frozen.map((own): Move => ({ ...own, from: null }))], (layer, from) => {
    if (from === null)
      return holders[layer]?.length === 0 ? stateBytes(profile, layer, optimizerState) : frozenBytes(layer);
    const isOwner = owners[layer]?.includes(from) === true;
    return stateBytes(profile, layer, isAwaited ? 0 : optimizerState) - (isOwner ? 0 : frozenBytes(layer));
  });
}

function lossOf(
  plan: PlanLayout,
  device: string,
  lost: readonly string[],
  holders: readonly (readonly string[])[],
): Loss {
  const stage = plan.stages.findIndex(({ devices }) => devices.includes(device));
  const own = plan.stages[stage];
  if (own === undefined)
    throw new InputError(
      `The plan gives device "${device}" nothing to do, so its loss changes nothing; name a device of the plan.`,
    );
  const left = holders[own.layers[0]] ?? [];
  const hasPeers = own.devices.some((peer) => !lost.includes(peer));
  return {
    device,
    stage,
    layers: own.layers,
    restoredFrom: hasPeers ? 'peers' : left.length > 0 ? 'copy' : 'checkpoint',
    holders: left,
  };
}

/** The device that computes the whole model the fastest at the plan's micro-batch size; the first of equals. */
function mostPowerful({ microBatchSize }: PlanLayout, profile: Profile, { devices }: Cluster): string {
  const layerCount = profile.layers.length;
  const timed = devices.map((device) => {
    const times = layerTimes(deviceTimes(profile, device), profile.batchSizes);
    return {
      name: device.name,
      ms: times.forwardMs(0, layerCount, microBatchSize) + times.backwardMs(0, layerCount, microBatchSize),
    };
  });
  const fastest = timed.sort((a, b) => a.ms - b.ms)[0];
  if (fastest === undefined) throw new InputError('Every device of the cluster is lost; name fewer devices.');
  return fastest.name;
}

/** The whole model on one device: the plan into which heavy gathers it. */
function wholeOn(plan: PlanLayout, device: string): PlanLayout {
  return {
    ...plan,
    stages: [{ layers: [0, layerCountOf(plan)], devices: [device], samples: [plan.microBatchSize], inFlight: 1 }],
  };
}
