import assert from 'node:assert/strict';
import { test } from 'node:test';

import { changed, messageOf, onnxModel } from '../../testing/onnx-models.ts';
import { evaluateGraph } from '../evaluate.ts';
import type { ValueInfo } from '../graph.ts';
import { instantiate } from '../static.ts';
import { int64s, type Tensor, tensor, toNumbers } from '../tensor.ts';
import { exportModel } from './export.ts';
import { importModel } from './import.ts';

const tokens: ValueInfo = { name: 'x', type: 'int64', shape: ['N'] };
const rows = [0.3, -1.2, 0.7, 2.5, -0.4, 1.1, 0.9, -2.2, 1.7, 0.2, -0.6, 0.8, 1.4, -1.9, 0.5, 2.1];
/** The transpose of a matrix [rows, columns]. */
const transposed = (values: readonly number[], [count, width]: readonly [number, number]): number[] =>
  Array.from(values, (_, index) => values[(index % count) * width + Math.floor(index / count)] as number);
const nodes = [
  { operator: 'Gather', inputs: ['table', 'x'], outputs: ['a'] },
  { operator: 'MatMul', inputs: ['a', 'val_7'], outputs: ['y'] },
];
const tied = (table: Tensor, classifier: Tensor): Uint8Array =>
  onnxModel({ opset: 18, inputs: [tokens], nodes, outputs: ['y'], initializers: { val_7: classifier, table } });
const table = tensor('float32', [8, 2], rows);
const classifier = tensor('float32', [2, 8], transposed(rows, [8, 2]));

test('an embedding and its transpose are one weight, which keeps its own name', () => {
  const imported = importModel(tied(table, classifier));
  assert.deepEqual(imported.graph.parameters, ['table']);
  const [first] = imported.graph.nodes;
  assert.deepEqual([first?.operator, first?.inputs, first?.outputs], ['Transpose', ['table'], ['val_7']]);
  assert.deepEqual(imported.notes, [
    'The exporter had stored 1 weight twice, as it is and transposed; it is one again.',
  ]);
  const doubled = tensor(
    'float32',
    [8, 2],
    rows.map((value) => 2 * value),
  );
  const trained = importModel(exportModel(imported, new Map([['table', doubled]])));
  const y = evaluateGraph(instantiate(trained.graph, 1).graph, new Map([['x', int64s([0])]])).get('y');
  // 4 · (row 0 · each row): 4 · (0.3 · 0.3 + 1.2 · 1.2) = 6.12, 4 · (0.3 · 0.7 − 1.2 · 2.5) = −11.16.
  assert.deepEqual(
    toNumbers(y as Tensor)
      .slice(0, 2)
      .map((value) => value.toFixed(4)),
    ['6.1200', '-11.1600'],
  );
});

test('near transposes, transposes by chance, and files of ours stay unchanged', () => {
  const unchanged = (bytes: Uint8Array): boolean => {
    const { proto } = importModel(bytes);
    return (
      JSON.stringify(proto.graph?.node.map(({ opType }) => opType)) ===
      JSON.stringify(messageOf(bytes).graph?.node.map((node) => node.opType))
    );
  };
  const other = transposed(rows, [8, 2]);
  other[3] = 9;
  assert.ok(unchanged(tied(table, tensor('float32', [2, 8], other))));
  const ones = new Array<number>(16).fill(1);
  assert.ok(unchanged(tied(tensor('float32', [8, 2], ones), tensor('float32', [2, 8], ones))));
  const symmetric = Array.from({ length: 16 }, (_, index) => Math.floor(index / 4) + (index % 4));
  assert.ok(unchanged(tied(tensor('float32', [4, 4], symmetric), tensor('float32', [4, 4], symmetric))));
  const small = rows.slice(0, 8);
  assert.ok(unchanged(tied(tensor('float32', [4, 2], small), tensor('float32', [2, 4], transposed(small, [4, 2])))));
  assert.ok(!unchanged(tied(tensor('float32', [4, 4], rows), tensor('float32', [4, 4], transposed(rows, [4, 4])))));
  assert.ok(
    unchanged(
      changed(tied(table, classifier), (model) => {
        model.producerName = 'asteroid';
      }),
    ),
  );
});
