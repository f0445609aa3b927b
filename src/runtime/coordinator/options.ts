// What a coordinator is given, and what it gives back: plain data and the hooks of the run that it serves.

import type { Tensor } from '../../graph/tensor.ts';
import type { PlanningOptions } from '../knowledge/planning-options.ts';
import type { RunEvent } from '../protocol/events.ts';
import type { RoundResult } from '../protocol/messages.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { step } from './machine.ts';
import type { MachineConfig } from './machine-types.ts';

/** A batch: the model's inputs and the labels, batch first. */
export interface Batch {
  readonly inputs: readonly Tensor[];
  readonly labels: Tensor;
}

/** Where a run's data come from and its results go. */
export interface RunHooks {
  /** A promise where samples are read, which takes its time. */
  batch(round: number): Batch | Promise<Batch>;
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

export interface CoordinatorOptions extends PlanningOptions {
  readonly machine: MachineConfig;
  readonly hooks: RunHooks;
  /** The secret by which peers know each other. */
  readonly peerToken: string;
  /** The protocol. Default: `step` of machine.ts; the rehearsal wraps it in mistakes, to see them caught. */
  readonly step?: typeof step;
}

/** How a run ended. */
export interface CoordinatorEnd {
  readonly round: number;
  readonly stopped: boolean;
}
