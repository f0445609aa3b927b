// A transformer block has at least PipeEdge's four units (Fig. 3), whoever wrote the file (test/fixtures/blocks): both
// of PyTorch's exporters, attention as one operator of ONNX or of ONNX Runtime.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fixtureFolder } from '../testing/pytorch-fixtures.ts';
import { cutBytes, layers } from './layers.ts';
import { importModel } from './onnx/import.ts';

/** Width 8, 16 inside the feed-forward part; the class token and four patches, one more token in DeiT, six words. */
const [width, inside] = [8, 16];
const files: readonly (readonly [name: string, tokenCount: number])[] = [
  ...['vit-script', 'vit-dynamo', 'vit-fused'].map((name) => [name, 5] as const),
  ...['deit-script', 'deit-dynamo', 'deit-fused'].map((name) => [name, 6] as const),
  ...['bert-script', 'bert-dynamo', 'bert-fused'].map((name) => [name, 6] as const),
  ['microsoft', 5],
];

test('PipeEdge’s four units of a block can be cut apart, each residual counted with what crosses beside it', () => {
  for (const [name, tokenCount] of files) {
    const { graph } = importModel(readFileSync(join(fixtureFolder('blocks'), `${name}.onnx`)));
    const cuts = layers(graph).layers.map(({ outputs }) => [outputs.length, cutBytes(outputs)] as const);
    const row = 4 * tokenCount;
    // The end of the block is that of the fourth: only a pooled row or the residual goes on.
    const units: readonly (readonly [tensors: number, bytes: number])[] = [
      [2, row * (width + width)], // the residual, scores times values
      [1, row * width], // the output's projection, added to the residual
      [2, row * (width + inside)], // the residual, the first dense layer
    ];
    const places = units.map(([count, bytes]) => cuts.findLastIndex(([c, b]) => c === count && b === bytes));
    assert.ok(
      places.every((place, index) => place > (places[index - 1] ?? 0)),
      `${name}: ${places} of ${JSON.stringify(cuts)}`,
    );
    assert.ok((places.at(-1) as number) + 1 < cuts.length - 1, name);
    // The queries, keys and values before them, and the softmax apart from the second product.
    assert.ok((places[0] as number) >= 2, name);
  }
});
