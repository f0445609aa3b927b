// Where a stage that infers keeps its weights: beside the engine's packed ones it needs them only to be compiled for
// another number of samples, or to hand them on. Where they would take too much of a device's memory they lie in a
// file, from which the engine packs them one by one.

import type { Tensor } from '../../graph/tensor.ts';

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

/** When weights lie in files. */
export interface WeightKeeping {
  readonly files: WeightFiles;
  /** Stages with fewer bytes of weights keep them in memory, which spares the disk. */
  readonly leastBytes: number;
}

/**
 * How often weights that are not in a file lie in memory while a stage is compiled: as they came, in the model that the
 * engine is given, as it reads that, and packed. Measured: 4 times (bench/results/2026-11-28-large-model.md).
 */
const copiesInMemory = 5;

/** For a device that may use so much memory; undefined: that is not known, and nothing is kept in files. */
export function weightKeeping(
  files: WeightFiles | undefined,
  memoryBytes: number | undefined,
): WeightKeeping | undefined {
  return files === undefined || memoryBytes === undefined
    ? undefined
    : { files, leastBytes: memoryBytes / copiesInMemory };
}
