// What a search looks at, and what it finds.

import type { StageLayout } from './problem.ts';

/**
 * Which pipelines a search looks at: stages take their devices from `order`, from the first to the last, all of them.
 */
export interface Space {
  /** Places in the cluster. */
  readonly order: readonly number[];
  /** Most devices in one stage. */
  readonly groupLimit: number;
  readonly stageLimit: number;
}

/** The pipeline that a search found. */
export interface Found {
  readonly layouts: readonly StageLayout[];
  /** By eq. 4, as in cost.ts. */
  readonly roundMs: number;
}
