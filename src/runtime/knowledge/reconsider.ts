// Whether another layout would pay, looked for while training goes on: when a device has come, when a loss left a
// makeshift plan. A device that comes and goes is counted on ever more slowly.

import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { inferenceRoundMs } from '../../planner/inference/round.ts';
import { holdersAfter } from '../../planner/replan/backups.ts';
import { linkLoads, moves, transferTimeMs } from '../../planner/replan/moves.ts';
import { program } from '../../schedule/generate.ts';
import { inferenceSchedule } from '../../schedule/schedules.ts';
import { simulate } from '../../simulator/simulate.ts';

/** A layout that saves less than this share of a round is not worth the risk that it is none. */
const leastGain = 0.05;

/** What a change of the layout costs besides the transfer: compiling, and the round that is waited for. */
const changeMs = 2_000;

const firstCoolDownMs = 5_000;
const longestCoolDownMs = 300_000;

/** A layout that may follow another. */
export interface Candidate {
  readonly plan: Plan;
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly remainingRounds: number;
  /** Bytes of a layer's state, optimizer state included. */
  bytes(layer: number): number;
}

/** Whether `plan` saves more than it costs, in what is left of the run; both are predicted from the same profile. */
export function isWorthwhile(from: Plan, { plan, profile, cluster, remainingRounds, bytes }: Candidate): boolean {
  const beforeMs = roundMs(from, profile, cluster);
  const afterMs = roundMs(plan, profile, cluster);
  if (!(afterMs < (1 - leastGain) * beforeMs)) return false;
  const travels = moves({ holders: holdersAfter(from, [], new Map()), target: plan, bytes, cluster });
  const costMs = changeMs + transferTimeMs(linkLoads(travels, bytes), cluster);
  return remainingRounds * (beforeMs - afterMs) > costMs;
}

function roundMs(plan: Plan, profile: Profile, cluster: Cluster): number {
  if (plan.schedule === inferenceSchedule) return inferenceRoundMs(plan, profile, cluster);
  return simulate(program(plan), plan, profile, cluster, { events: false }).roundMs;
}

/**
 * When devices that left are made ready for work again, once they have come back: each time twice as long after they
 * left.
 */
export class CoolDown {
  readonly #departures = new Map<string, { count: number; untilMs: number }>();

  left(device: string, nowMs: number): void {
    const count = (this.#departures.get(device)?.count ?? 0) + 1;
    const untilMs = nowMs + Math.min(longestCoolDownMs, firstCoolDownMs * 2 ** (count - 1));
    this.#departures.set(device, { count, untilMs });
  }

  /** How often the device has left. */
  departureCount(device: string): number {
    return this.#departures.get(device)?.count ?? 0;
  }

  /** Milliseconds until then; 0: at once. */
  remainingMs(device: string, nowMs: number): number {
    return Math.max(0, (this.#departures.get(device)?.untilMs ?? 0) - nowMs);
  }
}
