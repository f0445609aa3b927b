// What goes into the coordinator's state machine and what comes out: plain data (machine.ts has the transitions).

import type { Plan } from '../../cluster/cluster.ts';
import type { Delivery, Move } from '../../planner/replan/moves.ts';
import type { Phase } from '../protocol/events.ts';
import type { Change, Proposal } from '../protocol/layout-change.ts';
import type { LinkMeasurement, RoundResult, ToCoordinator, ToWorker } from '../protocol/messages.ts';
import type { Thoroughness } from '../protocol/profile-points.ts';
import type { RoundBatches } from '../protocol/round-batch.ts';
import type { Holding } from './holdings.ts';

/** What does not change during a run. */
export interface MachineConfig extends RoundBatches {
  readonly workerCount: number;
  readonly firstRound: number;
  /** Rounds [firstRound, endRound). */
  readonly endRound: number;
  /** Rounds between checkpoints; there is one at the end, too. */
  readonly checkpointEvery: number;
  /** Rounds between further checkpoints, at which the run is tested. Absent: none. */
  readonly evaluateEvery?: number;
  /**
   * Rounds that are granted beyond the oldest that has not committed; devices may prepare as many before it commits.
   * Default: as many as the plan needs (`commitWindow`); 1 where rounds follow each other: they compute one round ahead
   * and prepare it after the commit.
   */
  readonly window?: number;
  readonly batchSizesToProfile: readonly number[];
  /** Default: full. */
  readonly thoroughness?: Thoroughness;
  /**
   * Bytes of each layer's state, by which devices that hold the same layers share what they send. Absent: all layers
   * are alike.
   */
  readonly layerBytes?: readonly number[];
  /** True when the plan is given: nothing is measured. */
  readonly planGiven: boolean;
  /**
   * Rounds between copies of single-device stages to another device, at least; 0: never. Default: as often as it costs
   * little by the plan.
   */
  readonly replicateEvery?: number;
  /** Copies are due where the number of rounds is a multiple, besides once for each layout. Default false. */
  readonly replicatesAtMultiples?: boolean;
  /**
   * The state never changes, as in a run that only infers: whoever holds layers after some rounds holds them after all
   * others, and the coordinator has what nobody holds. There are no checkpoints. Default false.
   */
  readonly isStateConstant?: boolean;
  /** Rounds begin only when they are offered (`MachineInput`). Default false: all are there from the beginning. */
  readonly awaitsOffers?: boolean;
  /** When all devices are gone: wait for others. Default false: the run ends. */
  readonly waitForDevices?: boolean;
  learningRate(round: number): number;
  /** The gradient scale for the squared norm of the mean's gradient (clipping), 1 without. */
  gradientScale(squaredNorm: number): number;
}

/**
 * Steps that a device which came during the run has before it. 'cooling': until it has stayed for a while; 'queued':
 * until the others train.
 */
export type JoinStep = 'cooling' | 'queued' | 'preparing' | 'connecting' | 'measuring' | 'profiling';

export interface Member {
  readonly name: string;
  /** Where its peers reach it; '' until it is ready. */
  readonly listenUrl: string;
  /** Undefined for those who may be given work. */
  readonly joining?: JoinStep;
  /** Equal for devices of one machine that nothing tells apart. Absent: unlike all others. */
  readonly likeness?: string;
  /** It, or one like it, has measured the model. */
  readonly isProfiled?: boolean;
}

/** A factor of the learning rate from round `round` on. */
export interface RateFactor {
  readonly round: number;
  readonly factor: number;
}

/** A copy on its way to a device. */
export interface AwaitedCopy {
  readonly device: string;
  readonly layers: readonly [first: number, end: number];
}

export interface MachineState {
  readonly phase: Phase;
  /** Bumped by each change of members or layout; frames of another epoch are late ones. */
  readonly epoch: number;
  readonly members: readonly Member[];
  /** Members whose answer to the current step is outstanding. */
  readonly waitingFor: readonly string[];
  /** Whose turn it is to measure its links. */
  readonly measurerIndex: number;
  /** The layout that stands: its devices hold their layers after `round` rounds, once it is settled. */
  readonly plan: Plan | undefined;
  /**
   * False from a layout's beginning until its first round has committed, where state travels between devices: until
   * then some may wait for optimizer state, and what the layout came from is kept.
   */
  readonly isSettled: boolean;
  /** A device to be released when the layout is settled. */
  readonly drained: string | undefined;
  /** The layout that is being established. */
  readonly pending: Plan | undefined;
  /** How often the stages of the layout are copied, where the settings do not say. */
  readonly copyEvery: number;
  /** Why the layout is changing. */
  readonly change: Change | undefined;
  /** A better layout, to be taken when the rounds that were granted have committed. */
  readonly proposal: Proposal | undefined;
  /** What devices hold besides the layout that stands, until it is released. */
  readonly holdings: readonly Holding[];
  /** The copying of single-device stages that is going on. */
  readonly replication: { readonly round: number; readonly waitingFor: readonly AwaitedCopy[] } | undefined;
  /** The last round after which stages were copied, or began to be. */
  readonly replicatedRound: number | undefined;
  /** The oldest round that has not committed, or the next one. */
  readonly round: number;
  /** The last round that members may begin. */
  readonly grantedRound: number;
  /** Where rounds overlap: the round before which members were last told to drain the pipeline. Absent: none. */
  readonly flushedRound?: number;
  /** Rounds below this have data. */
  readonly offeredRounds: number;
  /** The run ends before this round; `MachineConfig.endRound` until it is known otherwise. */
  readonly endRound: number;
  /** The last round whose data were sent. */
  readonly fedRound: number;
  /** Rounds below this have been announced; they are not announced again when they are repeated after a loss. */
  readonly recordedRound: number;
  /** By round that has not committed and device: what was prepared, in the order in which it came. */
  readonly prepared: Readonly<Record<number, Readonly<Record<string, RoundResult>>>>;
  readonly checkpointRound: number | undefined;
  /** The last round whose state came for a checkpoint, be it written or not. Absent: none. */
  readonly collectedRound?: number;
  readonly stopRequested: boolean;
  /** What the learning rate is multiplied by, each from a round on, in the order of rounds. Absent: nothing. */
  readonly rateFactors?: readonly RateFactor[];
  /** A round whose loss or gradients are not finite: the run ends before it. Absent: none is known. */
  readonly notFiniteRound?: number;
  /** Links that broke between live devices, by pair, since a round last committed. */
  readonly brokenLinks: Readonly<Record<string, number>>;
  /** Devices that others have lost the link to, while they are asked whether they live. */
  readonly suspicions: readonly { readonly device: string; readonly by: string; readonly reason: string }[];
  /** What devices said that could not go on. */
  readonly failures: readonly string[];
}

export type MachineInput =
  /** `isCooling`: it has left before, and is to stay for a while before anybody goes to any trouble for it. */
  | { readonly kind: 'joined'; readonly device: string; readonly isCooling?: boolean; readonly likeness?: string }
  /** It has stayed for its cool-down. */
  | { readonly kind: 'cooled'; readonly device: string }
  | { readonly kind: 'left'; readonly device: string; readonly reason: string }
  | { readonly kind: 'answer'; readonly device: string; readonly answer: Answer }
  /** `copyEvery`: rounds between copies that cost little. */
  | { readonly kind: 'planned'; readonly plan: Plan; readonly copyEvery: number }
  /** A plan that is better than the one that runs, or does without a device that wants to leave. */
  | ({ readonly kind: 'proposed' } & Proposal)
  /** What copies cost has been seen. */
  | { readonly kind: 'copies-paced'; readonly copyEvery: number }
  | { readonly kind: 'checkpointed'; readonly round: number }
  /** Rounds below `rounds` have data. `isLast`: there will be no others. */
  | { readonly kind: 'offered'; readonly rounds: number; readonly isLast: boolean }
  /** The gradients of the oldest round in flight have not come for so long, and all devices answer. */
  | { readonly kind: 'overdue'; readonly seconds: number }
  | { readonly kind: 'stop' }
  /** From the next round that nobody has begun on, the learning rate is `factor` times the schedule's. */
  | { readonly kind: 'learning-rate-scaled'; readonly factor: number }
  /** Nobody has come for as long as the run waits for devices. */
  | { readonly kind: 'gave-up' };

/** The parts of a worker's messages that the protocol depends on. */
export type Answer =
  | { readonly kind: 'ready'; readonly listenUrl: string }
  | { readonly kind: 'connected' }
  | { readonly kind: 'measured'; readonly links: readonly LinkMeasurement[] }
  | { readonly kind: 'profiled'; readonly profile: ToCoordinator['profiled'] }
  | { readonly kind: 'deployed' }
  | { readonly kind: 'prepared'; readonly result: RoundResult }
  | { readonly kind: 'snapshot-end'; readonly round: number }
  | { readonly kind: 'replicated'; readonly round: number; readonly layers: readonly [number, number] }
  | { readonly kind: 'lost-peer'; readonly peer: string; readonly reason: string; readonly isFault: boolean }
  | { readonly kind: 'alive' }
  | { readonly kind: 'leaving' }
  | { readonly kind: 'failed'; readonly message: string };

export type MachineEffect =
  | {
      [Kind in keyof ToWorker]: {
        readonly kind: 'send';
        readonly device: string;
        readonly message: Kind;
        readonly control: ToWorker[Kind];
      };
    }['measure' | 'profile' | 'round' | 'flush' | 'commit' | 'snapshot' | 'release' | 'probe' | 'gone' | 'end']
  /** Send the model (the shell holds its bytes). */
  | { readonly kind: 'send-model'; readonly device: string }
  | { readonly kind: 'send-peers'; readonly device: string; readonly members: readonly Member[] }
  | { readonly kind: 'links-measured'; readonly device: string; readonly links: readonly LinkMeasurement[] }
  | { readonly kind: 'profiled'; readonly device: string; readonly profile: ToCoordinator['profiled'] }
  /**
   * Compute a plan for these devices; answer with 'planned'. `from`: the layout that lost some of them, to be left by a
   * small change.
   */
  | {
      readonly kind: 'plan';
      readonly devices: readonly string[];
      readonly from?: Plan;
      readonly lost: readonly string[];
    }
  /**
   * These devices may be given work: look for a better plan, at leisure; answer with 'proposed' where there is one.
   * `without`: a device that wants to leave.
   */
  | { readonly kind: 'consider'; readonly devices: readonly string[]; readonly without?: string }
  /**
   * Establish a layout after `round` rounds: who has which layers, and where they get them; what comes from nobody
   * comes from the last checkpoint. `copies`: what devices have or get from copies, which are without frozen weights.
   */
  | {
      readonly kind: 'deploy';
      readonly plan: Plan;
      readonly epoch: number;
      readonly round: number;
      readonly moves: readonly Move[];
      readonly copies: readonly Delivery[];
      readonly members: readonly Member[];
    }
  /** Send a round's inputs and labels; never more than `window` rounds ahead. */
  | { readonly kind: 'feed'; readonly round: number }
  | {
      readonly kind: 'committed';
      readonly round: number;
      readonly loss: number;
      readonly correctCount: number;
      readonly results: Readonly<Record<string, RoundResult>>;
      readonly learningRate: number;
    }
  /** A round that was announced before and had to be computed again. */
  | { readonly kind: 'repeated'; readonly round: number }
  /** The layout changes: training goes back to `round`, from what `source` has. */
  | {
      readonly kind: 'changing';
      readonly change: Change;
      readonly plan: Plan;
      readonly round: number;
      readonly repeatedRounds: number;
      readonly source: 'devices' | 'checkpoint';
      readonly moves: readonly Move[];
    }
  /** A layout whose rounds overlap stands: a stream begins with the version after `round` rounds. */
  | { readonly kind: 'stream-begins'; readonly plan: Plan; readonly round: number }
  /** The new layout stands. */
  | { readonly kind: 'changed'; readonly change: Change; readonly round: number }
  /** All single-device stages have been copied, as they were after `round` rounds. */
  | { readonly kind: 'replicated'; readonly round: number }
  /** End the link to a device, which may live. */
  | { readonly kind: 'dismiss'; readonly device: string; readonly reason: string }
  | ({ readonly kind: 'learning-rate-changes' } & RateFactor)
  /** All weights of `round` committed rounds have arrived: write them. */
  | { readonly kind: 'write-checkpoint'; readonly round: number }
  | { readonly kind: 'phase'; readonly phase: Phase }
  | { readonly kind: 'finish'; readonly round: number; readonly stopped: boolean }
  /** `notFiniteRound`: in a round whose numbers are not finite. */
  | { readonly kind: 'fail'; readonly message: string; readonly notFiniteRound?: number };

export type Step = readonly [MachineState, readonly MachineEffect[]];
