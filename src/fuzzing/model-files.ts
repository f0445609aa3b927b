// Small ONNX models of the kinds that importing treats differently: convolutions with batch normalization, attention
// over tokens, an older opset with shape arithmetic, a model's own functions, an If that shapes decide, weights outside
// the file.

import { create } from '@bufbuild/protobuf';
import { GraphBuilder } from '../graph/builder.ts';
import { float, type Graph, int, ints } from '../graph/graph.ts';
import { exportGraph } from '../graph/onnx/export.ts';
import {
  AttributeProto_AttributeType,
  AttributeProtoSchema,
  FunctionProtoSchema,
  type GraphProto,
  GraphProtoSchema,
  StringStringEntryProtoSchema,
  TensorProto_DataLocation,
} from '../graph/onnx/generated/onnx_pb.ts';
import { int64s, scalar, tensor } from '../graph/tensor.ts';
import { changed, messageOf, onnxModel } from '../testing/onnx-models.ts';

/** Convolution, batch normalization, pooling, dropout, a classifier of 3. */
export function convolutionGraph(): Graph {
  const b = new GraphBuilder('convolution', { seed: 1 });
  const x = b.relu(
    b.batchNorm(b.conv2d(b.input('x', 'float32', ['N', 2, 4, 4]), { name: 'conv', outChannels: 2, kernel: 3 }), {
      name: 'bn',
    }),
  );
  return b.build([
    b.linear(b.dropout(b.flatten(b.maxPool2d(x, { kernel: 2 })), 0.5), { name: 'head', outFeatures: 3 }),
  ]);
}

/** One head of attention over three tokens. */
export function attentionGraph(): Graph {
  const b = new GraphBuilder('attention', { seed: 2 });
  const x = b.layerNorm(b.embedding(b.input('ids', 'int64', ['N', 3]), { name: 'tokens', count: 5, width: 4 }), {
    name: 'norm',
  });
  const part = (name: string): string => b.linear(x, { name, outFeatures: 4, bias: false });
  const scores = b.softmax(b.matMul(part('query'), b.transpose(part('key'), [0, 2, 1])));
  const pooled = b.node('ReduceMean', [b.add(x, b.matMul(scores, part('value'))), b.constant(int64s([1]))], {
    keepdims: int(0),
  });
  return b.build([b.linear(pooled, { name: 'head', outFeatures: 2 })]);
}

const x = { name: 'x', type: 'float32', shape: ['batch', 2, 2] } as const;
const weight = tensor('float32', [4, 3], [1, -1, 2, 0.5, 3, -2, 1, 0, 1, 2, 0.25, -0.5]);

/** A reshape as exporters wrote it at opset 11, with attributes that later became inputs. */
function older(): Uint8Array {
  return onnxModel({
    opset: 11,
    inputs: [x],
    nodes: [
      { operator: 'Shape', inputs: ['x'], outputs: ['shape'] },
      { operator: 'Gather', inputs: ['shape', 'zero'], outputs: ['batch'], attributes: { axis: int(0) } },
      { operator: 'Unsqueeze', inputs: ['batch'], outputs: ['batches'], attributes: { axes: ints([0]) } },
      { operator: 'Concat', inputs: ['batches', 'rest'], outputs: ['sizes'], attributes: { axis: int(0) } },
      { operator: 'Reshape', inputs: ['x', 'sizes'], outputs: ['flat'] },
      {
        operator: 'Gemm',
        inputs: ['flat', 'fc.weight', 'fc.bias'],
        outputs: ['sum'],
        attributes: { alpha: float(1), transB: int(0) },
      },
      {
        operator: 'Split',
        inputs: ['sum'],
        outputs: ['left', 'right'],
        attributes: { axis: int(1), split: ints([1, 2]) },
      },
      { operator: 'Concat', inputs: ['right', 'left'], outputs: ['y'], attributes: { axis: int(-1) } },
    ],
    outputs: ['y'],
    initializers: {
      'fc.weight': weight,
      'fc.bias': tensor('float32', [3], [0, 1, -1]),
      zero: scalar('int64', 0),
      rest: int64s([4]),
    },
  });
}

/** A function that calls another. */
function functions(): Uint8Array {
  const call = {
    operator: 'Outer',
    domain: 'local',
    inputs: ['x', 'w'],
    outputs: ['a'],
    attributes: { slope: float(0.5) },
  };
  const bytes = onnxModel({
    opset: 17,
    inputs: [x],
    nodes: [call, { ...call, inputs: ['a', 'w'], outputs: ['y'], attributes: {} }],
    outputs: ['y'],
    initializers: { w: tensor('float32', [2], [1, -1]) },
  });
  const node = (opType: string, input: string[], output: string[], domain: string, attribute: object[]): object => ({
    opType,
    input,
    output,
    domain,
    attribute,
  });
  const slope = (name: string): object => ({ name, type: AttributeProto_AttributeType.FLOAT, refAttrName: 'slope' });
  const inner = [node('Add', ['p', 'q'], ['sum'], '', []), node('LeakyRelu', ['sum'], ['out'], '', [slope('alpha')])];
  const common = { domain: 'local', input: ['p', 'q'], output: ['out'] };
  return changed(bytes, (model) => {
    model.functions = [
      { ...common, name: 'Inner', attribute: ['slope'], node: inner },
      {
        ...common,
        name: 'Outer',
        attributeProto: [{ name: 'slope', type: 1, f: 0.25 }],
        node: [node('Inner', ['p', 'q'], ['out'], 'local', [slope('slope')])],
      },
    ].map((definition) => create(FunctionProtoSchema, definition as never));
  });
}

/** An If whose condition a shape decides. */
function branches(): Uint8Array {
  const branch = (operator: string): GraphProto => {
    const { graph } = messageOf(
      onnxModel({ opset: 18, inputs: [], nodes: [{ operator, inputs: ['x'], outputs: ['out'] }], outputs: ['out'] }),
    );
    return Object.assign(create(GraphProtoSchema), graph);
  };
  const bytes = onnxModel({
    opset: 18,
    inputs: [x],
    nodes: [
      { operator: 'Shape', inputs: ['x'], outputs: ['shape'] },
      { operator: 'Gather', inputs: ['shape', 'one'], outputs: ['size'] },
      { operator: 'Equal', inputs: ['size', 'one'], outputs: ['condition'] },
      { operator: 'If', name: 'choice', inputs: ['condition'], outputs: ['chosen'] },
      { operator: 'Mul', inputs: ['chosen', 'w'], outputs: ['y'] },
    ],
    outputs: ['y'],
    initializers: { one: scalar('int64', 1), w: tensor('float32', [2], [10, 100]) },
  });
  return changed(bytes, ({ graph }) => {
    const attribute = ['then_branch', 'else_branch'].map((name, index) =>
      create(AttributeProtoSchema, {
        name,
        type: AttributeProto_AttributeType.GRAPH,
        g: branch(index === 0 ? 'Neg' : 'Abs'),
      }),
    );
    graph?.node.find(({ name }) => name === 'choice')?.attribute.push(...attribute);
  });
}

/** The files next to a model, by name. */
export const filesBeside: ReadonlyMap<string, Uint8Array> = new Map([['weights.bin', new Uint8Array(64).fill(1)]]);

/** Weights in a file next to the model. */
function external(): Uint8Array {
  return changed(older(), ({ graph }) => {
    const found = graph?.initializer.find(({ name }) => name === 'fc.weight');
    if (found === undefined) return;
    found.rawData = new Uint8Array();
    found.dataLocation = TensorProto_DataLocation.EXTERNAL;
    found.externalData = Object.entries({ location: 'weights.bin', offset: '8', length: '48' }).map((entry) =>
      create(StringStringEntryProtoSchema, { key: entry[0], value: entry[1] }),
    );
  });
}

/** Constants that are larger than their description. */
function grown(): Uint8Array {
  return onnxModel({
    opset: 17,
    inputs: [x],
    nodes: [
      { operator: 'Expand', inputs: ['w', 'size'], outputs: ['large'] },
      { operator: 'Mul', inputs: ['large', 'w'], outputs: ['scaled'] },
      { operator: 'Concat', inputs: ['scaled', 'large', 'scaled'], outputs: ['joined'], attributes: { axis: int(0) } },
      { operator: 'ReduceMax', inputs: ['joined'], outputs: ['most'], attributes: { keepdims: int(0) } },
      { operator: 'Mul', inputs: ['x', 'most'], outputs: ['product'] },
      { operator: 'Add', inputs: ['product', 'w'], outputs: ['y'] },
    ],
    outputs: ['y'],
    initializers: { w: tensor('float32', [2], [1, -1]), size: int64s([16, 64, 2]) },
  });
}

/** All models. */
export function modelFiles(): readonly Uint8Array[] {
  return [
    exportGraph(convolutionGraph()),
    exportGraph(attentionGraph()),
    older(),
    functions(),
    branches(),
    external(),
    grown(),
  ];
}
