// What a device's memory has to hold beside eq. 3 (cluster/memory.ts): the process itself, and what the runtime keeps of each layer. Measured with
// bench/lab.mjs; numbers and dates are in bench/results/2026-11-21-lab.md.

import type { LayerProfile } from '../cluster/cluster.ts';
import { processMiB } from '../cluster/memory.ts';
import { optimizerStateCount, type TrainingSpec } from './training-spec.ts';

/** Sessions of a layer's passes and its update, 2^18 bytes; beside an AllReduce the last micro-batch's passes have their own, in pieces. */
const sessionBytes = 2 ** 19;

/**
 * Bytes that the runtime keeps for a layer beside eq. 3: the version before the last update, weights and optimizer state, until all devices have committed;
 * the sums of gradients to which a micro-batch adds, beside those that it makes; the vector in which they go round the ring, and as much that has been received
 * or is let go late; its sessions. A stage that one device has alone takes about a copy of the weights less.
 */
export function runtimeBytes(layer: Pick<LayerProfile, 'weightBytes' | 'frozenBytes'>, training: Pick<TrainingSpec, 'optimizer'>): number {
  const trainedBytes = layer.weightBytes - (layer.frozenBytes ?? 0);
  return (4 + optimizerStateCount(training)) * trainedBytes + sessionBytes;
}

/** Of a device's memory, what is left for training. */
export function trainingMiB(memoryMiB: number): number {
  return Math.max(0, memoryMiB - processMiB);
}
