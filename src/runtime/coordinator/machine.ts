// The coordinator's protocol as a state machine without I/O: (state, input) → [state, effects]. The real process (coordinator.ts) and tests drive
// it; time and tensors stay outside.
//
//   gathering ─ all joined ─▶ preparing ─ all ready ─▶ connecting ─▶ measuring ─▶ profiling ─▶ planning ─▶ deploying
//        ─▶ training ─ every k rounds ─▶ snapshotting ─▶ training … ─▶ ended
//
// Each step waits for the answer of every member. A round commits on all devices or on none: when all have prepared, all are told to commit. Members may
// go on with the next round meanwhile (they keep the state before until they hear of the commit), but never prepare it before.
//
//   coordinator   round 0, round 1        commit 0, round 2        commit 1, round 3
//   member              ├─ compute 0 ─ prepared 0 ─┼─ compute 1 ─ prepared 1 ─┼─ compute 2 …

import { assert, defined } from '../../assert.ts';
import type { Plan } from '../../cluster/cluster.ts';
import type { LinkMeasurement, RoundResult, ToCoordinator, ToWorker } from '../messages.ts';

export type Phase =
  | 'gathering'
  | 'preparing'
  | 'connecting'
  | 'measuring'
  | 'profiling'
  | 'planning'
  | 'deploying'
  | 'training'
  | 'snapshotting'
  | 'ended';

/** What does not change during a run. */
export interface MachineConfig {
  readonly workerCount: number;
  readonly firstRound: number;
  /** Rounds [firstRound, endRound). */
  readonly endRound: number;
  /** A checkpoint after every so many rounds, and at the end. */
  readonly checkpointEvery: number;
  /** Further checkpoints after every so many rounds: where the run is tested. Absent: none. */
  readonly evaluateEvery?: number;
  readonly batchSize: number;
  readonly batchSizesToProfile: readonly number[];
  /** True when the plan is given: nothing is measured. */
  readonly planGiven: boolean;
  learningRate(round: number): number;
  /** The gradient scale for a global squared norm (clipping), 1 without. */
  gradientScale(squaredNorm: number): number;
}

export interface Member {
  readonly name: string;
  /** Where its peers reach it; '' until it is ready. */
  readonly listenUrl: string;
}

export interface MachineState {
  readonly phase: Phase;
  readonly epoch: number;
  readonly members: readonly Member[];
  /** Members whose answer to the current step is outstanding. */
  readonly waitingFor: readonly string[];
  /** Whose turn it is to measure its links. */
  readonly measurerIndex: number;
  readonly plan: Plan | undefined;
  /** The round in progress, or the next one. */
  readonly round: number;
  /** The last round that members may begin. */
  readonly grantedRound: number;
  readonly prepared: Readonly<Record<string, RoundResult>>;
  readonly checkpointRound: number | undefined;
  readonly stopRequested: boolean;
}

export type MachineInput =
  | { readonly kind: 'joined'; readonly device: string }
  | { readonly kind: 'left'; readonly device: string; readonly reason: string }
  | { readonly kind: 'answer'; readonly device: string; readonly answer: Answer }
  | { readonly kind: 'planned'; readonly plan: Plan }
  | { readonly kind: 'checkpointed'; readonly round: number }
  | { readonly kind: 'stop' };

/** The parts of a worker's messages that the protocol depends on. */
export type Answer =
  | { readonly kind: 'ready'; readonly listenUrl: string }
  | { readonly kind: 'connected' }
  | { readonly kind: 'measured'; readonly links: readonly LinkMeasurement[] }
  | { readonly kind: 'profiled'; readonly profile: ToCoordinator['profiled'] }
  | { readonly kind: 'deployed' }
  | { readonly kind: 'prepared'; readonly result: RoundResult }
  | { readonly kind: 'snapshot-end'; readonly round: number }
  | { readonly kind: 'failed'; readonly message: string };

export type MachineEffect =
  | {
      [Kind in keyof ToWorker]: {
        readonly kind: 'send';
        readonly device: string;
        readonly message: Kind;
        readonly control: ToWorker[Kind];
      };
    }['measure' | 'profile' | 'round' | 'commit' | 'snapshot' | 'end']
  /** Send the model (the shell holds its bytes). */
  | { readonly kind: 'send-model'; readonly device: string }
  | { readonly kind: 'send-peers'; readonly device: string; readonly members: readonly Member[] }
  | { readonly kind: 'links-measured'; readonly device: string; readonly links: readonly LinkMeasurement[] }
  | { readonly kind: 'profiled'; readonly device: string; readonly profile: ToCoordinator['profiled'] }
  /** Compute a plan for these devices; answer with 'planned'. */
  | { readonly kind: 'plan'; readonly devices: readonly string[] }
  /** Send the plan and each device's state. */
  | { readonly kind: 'deploy'; readonly plan: Plan; readonly epoch: number; readonly step: number }
  /** Send a round's inputs and labels; never more than one round ahead. */
  | { readonly kind: 'feed'; readonly round: number }
  | {
      readonly kind: 'committed';
      readonly round: number;
      readonly loss: number;
      readonly correctCount: number;
      readonly results: Readonly<Record<string, RoundResult>>;
      readonly learningRate: number;
    }
  /** All weights of `round` committed rounds have arrived: write them. */
  | { readonly kind: 'write-checkpoint'; readonly round: number }
  | { readonly kind: 'phase'; readonly phase: Phase }
  | { readonly kind: 'finish'; readonly round: number; readonly stopped: boolean }
  | { readonly kind: 'fail'; readonly message: string };

type Step = readonly [MachineState, readonly MachineEffect[]];

/** The state before anyone has joined. */
export function initialState(config: MachineConfig): MachineState {
  return {
    phase: 'gathering',
    epoch: 0,
    members: [],
    waitingFor: [],
    measurerIndex: 0,
    plan: undefined,
    round: config.firstRound,
    grantedRound: config.firstRound - 1,
    prepared: {},
    checkpointRound: config.firstRound > 0 ? config.firstRound : undefined,
    stopRequested: false,
  };
}

/** One transition. Inputs that come too late (after the end, from a device that is gone) change nothing. */
export function step(config: MachineConfig, state: MachineState, input: MachineInput): Step {
  if (state.phase === 'ended') return [state, []];
  switch (input.kind) {
    case 'joined':
      return joined(config, state, input.device);
    case 'left':
      return left(state, input.device, input.reason);
    case 'answer':
      return state.members.some((member) => member.name === input.device)
        ? answered(config, state, input.device, input.answer)
        : [state, []];
    case 'planned':
      return planned(state, input.plan);
    case 'checkpointed':
      return afterCheckpoint(config, { ...state, checkpointRound: input.round });
    case 'stop':
      return stop(state);
  }
}

function joined(config: MachineConfig, state: MachineState, device: string): Step {
  if (state.phase !== 'gathering' || state.members.some((member) => member.name === device)) {
    return [state, [{ kind: 'send', device, message: 'end', control: { reason: 'the run has all the workers that it asked for' } }]];
  }
  const members = [...state.members, { name: device, listenUrl: '' }];
  const next = { ...state, members, epoch: state.epoch + 1 };
  if (members.length < config.workerCount) return [next, []];
  // By name, not by arrival: the same devices then always get the same plan.
  members.sort((a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }));
  return enter(
    next,
    'preparing',
    members.map(({ name }) => ({ kind: 'send-model', device: name })),
  );
}

function left(state: MachineState, device: string, reason: string): Step {
  if (!state.members.some((member) => member.name === device)) return [state, []];
  const members = state.members.filter((member) => member.name !== device);
  const next = { ...state, members, epoch: state.epoch + 1 };
  if (state.phase === 'gathering') return [next, []];
  return fail(next, `${device} left ${whereText(state)} (${reason})`);
}

function whereText(state: MachineState): string {
  return state.phase === 'training' || state.phase === 'snapshotting' ? `in round ${state.round}` : `while ${state.phase}`;
}

function fail(state: MachineState, message: string): Step {
  const effects = state.members.map(
    ({ name }): MachineEffect => ({ kind: 'send', device: name, message: 'end', control: { reason: message } }),
  );
  return [{ ...state, phase: 'ended' }, [...effects, { kind: 'fail', message }]];
}

/** Enters a phase in which every member owes an answer. */
function enter(state: MachineState, phase: Phase, effects: readonly MachineEffect[]): Step {
  const waitingFor = state.members.map(({ name }) => name);
  return [{ ...state, phase, waitingFor }, [{ kind: 'phase', phase }, ...effects]];
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
  if (answer.kind === 'failed') return fail(state, `${device} cannot go on: ${answer.message}`);
  if (answerOf[state.phase] !== answer.kind || !state.waitingFor.includes(device)) {
    return fail(state, `${device} answered "${answer.kind}" while ${state.phase}, which the protocol does not allow`);
  }
  const waitingFor = state.waitingFor.filter((name) => name !== device);
  const [next, effects] = absorb({ ...state, waitingFor }, device, answer);
  if (next.phase === 'ended' || waitingFor.length > 0) return [next, effects];
  const [after, more] = advance(config, next);
  return [after, [...effects, ...more]];
}

function absorb(state: MachineState, device: string, answer: Answer): Step {
  switch (answer.kind) {
    case 'ready':
      return [
        {
          ...state,
          members: state.members.map((member) => (member.name === device ? { ...member, listenUrl: answer.listenUrl } : member)),
        },
        [],
      ];
    case 'measured':
      return [state, [{ kind: 'links-measured', device, links: answer.links }]];
    case 'profiled':
      return [state, [{ kind: 'profiled', device, profile: answer.profile }]];
    case 'prepared':
      if (answer.result.round !== state.round)
        return fail(state, `${device} prepared round ${answer.result.round} instead of ${state.round}`);
      return [{ ...state, prepared: { ...state.prepared, [device]: answer.result } }, []];
    case 'snapshot-end':
      if (answer.round !== state.round) return fail(state, `${device} sent the weights of round ${answer.round} instead of ${state.round}`);
      return [state, []];
    default:
      return [state, []];
  }
}

/** Every member has answered: the next step. */
function advance(config: MachineConfig, state: MachineState): Step {
  const { members } = state;
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
      return startRound(config, { ...state, phase: 'training' }, [
        { kind: 'phase', phase: 'training' },
        { kind: 'feed', round: state.round },
      ]);
    case 'training':
      return commit(config, state);
    case 'snapshotting':
      return [state, [{ kind: 'write-checkpoint', round: state.round }]];
    default:
      return [state, []];
  }
}

/** Links are measured by one member after the other, so that measurements do not disturb each other; each pair once. */
function measure(config: MachineConfig, state: MachineState, measurerIndex: number): Step {
  const measurer = state.members[measurerIndex];
  const peers = state.members.slice(measurerIndex + 1).map(({ name }) => name);
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
    state.members.map(({ name }) => ({ kind: 'send', device: name, message: 'profile', control })),
  );
}

function startPlanning(state: MachineState): Step {
  const devices = state.members.map(({ name }) => name);
  return [
    { ...state, phase: 'planning', waitingFor: [] },
    [
      { kind: 'phase', phase: 'planning' },
      { kind: 'plan', devices },
    ],
  ];
}

/** Members that the plan leaves out are released. */
function planned(state: MachineState, plan: Plan): Step {
  assert(state.phase === 'planning', 'a plan comes while planning');
  const used = new Set(plan.stages.flatMap((stage) => stage.devices));
  const unused = state.members.filter(({ name }) => !used.has(name));
  const members = state.members.filter(({ name }) => used.has(name));
  assert(members.length === used.size, 'the plan uses members only');
  const releases = unused.map(
    ({ name }): MachineEffect => ({
      kind: 'send',
      device: name,
      message: 'end',
      control: { reason: 'the plan is faster without this device' },
    }),
  );
  const next: MachineState = { ...state, members, plan, epoch: state.epoch + 1 };
  return enter(next, 'deploying', [...releases, { kind: 'deploy', plan, epoch: next.epoch, step: state.round }]);
}

/** True when training pauses after `round` committed rounds, for a checkpoint or the end. */
export function isBoundary({ endRound, checkpointEvery, evaluateEvery }: MachineConfig, round: number): boolean {
  return round >= endRound || round % checkpointEvery === 0 || (evaluateEvery !== undefined && round % evaluateEvery === 0);
}

/** Lets all members begin a round. */
function grant(config: MachineConfig, { members }: MachineState, round: number): MachineEffect[] {
  const control = { round, learningRate: config.learningRate(round) };
  return members.map(({ name }): MachineEffect => ({ kind: 'send', device: name, message: 'round', control }));
}

/** Starts round `state.round` after a pause. */
function startRound(config: MachineConfig, state: MachineState, before: readonly MachineEffect[]): Step {
  const effects = [...before, ...grant(config, state, state.round)];
  return proceed(config, { ...state, grantedRound: state.round }, effects);
}

/** Waits for round `state.round`, which has been granted; grants and feeds one round ahead unless training pauses or stops before it. */
function proceed(config: MachineConfig, state: MachineState, effects: readonly MachineEffect[]): Step {
  const ahead = state.round + 1;
  const waitingFor = state.members.map(({ name }) => name);
  const next: MachineState = { ...state, phase: 'training', waitingFor, prepared: {} };
  if (ahead >= config.endRound || state.stopRequested) return [next, effects];
  const feed: MachineEffect = { kind: 'feed', round: ahead };
  if (isBoundary(config, ahead)) return [next, [...effects, feed]];
  return [{ ...next, grantedRound: ahead }, [...effects, ...grant(config, state, ahead), feed]];
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
  const commits = state.members.map(
    ({ name }): MachineEffect => ({ kind: 'send', device: name, message: 'commit', control: { round, gradientScale } }),
  );
  const record: MachineEffect = {
    kind: 'committed',
    round,
    loss: sum(results, (result) => result.lossSum) / config.batchSize,
    correctCount: sum(results, (result) => result.correctCount),
    results: prepared,
    learningRate: config.learningRate(round),
  };
  const next = { ...state, round: round + 1 };
  const effects = [...commits, record];
  if (next.round > next.grantedRound) return snapshot(next, effects);
  return proceed(config, next, effects);
}

/** Asks one device of each stage for its weights after `state.round` committed rounds, and all for their statistics. */
function snapshot(state: MachineState, before: readonly MachineEffect[]): Step {
  const owners = new Set(defined(state.plan, 'the plan').stages.map((stage) => stage.devices[0]));
  const waitingFor = state.members.map(({ name }) => name);
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

function afterCheckpoint(config: MachineConfig, state: MachineState): Step {
  if (state.phase !== 'snapshotting') return [state, []];
  if (state.round >= config.endRound || state.stopRequested) return finish(state, state.round < config.endRound);
  return startRound(config, state, []);
}

function finish(state: MachineState, isStopped: boolean): Step {
  const reason = isStopped ? 'the run was stopped' : 'the run is done';
  const ends = state.members.map(({ name }): MachineEffect => ({ kind: 'send', device: name, message: 'end', control: { reason } }));
  return [{ ...state, phase: 'ended' }, [...ends, { kind: 'finish', round: state.round, stopped: isStopped }]];
}

/** A stop: at once while nothing is being trained; otherwise after the rounds that members may have begun already. */
function stop(state: MachineState): Step {
  if (state.phase === 'training' || state.phase === 'snapshotting') return [{ ...state, stopRequested: true }, []];
  return finish(state, true);
}

function sum(results: readonly RoundResult[], value: (result: RoundResult) => number): number {
  return results.reduce((total, result) => total + value(result), 0);
}
