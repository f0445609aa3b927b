// What a stage's graphs depend on, as a key: two stages with the same key on one engine have the same graphs, whatever
// their weights, in every process and on every day. worker/layout.ts compares stages within one run.

import type { Engine } from '../../engine/engine.ts';
import type { Graph } from '../../graph/graph.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { tensorBytes } from '../../graph/tensor.ts';
import { createSha256, type Sha256 } from '../../sha256.ts';
import type { StageOptions } from './stage-graphs.ts';

/**
 * The key, in hexadecimal digits. The seed, the weights and the number of micro-batches (but for whether there is one,
 * and it comes in pieces) have no part in it.
 */
export function graphsKey({ name, blockSize }: Pick<Engine, 'name' | 'blockSize'>, options: StageOptions): string {
  const { sequence, layers, sampleCount, training, label, savedBudgetBytes, form } = options;
  const { loss, ignoresNegative = false, optimizer, frozen } = training;
  const hash = createSha256().update(modelDigest(sequence));
  const labels = [label.type, label.shape];
  const isStrict = training.grain !== undefined;
  const { buckets, pass } = form.pieces ?? {};
  const pieces = [isStrict, buckets, pass?.kind, pass?.microBatch === 0];
  add(hash, [
    name,
    blockSize,
    layers,
    sampleCount,
    loss,
    ignoresNegative,
    optimizer,
    frozen,
    labels,
    savedBudgetBytes,
    options.budgetCount,
  ]);
  // Only where there are any: the keys of other stages stay.
  const { tangentCount, difference, perturbs } = training.forwardGradient ?? {};
  if (tangentCount !== undefined)
    add(hash, ['tangents', tangentCount, ...[difference, perturbs].filter((value) => value !== undefined)]);
  const { staleness = 0, aggregation } = options;
  const { stalenessCorrection } = training;
  // Streams alone: other keys are as they would be without.
  if (staleness > 0 && stalenessCorrection !== undefined) add(hash, [stalenessCorrection, staleness]);
  if (aggregation !== undefined) add(hash, ['aggregation', aggregation.versionCount]);
  add(hash, [form.passes, form.sums, form.grains > 1, pieces, form.isRest === true]);
  return hash.digest();
}

const digests = new WeakMap<LayerSequence, string>();

/** A hash of the graph with its constants, and of the names and shapes of its weights. */
function modelDigest(sequence: LayerSequence): string {
  const known = digests.get(sequence);
  if (known !== undefined) return known;
  const { graph, layers } = sequence;
  const hash = createSha256();
  addGraph(hash, graph);
  add(
    hash,
    layers.map(({ nodes }) => nodes),
  );
  const digest = hash.digest();
  digests.set(sequence, digest);
  return digest;
}

function addGraph(
  hash: Sha256,
  { name, inputs, outputs, nodes, initializers, parameters, buffers, fixedBatch, runningVariance, states }: Graph,
): void {
  add(hash, [name, inputs, outputs, nodes, parameters, buffers, fixedBatch, runningVariance]);
  if (states !== undefined) add(hash, states);
  const weights = new Set([...parameters, ...buffers]);
  for (const [constant, value] of initializers) {
    add(hash, [constant, value.type, value.shape]);
    if (!weights.has(constant)) hash.update(tensorBytes(value));
  }
}

function add(hash: Sha256, value: unknown): void {
  hash.update(JSON.stringify(value, written)).update('\n');
}

/** What JSON would lose: elements of tensors in attributes, and numbers that it does not know. */
function written(_key: string, value: unknown): unknown {
  if (typeof value === 'number' && (!Number.isFinite(value) || Object.is(value, -0)))
    return `number ${Object.is(value, -0) ? '-0' : value}`;
  if (value === undefined) return 'undefined';
  return ArrayBuffer.isView(value)
    ? Array.from(new Uint8Array(value.buffer, value.byteOffset, value.byteLength)).join()
    : value;
}
