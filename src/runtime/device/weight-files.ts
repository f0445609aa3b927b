// Where a stage that infers keeps its weights: beside the engine's packed ones it needs them only to be compiled for
// another number of samples, or to hand them on. Where they would take too much of a device's memory they lie in a
// file, from which the engine packs them one by one.

import { bytesInMiB } from '../../cluster/memory.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { trainingMiB } from './memory-need.ts';

/** Files for weights. */
export interface WeightFiles {
  /** A new file, for one stage. Throws RunError where none can be made. */
  open(): WeightFile;
}

/** The weights of one stage. */
export interface WeightFile {
  /** Writes a tensor; what is returned reads it again at each look. Rejects with RunError if there is no room. */
  keep(value: Tensor): Promise<Tensor>;
  /** Removes the file. What was kept is not looked at afterwards. */
  remove(): Promise<void>;
}

/** What a stage that infers is given to hold its weights with. */
export interface WeightKeeping {
  /** Absent: weights stay in memory. */
  readonly files: WeightFiles | undefined;
  /** What the device may use for stages; undefined: that is not known, and enough. */
  readonly memoryBytes: number | undefined;
}

/** `memoryBytes`: what a device may use, its process included. */
export function weightKeeping(files: WeightFiles | undefined, memoryBytes: number | undefined): WeightKeeping {
  return { files, memoryBytes: memoryBytes && trainingMiB(memoryBytes / bytesInMiB) * bytesInMiB };
}
