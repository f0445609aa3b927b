// What a coordinator is given, and what it gives back: plain data and the hooks of the run that it serves.

import type { Clock } from '../../clock.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import type { CutTensor, LayerSequence } from '../../graph/layers.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { RunEvent } from '../protocol/events.ts';
import type { RoundResult } from '../protocol/messages.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { TrainingSpec } from '../protocol/training-spec.ts';
import type { step } from './machine.ts';
import type { MachineConfig } from './machine-types.ts';

/** A batch: the model's inputs and the labels, batch first. */
export interface Batch {
  readonly inputs: readonly Tensor[];
  readonly labels: Tensor;
}

/** What the coordinator needs to know of a device. */
export interface DeviceFacts {
  readonly memoryMiB: number;
  readonly cores: number;
  readonly engine: string;
  /** Devices with the same machine share its memory. */
  readonly machine: string;
  /** What else is known of it, where it says so. */
  readonly cpuModel?: string;
  readonly cpuQuotaCores?: number;
  readonly batteryPercent?: number;
  readonly isDischarging?: boolean;
  readonly temperatureC?: number;
  /**
   * Processes of its control group that its system had killed for want of memory, when the device's own process began.
   */
  readonly oomKillCount?: number;
}

/** What is trained, from which state. */
export interface RunSubject {
  readonly modelName: string;
  readonly sequence: LayerSequence;
  readonly training: TrainingSpec;
  readonly label: CutTensor;
  readonly state: RunState;
}

/** Where a run's data come from and its results go. */
export interface RunHooks {
  batch(round: number): Batch;
  observe(event: RunEvent): void;
  onCommitted(
    round: number,
    loss: number,
    correctCount: number,
    learningRate: number,
    results: Readonly<Record<string, RoundResult>>,
  ): void;
  /**
   * Called with the state after `round` committed rounds; the run goes on when it resolves, with whether the state is
   * safe beyond this process.
   */
  onCheckpoint(round: number, state: RunState): Promise<boolean>;
}

/** What another plan is wanted for. */
export interface PlanWish {
  /** The plan before. */
  readonly from: Plan;
  /** Devices stand still until it is there; where nothing fits with the micro-batches before, it may have others. */
  readonly isUrgent: boolean;
  /** Whether nobody wants it any more. */
  isOver(): boolean;
}

export interface CoordinatorOptions {
  readonly machine: MachineConfig;
  readonly subject: RunSubject;
  readonly hooks: RunHooks;
  readonly clock: Clock;
  /** The secret by which peers know each other. */
  readonly peerToken: string;
  /** Chooses the first plan; undefined when `isOver` says that nobody wants it any more. InputError: nothing fits. */
  plan(profile: Profile, cluster: Cluster, isOver: () => boolean): Promise<Plan | undefined>;
  /** Chooses another plan for a run that has one. Absent: a plan is not bettered during the run. */
  planAgain?(profile: Profile, cluster: Cluster, wish: PlanWish): Promise<Plan | undefined>;
  /** Lets devices compute activations again after a loss, where they have too little memory. Default false. */
  readonly mayRecompute?: boolean;
  /** The plan to use as it is, its devices in the order of joining; no profiling then. */
  readonly givenPlan?: Plan;
  /** Whether the devices can hold what it asks of them. Throws InputError. Default: not looked at. */
  checkGiven?(plan: Plan, cluster: Cluster): void;
  /** The protocol. Default: `step` of machine.ts; the rehearsal wraps it in mistakes, to see them caught. */
  readonly step?: typeof step;
}

/** How a run ended. */
export interface CoordinatorEnd {
  readonly round: number;
  readonly stopped: boolean;
}
