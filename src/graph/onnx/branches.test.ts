import assert from 'node:assert/strict';
import { test } from 'node:test';
import { create } from '@bufbuild/protobuf';
import { InputError } from '../../errors.ts';
import { evaluateGraph } from '../../testing/evaluate-graph.ts';
import { changed, messageOf, onnxModel } from '../../testing/onnx-models.ts';
import { instantiate } from '../static.ts';
import { scalar, type Tensor, tensor } from '../tensor.ts';
import { patchNode } from './encode.ts';
import {
  AttributeProto_AttributeType,
  AttributeProtoSchema,
  type GraphProto,
  GraphProtoSchema,
} from './generated/onnx_pb.ts';
import { importModel } from './import.ts';

interface Branch {
  readonly nodes: Parameters<typeof onnxModel>[0]['nodes'];
  readonly output: string;
  readonly initializers?: Readonly<Record<string, Tensor>>;
}

const x = { name: 'x', type: 'float32', shape: ['N', 1, 2] } as const;

/** The file's graph of a branch: it has no inputs. */
function graphOf({ nodes, output, initializers = {} }: Branch): GraphProto {
  const graph = messageOf(onnxModel({ opset: 18, inputs: [], nodes, outputs: [output], initializers })).graph;
  return Object.assign(create(GraphProtoSchema), graph);
}

/** y = If(condition) of a model whose other nodes are given. */
function model(nodes: Branch['nodes'], condition: string, then: Branch, otherwise: Branch): Uint8Array {
  const bytes = onnxModel({
    opset: 18,
    inputs: [x],
    nodes: [
      ...nodes,
      { operator: 'If', name: 'choice', inputs: [condition], outputs: ['chosen'] },
      { operator: 'Neg', inputs: ['chosen'], outputs: ['y'] },
    ],
    outputs: ['y'],
    initializers: { one: scalar('int64', 1), middle: tensor('int64', [1], [1]), w: tensor('float32', [2], [10, 100]) },
  });
  return changed(bytes, ({ graph }) => {
    const node = graph?.node.find(({ name }) => name === 'choice');
    node?.attribute.push(
      ...[then, otherwise].map((branch, index) =>
        create(AttributeProtoSchema, {
          name: index === 0 ? 'then_branch' : 'else_branch',
          type: AttributeProto_AttributeType.GRAPH,
          g: graphOf(branch),
        }),
      ),
    );
  });
}

const squeeze: Branch = { nodes: [{ operator: 'Squeeze', inputs: ['x', 'middle'], outputs: ['out'] }], output: 'out' };
const scaled: Branch = {
  nodes: [
    { operator: 'Mul', inputs: ['x', 'w'], outputs: ['product'] },
    { operator: 'Add', inputs: ['product', 'shift'], outputs: ['out'] },
  ],
  output: 'out',
  initializers: { shift: tensor('float32', [2], [1, 2]) },
};
/** The middle dimension of x is `operator` 1. */
const asks = (operator: string): Branch['nodes'] => [
  { operator: 'Shape', inputs: ['x'], outputs: ['shape'] },
  { operator: 'Gather', inputs: ['shape', 'one'], outputs: ['size'] },
  { operator, inputs: ['size', 'one'], outputs: ['condition'] },
];

function run(bytes: Uint8Array): Tensor {
  const { graph } = importModel(bytes);
  const { graph: fixed } = instantiate(graph, 2);
  return evaluateGraph(fixed, new Map([['x', tensor('float32', [2, 1, 2], [1, 2, 3, 4])]])).get('y') as Tensor;
}

test('if a shape decides, the branch replaces the If, with its constants', () => {
  const taken = run(model(asks('Equal'), 'condition', squeeze, scaled));
  assert.deepEqual([taken.shape, taken.data], [[2, 2], Float32Array.of(-1, -2, -3, -4)]);
  const other = run(model(asks('Less'), 'condition', squeeze, scaled));
  assert.deepEqual([other.shape, other.data], [[2, 1, 2], Float32Array.of(-11, -202, -31, -402)]);
  assert.deepEqual(importModel(model(asks('Less'), 'condition', squeeze, scaled)).graph.parameters, [
    'w',
    'choice/shift',
  ]);
});

test('a branch that only passes a value on, and an If inside a branch', () => {
  const passing: Branch = { nodes: [], output: 'x' };
  assert.deepEqual(run(model(asks('Equal'), 'condition', passing, scaled)).shape, [2, 1, 2]);
  const inner = messageOf(model(asks('Equal'), 'condition', squeeze, scaled)).graph?.node.find(
    ({ name }) => name === 'choice',
  );
  const outer = changed(model(asks('Less'), 'condition', squeeze, scaled), ({ graph }) => {
    const branch = graph?.node
      .find(({ name }) => name === 'choice')
      ?.attribute.find(({ name }) => name === 'else_branch')?.g;
    if (inner !== undefined) branch?.node.push(patchNode(inner, { name: 'inner', output: ['inner out'] }));
    if (branch?.output[0] !== undefined) branch.output[0].name = 'inner out';
    const [, , comparison] = graph?.node ?? [];
    if (comparison !== undefined)
      graph?.node.splice(2, 0, patchNode(comparison, { name: 'same', opType: 'Equal', output: ['equal'] }));
    const nested = branch?.node.at(-1);
    if (nested !== undefined) nested.input = ['equal'];
  });
  assert.deepEqual(run(outer).shape, [2, 2]);
});

test('an If that depends on data is refused by name', () => {
  const nodes: Branch['nodes'] = [
    {
      operator: 'ReduceMax',
      inputs: ['x'],
      outputs: ['greatest'],
      attributes: { keepdims: { type: 'int', value: 0 } },
    },
    { operator: 'Cast', inputs: ['greatest'], outputs: ['condition'], attributes: { to: { type: 'int', value: 9 } } },
  ];
  const { graph } = importModel(model(nodes, 'condition', squeeze, scaled));
  assert.throws(
    () => instantiate(graph, 2),
    (error) => {
      assert.ok(error instanceof InputError);
      assert.match(
        error.message,
        /^Operator If \(node "choice"\) is not supported; its condition depends on data; .*\.$/,
      );
      return true;
    },
  );
});
