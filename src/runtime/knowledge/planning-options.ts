// What the layout planner is given: the run's subject and the planner's own questions to whoever knows the settings.

import type { Clock } from '../../clock.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import type { StalenessWish } from '../../schedule/staleness.ts';
import type { Observer } from '../protocol/events.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import type { RecoveryPolicy } from './recovery-policies.ts';

/** What another plan is wanted for. */
export interface PlanWish {
  /** The plan before. */
  readonly from: Plan;
  /** Devices stand still until it is there; where nothing fits with the micro-batches before, it may have others. */
  readonly isUrgent: boolean;
  /** Whether nobody wants it any more. */
  isOver(): boolean;
}

/** Part of the coordinator's options. */
export interface PlanningOptions {
  readonly subject: RunSubject;
  readonly clock: Clock;
  readonly hooks: { readonly observe: Observer };
  readonly machine: {
    readonly endRound: number;
    readonly batchSizesToProfile: readonly number[];
    /** 0: no copies are made. */
    readonly replicateEvery?: number;
  };
  /** Chooses the first plan; undefined when `isOver` says that nobody wants it any more. InputError: nothing fits. */
  plan(profile: Profile, cluster: Cluster, isOver: () => boolean): Promise<Plan | undefined>;
  /** Chooses another plan for a run that has one. Absent: a plan is not bettered during the run. */
  planAgain?(profile: Profile, cluster: Cluster, wish: PlanWish): Promise<Plan | undefined>;
  /** Lets devices compute activations again after a loss, where they have too little memory. Default false. */
  readonly mayRecompute?: boolean;
  /** The plan to use as it is, its devices in the order of joining; no profiling then. */
  readonly givenPlan?: Plan;
  /** Of plans whose rounds overlap: the staleness that is wished for after a change. Default: the least. */
  readonly staleness?: StalenessWish;
  /** MiB of a device that the user allows for training; undefined where nothing is said. Default: nothing is. */
  allowedMiB?(device: string): number | undefined;
  /** How the run follows slower devices and losses. Default: drift is watched, and re-planning is light. */
  readonly recovery?: RecoveryPolicy;
  /** Whether the devices can hold what it asks of them. Throws InputError. Default: not looked at. */
  checkGiven?(plan: Plan, cluster: Cluster): void;
}
