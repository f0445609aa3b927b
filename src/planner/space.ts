// The input and output of a search.

import type { StageLayout } from './problem.ts';

/** The pipelines that a search considers: stages take all devices of `order`, from the first to the last. */
export interface Space {
  /** Places in the cluster. */
  readonly order: readonly number[];
  /** Most devices in one stage. */
  readonly groupLimit: number;
  readonly stageLimit: number;
}

/** The best pipeline of a search. */
export interface Found {
  readonly layouts: readonly StageLayout[];
  /** By eq. 4, as in cost.ts. */
  readonly roundMs: number;
}
