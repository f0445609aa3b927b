// Losses and other changes of the layout (Asteroid §3.4): part of the coordinator's state machine; pure.
//
//   a device is lost ─▶ planning (a small change of the plan) ─▶ deploying: all return to a round that has a holder for
//   every layer, layers travel to
//   their new owners, nobody lets go of anything ─▶ all have what they need: the layout stands, training goes on from
//   that round
//
// Another loss on the way starts it again from the same holders. Without a holder for some layer, or where rounds
// overlap and all holders are behind it, everything comes from the last checkpoint.

import { assert } from '../../assert.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { fromCopies, moves } from '../../planner/replan/moves.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import type { Change } from '../protocol/layout-change.ts';
import { type Holding, holdersAt, holdingsOf, lastCompleteRound } from './holdings.ts';
import { startAll } from './joiners.ts';
import type { MachineConfig, MachineEffect, MachineState, Step } from './machine-types.ts';
import { activeDevices, fail, fullMembers } from './members.ts';

/**
 * A link that breaks more often between two live devices, without a committed round in between, is given up, and one
 * of the devices with it.
 */
const maxBrokenLinks = 3;

/** A device is gone. */
export function lost(config: MachineConfig, state: MachineState, device: string, reason: string): Step {
  const member = state.members.find(({ name }) => name === device);
  if (member === undefined) return [state, []];
  const cause = `${device} left ${whereText(state)} (${reason})`;
  const next: MachineState = {
    ...state,
    members: state.members.filter(({ name }) => name !== device),
    waitingFor: state.waitingFor.filter((name) => name !== device),
    holdings: state.holdings.filter((holding) => holding.device !== device),
    suspicions: state.suspicions.filter((suspicion) => suspicion.device !== device && suspicion.by !== device),
  };
  if (member.joining !== undefined) return [next, []];
  const bumped = { ...next, epoch: state.epoch + 1 };
  if (state.phase === 'gathering' || state.phase === 'waiting') return [bumped, []];
  if (fullMembers(next).length === 0) return nobodyLeft(config, bumped, cause);
  // Before there is a layout, the others simply go on without it, and wait for its call no longer.
  if (state.plan === undefined && state.pending === undefined && state.change === undefined) {
    const callers = state.phase === 'connecting' ? next.waitingFor : [];
    return [
      bumped,
      callers.map((name) => ({ kind: 'send', device: name, message: 'gone', control: { peer: device } })),
    ];
  }
  const isUsed = [state.plan, state.pending].some((plan) =>
    plan?.stages.some(({ devices }) => devices.includes(device)),
  );
  const isSource =
    (state.phase === 'deploying' || !state.isSettled) && state.holdings.some((holding) => holding.device === device);
  if (!isUsed && !isSource) return [next, []];
  return recover(bumped, { cause, lost: [device] });
}

function whereText(state: MachineState): string {
  return state.phase === 'training' || state.phase === 'snapshotting'
    ? `in round ${state.round}`
    : `while ${state.phase}`;
}

function nobodyLeft(config: MachineConfig, state: MachineState, cause: string): Step {
  if (config.waitForDevices !== true) return fail(state, cause);
  const change = { cause, lost: [] };
  const next: MachineState = { ...state, ...nothingStands, phase: 'waiting', change, waitingFor: [] };
  const [started, welcomes] = startAll(next);
  return [started, [{ kind: 'phase', phase: 'waiting' }, ...welcomes]];
}

const nothingStands = {
  plan: undefined,
  isSettled: true,
  drained: undefined,
  pending: undefined,
  proposal: undefined,
  replication: undefined,
  holdings: [],
} as const;

/**
 * A device cannot go on, or does what the protocol does not allow: the others go on without it. What ails two devices
 * alike ails the run.
 */
export function expel(config: MachineConfig, state: MachineState, device: string, message: string): Step {
  const isTraining = state.plan !== undefined || state.pending !== undefined || state.change !== undefined;
  if (!isTraining || state.failures.includes(message)) return fail(state, `${device} cannot go on: ${message}`);
  const [next, effects] = lost(config, { ...state, failures: [...state.failures, message] }, device, message);
  return [next, [{ kind: 'dismiss', device, reason: message }, ...effects]];
}

/** A device has lost its link to another: that one is asked whether it lives. */
export function suspected(state: MachineState, by: string, device: string, reason: string): Step {
  const isKnown = fullMembers(state).some(({ name }) => name === device);
  // A peer that is gone has been dealt with, or will be when its link to the coordinator ends.
  if (!isKnown || state.suspicions.some((suspicion) => suspicion.device === device && suspicion.by === by))
    return [state, []];
  const suspicions = [...state.suspicions, { device, by, reason }];
  return [{ ...state, suspicions }, [{ kind: 'send', device, message: 'probe', control: {} }]];
}

/** A suspected device lives: what broke is a link. All return to the last committed round and link anew. */
export function confirmedAlive(config: MachineConfig, state: MachineState, device: string): Step {
  const suspicion = state.suspicions.find((candidate) => candidate.device === device);
  const layout = state.pending ?? state.plan;
  if (suspicion === undefined || layout === undefined) return [state, []];
  const { by, reason } = suspicion;
  const pair = [by, device].sort().join('↔');
  const count = (state.brokenLinks[pair] ?? 0) + 1;
  const next = { ...state, suspicions: [], brokenLinks: { ...state.brokenLinks, [pair]: count } };
  if (count > maxBrokenLinks) return expel(config, next, device, `its link to ${by} broke ${count} times (${reason})`);
  return recover(
    { ...next, epoch: state.epoch + 1 },
    { cause: `the link between ${by} and ${device} broke (${reason})`, lost: [] },
  );
}

/** The gradients of a round do not come, though all devices live: the round and those after it begin again. */
export function overdue(state: MachineState, seconds: number): Step {
  if (state.phase !== 'training') return [state, []];
  const cause = `the gradients of round ${state.round} did not come for ${seconds.toFixed(1)} s`;
  return recover({ ...state, epoch: state.epoch + 1 }, { cause, lost: [] });
}

/** A device asks to be let go: a layout without it is looked for. */
export function wantsToLeave(state: MachineState, device: string): Step {
  const others = fullMembers(state)
    .map(({ name }) => name)
    .filter((name) => name !== device);
  const isActive = activeDevices(state).includes(device);
  if (!isActive || others.length === 0) return [state, [{ kind: 'dismiss', device, reason: 'the device was drained' }]];
  return [state, [{ kind: 'consider', devices: others, without: device }]];
}

/** Gives up the round in progress and asks for a plan for those who are left. */
function recover(state: MachineState, change: Change): Step {
  const from = state.pending ?? state.plan;
  const before = state.change;
  const merged: Change =
    before === undefined ? change : { cause: change.cause, lost: [...new Set([...before.lost, ...change.lost])] };
  const devices = fullMembers(state).map(({ name }) => name);
  return [
    { ...state, phase: 'planning', change: merged, proposal: undefined, waitingFor: [] },
    [
      { kind: 'phase', phase: 'planning' },
      { kind: 'plan', devices, lost: merged.lost, ...(from === undefined ? {} : { from }) },
    ],
  ];
}

/** The state of a layout that has not been drained. */
function notFlushed({ flushedRound: _, ...state }: MachineState): MachineState {
  return state;
}

/** Establishes a plan, from the last round after which every layer has a holder. */
export function relayout(config: MachineConfig, state: MachineState, plan: Plan): Step {
  const members = fullMembers(state);
  const present = new Set(members.map(({ name }) => name));
  const missing = plan.stages.flatMap(({ devices }) => devices).filter((device) => !present.has(device));
  if (missing.length > 0) {
    assert(!missing.some((device) => state.change?.lost.includes(device)), 'a plan for those who are left');
    return recover(state, { cause: state.change?.cause ?? `${missing[0]} left while planning`, lost: missing });
  }
  const layerCount = plan.stages.at(-1)?.layers[1] ?? 0;
  const held = heldNow(state).filter(({ device }) => present.has(device));
  const safeRound = roundAtHand(state, plan);
  const found = roundOfDevices(safeRound, plan, lastCompleteRound(held, layerCount));
  const isConstant = config.isStateConstant === true;
  const round = isConstant ? state.round : (found ?? safeRound ?? config.firstRound);
  // What nobody holds comes from the checkpoint of that round, or from wherever it came that never changes.
  const { layerBytes } = config;
  const bytes = layerBytes === undefined ? {} : { bytes: (layer: number): number => layerBytes[layer] ?? 0 };
  const travels = moves({ holders: holdersAt(held, round, layerCount), target: plan, ...bytes });
  const next: MachineState = {
    ...notFlushed(state),
    ...nothingStands,
    phase: 'deploying',
    epoch: state.epoch + 1,
    pending: plan,
    isSettled: !travels.some(({ from }) => from !== null),
    holdings: held.filter((holding) => holding.round === round),
    round,
    grantedRound: round - 1,
    fedRound: round - 1,
    prepared: {},
    suspicions: [],
    waitingFor: members.map(({ name }) => name),
  };
  const effects: MachineEffect[] = [{ kind: 'phase', phase: 'deploying' }];
  if (state.change !== undefined) {
    const repeatedRounds = Math.max(0, state.recordedRound - round);
    const source = found === undefined && !isConstant ? 'checkpoint' : 'devices';
    effects.push({ kind: 'changing', change: state.change, plan, round, repeatedRounds, source, moves: travels });
  }
  const whole = held.filter(({ isCopy }) => isCopy !== true);
  const copies = fromCopies(plan, travels, holdersAt(whole, round, layerCount));
  effects.push({ kind: 'deploy', plan, epoch: next.epoch, round, moves: travels, copies, members });
  return [next, effects];
}

/**
 * The round that devices return to; undefined: to the checkpoint. Where rounds overlap, what comes after a restart
 * depends on where it was: behind its checkpoint a run would take another course, and that checkpoint be none of it.
 */
function roundOfDevices(checkpointRound: number | undefined, plan: Plan, held: number | undefined): number | undefined {
  const isBehind = held !== undefined && held < (checkpointRound ?? 0);
  return scheduleOf(plan.schedule).isStream && isBehind ? undefined : held;
}

/**
 * The round of the last checkpoint, of which the coordinator has the state. Where rounds overlap it counts as soon as
 * the state has come: one that is still being written when a device is lost would else be of a course that the run
 * has left.
 */
function roundAtHand({ checkpointRound, collectedRound }: MachineState, plan: Plan): number | undefined {
  const isCollected = scheduleOf(plan.schedule).isStream && (collectedRound ?? 0) > (checkpointRound ?? 0);
  return isCollected ? collectedRound : checkpointRound;
}

/**
 * What is kept for a loss, and the layout that stands if it is settled: its devices can all return to the oldest round
 * that has not committed.
 */
function heldNow({ plan, isSettled, round, holdings }: MachineState): readonly Holding[] {
  return plan === undefined || !isSettled ? holdings : [...holdings, ...holdingsOf(plan, round)];
}
