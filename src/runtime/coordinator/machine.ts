// The coordinator's protocol as a state machine without I/O: (state, input) → [state, effects]. The real process
// (coordinator.ts), the rehearsal and tests drive it; time and tensors stay outside.
//
//   gathering ─ all joined ─▶ preparing ─ all ready ─▶ connecting ─▶ measuring ─▶ profiling ─▶ planning ─▶ deploying
//        ─▶ training ─ every k rounds ─▶ snapshotting ─▶ training … ─▶ ended
//                 └─ a device is lost, or a better layout is found ─▶ planning ─▶ deploying ─▶ training …
//
// Each step waits for the answer of every member. Rounds are in rounds.ts, newcomers in joiners.ts, copies in
// replication.ts. A lost device does not end the run: all return to the last round after which every layer has a holder
// (changes.ts), and resume there in a new layout.

import { assert, defined } from '../../assert.ts';
import { scheduleOf } from '../../schedule/schedules.ts';
import type { Phase } from '../protocol/events.ts';
import type { Proposal } from '../protocol/layout-change.ts';
import { confirmedAlive, expel, lost, overdue, relayout, suspected, wantsToLeave } from './changes.ts';
import { cooled, joinerAnswered, joinLater, startQueued } from './joiners.ts';
import type { Answer, MachineConfig, MachineEffect, MachineInput, MachineState, Step } from './machine-types.ts';
import { fail, fullMembers } from './members.ts';
import { askForProfiles, linksMeasured, measuresOnePair, peersToMeasure, profiled } from './profiling.ts';
import { copied } from './replication.ts';
import {
  afterCheckpoint,
  finish,
  flushed,
  goOn,
  goOnIfIdle,
  offered,
  prepared,
  scaleLearningRate,
  settle,
} from './rounds.ts';

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
    offeredRounds: config.awaitsOffers === true ? config.firstRound : Number.POSITIVE_INFINITY,
    endRound: config.endRound,
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
  return state.phase === 'ended' ? [state, []] : flushed(config, transition(config, state, input));
}

function transition(config: MachineConfig, state: MachineState, input: MachineInput): Step {
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
    case 'offered':
      return offered(config, state, input);
    case 'overdue':
      return overdue(state, input.seconds);
    case 'stop':
      return stop(config, state);
    case 'learning-rate-scaled':
      return scaleLearningRate(state, input.factor);
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
  { device, likeness, isCooling = false }: Extract<MachineInput, { kind: 'joined' }>,
): Step {
  if (state.members.some((member) => member.name === device)) {
    return [
      state,
      [{ kind: 'send', device, message: 'end', control: { reason: `another device is called ${device}` } }],
    ];
  }
  if (state.phase !== 'gathering' && state.phase !== 'waiting') return joinLater(state, device, isCooling);
  const members = [...state.members, { name: device, listenUrl: '', ...(likeness === undefined ? {} : { likeness }) }];
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
  snapshotting: 'snapshot-end',
};

function answered(config: MachineConfig, state: MachineState, device: string, answer: Answer): Step {
  switch (answer.kind) {
    case 'failed':
      return then(expel(config, state, device, answer.message), (next) => afterLoss(config, next));
    case 'lost-peer':
      // A peer that broke the protocol is expelled; one whose link ended is asked whether it lives.
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
  return stepAnswered(config, state, device, answer) ?? outOfTurn(config, state, device, answer);
}

/** The answer that the phase waits for; undefined: nobody waits for it. */
function stepAnswered(config: MachineConfig, state: MachineState, device: string, answer: Answer): Step | undefined {
  if (answer.kind === 'prepared')
    return state.phase === 'training' ? prepared(config, state, device, answer.result) : undefined;
  if (answerOf[state.phase] !== answer.kind || !state.waitingFor.includes(device)) return undefined;
  const waitingFor = state.waitingFor.filter((name) => name !== device);
  return then(absorb(config, { ...state, waitingFor }, device, answer), (after) =>
    after.phase === state.phase && after.waitingFor.length === 0 ? advance(config, after) : undefined,
  );
}

function outOfTurn(config: MachineConfig, state: MachineState, device: string, answer: Answer): Step {
  const message = `it answered "${answer.kind}" while ${state.phase}, which the protocol does not allow`;
  return then(expel(config, state, device, message), (next) => afterLoss(config, next));
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
      return [state, linksMeasured(config, fullMembers(state), device, answer.links)];
    case 'profiled':
      return profiled(config, state, device, answer);
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
    case 'profiling': {
      // Who was to measure for others may have been lost.
      const [next, effects] = askForProfiles(config, state);
      return next.waitingFor.length > 0 ? [next, effects] : startPlanning(state);
    }
    case 'deploying':
      return established(config, state);
    case 'snapshotting':
      // A checkpoint of this round that was asked for before a loss may have been written meanwhile.
      return state.checkpointRound === state.round
        ? goOn(config, state, [])
        : [{ ...state, collectedRound: state.round }, [{ kind: 'write-checkpoint', round: state.round }]];
    default:
      return [state, []];
  }
}

/** Links are measured by one member after the other, so that measurements do not disturb each other; each pair once. */
function measure(config: MachineConfig, state: MachineState, measurerIndex: number): Step {
  const members = fullMembers(state);
  const measurer = members[measurerIndex];
  const peers = measurer === undefined ? [] : peersToMeasure(config, members, measurerIndex);
  if (measurer === undefined || peers.length === 0) return askForProfiles(config, state);
  const effects: MachineEffect[] = state.phase === 'measuring' ? [] : [{ kind: 'phase', phase: 'measuring' }];
  const control = { peers, ...(measuresOnePair(config, members) ? { isBrief: true } : {}) };
  effects.push({ kind: 'send', device: measurer.name, message: 'measure', control });
  return [{ ...state, phase: 'measuring', measurerIndex, waitingFor: [measurer.name] }, effects];
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
  if (scheduleOf(plan.schedule).isStream) effects.push({ kind: 'stream-begins', plan, round: state.round });
  const [settled, releases] = state.isSettled ? settle(config, stands) : [stands, []];
  const [next, welcomes] = startQueued(settled);
  return goOn(config, next, [...effects, ...releases, ...welcomes]);
}

/** A stop: at once while nothing is being trained; otherwise after the rounds that members may have begun already. */
function stop(config: MachineConfig, state: MachineState): Step {
  const isTraining = state.plan !== undefined || state.pending !== undefined || state.change !== undefined;
  if (isTraining && state.phase !== 'waiting') return goOnIfIdle(config, { ...state, stopRequested: true });
  return finish(state, [], state.checkpointRound ?? state.round, true);
}
