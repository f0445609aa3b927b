// What a stage that infers takes of a device's memory. While it is compiled its weights lie in memory several times; a
// device that is short of memory keeps them in a file instead, from which the engine packs them one by one. Planner and
// device ask the same function, so that what is predicted is what happens.

/**
 * Numbers of samples for which a stage stays compiled at most: each has the weights packed for itself. Shares of other
 * sizes are filled up.
 */
export const compiledLimit = 4;

/**
 * How often weights that are not in a file lie in memory while a stage is compiled for its first number of samples: as
 * they came, in the model that the engine is given, as it reads that, and packed. Measured:
 * bench/results/2026-11-28-large-model.md.
 */
const copiesWhileCompiled = 4;

/** What a layer takes of a session, beside weights and activations. */
export const layerSessionBytes: number = 2 ** 17;

/** Of a device's memory, what weights in memory may fill together with activations. */
const filledShare = 0.9;

/** A stage as a device with so much memory holds it. */
export interface HeldStage {
  /** Its weights lie in a file. */
  readonly isInFile: boolean;
  /** Numbers of samples for which it stays compiled. */
  readonly compiledCount: number;
  /** The most that it takes. */
  readonly bytes: number;
}

export interface HeldStageDemand {
  readonly weightBytes: number;
  /** What moves through the stage, and its widest layer. */
  readonly activationBytes: number;
  /** Of the device, without its process; undefined: not known, and enough. */
  readonly memoryBytes: number | undefined;
  /** Numbers of samples that may come up. Default: as many as a stage is compiled for at most. */
  readonly sizeCount?: number;
}

/** How a device holds a stage. */
export function heldStage(demand: HeldStageDemand): HeldStage {
  const { weightBytes, activationBytes, memoryBytes = Number.POSITIVE_INFINITY, sizeCount = compiledLimit } = demand;
  const wanted = Math.min(sizeCount, compiledLimit);
  const inMemory = (count: number): number => (copiesWhileCompiled + count - 1) * weightBytes + activationBytes;
  for (let compiledCount = wanted; compiledCount > 0; compiledCount--) {
    const bytes = inMemory(compiledCount);
    if (bytes <= filledShare * memoryBytes) return { isInFile: false, compiledCount, bytes };
  }
  return { isInFile: true, compiledCount: 1, bytes: weightBytes + activationBytes };
}

/** Micro-batches at each end of a stage: one that is computed with, one on its way. */
const inFlightCount = 2;

/**
 * Bytes a sample of what moves through layers: two micro-batches at each end, and what the widest layer reads and
 * writes. `cutBytes`: bytes a sample that cross the cut in front of each layer, and behind the last.
 */
export function movedBytes(cutBytes: readonly number[], [first, end]: readonly [number, number]): number {
  let widest = 0;
  for (let layer = first; layer < end; layer++)
    widest = Math.max(widest, (cutBytes[layer] as number) + (cutBytes[layer + 1] as number));
  return inFlightCount * ((cutBytes[first] as number) + (cutBytes[end] as number)) + widest;
}

/** The same with a widest layer that is known already. */
export function movedThrough(startBytes: number, endBytes: number, widestBytes: number): number {
  return inFlightCount * (startBytes + endBytes) + widestBytes;
}
