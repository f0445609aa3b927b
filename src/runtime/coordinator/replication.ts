// When single-device stages are copied to another device (Asteroid §3.4, topology-driven replication), and what may be
// forgotten when they have been. One copy is made at a time, with the lowest priority on the links: how often follows
// from what they have to spare. Part of the coordinator's state machine; pure.

import { defined } from '../../assert.ts';
import type { PlanLayout } from '../../cluster/cluster.ts';
import { backups } from '../../planner/replan/backups.ts';
import { type Holding, holdingsOf } from './holdings.ts';
import type { Answer, AwaitedCopy, MachineConfig, MachineEffect, MachineState, Step } from './machine-types.ts';
import { fullMembers } from './members.ts';

/** Whether a plan's stages are to be copied at all. */
function isCopied({ replicateEvery }: MachineConfig, plan: PlanLayout): boolean {
  return replicateEvery !== 0 && backups(plan).size > 0;
}

/**
 * True where version `round` is to be copied when it is committed. A layout that is not settled has no version yet that
 * all devices have.
 */
export function isCopyDue(config: MachineConfig, state: MachineState, round: number): boolean {
  const { plan, replication, replicatedRound, copyEvery, isSettled } = state;
  if (replication !== undefined || plan === undefined || !isCopied(config, plan)) return false;
  if (!isSettled && round === state.round) return false;
  if (replicatedRound === undefined) return true;
  const every = config.replicateEvery ?? copyEvery;
  return config.replicatesAtMultiples === true
    ? Math.floor(round / every) > Math.floor(replicatedRound / every)
    : round >= replicatedRound + every;
}

/** The state once the copying of version `round` has been asked for, where it was. */
export function copying(state: MachineState, round: number, isAsked: boolean): Partial<MachineState> {
  if (!isAsked) return {};
  const plan = defined(state.plan, 'the plan');
  const waitingFor = [...backups(plan)].map(
    ([stage, device]): AwaitedCopy => ({ device, layers: defined(plan.stages[stage], 'a stage').layers }),
  );
  return { replication: { round, waitingFor }, replicatedRound: round };
}

/**
 * A device has the copy of a stage. When all have theirs, what is older may go. Undefined: it is no copy that was asked
 * for.
 */
export function copied(
  state: MachineState,
  device: string,
  { round, layers }: Extract<Answer, { kind: 'replicated' }>,
): Step | undefined {
  const { plan, replication } = state;
  const found = replication?.waitingFor.find(
    (copy) => copy.device === device && copy.layers[0] === layers[0] && copy.layers[1] === layers[1],
  );
  if (plan === undefined || replication?.round !== round || found === undefined) return undefined;
  const waitingFor = replication.waitingFor.filter((copy) => copy !== found);
  const copies = [
    ...state.holdings.filter((holding) => !isOwn(plan, holding, round)),
    ...holdingsOf(plan, round),
    { device, layers, round, isCopy: true } as const,
  ];
  if (waitingFor.length > 0) return [{ ...state, holdings: copies, replication: { round, waitingFor } }, []];
  const holdings = copies.filter((holding) => holding.round >= round);
  return [{ ...state, holdings, replication: undefined }, [{ kind: 'replicated', round }, ...release(state, round)]];
}

function isOwn({ stages }: PlanLayout, { device, layers, round }: Holding, at: number): boolean {
  const own = stages.find(({ devices }) => devices.includes(device));
  return round === at && own?.layers[0] === layers[0] && own.layers[1] === layers[1];
}

/**
 * What is kept when a layout is settled: until its stages have been copied all that it came from, or nothing where they
 * are not copied.
 */
export function settleHoldings(config: MachineConfig, state: MachineState): Step {
  const { round } = state;
  const plan = defined(state.plan, 'the plan');
  if (isCopied(config, plan)) return [{ ...state, holdings: [...state.holdings, ...holdingsOf(plan, round)] }, []];
  return [{ ...state, holdings: [] }, release(state, round + 1)];
}

/** Versions below `before` may go, but for the one that has committed last. */
function release(state: MachineState, before: number): MachineEffect[] {
  return fullMembers(state).map(({ name }) => ({
    kind: 'send',
    device: name,
    message: 'release',
    control: { before },
  }));
}
