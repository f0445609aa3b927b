// What PyTorch's newer exporter says of the tensors that it computed ahead.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { create } from '@bufbuild/protobuf';

import { changed, onnxModel } from '../../testing/onnx-models.ts';
import { type Tensor, tensor, toNumbers } from '../tensor.ts';
import { StringStringEntryProtoSchema, ValueInfoProtoSchema } from './generated/onnx_pb.ts';
import { type ImportedModel, importModel } from './import.ts';

const signature = `
# inputs
p_weight: PARAMETER target='weight'
p_token: PARAMETER target='token'
p_table: PARAMETER target='net.table'
b_grid: BUFFER target='grid' persistent=True
x: USER_INPUT
`;
const random = (count: number): readonly number[] =>
  Array.from({ length: count }, (_, index) => Math.fround(Math.sin(index * 37.1) / (index + 2)));
const numbers = (shape: readonly number[]): Tensor =>
  tensor('float32', shape, random(shape.reduce((a, b) => a * b, 1)));

/** x · weight, with each of `folded` added to it; they were computed from the tensors given. */
function model(folded: Readonly<Record<string, readonly [Tensor, readonly string[]]>>): ImportedModel {
  const names = Object.keys(folded);
  const nodes = [
    { operator: 'MatMul', inputs: ['x', 'weight'], outputs: ['sum0'] },
    ...names.map((name, index) => ({
      operator: 'Add',
      inputs: [`sum${index}`, name],
      outputs: [index + 1 === names.length ? 'y' : `sum${index + 1}`],
    })),
  ];
  const values = Object.fromEntries(
    names.map((name) => [name, (folded[name] as readonly [Tensor, readonly string[]])[0]]),
  );
  const initializers = { weight: numbers([6, 6]), ...values };
  const inputs = [{ name: 'x', type: 'float32', shape: ['N', 6, 6] } as const];
  const bytes = onnxModel({ opset: 18, inputs, nodes, outputs: ['y'], initializers });
  const entry = (key: string, value: string) => create(StringStringEntryProtoSchema, { key, value });
  return importModel(
    changed(bytes, ({ graph }) => {
      graph?.metadataProps.push(entry('pkg.torch.export.ExportedProgram.graph_signature', signature));
      for (const name of names) {
        const list = (folded[name] as readonly [Tensor, readonly string[]])[1]
          .map((source) => `'${source}'`)
          .join(', ');
        const metadataProps = [entry('pkg.onnxscript.optimizer.folded_from', `[${list}]`)];
        graph?.valueInfo.push(create(ValueInfoProtoSchema, { name, metadataProps }));
      }
    }),
  );
}

test('what was computed from a parameter is trained, what from buffers or nothing is not', () => {
  const { graph, choices } = model({
    expand_1: [numbers([1, 6, 6]), ['token', 'val_3']],
    mul_2: [numbers([1, 6, 6]), ['grid', 'token']],
    where_1: [numbers([1, 6, 6]), ['grid', 'arange']],
    val_9: [numbers([1, 6, 6]), ['val_8']],
  });
  assert.deepEqual(graph.parameters, ['weight', 'expand_1', 'mul_2']);
  assert.deepEqual(
    choices.map(({ name, why, isSure }) => [name, why, isSure]),
    [
      ['weight', 'a parameter, the exporter says', true],
      ['expand_1', 'rearranged from token', true],
      ['mul_2', 'computed from token ahead, and trained as it is', false],
      ['where_1', 'computed from grid, no parameter', true],
      ['val_9', 'computed from no parameter', true],
    ],
  );
});

test('a table that was looked up ahead is its rows again, under the name of its parameter', () => {
  const rows = random(10);
  // [1, 2 heads, 6, 6]: the element for i and j is that of min(|i − j|, 4).
  const values = [0, 1].flatMap((head) =>
    Array.from(
      { length: 36 },
      (_, cell) => rows[2 * Math.min(4, Math.abs(Math.floor(cell / 6) - (cell % 6))) + head] as number,
    ),
  );
  const { graph, notes } = model({
    unsqueeze: [tensor('float32', [1, 2, 6, 6], values), ['net.table', 'view', 'permute']],
  });
  assert.deepEqual(graph.parameters, ['weight', 'net.table']);
  assert.deepEqual(toNumbers(graph.initializers.get('net.table') as Tensor), rows);
  assert.match(notes.join(' '), /had looked up 1 table ahead/);
  const zeros = model({ unsqueeze: [tensor('float32', [1, 2, 6, 6], new Array(72).fill(0)), ['net.table']] });
  assert.deepEqual(zeros.graph.parameters, ['weight', 'unsqueeze'], 'equal elements do not say which are one');
});

test('copies that were computed alike from one parameter are one weight again', () => {
  const { graph } = model({ view: [numbers([6, 6]), ['token']], view_1: [numbers([6, 6]), ['token']] });
  assert.deepEqual(graph.parameters, ['weight', 'view']);
  assert.deepEqual(
    graph.nodes.map(({ inputs }) => inputs[1]),
    ['weight', 'view', 'view'],
  );
});
