// Asteroid, eq. 3: what a stage keeps in a device's memory, and the runtime's own buffers, where a profile names them.

import type { Profile } from './cluster.ts';
import { prefixSums, rangeOf } from './times.ts';

export const bytesInMiB: number = 1024 * 1024;

/**
 * Node.js, ONNX Runtime's library, the code of the model and of training, and buffers of links: what a worker's process
 * takes without any weights.
 */
export const processMiB: number = 160;

/**
 * The same where ONNX Runtime is WebAssembly: within the first minute V8 compiles the module's hottest functions once
 * more, the largest with 270 MiB of its own for a moment, which the C library keeps.
 */
const webAssemblyProcessMiB = 490;

/** What the process of a worker with this engine takes without any weights. */
export function processMiBOf(engine: string): number {
  return engine.startsWith('onnxruntime-web') ? webAssemblyProcessMiB : processMiB;
}

/** Copies of each weight that the optimizer keeps: 0 plain SGD, 1 momentum, 2 Adam; one more for a moving average. */
export type OptimizerState = 0 | 1 | 2 | 3;

/** What eq. 3 needs to know of a stage. */
export interface StageDemand {
  /** Weights that are trained. */
  readonly weightBytes: number;
  /** Weights that are not: they have neither gradients nor copies. Default 0. */
  readonly frozenBytes?: number;
  /** What the runtime keeps besides eq. 3. Default 0. */
  readonly runtimeBytes?: number;
  /** Per sample. */
  readonly savedBytes: number;
  /** Per sample, what a pass that keeps nothing has at once. Default 0. */
  readonly workingBytes?: number;
  /** Per sample, where all that can be is computed again; absent: nothing is. */
  readonly leastSavedBytes?: number;
  /** K_p: micro-batches whose activations are kept at once. */
  readonly inFlight: number;
  /** Versions of the trained weights before the live one that rounds in flight still read. Default 0. */
  readonly staleness?: number;
  readonly optimizerState: OptimizerState;
}

/**
 * Bytes on a device with a share of `samples` of each micro-batch: parameters and gradients, the optimizer's copies,
 * and the saved activations of K_p micro-batches. Frozen parameters count once. To eq. 3 come the runtime's buffers,
 * and where rounds overlap the versions of the weights that they read.
 */
export function stageMemoryBytes(demand: StageDemand, samples: number): number {
  const { frozenBytes = 0, runtimeBytes = 0, workingBytes = 0, staleness = 0 } = demand;
  return (
    (2 + staleness + demand.optimizerState) * demand.weightBytes +
    frozenBytes +
    runtimeBytes +
    (demand.inFlight * demand.savedBytes + workingBytes) * samples
  );
}

/** How a stage's rounds overlap. */
export interface Overlap {
  /** Rounds by which the first forward of a tick is ahead of the tick's backward: in this stage, and in the first. */
  readonly own: number;
  readonly most: number;
}

/** Rounds that follow each other. */
const noOverlap: Overlap = { own: 0, most: 0 };

/**
 * Updates of a stage that may stand before they have committed, where rounds overlap: as many as the first stage's
 * backward passes come later, and one for the way to the coordinator and back.
 */
export function uncommittedUpdates({ own, most }: Overlap): number {
  return most - own + 1;
}

/**
 * What the runtime keeps of a stage because its rounds overlap, beyond eq. 3 with its versions, and beyond what it
 * keeps of any stage (one state before the live one, and three copies that the ring of a group needs): the states,
 * optimizer state included, that a loss would return to; weights that are predicted, in place of which older ones need
 * not stay; filters of the versions that passes under way read.
 */
function overlapBytes(
  sums: LayerSums,
  [first, end]: readonly [number, number],
  { overlap, staleness, optimizerState }: { overlap: Overlap; staleness: number; optimizerState: OptimizerState },
): number {
  const predictedBytes = sums.predictedBytes(first, end);
  const updates = uncommittedUpdates(overlap);
  const versions = Math.max(updates, predictedBytes > 0 ? 0 : staleness);
  const copies = versions - staleness - 1 + (updates - 1) * optimizerState;
  return (
    Math.max(0, copies) * sums.weightBytes(first, end) +
    (staleness + 1) * predictedBytes +
    overlap.own * sums.filterBytes(first, end)
  );
}

/** What of a stage's demand depends on how it runs. */
type Running = Pick<StageDemand, 'savedBytes' | 'leastSavedBytes' | 'inFlight' | 'staleness' | 'optimizerState'> & {
  /** Default: rounds follow each other. */
  readonly overlap?: Overlap;
};

/** The demand of layers [first, end), with what depends on how they run. One object shape, for planners ask a lot. */
export function demandOf(sums: LayerSums, [first, end]: readonly [number, number], run: Running): StageDemand {
  const { savedBytes, leastSavedBytes = savedBytes, inFlight, staleness = 0, optimizerState } = run;
  const { overlap = noOverlap } = run;
  const runtimeBytes = sums.runtimeBytes(first, end);
  const isOverlapping = runtimeBytes > 0 && overlap.most > 0;
  return {
    weightBytes: sums.weightBytes(first, end),
    frozenBytes: sums.frozenBytes(first, end),
    runtimeBytes:
      runtimeBytes + (isOverlapping ? overlapBytes(sums, [first, end], { overlap, staleness, optimizerState }) : 0),
    workingBytes: sums.workingBytes(first, end),
    savedBytes,
    leastSavedBytes,
    inFlight,
    staleness,
    optimizerState,
  };
}

/** Whether a profile says what the runtime keeps besides eq. 3. */
export function hasRuntimeBuffers({ layers }: Profile): boolean {
  return layers.some(({ runtimeBytes = 0 }) => runtimeBytes > 0);
}

/** Sums over layer ranges that the memory and communication formulas need. */
export interface LayerSums {
  /** Of weights that are trained: those with gradients to reduce and state to keep. */
  weightBytes(first: number, end: number): number;
  /** Of weights that are not. */
  frozenBytes(first: number, end: number): number;
  /** What the runtime keeps besides eq. 3. */
  runtimeBytes(first: number, end: number): number;
  /** Of these, what there is once more for each further round under way. */
  filterBytes(first: number, end: number): number;
  /** Weights that are predicted for each version. */
  predictedBytes(first: number, end: number): number;
  /** Per sample. */
  savedBytes(first: number, end: number): number;
  /** Per sample: the most of any layer. */
  workingBytes(first: number, end: number): number;
  /** Layers whose result depends on the whole batch. */
  batchDependentCount(first: number, end: number): number;
}

/** Prefix sums of a profile's layers. */
export function layerSums(profile: Profile): LayerSums {
  const weights = prefixSums(profile.layers.map(({ weightBytes, frozenBytes = 0 }) => weightBytes - frozenBytes));
  const frozen = prefixSums(profile.layers.map(({ frozenBytes = 0 }) => frozenBytes));
  const buffers = prefixSums(profile.layers.map(({ runtimeBytes = 0 }) => runtimeBytes));
  const filters = prefixSums(profile.layers.map(({ filterBytes = 0 }) => filterBytes));
  const predicted = prefixSums(profile.layers.map(({ predictedBytes = 0 }) => predictedBytes));
  const saved = prefixSums(profile.layers.map((layer) => layer.savedBytes));
  const dependent = prefixSums(profile.layers.map((layer) => (layer.batchDependent === true ? 1 : 0)));
  return {
    weightBytes: (first, end) => rangeOf(weights, first, end),
    frozenBytes: (first, end) => rangeOf(frozen, first, end),
    runtimeBytes: (first, end) => rangeOf(buffers, first, end),
    filterBytes: (first, end) => rangeOf(filters, first, end),
    predictedBytes: (first, end) => rangeOf(predicted, first, end),
    savedBytes: (first, end) => rangeOf(saved, first, end),
    workingBytes: largestOf(profile.layers.map(({ workingBytes = 0 }) => workingBytes)),
    batchDependentCount: (first, end) => rangeOf(dependent, first, end),
  };
}

/** The largest of values [first, end), which planners ask often: for each length 2^k, the largest of so many. */
function largestOf(values: readonly number[]): LayerSums['workingBytes'] {
  if (values.every((value) => value === 0)) return () => 0;
  const levels: (readonly number[])[] = [values];
  for (let length = 1; 2 * length <= values.length; length *= 2) {
    const half = levels.at(-1) as readonly number[];
    const count = values.length - 2 * length + 1;
    levels.push(
      Array.from({ length: count }, (_, index) => Math.max(half[index] as number, half[index + length] as number)),
    );
  }
  return (first, end) => {
    if (end <= first) return 0;
    const level = Math.floor(Math.log2(end - first));
    const row = levels[level] as readonly number[];
    return Math.max(row[first] as number, row[end - 2 ** level] as number);
  };
}
