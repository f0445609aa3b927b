// Hostile and damaged files: for any bytes the importer returns a model or throws one InputError, and takes no more
// memory than the file justifies. A failing seed is in the test's message.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { InputError } from '../../errors.ts';
import { createRandom } from '../../random.ts';
import { pytorchFixtures } from '../../testing/pytorch-fixtures.ts';
import { attentionModel, residualModel } from '../../testing/sample-models.ts';
import { layers } from '../layers.ts';
import { byteLength } from '../tensor.ts';
import { exportGraph } from './export.ts';
import { importModel } from './import.ts';

const fixed = pytorchFixtures().find(({ name }) => name === 'grouped/opset17-fixed');
const files: Readonly<Record<string, Uint8Array>> = {
  residual: exportGraph(residualModel()),
  attention: exportGraph(attentionModel()),
  'exported by PyTorch for one batch size': new Uint8Array(readFileSync(fixed?.modelPath ?? '')),
};

/** Mutations of each file, of each kind. */
const mutationCount = 1000;

/** Imports, and computes the layers; returns whether it was a model. */
function tryImport(bytes: Uint8Array, what: string): boolean {
  try {
    const { graph } = importModel(bytes);
    let held = 0;
    for (const value of graph.initializers.values()) held += byteLength(value);
    assert.ok(held <= 2 * bytes.length + 4096, `${what}: ${held} bytes of tensors from ${bytes.length} bytes`);
    layers(graph);
    return true;
  } catch (error) {
    if (error instanceof InputError) {
      assert.ok(!error.message.includes('\n') && error.message.endsWith('.'), `${what}: ${error.message}`);
      return false;
    }
    throw new Error(`${what}: ${String(error)}`, { cause: error });
  }
}

for (const [name, bytes] of Object.entries(files)) {
  test(`${name}: truncated at every 97th byte`, () => {
    assert.ok(tryImport(bytes, 'whole'));
    for (let length = 0; length < bytes.length; length += 97)
      tryImport(bytes.subarray(0, length), `the first ${length} bytes`);
  });

  test(`${name}: ${mutationCount} seeded mutations`, () => {
    let modelCount = 0;
    for (let seed = 0; seed < mutationCount; seed++) {
      const random = createRandom(seed, bytes.length);
      const mutated = bytes.slice();
      for (let change = random.integer(4); change >= 0; change--)
        mutated[random.integer(mutated.length)] = random.integer(256);
      if (tryImport(mutated, `seed ${seed}`)) modelCount++;
    }
    // Most bytes are weights, whose changes are harmless; some mutations must hit the structure.
    assert.ok(
      modelCount > mutationCount / 10 && modelCount < mutationCount,
      `${modelCount} of ${mutationCount} are still models`,
    );
  });

  test(`${name}: ${mutationCount} seeded mutations of the structure`, () => {
    const structural = structureOf(bytes);
    for (let seed = 0; seed < mutationCount; seed++) {
      const random = createRandom(seed, 7);
      const mutated = bytes.slice();
      for (let change = random.integer(3); change >= 0; change--)
        mutated[structural[random.integer(structural.length)] as number] = random.integer(256);
      tryImport(mutated, `seed ${seed}`);
    }
  });
}

/**
 * Positions of the bytes that are not weights: bytes that differ from the same model's file with inverted weights are
 * left out.
 */
function structureOf(bytes: Uint8Array): readonly number[] {
  const model = importModel(bytes);
  const weights = new Set<number>();
  for (const { data } of model.graph.initializers.values()) {
    if (data.byteLength < 16) continue;
    const needle = new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
    const start = Buffer.from(bytes).indexOf(needle);
    for (let index = 0; start >= 0 && index < needle.length; index++) weights.add(start + index);
  }
  return Array.from(bytes.keys()).filter((position) => !weights.has(position));
}
