// Rounds of the present layout: granted, fed, prepared and committed; pauses between them. Part of the coordinator's
// state machine; pure.
//
// A round commits on all devices or on none: when all have prepared it, all get the commit. Devices compute ahead:
// `window` rounds beyond the oldest that has not committed are granted, and all of these but the last may be prepared.
//
//   window 1      round 0, round 1        commit 0, round 2        commit 1, round 3
//   member              ├─ compute 0 ─ prepared 0 ─┼─ compute 1 ─ prepared 1 ─┼─ compute 2 …

import { defined } from '../../assert.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import { commitWindow, stalenessOf } from '../../schedule/staleness.ts';
import { drainedReason } from '../protocol/drained.ts';
import type { RoundResult } from '../protocol/messages.ts';
import { notFinite } from '../protocol/not-finite.ts';
import { batchAt, scaleOf } from '../protocol/round-batch.ts';
import { expel, relayout } from './changes.ts';
import type { MachineConfig, MachineEffect, MachineInput, MachineState, Step } from './machine-types.ts';
import { activeDevices, fail } from './members.ts';
import { copying, isCopyDue, settleHoldings } from './replication.ts';

/**
 * Nothing is granted beyond the round that is next and nobody computes: goes on at once. Otherwise the rounds in
 * progress come first.
 */
export function goOnIfIdle(config: MachineConfig, state: MachineState): Step {
  return state.phase === 'training' && state.round > state.grantedRound ? goOn(config, state, []) : [state, []];
}

/** Data of further rounds are there. */
export function offered(
  config: MachineConfig,
  state: MachineState,
  { rounds, isLast }: Extract<MachineInput, { kind: 'offered' }>,
): Step {
  const offeredRounds = Math.max(state.offeredRounds, rounds);
  const next = { ...state, offeredRounds, endRound: isLast ? rounds : state.endRound };
  if (state.phase !== 'training') return [next, []];
  return state.round > state.grantedRound ? goOn(config, next, []) : proceed(config, next, []);
}

/** All devices of the layout have all of their state: its sources are no longer needed. */
export function settle(config: MachineConfig, state: MachineState): Step {
  const { drained } = state;
  const dismissals: MachineEffect[] =
    drained === undefined ? [] : [{ kind: 'dismiss', device: drained, reason: drainedReason }];
  const [next, releases] = settleHoldings(config, { ...state, isSettled: true, drained: undefined });
  return [next, [...dismissals, ...releases]];
}

/** True when training pauses after `round` committed rounds, for a checkpoint or the end. */
export function isBoundary({ endRound, checkpointEvery, evaluateEvery }: MachineConfig, round: number): boolean {
  return (
    round >= endRound || round % checkpointEvery === 0 || (evaluateEvery !== undefined && round % evaluateEvery === 0)
  );
}

/** A boundary whose checkpoint is not written yet. */
function isPause(config: MachineConfig, { checkpointRound = config.firstRound }: MachineState, round: number): boolean {
  return config.isStateConstant !== true && isBoundary(config, round) && round > checkpointRound;
}

/**
 * All members are at `state.round` and nothing is granted: a checkpoint, the end, another layout, or the next round.
 */
export function goOn(config: MachineConfig, state: MachineState, before: readonly MachineEffect[]): Step {
  const { round, stopRequested, proposal, notFiniteRound } = state;
  const checkpointRound = config.isStateConstant === true ? round : (state.checkpointRound ?? config.firstRound);
  if (notFiniteRound === round)
    return round > checkpointRound ? snapshot(state, before) : failNotFinite(state, round, before);
  if (round > checkpointRound && (stopRequested || isBoundary(config, round))) return snapshot(state, before);
  if (stopRequested || round >= state.endRound) return finish(state, before);
  if (proposal !== undefined) {
    const [next, effects] = relayout(
      config,
      { ...state, proposal: undefined, change: proposal.change, copyEvery: proposal.copyEvery },
      proposal.plan,
    );
    return [next, [...before, ...effects]];
  }
  if (round >= state.offeredRounds) return [{ ...state, phase: 'training', waitingFor: [] }, before];
  const isCopied = isCopyDue(config, state, round);
  const [fed, feeds] = feed(state, round);
  const begins = beginsAnew(state);
  const effects: MachineEffect[] = [...before, ...begins, ...feeds, ...grant(config, state, round, isCopied)];
  return proceed(config, { ...fed, grantedRound: round, ...copying(state, round, isCopied) }, effects);
}

/**
 * After a pause, a stream whose passes read what is live (forward gradients) begins anew with the version that there is
 * then.
 */
function beginsAnew({ plan, round, flushedRound }: MachineState): readonly MachineEffect[] {
  if (plan === undefined || flushedRound !== round || scheduleOf(plan.schedule).gradients !== 'tangent') return [];
  return stalenessOf(plan).some((own) => own > 0) ? [{ kind: 'stream-begins', plan, round }] : [];
}

/** Data are sent once, also where the round has to wait for a checkpoint. */
function feed(state: MachineState, round: number): Step {
  return round <= state.fedRound ? [state, []] : [{ ...state, fedRound: round }, [{ kind: 'feed', round }]];
}

/** Lets the devices of the layout begin a round. */
function grant(config: MachineConfig, state: MachineState, round: number, replicate: boolean): MachineEffect[] {
  const { sampleCount, factor, length } = batchAt(config, round);
  const control = {
    round,
    learningRate: learningRateOf(config, state, round),
    replicate,
    ...(sampleCount === config.batchSize ? {} : { sampleCount }),
    ...(factor === 1 ? {} : { factor }),
    ...(length === undefined ? {} : { length }),
  };
  return activeDevices(state).map((device): MachineEffect => ({ kind: 'send', device, message: 'round', control }));
}

/** A round has one learning rate, also where it is computed again. */
function learningRateOf(config: MachineConfig, { rateFactors = [] }: MachineState, round: number): number {
  const factor = rateFactors.findLast((step) => step.round <= round)?.factor ?? 1;
  return factor * config.learningRate(round);
}

/** Multiplies the learning rate from the next round that nobody has begun on. */
export function scaleLearningRate(state: MachineState, factor: number): Step {
  const step = { round: Math.max(state.round, state.grantedRound + 1), factor };
  const before = state.rateFactors?.filter(({ round }) => round < step.round) ?? [];
  return [{ ...state, rateFactors: [...before, step] }, [{ kind: 'learning-rate-changes', ...step }]];
}

/** Rounds that devices may prepare before the oldest of them has committed. */
function windowOf({ window }: MachineConfig, { plan }: MachineState): number {
  return window ?? (plan === undefined ? 1 : commitWindow(plan));
}

/**
 * Where rounds overlap: the pipeline drains before a round that is not granted before all others have committed,
 * because training pauses or ends there.
 */
export function flushed(config: MachineConfig, [state, effects]: Step): Step {
  const { phase, plan, grantedRound } = state;
  const round = grantedRound + 1;
  if (phase !== 'training' || plan === undefined || !scheduleOf(plan.schedule).isStream) return [state, effects];
  const isDue =
    state.stopRequested || state.proposal !== undefined || round >= state.endRound || isPause(config, state, round);
  if (!isDue || grantedRound < state.round || state.flushedRound === round) return [state, effects];
  const flushes = activeDevices(state).map(
    (device): MachineEffect => ({ kind: 'send', device, message: 'flush', control: { round } }),
  );
  return [{ ...state, flushedRound: round }, [...effects, ...flushes]];
}

/**
 * Waits for round `state.round`, which has been granted; grants and feeds up to `window` rounds beyond it, unless
 * training pauses or stops before them.
 */
function proceed(config: MachineConfig, state: MachineState, before: readonly MachineEffect[]): Step {
  const done = state.prepared[state.round] ?? {};
  const waitingFor = activeDevices(state).filter((device) => done[device] === undefined);
  let next: MachineState = { ...state, phase: 'training', waitingFor };
  const effects = [...before];
  const lastRound = Math.min(state.endRound, state.offeredRounds, state.round + windowOf(config, state) + 1) - 1;
  if (state.stopRequested || state.proposal !== undefined) return [next, effects];
  for (let ahead = state.grantedRound + 1; ahead <= lastRound; ahead++) {
    const [fed, feeds] = feed(next, ahead);
    if (isPause(config, state, ahead)) return [fed, [...effects, ...feeds]];
    const isCopied = isCopyDue(config, fed, ahead);
    effects.push(...grant(config, state, ahead, isCopied), ...feeds);
    next = { ...fed, grantedRound: ahead, ...copying(fed, ahead, isCopied) };
  }
  return [next, effects];
}

/**
 * The round that a device prepares next: the oldest in flight that it has not prepared. Undefined: it may not prepare
 * any before another has committed.
 */
function nextToPrepare(config: MachineConfig, state: MachineState, device: string): number | undefined {
  if (!activeDevices(state).includes(device)) return undefined;
  // An update waits for the commit of a round before it; a round without one waits for nothing.
  const mostAhead = windowOf(config, state) - (config.isStateConstant === true ? 0 : 1);
  const lastRound = Math.min(state.grantedRound, state.round + mostAhead);
  for (let round = state.round; round <= lastRound; round++)
    if (state.prepared[round]?.[device] === undefined) return round;
  return undefined;
}

/**
 * A device has prepared a round; when all have, it commits. Undefined: nobody waits for a round of this device. Rounds
 * commit in order, since each device prepares them in order.
 */
export function prepared(
  config: MachineConfig,
  state: MachineState,
  device: string,
  result: RoundResult,
): Step | undefined {
  const round = nextToPrepare(config, state, device);
  if (round === undefined) return undefined;
  const waitingFor = state.waitingFor.filter((name) => name !== device);
  if (result.round !== round)
    return expel(config, { ...state, waitingFor }, device, `it prepared round ${result.round} instead of ${round}`);
  const results = { ...state.prepared[round], [device]: result };
  const next = { ...state, waitingFor, prepared: { ...state.prepared, [round]: results } };
  return waitingFor.length === 0 && round === state.round ? commit(config, next) : [next, []];
}

/**
 * A number of round `state.round` is not finite: the run ends. If the state before it is not at hand, it is fetched for
 * a checkpoint first: devices return to it in the same layout, and `goOn` does the rest.
 */
function endNotFinite(config: MachineConfig, state: MachineState): Step {
  const { round, checkpointRound = config.firstRound, plan } = state;
  const next = { ...state, notFiniteRound: round };
  return round > checkpointRound ? relayout(config, next, defined(plan, 'the plan')) : failNotFinite(next, round, []);
}

function failNotFinite(state: MachineState, round: number, before: readonly MachineEffect[]): Step {
  const [next, effects] = fail(state, notFinite(round));
  return [next, [...before, ...effects]];
}

/** All members hold the round's gradients: the round commits on all of them, unless a number in it is not finite. */
function commit(config: MachineConfig, state: MachineState): Step {
  const { round } = state;
  const { [round]: resultOf = {}, ...ahead } = state.prepared;
  const results = Object.values(resultOf);
  if (results.some((result) => !result.finite)) return endNotFinite(config, state);
  const squaredNorm = sum(results, (result) => result.squaredNorm);
  const gradientScale = scaleOf(batchAt(config, round), squaredNorm, config.gradientScale);
  const commits = activeDevices(state).map(
    (device): MachineEffect => ({ kind: 'send', device, message: 'commit', control: { round, gradientScale } }),
  );
  const [settled, releases] = state.isSettled ? [state, []] : settle(config, state);
  const next: MachineState = {
    ...settled,
    prepared: ahead,
    round: round + 1,
    recordedRound: Math.max(state.recordedRound, round + 1),
    brokenLinks: {},
  };
  const recorded =
    round < state.recordedRound ? ({ kind: 'repeated', round } as const) : record(config, state, round, resultOf);
  const effects = [...commits, ...releases, recorded];
  return next.round > next.grantedRound ? goOn(config, next, effects) : proceed(config, next, effects);
}

function record(
  config: MachineConfig,
  state: MachineState,
  round: number,
  resultOf: Readonly<Record<string, RoundResult>>,
): MachineEffect {
  const results = Object.values(resultOf);
  return {
    kind: 'committed',
    round,
    loss: (sum(results, (result) => result.lossSum) / config.batchSize) * batchAt(config, round).factor,
    correctCount: sum(results, (result) => result.correctCount),
    results: resultOf,
    learningRate: learningRateOf(config, state, round),
  };
}

/** Asks one device of each stage for its weights after `state.round` committed rounds, and all for their statistics. */
function snapshot(state: MachineState, before: readonly MachineEffect[]): Step {
  const plan = defined(state.plan, 'the plan');
  // A stream returned to a checkpoint that is still being written, and goes on when it is.
  if (scheduleOf(plan.schedule).isStream && state.collectedRound === state.round)
    return [{ ...state, phase: 'snapshotting', waitingFor: [] }, before];
  const owners = new Set(plan.stages.map((stage) => stage.devices[0]));
  const waitingFor = activeDevices(state);
  const asks = waitingFor.map(
    (device): MachineEffect => ({
      kind: 'send',
      device,
      message: 'snapshot',
      control: { round: state.round, withState: owners.has(device) },
    }),
  );
  return [{ ...state, phase: 'snapshotting', waitingFor }, [...before, ...asks]];
}

/** A checkpoint counts whatever has happened since it was asked for. */
export function afterCheckpoint(config: MachineConfig, state: MachineState, round: number): Step {
  const next = { ...state, checkpointRound: Math.max(round, state.checkpointRound ?? round) };
  const isAwaited = state.phase === 'snapshotting' && state.round === round && state.waitingFor.length === 0;
  if (!isAwaited) return [next, []];
  return goOn(config, next, []);
}

/** Ends the run: all devices are released. */
export function finish(
  state: MachineState,
  before: readonly MachineEffect[],
  round: number = state.round,
  isStopped: boolean = state.stopRequested,
): Step {
  const reason = isStopped ? 'the run was stopped' : 'the run is done';
  const ends = state.members.map(
    ({ name }): MachineEffect => ({ kind: 'send', device: name, message: 'end', control: { reason } }),
  );
  return [{ ...state, phase: 'ended' }, [...before, ...ends, { kind: 'finish', round, stopped: isStopped }]];
}

function sum(results: readonly RoundResult[], value: (result: RoundResult) => number): number {
  return results.reduce((total, result) => total + value(result), 0);
}
