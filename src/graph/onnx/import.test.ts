import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { create } from '@bufbuild/protobuf';

import { InputError } from '../../errors.ts';
import { changed, onnxModel } from '../../testing/onnx-models.ts';
import { pytorchFixtures } from '../../testing/pytorch-fixtures.ts';
import { randomInputs } from '../../testing/sample-models.ts';
import { evaluateGraph } from '../evaluate.ts';
import { float, int, type ValueInfo } from '../graph.ts';
import { layers } from '../layers.ts';
import { instantiate } from '../static.ts';
import { int64s, scalar, type Tensor, tensor, toNumbers, type ValueType } from '../tensor.ts';
import { exportModel } from './export.ts';
import {
  FunctionProtoSchema,
  StringStringEntryProtoSchema,
  TensorProto_DataLocation,
  TensorProto_DataType,
  TensorProtoSchema,
  TypeProtoSchema,
  ValueInfoProtoSchema,
} from './generated/onnx_pb.ts';
import { importModel } from './import.ts';

const x: ValueInfo = { name: 'x', type: 'float32', shape: ['N', 2] };
const weights = {
  'fc.weight': tensor('float32', [2, 3], [1, 2, 3, 4, 5, 6]),
  'fc.bias': tensor('float32', [3], [10, 20, 30]),
};
const linear = { operator: 'Gemm', inputs: ['x', 'fc.weight', 'fc.bias'], outputs: ['y'], name: 'fc' };
const model = onnxModel({ opset: 17, inputs: [x], nodes: [linear], outputs: ['y'], initializers: weights });

test('a small model: names, nodes, weights and what they compute', () => {
  const { graph, notes } = importModel(model);
  assert.deepEqual(graph.inputs, [x]);
  assert.deepEqual(graph.nodes, [
    { operator: 'Gemm', domain: '', name: 'fc', inputs: linear.inputs, outputs: ['y'], attributes: {} },
  ]);
  assert.deepEqual(graph.parameters, ['fc.weight', 'fc.bias']);
  assert.deepEqual([graph.buffers, notes, graph.fixedBatch], [[], [], undefined]);
  const y = evaluateGraph(instantiate(graph, 1).graph, new Map([['x', tensor('float32', [1, 2], [1, -1])]])).get('y');
  assert.deepEqual(toNumbers(y as Tensor), [7, 17, 27]);
});

test('weights have arrays of their own, not views of the file', () => {
  const bytes = model.slice();
  const { graph } = importModel(bytes);
  for (const { data } of graph.initializers.values()) assert.equal(data.buffer.byteLength, data.byteLength);
  bytes.fill(0);
  assert.deepEqual(toNumbers(graph.initializers.get('fc.bias') as Tensor), [10, 20, 30]);
});

for (const fixture of pytorchFixtures()) {
  test(`${fixture.name}: the parameters are PyTorch's, and the model splits into layers`, () => {
    const imported = importModel(readFileSync(fixture.modelPath));
    const expected = new Set(Object.values(fixture.finalWeights).map(({ initializer }) => initializer));
    assert.deepEqual(new Set(imported.graph.parameters), expected);
    assert.equal(imported.graph.buffers.length > 0, fixture.hasBatchNorm);
    const sequence = layers(imported.graph);
    assert.equal(sequence.fixedBatch, undefined);
    assert.ok(sequence.layers.length >= (fixture.tiedWeights ? 1 : 3), `${sequence.layers.length} layers`);
  });
}

test('one net exported for any batch and for 16 computes the same for 5 samples', () => {
  const pairs = [
    ['residual/opset13-dynamic', 'residual/opset13-fixed'],
    ['grouped/opset16-dynamic', 'grouped/opset17-fixed'],
    ['vit/opset15-dynamic', 'vit/opset17-fixed'],
    ['gpt/opset17-dynamic', 'gpt/opset16-fixed'],
  ] as const;
  const fixtures = new Map(pytorchFixtures().map((fixture) => [fixture.name, fixture]));
  for (const names of pairs) {
    const [dynamic, fixed] = names.map((name) => {
      const { graph } = instantiate(importModel(readFileSync(fixtures.get(name)?.modelPath ?? '')).graph, 5);
      const [output] = evaluateGraph(graph, randomInputs(graph.inputs as (ValueInfo & ValueType)[], 3)).values();
      return toNumbers(output as Tensor);
    });
    assert.ok(dynamic && fixed);
    const distance = Math.max(...dynamic.map((value, index) => Math.abs(value - (fixed[index] as number))));
    assert.ok(distance < 1e-5, `${names.join(' and ')} differ by ${distance}`);
  }
});

test('tensors of Constant nodes are weights in a weight position; masks and numbers are not', () => {
  const constants = {
    w: tensor('float32', [2, 2], [1, 2, 3, 4]),
    mask: tensor('float32', [2], [0, -100]),
    half: tensor('float32', [1], [0.5]),
  };
  const nodes = [
    { operator: 'MatMul', inputs: ['x', 'w'], outputs: ['a'] },
    { operator: 'Add', inputs: ['a', 'mask'], outputs: ['b'] },
    { operator: 'Mul', inputs: ['b', 'half'], outputs: ['c'] },
    { operator: 'Add', inputs: ['c', 'shift'], outputs: ['y'] },
  ];
  const shift = tensor('float32', [2], [5, 6]);
  const mixed = onnxModel({ opset: 17, inputs: [x], nodes, outputs: ['y'], constants, initializers: { shift } });
  assert.deepEqual(importModel(mixed).graph.parameters, ['shift', 'w']);
  const onlyConstants = onnxModel({
    opset: 17,
    inputs: [x],
    nodes,
    outputs: ['y'],
    constants: { ...constants, shift },
  });
  assert.deepEqual(importModel(onlyConstants).graph.parameters, ['w', 'shift']);
});

test('tensors that no gradient reaches are not weights: shapes, conditions, bounds, indices', () => {
  const nodes = [
    { operator: 'Greater', inputs: ['x', 'threshold'], outputs: ['condition'] },
    { operator: 'Where', inputs: ['condition', 'x', 'other'], outputs: ['a'] },
    { operator: 'Clip', inputs: ['a', 'low', ''], outputs: ['y'] },
  ];
  const initializers = {
    threshold: tensor('float32', [2], [0, 1]),
    other: tensor('float32', [2], [0.1, 0.2]),
    low: scalar('float32', -1),
    unread: tensor('float32', [2], [1, 2]),
  };
  assert.deepEqual(
    importModel(onnxModel({ opset: 17, inputs: [x], nodes, outputs: ['y'], initializers })).graph.parameters,
    ['other'],
  );
});

test('initializers that are also listed as inputs are weights, not inputs', () => {
  const bytes = changed(model, ({ graph }) => {
    const type = create(TypeProtoSchema, { value: { case: 'tensorType', value: { elemType: 1 } } });
    for (const { name } of graph?.initializer ?? []) graph?.input.push(create(ValueInfoProtoSchema, { name, type }));
  });
  const { graph } = importModel(bytes);
  assert.deepEqual(
    graph.inputs.map(({ name }) => name),
    ['x'],
  );
  assert.deepEqual(graph.parameters, ['fc.weight', 'fc.bias']);
});

test('unnamed and equally named nodes get unique names; the order is fixed', () => {
  const nodes = [
    { operator: 'Relu', inputs: ['a'], outputs: ['b'], name: '' },
    { operator: 'Add', inputs: ['x', 'x'], outputs: ['a'], name: 'same' },
    { operator: 'Add', inputs: ['b', 'a'], outputs: ['y'], name: 'same' },
  ];
  const { graph } = importModel(onnxModel({ opset: 17, inputs: [x], nodes, outputs: ['y'] }));
  assert.deepEqual(
    graph.nodes.map(({ name, outputs }) => [name, outputs]),
    [
      ['same', ['a']],
      ['Relu_0', ['b']],
      ['same_2', ['y']],
    ],
  );
});

test('the batch is the first leading symbol; each input may have its own', () => {
  const inputs: ValueInfo[] = [
    { name: 'ids', type: 'float32', shape: ['batch', 'time'] },
    { name: 'mask', type: 'float32', shape: ['other_batch', 'time'] },
    { name: 'shift', type: 'float32', shape: ['N'] },
  ];
  const nodes = [
    { operator: 'Mul', inputs: ['ids', 'mask'], outputs: ['a'] },
    { operator: 'Add', inputs: ['a', 'shift'], outputs: ['y'] },
  ];
  const { graph } = importModel(onnxModel({ opset: 17, inputs, nodes, outputs: ['y'] }), { dimensions: { time: 4 } });
  assert.deepEqual(
    graph.inputs.map(({ shape }) => shape),
    [['N', 4], ['N', 4], ['N']],
  );
  const second = [
    { ...x, shape: [7, 'rows'] },
    { ...x, name: 'z', shape: [7, 'N'] },
  ];
  const add = { operator: 'Add', inputs: ['x', 'z'], outputs: ['y'] };
  const atTheBack = importModel(onnxModel({ opset: 17, inputs: second, nodes: [add], outputs: ['y'] })).graph;
  assert.deepEqual(
    atTheBack.inputs.map(({ shape }) => shape),
    [
      [7, 'N'],
      [7, 'N_2'],
    ],
  );
});

test('tensors are read from raw bytes and from every typed field', () => {
  const read = (fields: Parameters<typeof create<typeof TensorProtoSchema>>[1]): number[] => {
    const bytes = changed(
      onnxModel({
        opset: 17,
        inputs: [x],
        nodes: [{ operator: 'Identity', inputs: ['t'], outputs: ['y'] }],
        outputs: ['y'],
      }),
      ({ graph }) => {
        graph?.initializer.push(create(TensorProtoSchema, { name: 't', ...fields }));
      },
    );
    return toNumbers(importModel(bytes).graph.initializers.get('t') as Tensor);
  };
  const { DataType } = { DataType: TensorProto_DataType };
  assert.deepEqual(read({ dataType: DataType.FLOAT, dims: [2n], floatData: [1.5, -2] }), [1.5, -2]);
  assert.deepEqual(read({ dataType: DataType.DOUBLE, dims: [1n, 2n], doubleData: [0.1, 3] }), [Math.fround(0.1), 3]);
  assert.deepEqual(read({ dataType: DataType.INT64, dims: [1n], int64Data: [-5n] }), [-5]);
  assert.deepEqual(read({ dataType: DataType.UINT64, dims: [1n], uint64Data: [5n] }), [5]);
  assert.deepEqual(read({ dataType: DataType.UINT32, dims: [1n], uint64Data: [4_000_000_000n] }), [4_000_000_000]);
  for (const type of [DataType.INT32, DataType.INT16, DataType.INT8])
    assert.deepEqual(read({ dataType: type, dims: [2n], int32Data: [-7, 9] }), [-7, 9]);
  assert.deepEqual(read({ dataType: DataType.BOOL, dims: [3n], int32Data: [0, 1, 7] }), [0, 1, 1]);
  assert.deepEqual(read({ dataType: DataType.FLOAT, dims: [], rawData: new Uint8Array([0, 0, 128, 63]) }), [1]);
  assert.deepEqual(read({ dataType: DataType.FLOAT, dims: [0n, 4n] }), []);
  // Half precision: 1, −2, the largest number, the smallest one, infinity; and bfloat16 1, −3.140625.
  assert.deepEqual(read({ dataType: DataType.FLOAT16, dims: [5n], int32Data: [0x3c00, 0xc000, 0x7bff, 1, 0x7c00] }), [
    1,
    -2,
    65504,
    2 ** -24,
    Infinity,
  ]);
  assert.deepEqual(
    read({ dataType: DataType.BFLOAT16, dims: [2n], rawData: new Uint8Array([0x80, 0x3f, 0x49, 0xc0]) }),
    [1, -3.140625],
  );
});

test('a half-precision model is trained in float32, and written back in half precision', () => {
  const half = changed(
    onnxModel({
      opset: 17,
      inputs: [x],
      nodes: [
        { operator: 'Add', inputs: ['x', 'w'], outputs: ['a'] },
        { operator: 'Cast', inputs: ['a'], outputs: ['y'], attributes: { to: int(10) } },
      ],
      outputs: ['y'],
    }),
    ({ graph }) => {
      graph?.initializer.push(
        create(TensorProtoSchema, {
          name: 'w',
          dataType: TensorProto_DataType.FLOAT16,
          dims: [2n],
          rawData: new Uint8Array([0, 0x3c, 0, 0xc0]),
        }),
      );
      for (const { type } of graph?.input ?? [])
        if (type?.value.case === 'tensorType') type.value.value.elemType = TensorProto_DataType.FLOAT16;
    },
  );
  const imported = importModel(half);
  assert.deepEqual(imported.notes, ['The model is in half precision; it is trained in float32.']);
  assert.deepEqual(
    [imported.graph.inputs[0]?.type, imported.graph.initializers.get('w')?.type],
    ['float32', 'float32'],
  );
  assert.deepEqual(imported.graph.nodes[1]?.attributes, { to: int(1) });
  // 0.1 is nearest to 1638.4 / 16384, thus 1638 = 0x66 in the fraction; −1e−8 rounds to −0; 70000 to infinity.
  const trained = importModel(exportModel(imported, new Map([['w', tensor('float32', [2], [0.1, 70000])]])));
  assert.deepEqual(toNumbers(trained.graph.initializers.get('w') as Tensor), [0.0999755859375, Infinity]);
});

test('external weights: refused without a loader, read with one, and then part of the file', () => {
  const outside = changed(model, ({ graph }) => {
    const [weight] = graph?.initializer ?? [];
    if (weight === undefined) return;
    weight.rawData = new Uint8Array();
    weight.dataLocation = TensorProto_DataLocation.EXTERNAL;
    weight.externalData = Object.entries({ location: 'weights.bin', offset: '8', length: '24' }).map(([key, value]) =>
      create(StringStringEntryProtoSchema, { key, value }),
    );
  });
  assert.throws(() => importModel(outside), {
    name: 'InputError',
    message:
      'Initializer "fc.weight" is kept outside the model, in "weights.bin"; save the model with its weights ' +
      'inside (save_as_external_data=False).',
  });
  const asked: unknown[] = [];
  const imported = importModel(outside, {
    loadExternal: (...request) => {
      asked.push(request);
      return new Uint8Array(Float32Array.of(6, 5, 4, 3, 2, 1).buffer);
    },
  });
  assert.deepEqual(asked, [['weights.bin', 8, 24]]);
  assert.deepEqual(toNumbers(imported.graph.initializers.get('fc.weight') as Tensor), [6, 5, 4, 3, 2, 1]);
  assert.deepEqual(
    toNumbers(importModel(exportModel(imported, new Map())).graph.initializers.get('fc.weight') as Tensor),
    [6, 5, 4, 3, 2, 1],
  );
  const escaping = changed(outside, ({ graph }) => {
    for (const entry of graph?.initializer[0]?.externalData ?? [])
      if (entry.key === 'location') entry.value = '../secret';
  });
  assert.throws(
    () => importModel(escaping, { loadExternal: () => new Uint8Array() }),
    /is not a file in the model's folder/,
  );
});

test('sizes are checked before anything is allocated', () => {
  const withDims = (dims: bigint[]): Uint8Array =>
    changed(model, ({ graph }) => {
      const [weight] = graph?.initializer ?? [];
      if (weight !== undefined) weight.dims = dims;
    });
  const cases: readonly [bigint[], RegExp][] = [
    [[2n, 4n], /Initializer "fc.weight" of shape \[2, 4\] needs 32 bytes but has 24; the file may be cut off/],
    [[-1n, 6n], /has an impossible dimension, -1/],
    [[1n << 62n, 1n], /has an impossible dimension/],
    [[1n << 50n, 1n << 50n], /needs .* bytes but has 24/],
    [[1n << 31n, 1n << 31n, 4n], /needs .* bytes but has 24/],
  ];
  for (const [dims, message] of cases)
    assert.throws(
      () => importModel(withDims(dims)),
      (error) => error instanceof InputError && message.test(error.message),
    );
});

test('each unreadable thing is reported in one sentence', () => {
  const cases: readonly [Uint8Array, RegExp][] = [
    [new Uint8Array(), /The 0 bytes are not an ONNX model, or it is empty/],
    [new TextEncoder().encode('this is a text file, not a model'), /bytes are not a complete ONNX model/],
    [model.subarray(0, 60), /bytes are not a complete ONNX model/],
    [changed(model, (proto) => proto.opsetImport.splice(0)), /does not say which version of the ONNX operators/],
    [changed(model, ({ graph }) => graph?.output.splice(0)), /has no outputs/],
    [
      changed(model, ({ graph }) => graph?.initializer.splice(1)),
      /Node "fc" \(Gemm\) in model "model" reads "fc.bias", which nothing before it defines/,
    ],
    [changed(model, ({ graph }) => graph?.initializer.push(...graph.initializer)), /defines "fc.weight" twice/],
    [
      onnxModel({ opset: 17, inputs: [x, x], nodes: [linear], outputs: ['y'], initializers: weights }),
      /Value "x" in model "model" is defined twice/,
    ],
    [
      onnxModel({
        opset: 17,
        inputs: [x],
        nodes: [linear, { ...linear, name: 'again' }],
        outputs: ['y'],
        initializers: weights,
      }),
      /Value "y" .* is defined twice/,
    ],
    [
      onnxModel({ opset: 17, inputs: [x], nodes: [linear], outputs: ['z'], initializers: weights }),
      /Output "z" in model "model" is not computed/,
    ],
  ];
  for (const [bytes, message] of cases) {
    assert.throws(
      () => importModel(bytes),
      (error) => {
        assert.ok(error instanceof InputError, String(error));
        assert.match(error.message, message);
        assert.equal(error.message.split('\n').length, 1);
        return true;
      },
    );
  }
});

test('an unknown operator is an error only when it is used', () => {
  const det = { operator: 'Det', inputs: ['x'], outputs: ['y'], attributes: { hidden_size: int(4), clip: float(1) } };
  const { graph } = importModel(onnxModel({ opset: 17, inputs: [x], nodes: [det], outputs: ['y'] }));
  assert.throws(() => layers(graph), /Operator Det \(node "node0"\) is not supported/);
});

/** A model that calls its function Outer, which calls Inner or, for a depth above 1, itself. */
function withFunctions(depth: number): Uint8Array {
  const call = (operator: string, inputs: string[], outputs: string[], attributes = {}): object => ({
    operator,
    domain: 'local',
    inputs,
    outputs,
    attributes,
  });
  const bytes = onnxModel({
    opset: 17,
    inputs: [x],
    nodes: [call('Outer', ['x', 'w'], ['a'], { slope: float(0.5) }), call('Outer', ['a', 'w'], ['y'])] as never,
    outputs: ['y'],
    initializers: { w: tensor('float32', [2], [1, -1]) },
  });
  const add = { opType: 'Add', input: ['p', 'q'], output: ['sum'] };
  const slope = { name: 'alpha', type: 1, refAttrName: 'slope' };
  const leaky = { opType: 'LeakyRelu', input: ['sum'], output: ['out'], attribute: [slope] };
  const called = {
    opType: depth > 1 ? 'Outer' : 'Inner',
    domain: 'local',
    input: ['p', 'q'],
    output: ['out'],
    attribute: [{ name: 'slope', type: 1, refAttrName: 'slope' }],
  };
  const border = { domain: 'local', input: ['p', 'q'], output: ['out'] };
  const inner = { ...border, name: 'Inner', attribute: ['slope'], node: [add, leaky] };
  const outer = { ...border, name: 'Outer', attributeProto: [{ name: 'slope', type: 1, f: 0.25 }], node: [called] };
  return changed(bytes, (proto) => {
    proto.functions = [inner, outer].map((definition) => create(FunctionProtoSchema, definition as never));
  });
}

test('functions of the model are inlined, with their attributes, and nested ones', () => {
  const { graph } = importModel(withFunctions(1));
  assert.deepEqual(
    graph.nodes.map(({ operator, attributes }) => [operator, attributes]),
    [
      ['Add', {}],
      ['LeakyRelu', { alpha: float(0.5) }],
      ['Add', {}],
      ['LeakyRelu', { alpha: float(0.25) }],
    ],
  );
  assert.deepEqual(graph.parameters, ['w']);
  const y = evaluateGraph(instantiate(graph, 1).graph, new Map([['x', tensor('float32', [1, 2], [1, -3])]])).get('y');
  assert.deepEqual(toNumbers(y as Tensor), [3, -0.75]);
  assert.throws(() => importModel(withFunctions(2)), /The model's functions call each other more than 32 deep/);
});

test('constants of every kind become initializers', () => {
  const constant = (
    name: string,
    key: string,
    value: Parameters<typeof int64s>[0] | number,
  ): { operator: string; inputs: string[]; outputs: string[]; attributes: Record<string, never> } =>
    ({
      operator: 'Constant',
      inputs: [],
      outputs: [name],
      attributes: {
        [key]:
          typeof value === 'number'
            ? key.includes('float')
              ? float(value)
              : int(value)
            : { type: key.includes('float') ? 'floats' : 'ints', value },
      },
    }) as never;
  const nodes = [
    constant('a', 'value_int', 3),
    constant('b', 'value_float', 0.5),
    constant('c', 'value_ints', [1, 2]),
    constant('d', 'value_floats', [1, 2]),
  ];
  const outputs = ['a', 'b', 'c', 'd'];
  const { graph } = importModel(onnxModel({ opset: 17, inputs: [x], nodes, outputs }));
  assert.deepEqual(
    outputs.map((name) => graph.initializers.get(name)),
    [scalar('int64', 3), scalar('float32', 0.5), int64s([1, 2]), tensor('float32', [2], [1, 2])],
  );
});
