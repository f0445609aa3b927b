// Why and to what a run's layout changes.

import type { Plan } from '../../cluster/cluster.ts';

/** Why a layout is left for another. */
export interface Change {
  /** One clause, such as "b left in round 7 (the connection was lost)". */
  readonly cause: string;
  /** Devices that are gone. */
  readonly lost: readonly string[];
  /** A device to be released when nobody needs what it holds any more. */
  readonly drained?: string;
}

/** A layout to be taken between two rounds. */
export interface Proposal {
  readonly plan: Plan;
  readonly change: Change;
  readonly copyEvery: number;
}
