// Scenarios of asynchronous runs, of forward gradients, of those that only infer and of those with frozen weights:
// those of the seeds, with plans whose rounds overlap, tangents, requests, layers that are not trained.

import type { PlanLayout } from '../cluster/cluster.ts';
import { hash32 } from '../random.ts';
import { recoveryPolicies } from '../runtime/knowledge/recovery-policies.ts';
import { inferenceSchedule, scheduleOf, tangentSchedule } from '../schedule/schedules.ts';
import { leastStaleness, withStaleness } from '../schedule/staleness.ts';
import { type FaultKind, faultKinds, type Scenario, scenarioOf } from './scenario.ts';

/** Which runs are rehearsed. */
export const rehearsedModes = ['sync', 'async', 'forward-gradient', 'infer', 'mixed', 'frozen'] as const;
export type RehearsedModes = (typeof rehearsedModes)[number];

/** The scenario of a seed in these modes. `kinds`: the faults that may happen; default: all. */
export function scenarioIn(modes: RehearsedModes, seed: number, kinds?: readonly FaultKind['kind'][]): Scenario {
  switch (modes === 'mixed' ? modeOf(seed) : modes) {
    case 'infer':
      return inferring(scenarioOf(seed, (kinds ?? faultKinds).filter(isSurvived)));
    case 'async':
      return asynchronous(scenarioOf(seed, kinds));
    case 'forward-gradient':
      return withTangents(scenarioOf(seed, kinds));
    case 'frozen':
      return partlyFrozen(scenarioOf(seed, kinds));
    default:
      return scenarioOf(seed, kinds);
  }
}

/** Of mixed seeds: a quarter each infers and trains synchronously. */
function modeOf(seed: number): RehearsedModes {
  if (hash32(seed, 7) % 2 === 0) return 'async';
  return hash32(seed, 14) % 2 === 0 ? 'infer' : 'sync';
}

/** Requests are with the coordinator alone: they end with it, and it writes nothing. */
function isSurvived(kind: FaultKind['kind']): boolean {
  return kind !== 'kill-coordinator' && kind !== 'disk';
}

/** The same devices, network and faults, with requests of any size, and more of them than there were rounds. */
function inferring(scenario: Scenario): Scenario {
  const { seed } = scenario;
  return {
    ...scenario,
    isInference: true,
    isClipped: false,
    plan: withSchedule(scenario.plan, inferenceSchedule),
    endRound: 4 * scenario.endRound,
    ...(hash32(seed, 10) % 2 === 0 ? { smallerEvery: 2 } : {}),
  };
}

/** The same devices, network and faults; half of the layers are not trained, in half of the runs rounds overlap. */
function partlyFrozen(scenario: Scenario): Scenario {
  const { seed, layerCount } = scenario;
  const drawn = Array.from({ length: layerCount }, (_, layer) => layer).filter(
    (layer) => hash32(seed, 15, layer) % 2 > 0,
  );
  const frozenLayers = drawn.length > 0 ? drawn : [0];
  return { ...(hash32(seed, 16) % 2 === 0 ? asynchronous(scenario) : scenario), frozenLayers };
}

/** The same devices, network and faults, with rounds that overlap, and more of them. */
function asynchronous(scenario: Scenario): Scenario {
  const { seed } = scenario;
  const plan = withSchedule(scenario.plan, 'async');
  const least = Math.max(...leastStaleness(plan));
  const wish = [{}, { verticalSync: false }, { staleness: least + 1 }][hash32(seed, 8) % 3] ?? {};
  const aggregate = hash32(seed, 9) % 3;
  return {
    ...scenario,
    plan: withStaleness(plan, wish),
    endRound: scenario.endRound + 3,
    ...(aggregate === 0 ? {} : { aggregate }),
    ...(hash32(seed, 10) % 4 === 0 ? { smallerEvery: 2 } : {}),
    ...recoveryIn(seed),
  };
}

/** The same devices, network and faults, with tangents in place of backward passes; in most runs rounds overlap. */
function withTangents(scenario: Scenario): Scenario {
  const { seed } = scenario;
  const tangentCount = 1 + (hash32(seed, 18) % 3);
  const plan = { ...withSchedule(scenario.plan, tangentSchedule), tangentCount };
  return {
    ...scenario,
    tangentCount,
    plan: withStaleness(plan, hash32(seed, 19) % 4 === 0 ? { staleness: 0 } : {}),
    endRound: scenario.endRound + 3,
    ...(hash32(seed, 10) % 4 === 0 ? { smallerEvery: 2 } : {}),
  };
}

/** FTPipeHD's and ResPipe's policies, with periods for few rounds, in half of the runs. */
function recoveryIn(seed: number): Pick<Scenario, 'recovery'> {
  const kind = hash32(seed, 11) % 4;
  if (kind > 1) return {};
  if (kind === 1) return { recovery: recoveryPolicies.respipe };
  const repartition = { first: 1 + (hash32(seed, 12) % 3), every: 1 + (hash32(seed, 13) % 3) };
  return { recovery: { ...recoveryPolicies.ftpipehd, repartition } };
}

function withSchedule(plan: PlanLayout, schedule: string): PlanLayout {
  const { inFlight } = scheduleOf(schedule);
  const stages = plan.stages.map((stage, index) => ({
    ...stage,
    inFlight: inFlight(index, plan.stages.length, plan.microBatchCount),
  }));
  return { ...plan, schedule, stages };
}
