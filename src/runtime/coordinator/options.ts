// What a coordinator is given, and what it gives back: plain data and the hooks of the run that it serves.

import type { Tensor } from '../../graph/tensor.ts';
import type { SampleRange } from '../../schedule/program.ts';
import type { PlanningOptions } from '../knowledge/planning-options.ts';
import type { RunEvent } from '../protocol/events.ts';
import type { RoundResult } from '../protocol/messages.ts';
import type { RunState } from '../protocol/run-state.ts';
import type { step } from './machine.ts';
import type { MachineConfig } from './machine-types.ts';
import type { SavedEntry } from './snapshots.ts';

/** A batch: the model's inputs and the labels, batch first. */
export interface Batch {
  readonly inputs: readonly Tensor[];
  readonly labels: Tensor;
}

/** What the coordinator sends for a round: labels only where it trains. */
export type FedBatch = Pick<Batch, 'inputs'> & Partial<Pick<Batch, 'labels'>>;

/** A batch whose pieces are made when they are sent: of long sequences, a batch is much more than is computed with. */
export interface PiecewiseBatch {
  readonly sampleCount: number;
  /** Samples [first, end) of the inputs, or of the labels alone. */
  piece(payload: 'input' | 'label', samples: SampleRange): readonly Tensor[];
}

/** Where a run's data come from and its results go. */
export interface RunHooks {
  /** The outputs of a round that only infers, once each, in the order of rounds. Absent: the run trains. */
  onResults?(round: number, outputs: readonly Tensor[]): void;
  /** A promise where samples are read, which takes its time. */
  batch(round: number): FedBatch | PiecewiseBatch | Promise<FedBatch>;
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
  /** Called once, with the way to offer rounds (`MachineConfig.awaitsOffers`). */
  onReady?(offer: Offer): void;
  /** Where weights come from that never change, as in a run that only infers. Absent: from the subject's state. */
  readonly weights?: WeightSource;
  /** The secret by which peers know each other. */
  readonly peerToken: string;
  /** The protocol. Default: `step` of machine.ts; the rehearsal wraps it in mistakes, to see them caught. */
  readonly step?: typeof step;
}

/** Rounds below `rounds` have data; `isLast`: there will be no others. */
export type Offer = (rounds: number, isLast: boolean) => void;

/** Weights that are read when they are wanted: nobody holds all of them. */
export interface WeightSource {
  /** What layers [first, end) need, piece by piece. */
  entries(layers: readonly [first: number, end: number]): Iterable<SavedEntry>;
  /** How many pieces that is. */
  count(layers: readonly [first: number, end: number]): number;
}

/** How a run ended. */
export interface CoordinatorEnd {
  readonly round: number;
  readonly stopped: boolean;
}
