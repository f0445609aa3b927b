// What a device's memory has to hold besides eq. 3 (cluster/memory.ts): the process itself, and what the runtime keeps
// of each layer. Measured with bench/lab.ts; numbers and dates are in bench/results/2026-11-21-lab.md.

import { defined } from '../../assert.ts';
import type { LayerProfile } from '../../cluster/cluster.ts';
import { layerSessionBytes } from '../../cluster/inference-memory.ts';
import { processMiB, processMiBOf } from '../../cluster/memory.ts';
import type { Layer, LayerSequence } from '../../graph/layers.ts';
import { byteLength } from '../../graph/tensor.ts';
import { optimizerStateCount, type TrainingSpec } from '../protocol/training-spec.ts';
import { leastFilterBytes } from './kept-filters.ts';

/**
 * Sessions of a layer's passes and its update, 2^18 bytes; during an AllReduce the last micro-batch's passes have their
 * own, in pieces.
 */
const sessionBytes = 2 ** 19;

/**
 * Bytes that the runtime keeps for a layer besides eq. 3: the version before the last update, weights and optimizer
 * state, until all devices have committed; a micro-batch's gradients on their way into the sums (the most: each goes
 * when it is added); twice as much that is received for the ring, or let go late where gradients leave the engine for
 * it; its sessions; large filters in the orders of the kernels of the forward and of the backward pass
 * (device/kept-filters.ts). A stage that one device has alone takes about a copy of the weights less.
 */
export function bufferBytes(
  layer: Pick<LayerProfile, 'weightBytes' | 'frozenBytes'> & { readonly filterBytes?: number },
  training: Pick<TrainingSpec, 'optimizer'>,
): number {
  const { weightBytes, frozenBytes = 0, filterBytes = 0 } = layer;
  return (4 + optimizerStateCount(training)) * (weightBytes - frozenBytes) + 2 * filterBytes + sessionBytes;
}

/** A layer of a profile with what the runtime keeps for it. */
export function withRuntimeBytes(
  layer: LayerProfile,
  largeFilterBytes: number,
  training: Pick<TrainingSpec, 'optimizer' | 'stalenessCorrection'>,
): LayerProfile {
  const { weightBytes, frozenBytes = 0 } = layer;
  const { stalenessCorrection = 'none' } = training;
  return {
    ...layer,
    runtimeBytes: bufferBytes({ ...layer, filterBytes: largeFilterBytes }, training),
    ...(largeFilterBytes === 0 ? {} : { filterBytes: 2 * largeFilterBytes }),
    ...(stalenessCorrection === 'none' ? {} : { predictedBytes: weightBytes - frozenBytes }),
  };
}

/** A layer of a profile of inference with what the runtime keeps for it. */
export function withSessionBytes(layer: LayerProfile): LayerProfile {
  return { ...layer, runtimeBytes: layerSessionBytes };
}

/** Bytes of a layer's filters that are large enough to be kept in the orders of the kernels. */
export function filterBytes({ graph }: LayerSequence, { parameters }: Layer): number {
  const sizes = parameters.map((name) => defined(graph.initializers.get(name), name));
  const filters = sizes.filter((tensor) => tensor.shape.length === 4 && byteLength(tensor) > leastFilterBytes);
  return filters.reduce((sum, tensor) => sum + byteLength(tensor), 0);
}

/** Of a device's memory, what is left for training. Default: with an engine whose process takes the least. */
export function trainingMiB(memoryMiB: number, engine = ''): number {
  return Math.max(0, memoryMiB - processMiBOf(engine));
}

/** Of a device's memory, what it would have with an engine whose process takes the least. */
export function comparableMiB(memoryMiB: number, engine: string): number {
  return trainingMiB(memoryMiB, engine) + processMiB;
}
