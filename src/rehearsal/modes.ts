// Scenarios of asynchronous runs: those of the seeds, with plans whose rounds overlap.

import type { PlanLayout } from '../cluster/cluster.ts';
import { hash32 } from '../random.ts';
import { recoveryPolicies } from '../runtime/knowledge/recovery-policies.ts';
import { scheduleOf } from '../schedule/schedules.ts';
import { leastStaleness, withStaleness } from '../schedule/staleness.ts';
import { type FaultKind, type Scenario, scenarioOf } from './scenario.ts';

/** Which runs are rehearsed. */
export type RehearsedModes = 'sync' | 'async' | 'mixed';

/** The scenario of a seed in these modes. `kinds`: the faults that may happen; default: all. */
export function scenarioIn(modes: RehearsedModes, seed: number, kinds?: readonly FaultKind['kind'][]): Scenario {
  const scenario = scenarioOf(seed, kinds);
  const isAsynchronous = modes === 'async' || (modes === 'mixed' && hash32(seed, 7) % 2 === 0);
  return isAsynchronous ? asynchronous(scenario) : scenario;
}

/** The same devices, network and faults, with rounds that overlap, and more of them. */
function asynchronous(scenario: Scenario): Scenario {
  const { seed } = scenario;
  const plan = inAsync(scenario.plan);
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

/** FTPipeHD's and ResPipe's policies, with periods for few rounds, in half of the runs. */
function recoveryIn(seed: number): Pick<Scenario, 'recovery'> {
  const kind = hash32(seed, 11) % 4;
  if (kind > 1) return {};
  if (kind === 1) return { recovery: recoveryPolicies.respipe };
  const repartition = { first: 1 + (hash32(seed, 12) % 3), every: 1 + (hash32(seed, 13) % 3) };
  return { recovery: { ...recoveryPolicies.ftpipehd, repartition } };
}

function inAsync(plan: PlanLayout): PlanLayout {
  const { inFlight } = scheduleOf('async');
  const stages = plan.stages.map((stage, index) => ({
    ...stage,
    inFlight: inFlight(index, plan.stages.length, plan.microBatchCount),
  }));
  return { ...plan, schedule: 'async', stages };
}
