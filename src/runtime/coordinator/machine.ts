// The coordinator's protocol as a state machine without I/O: (state, input) → [state, effects]. The real process
// (coordinator.ts), the rehearsal and tests drive it; time and tensors stay outside.
//
//   gathering ─ all joined ─▶ preparing ─ all ready ─▶ connecting ─▶ measuring ─▶ profiling ─▶ planning ─▶ deploying
//        ─▶ training ─ every k rounds ─▶ snapshotting ─▶ training … ─▶ ended
//                 └─ a device is lost, or a better layout is found ─▶ planning ─▶ deploying ─▶ training …
//
// Each step waits for the answer of every member. A round commits on all devices or on none: when all have prepared,
// all are told to commit. Members may go on with the next round meanwhile (they keep the state before until they hear
// of the commit), but never prepare it before.
//
//   coordinator   round 0, round 1        commit 0, round 2        commit 1, round 3
//   member              ├─ compute 0 ─ prepared 0 ─┼─ compute 1 ─ prepared 1 ─┼─ compute 2 …
//
// A loss is no end: all return to the last round after which every layer has a holder (changes.ts), and go on from
// there in a new layout.

import { assert, defined } from '../../assert.ts';
import type { Phase } from '../protocol/events.ts';
import type { Proposal } from '../protocol/layout-change.ts';
import type { RoundResult } from '../protocol/messages.ts';
import { confirmedAlive, expel, lost, relayout, suspected, wantsToLeave } from './changes.ts';
import { cooled, joinerAnswered, joinLater, startQueued } from './joiners.ts';
import type { Answer, MachineConfig, MachineEffect, MachineInput, MachineState, Step } from './machine-types.ts';
import { activeDevices, fail, fullMembers } from './members.ts';
import { copied, copying, isCopyDue, settleHoldings } from './replication.ts';

/** The state before anyone has joined. */
export function initialState(config: MachineConfig): MachineState {
  return {
    phase: 'gathering',
    epoch: 0,
    members: [],
    waitingFor: [],
    measurerIndex: 0,
    plan: undefined,
    isSettled: true,
    drained: undefined,
    pending: undefined,
    copyEvery: 1,
    change: undefined,
    proposal: undefined,
    holdings: [],
    replication: undefined,
    replicatedRound: undefined,
    round: config.firstRound,
    grantedRound: config.firstRound - 1,
    fedRound: config.firstRound - 1,
    recordedRound: config.firstRound,
    prepared: {},
    checkpointRound: config.firstRound > 0 ? config.firstRound : undefined,
    stopRequested: false,
    brokenLinks: {},
    suspicions: [],
    failures: [],
  };
}

/** One transition. Inputs that come too late (after the end, from a device that is gone) change nothing. */
export function step(config: MachineConfig, state: MachineState, input: MachineInput): Step {
  if (state.phase === 'ended') return [state, []];
  switch (input.kind) {
    case 'joined':
      return joined(config, state, input);
    case 'cooled':
      return cooled(state, input.device);
    case 'left':
      return then(lost(config, state, input.device, input.reason), (next) => afterLoss(config, next));
    case 'answer':
      return state.members.some((member) => member.name === input.device)
        ? answered(config, state, input.device, input.answer)
        : [state, []];
    case 'planned':
      return planned(config, state, input);
    case 'proposed':
      return proposed(config, state, input);
    case 'copies-paced':
      return [{ ...state, copyEvery: input.copyEvery }, []];
    case 'checkpointed':
      return afterCheckpoint(config, state, input.round);
    case 'stop':
      return stop(state);
    case 'gave-up':
      return state.phase === 'waiting'
        ? fail(state, `${state.change?.cause ?? 'all devices left'}, and no device has come since`)
        : [state, []];
  }
}

/** A further transition, if the state asks for one; undefined: none. */
function then([state, effects]: Step, more: (state: MachineState) => Step | undefined): Step {
  const [next, further] = (state.phase === 'ended' ? undefined : more(state)) ?? [state, []];
  return [next, [...effects, ...further]];
}

function joined(
  config: MachineConfig,
  state: MachineState,
  { device, isCooling = false }: Extract<MachineInput, { kind: 'joined' }>,
): Step {
  if (state.members.some((member) => member.name === device)) {
    return [
      state,
      [{ kind: 'send', device, message: 'end', control: { reason: `another device is called ${device}` } }],
    ];
  }
  if (state.phase !== 'gathering' && state.phase !== 'waiting') return joinLater(state, device, isCooling);
  const members = [...state.members, { name: device, listenUrl: '' }];
  const next = { ...state, members, epoch: state.epoch + 1 };
  if (state.phase === 'gathering' && members.length < config.workerCount) return [next, []];
  // By name, not by arrival: the same devices then always get the same plan.
  members.sort((a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }));
  // Who came while the last others left is a newcomer still, and goes on as such.
  return enter(
    next,
    'preparing',
    fullMembers(next).map(({ name }) => ({ kind: 'send-model', device: name })),
  );
}

/** Enters a phase in which every member owes an answer. */
function enter(state: MachineState, phase: Phase, effects: readonly MachineEffect[]): Step {
  const waitingFor = fullMembers(state).map(({ name }) => name);
  return [{ ...state, phase, waitingFor }, [{ kind: 'phase', phase }, ...effects]];
}

/** A device was lost, and nobody's answer is outstanding any more: the step goes on. */
function afterLoss(config: MachineConfig, state: MachineState): Step | undefined {
  const phases: readonly Phase[] = ['preparing', 'connecting', 'measuring', 'profiling', 'deploying', 'snapshotting'];
  return phases.includes(state.phase) && state.waitingFor.length === 0 ? advance(config, state) : undefined;
}

const answerOf: Partial<Record<Phase, Answer['kind']>> = {
  preparing: 'ready',
  connecting: 'connected',
  measuring: 'measured',
  profiling: 'profiled',
  deploying: 'deployed',
  training: 'prepared',
  snapshotting: 'snapshot-end',
};

function answered(config: MachineConfig, state: MachineState, device: string, answer: Answer): Step {
  switch (answer.kind) {
    case 'failed':
      return then(expel(config, state, device, answer.message), (next) => afterLoss(config, next));
    case 'lost-peer':
      // A peer that broke the protocol is put out; one whose link ended is asked whether it lives.
      return answer.isFault && fullMembers(state).some(({ name }) => name === answer.peer)
        ? then(expel(config, state, answer.peer, answer.reason), (next) => afterLoss(config, next))
        : suspected(state, device, answer.peer, answer.reason);
    case 'alive':
      return confirmedAlive(config, state, device);
    case 'leaving':
      return wantsToLeave(state, device);
    case 'replicated':
      return (
        copied(state, device, answer) ??
        expel(config, state, device, `it reported a copy of round ${answer.round} that nobody asked for`)
      );
    default:
  }
  if (state.members.some(({ name, joining }) => name === device && joining !== undefined)) {
    // A newcomer that is ready when all others are gone is what the run waits for.
    return then(joinerAnswered(config, state, device, answer), (next) =>
      next.phase === 'waiting' && fullMembers(next).length > 0 ? startPlanning(next) : undefined,
    );
  }
  if (answerOf[state.phase] !== answer.kind || !state.waitingFor.includes(device)) {
    const message = `it answered "${answer.kind}" while ${state.phase}, which the protocol does not allow`;
    return then(expel(config, state, device, message), (next) => afterLoss(config, next));
  }
  const waitingFor = state.waitingFor.filter((name) => name !== device);
  const [next, effects] = absorb(config, { ...state, waitingFor }, device, answer);
  return then([next, effects], (after) =>
    after.phase === state.phase && after.waitingFor.length === 0 ? advance(config, after) : undefined,
  );
}

function absorb(config: MachineConfig, state: MachineState, device: string, answer: Answer): Step {
  switch (answer.kind) {
    case 'ready': {
      const members = state.members.map((member) =>
        member.name === device ? { ...member, listenUrl: answer.listenUrl } : member,
      );
      return [{ ...state, members }, []];
    }
    case 'measured':
      return [state, [{ kind: 'links-measured', device, links: answer.links }]];
    case 'profiled':
      return [state, [{ kind: 'profiled', device, profile: answer.profile }]];
    case 'prepared':
      if (answer.result.round !== state.round)
        return expel(config, state, device, `it prepared round ${answer.result.round} instead of ${state.round}`);
      return [{ ...state, prepared: { ...state.prepared, [device]: answer.result } }, []];
    case 'snapshot-end':
      if (answer.round !== state.round)
        return expel(config, state, device, `it sent the weights of round ${answer.round} instead of ${state.round}`);
      return [state, []];
    default:
      return [state, []];
  }
}

/** Every member has answered: the next step. */
function advance(config: MachineConfig, state: MachineState): Step {
  const members = fullMembers(state);
  switch (state.phase) {
    case 'preparing':
      return enter(
        state,
        'connecting',
        members.map(({ name }) => ({ kind: 'send-peers', device: name, members })),
      );
    case 'connecting':
      return config.planGiven ? startPlanning(state) : measure(config, state, 0);
    case 'measuring':
      return measure(config, state, state.measurerIndex + 1);
    case 'profiling':
      return startPlanning(state);
    case 'deploying':
      return established(config, state);
    case 'training':
      return commit(config, state);
    case 'snapshotting':
      // A checkpoint of this round that was asked for before a loss may have been written meanwhile.
      return state.checkpointRound === state.round
        ? goOn(config, state, [])
        : [state, [{ kind: 'write-checkpoint', round: state.round }]];
    default:
      return [state, []];
  }
}

/** Links are measured by one member after the other, so that measurements do not disturb each other; each pair once. */
function measure(config: MachineConfig, state: MachineState, measurerIndex: number): Step {
  const members = fullMembers(state);
  const measurer = members[measurerIndex];
  const peers = members.slice(measurerIndex + 1).map(({ name }) => name);
  if (measurer === undefined || peers.length === 0) return startProfiling(config, state);
  const effects: MachineEffect[] = state.phase === 'measuring' ? [] : [{ kind: 'phase', phase: 'measuring' }];
  effects.push({ kind: 'send', device: measurer.name, message: 'measure', control: { peers } });
  return [{ ...state, phase: 'measuring', measurerIndex, waitingFor: [measurer.name] }, effects];
}

/** All members profile at once: devices that share a machine then see each other's load, as they will in training. */
function startProfiling(config: MachineConfig, state: MachineState): Step {
  const control = { batchSizes: config.batchSizesToProfile };
  return enter(
    state,
    'profiling',
    fullMembers(state).map(({ name }) => ({ kind: 'send', device: name, message: 'profile', control })),
  );
}

function startPlanning(state: MachineState): Step {
  const devices = fullMembers(state).map(({ name }) => name);
  return [
    { ...state, phase: 'planning', waitingFor: [] },
    [
      { kind: 'phase', phase: 'planning' },
      { kind: 'plan', devices, lost: [] },
    ],
  ];
}

function planned(
  config: MachineConfig,
  state: MachineState,
  { plan, copyEvery }: Extract<MachineInput, { kind: 'planned' }>,
): Step {
  assert(state.phase === 'planning', 'a plan comes while planning');
  return relayout(config, { ...state, copyEvery }, plan);
}

/** A better layout is taken at the next boundary between rounds; in any other phase than training it comes too late. */
function proposed(config: MachineConfig, state: MachineState, { plan, change, copyEvery }: Proposal): Step {
  const present = new Set(fullMembers(state).map(({ name }) => name));
  const isPossible = plan.stages.every(({ devices }) => devices.every((device) => present.has(device)));
  if (!isPossible || (state.phase !== 'training' && state.phase !== 'snapshotting')) return [state, []];
  return goOnIfIdle(config, { ...state, proposal: { plan, change, copyEvery } });
}

/**
 * Nothing is granted beyond the round that is next and nobody computes: goes on at once. Otherwise the rounds in
 * progress come first.
 */
function goOnIfIdle(config: MachineConfig, state: MachineState): Step {
  return state.phase === 'training' && state.round > state.grantedRound ? goOn(config, state, []) : [state, []];
}

/** The layout stands: all of its devices can begin a round. */
function established(config: MachineConfig, state: MachineState): Step {
  const plan = defined(state.pending, 'a layout to establish');
  const { change } = state;
  const stands: MachineState = {
    ...state,
    phase: 'training',
    plan,
    pending: undefined,
    change: undefined,
    drained: change?.drained,
    replication: undefined,
    replicatedRound: undefined,
  };
  const effects: MachineEffect[] = [{ kind: 'phase', phase: 'training' }];
  if (change !== undefined) effects.push({ kind: 'changed', change, round: state.round });
  const [settled, releases] = state.isSettled ? settle(config, stands) : [stands, []];
  const [next, welcomes] = startQueued(settled);
  return goOn(config, next, [...effects, ...releases, ...welcomes]);
}

/** All devices of the layout have all of their state: what it came from is no longer needed for it. */
function settle(config: MachineConfig, state: MachineState): Step {
  const { drained } = state;
  const dismissals: MachineEffect[] =
    drained === undefined ? [] : [{ kind: 'dismiss', device: drained, reason: 'the device was drained' }];
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
  return isBoundary(config, round) && round > checkpointRound;
}

/**
 * All members are at `state.round` and nothing is granted: a checkpoint, the end, another layout, or the next round.
 */
function goOn(config: MachineConfig, state: MachineState, before: readonly MachineEffect[]): Step {
  const { round, checkpointRound = config.firstRound, stopRequested, proposal } = state;
  if (round > checkpointRound && (stopRequested || isBoundary(config, round))) return snapshot(state, before);
  if (stopRequested || round >= config.endRound) return finish(state, before);
  if (proposal !== undefined) {
    const [next, effects] = relayout(
      config,
      { ...state, proposal: undefined, change: proposal.change, copyEvery: proposal.copyEvery },
      proposal.plan,
    );
    return [next, [...before, ...effects]];
  }
  const isCopied = isCopyDue(config, state, round);
  const [fed, feeds] = feed(state, round);
  const effects: MachineEffect[] = [...before, ...feeds, ...grant(config, state, round, isCopied)];
  return proceed(config, { ...fed, grantedRound: round, ...copying(state, round, isCopied) }, effects);
}

/** Data are sent once, also where the round has to wait for a checkpoint. */
function feed(state: MachineState, round: number): Step {
  return round <= state.fedRound ? [state, []] : [{ ...state, fedRound: round }, [{ kind: 'feed', round }]];
}

/** Lets the devices of the layout begin a round. */
function grant(config: MachineConfig, state: MachineState, round: number, replicate: boolean): MachineEffect[] {
  const control = { round, learningRate: config.learningRate(round), replicate };
  return activeDevices(state).map((device): MachineEffect => ({ kind: 'send', device, message: 'round', control }));
}

/**
 * Waits for round `state.round`, which has been granted; grants and feeds one round ahead unless training pauses or
 * stops before it.
 */
function proceed(config: MachineConfig, state: MachineState, effects: readonly MachineEffect[]): Step {
  const ahead = state.round + 1;
  const waiting: MachineState = { ...state, phase: 'training', waitingFor: activeDevices(state), prepared: {} };
  if (ahead >= config.endRound || state.stopRequested || state.proposal !== undefined) return [waiting, effects];
  const [next, feeds] = feed(waiting, ahead);
  if (isPause(config, state, ahead)) return [next, [...effects, ...feeds]];
  const isCopied = isCopyDue(config, state, ahead);
  const granted = { ...next, grantedRound: ahead, ...copying(next, ahead, isCopied) };
  return [granted, [...effects, ...grant(config, state, ahead, isCopied), ...feeds]];
}

/** All members hold the round's gradients: the round commits on all of them, unless a number in it is not finite. */
function commit(config: MachineConfig, state: MachineState): Step {
  const { round, prepared } = state;
  const results = Object.values(prepared);
  if (results.some((result) => !result.finite)) {
    return fail(
      state,
      `the loss or a gradient of round ${round} is not a finite number: lower the learning rate (--lr) or clip gradients (--clip-norm)`,
    );
  }
  const gradientScale = config.gradientScale(sum(results, (result) => result.squaredNorm));
  const commits = activeDevices(state).map(
    (device): MachineEffect => ({ kind: 'send', device, message: 'commit', control: { round, gradientScale } }),
  );
  const [settled, releases] = state.isSettled ? [state, []] : settle(config, state);
  const next = {
    ...settled,
    round: round + 1,
    recordedRound: Math.max(state.recordedRound, round + 1),
    brokenLinks: {},
  };
  const recorded =
    round < state.recordedRound ? ({ kind: 'repeated', round } as const) : record(config, state, results);
  const effects = [...commits, ...releases, recorded];
  return next.round > next.grantedRound ? goOn(config, next, effects) : proceed(config, next, effects);
}

function record(
  config: MachineConfig,
  { round, prepared }: MachineState,
  results: readonly RoundResult[],
): MachineEffect {
  return {
    kind: 'committed',
    round,
    loss: sum(results, (result) => result.lossSum) / config.batchSize,
    correctCount: sum(results, (result) => result.correctCount),
    results: prepared,
    learningRate: config.learningRate(round),
  };
}

/** Asks one device of each stage for its weights after `state.round` committed rounds, and all for their statistics. */
function snapshot(state: MachineState, before: readonly MachineEffect[]): Step {
  const owners = new Set(defined(state.plan, 'the plan').stages.map((stage) => stage.devices[0]));
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
function afterCheckpoint(config: MachineConfig, state: MachineState, round: number): Step {
  const next = { ...state, checkpointRound: Math.max(round, state.checkpointRound ?? round) };
  const isAwaited = state.phase === 'snapshotting' && state.round === round && state.waitingFor.length === 0;
  if (!isAwaited) return [next, []];
  return goOn(config, next, []);
}

function finish(
  state: MachineState,
  before: readonly MachineEffect[],
  round = state.round,
  isStopped = state.stopRequested,
): Step {
  const reason = isStopped ? 'the run was stopped' : 'the run is done';
  const ends = state.members.map(
    ({ name }): MachineEffect => ({ kind: 'send', device: name, message: 'end', control: { reason } }),
  );
  return [{ ...state, phase: 'ended' }, [...before, ...ends, { kind: 'finish', round, stopped: isStopped }]];
}

/** A stop: at once while nothing is being trained; otherwise after the rounds that members may have begun already. */
function stop(state: MachineState): Step {
  const isTraining = state.plan !== undefined || state.pending !== undefined || state.change !== undefined;
  if (isTraining && state.phase !== 'waiting') return [{ ...state, stopRequested: true }, []];
  return finish(state, [], state.checkpointRound ?? state.round, true);
}

function sum(results: readonly RoundResult[], value: (result: RoundResult) => number): number {
  return results.reduce((total, result) => total + value(result), 0);
}
