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
 * they came, as the compute thread gets them, in the model that the engine is given, as it reads that, and packed.
 * Measured: bench/results/2026-11-29-inference-memory.md.
 */
const copiesWhileCompiled = 5;

/** What a layer takes of a session, beside weights and activations. */
export const layerSessionBytes: number = 2 ** 17;

/** Of a device's memory, what weights in memory may fill together with activations. */
const filledShare = 0.9;

/** How much of a session's memory of runs is used at once: ONNX Runtime takes it in blocks of powers of two. */
const arenaFactor = 1.5;

/** A stage as a device with so much memory holds it. */
export interface HeldStage {
  /** Its weights lie in a file. */
  readonly isInFile: boolean;
  /** Numbers of samples for which it stays compiled. */
  readonly compiledCount: number;
  /** The most that it takes. */
  readonly bytes: number;
}

/** What moves through layers. */
export interface Moved {
  /** Two micro-batches at each end: one that is computed with, one on its way. */
  readonly endBytes: number;
  /** What the widest layer reads and writes. */
  readonly widestBytes: number;
}

export interface HeldStageDemand {
  readonly weightBytes: number;
  /** What sessions take beside weights and activations. */
  readonly sessionBytes: number;
  /** With the usual number of samples. */
  readonly moved: Moved;
  /** Of the device, without its process; undefined: not known, and enough. */
  readonly memoryBytes: number | undefined;
  /** Numbers of samples that may come up. Default: as many as a stage is compiled for at most. */
  readonly sizeCount?: number;
}

/** How a device holds a stage. */
export function heldStage(demand: HeldStageDemand): HeldStage {
  const { weightBytes, memoryBytes = Number.POSITIVE_INFINITY, sizeCount = compiledLimit } = demand;
  for (let compiledCount = Math.min(sizeCount, compiledLimit); compiledCount > 0; compiledCount--) {
    const bytes = bytesInMemory(demand, compiledCount);
    if (bytes <= filledShare * memoryBytes) return { isInFile: false, compiledCount, bytes };
  }
  return { isInFile: true, compiledCount: 1, bytes: leastStageBytes(demand, weightBytes) };
}

/** Each session keeps the memory of its runs; the usual number of samples is the largest, others are halves of it. */
function bytesInMemory({ weightBytes, sessionBytes, moved }: HeldStageDemand, compiledCount: number): number {
  const sampleFactor = 2 - 2 ** (1 - compiledCount);
  return (
    (copiesWhileCompiled + compiledCount - 1) * weightBytes +
    sessionBytes +
    moved.endBytes +
    arenaFactor * sampleFactor * moved.widestBytes
  );
}

/** The least that a stage takes: its weights lie in a file until they are packed, and runs give their memory back. */
export function leastStageBytes(
  { sessionBytes, moved }: Pick<HeldStageDemand, 'sessionBytes' | 'moved'>,
  weightBytes: number,
): number {
  return weightBytes + sessionBytes + moved.endBytes + moved.widestBytes;
}

/** Micro-batches at each end of a stage. */
const inFlightCount = 2;

/** The widest of layers, in bytes a sample; `cutBytes`: what crosses the cut in front of each, and behind the last. */
export function widestBytes(cutBytes: readonly number[], [first, end]: readonly [number, number]): number {
  let widest = 0;
  for (let layer = first; layer < end; layer++)
    widest = Math.max(widest, (cutBytes[layer] as number) + (cutBytes[layer + 1] as number));
  return widest;
}

/** What moves through layers [first, end) with so many samples. */
export function movedBytes(
  cutBytes: readonly number[],
  [first, end]: readonly [number, number],
  samples: number,
  widest: number = widestBytes(cutBytes, [first, end]),
): Moved {
  const ends = (cutBytes[first] as number) + (cutBytes[end] as number);
  return { endBytes: samples * inFlightCount * ends, widestBytes: samples * widest };
}
