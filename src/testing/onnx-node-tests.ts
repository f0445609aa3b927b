// ONNX's own backend tests for single operators ("node tests"): a model, inputs and expected outputs for each, as
// Debian's package libonnx-testdata installs them. Reads them, says which ones Asteroid claims to pass, and prepares
// them for an engine. What is not claimed is listed here with its reason; docs/operators.md is generated from these
// lists.

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fromBinary, toBinary } from '@bufbuild/protobuf';
import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import { composites, isComposite } from '../graph/composites/expand.ts';
import type { Graph, Node } from '../graph/graph.ts';
import {
  type GraphProto,
  type ModelProto,
  ModelProtoSchema,
  type TensorProto,
  TensorProto_DataType,
  TensorProtoSchema,
} from '../graph/onnx/generated/onnx_pb.ts';
import { importModel } from '../graph/onnx/import.ts';
import { decodeTensor } from '../graph/onnx/tensors.ts';
import { isOperator, operators } from '../graph/operators/index.ts';
import { instantiate } from '../graph/static.ts';
import { sameShape, type Tensor, toNumbers } from '../graph/tensor.ts';

const noNode: Node = { operator: '', domain: '', name: '', inputs: [], outputs: [], attributes: {} };

/** True for the operators of the table, and for those that are written out in them. */
function isKnown(node: Node): boolean {
  return isComposite(node) || (node.domain === '' && isOperator(node.operator));
}

/** Where Debian's package puts the tests. */
export const nodeTestFolder = '/usr/share/libonnx-testdata/data/node';
/** The package's version for which the counts hold. */
export const nodeTestVersion = '1.12.0';

/** How many tests of that version there are, how many Asteroid claims, and why it does not claim the others. */
export const nodeTestCounts = {
  all: 932,
  claimed: 812,
  notClaimed: {
    'an operator that is not in the list': 64,
    'values that are no tensors of numbers': 42,
    'excluded by name': 14,
  },
} as const;

type Reason = keyof typeof nodeTestCounts.notClaimed;

/** Tests of operators in the list that are excluded nevertheless. */
export const excludedTests: Readonly<Record<string, string>> = {
  test_bernoulli: 'expects the random numbers of one generator',
  test_bernoulli_double: 'expects the random numbers of one generator',
  test_bernoulli_double_expanded: 'expects the random numbers of one generator',
  test_bernoulli_expanded: 'expects the random numbers of one generator',
  test_bernoulli_seed: 'expects the random numbers of one generator',
  test_bernoulli_seed_expanded: 'expects the random numbers of one generator',
  test_gridsample_bicubic: 'its mode is not supported',
  test_gridsample_reflection_padding: 'its padding is not supported',
  test_resize_downsample_scales_cubic_align_corners:
    'expects a fraction of an element as the length; runtimes and PyTorch round it',
  test_resize_downsample_scales_linear_align_corners:
    'expects a fraction of an element as the length; runtimes and PyTorch round it',
  test_training_dropout: 'expects the random mask of one generator',
  test_training_dropout_default: 'expects the random mask of one generator',
  test_training_dropout_default_mask: 'expects the random mask of one generator',
  test_training_dropout_mask: 'expects the random mask of one generator',
};

/** Tests whose expected values are less exact than 1e-5; compared as ONNX itself does, with 1e-3. */
export const looseTests: ReadonlySet<string> = new Set([
  // Their models hold π as 3.1415.
  'test_blackmanwindow_expanded',
  'test_blackmanwindow_symmetric_expanded',
  'test_hammingwindow_expanded',
  'test_hammingwindow_symmetric_expanded',
  'test_hannwindow_expanded',
  'test_hannwindow_symmetric_expanded',
]);

/**
 * Claimed tests that ONNX Runtime has no CPU kernel for ("Could not find an implementation"); the reference kernels
 * pass them.
 */
export const notInOnnxRuntime: readonly string[] = [
  'test_bitshift_left_uint16',
  'test_bitshift_right_uint16',
  'test_max_int16',
  'test_max_uint16',
  'test_min_int16',
  'test_min_uint16',
  'test_pow_types_float32_uint32',
  'test_pow_types_float32_uint64',
];

/** One claimed test. */
export interface NodeTest {
  readonly name: string;
  readonly graph: Graph;
  /** Inputs and expected outputs, in the order of the graph's. */
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  /** Values of the file were in half precision; they are compared with its tolerance. */
  readonly half: boolean;
}

/** A test as it was found. */
export type FoundTest =
  | { readonly name: string; readonly test: NodeTest }
  | { readonly name: string; readonly reason: Reason };

/** Why the tests cannot run here, or undefined where they can. */
export function nodeTestsMissing(): string | undefined {
  return existsSync(nodeTestFolder) ? undefined : `${nodeTestFolder} is missing: install the package libonnx-testdata`;
}

/**
 * All tests in the folder, in the order of their names. Throws where a test that should be claimed cannot be imported.
 */
export function findNodeTests(): readonly FoundTest[] {
  return readdirSync(nodeTestFolder)
    .sort()
    .map((name) => find(name));
}

function find(name: string): FoundTest {
  if (Object.hasOwn(excludedTests, name)) return { name, reason: 'excluded by name' };
  const folder = join(nodeTestFolder, name);
  const proto = fromBinary(ModelProtoSchema, readFileSync(join(folder, 'model.onnx')));
  const file = defined(proto.graph, 'the graph');
  if (!holdsOnlyNumbers(file)) return { name, reason: 'values that are no tensors of numbers' };
  const read = (kind: 'input' | 'output', index: number): TensorProto =>
    fromBinary(TensorProtoSchema, readFileSync(join(folder, 'test_data_set_0', `${kind}_${index}.pb`)));
  const inputProtos = new Map(
    file.input.map((input, index) => [input.name, { ...read('input', index), name: input.name }]),
  );
  giveBeforeRunning(file, inputProtos);
  const imported = importNodeTest(name, proto);
  if (imported === undefined) return { name, reason: 'an operator that is not in the list' };
  const { graph, notes } = imported;
  const inputs = graph.inputs.map((input) =>
    decodeTensor(defined(inputProtos.get(input.name), input.name), `${name}: ${input.name}`),
  );
  const outputs = graph.outputs.map((output, index) => decodeTensor(read('output', index), `${name}: ${output.name}`));
  return { name, test: { name, graph, inputs, outputs, half: notes.some((note) => note.includes('half precision')) } };
}

/**
 * Makes initializers of the inputs that decide about shapes: node tests feed them at run time, Asteroid wants them
 * before. The others stay inputs, so that an engine has something to compute.
 */
function giveBeforeRunning(file: GraphProto, values: ReadonlyMap<string, TensorProto>): void {
  const decisive = new Set<string>();
  for (const { opType: written, input, output } of [...file.node].reverse()) {
    const opType = written === 'Upsample' ? 'Resize' : written;
    const all = output.some((name) => decisive.has(name)) && opType !== 'Shape' && opType !== 'Size';
    const constantInputs = (isOperator(opType) ? operators[opType] : composites[opType])?.constantInputs ?? [];
    input.forEach((name, index) => {
      if (all || constantInputs.includes(index)) decisive.add(name);
    });
  }
  for (const { name } of file.input) if (decisive.has(name)) file.initializer.push(defined(values.get(name), name));
  file.input = file.input.filter(({ name }) => !decisive.has(name));
}

/** The imported model; undefined where it needs an operator that is not in the list. */
function importNodeTest(name: string, proto: ModelProto): ReturnType<typeof importModel> | undefined {
  // A test declares the opset at which its operator last changed; the importer reads those from 9 on, and the meaning
  // is the same there.
  for (const entry of proto.opsetImport) if (entry.domain === '' && entry.version < 9n) entry.version = 9n;
  try {
    const imported = importModel(toBinary(ModelProtoSchema, proto));
    return imported.graph.nodes.every(isKnown) ? imported : undefined;
  } catch (error) {
    const unknown = proto.graph?.node.some(
      (node) => !isKnown({ ...noNode, operator: node.opType, domain: node.domain }),
    );
    if (unknown && error instanceof InputError) return undefined;
    throw new Error(`${name} cannot be imported: ${String(error)}`, { cause: error });
  }
}

function holdsOnlyNumbers({ input, output }: GraphProto): boolean {
  const exotic: readonly number[] = [
    TensorProto_DataType.STRING,
    TensorProto_DataType.BFLOAT16,
    TensorProto_DataType.COMPLEX64,
    TensorProto_DataType.COMPLEX128,
  ];
  return [...input, ...output].every(
    ({ type }) => type?.value.case === 'tensorType' && !exotic.includes(type.value.value.elemType),
  );
}

/** The test's inputs by name. */
export function feedsOf({ graph, inputs }: NodeTest): ReadonlyMap<string, Tensor> {
  return new Map(graph.inputs.map(({ name }, index) => [name, defined(inputs[index], name)]));
}

/** The graph with the shapes of the test's inputs, with all its nodes but those that follow from constants. */
export function staticTestGraph({ graph, inputs }: NodeTest): Graph {
  const pinned = graph.inputs.map((input, index) => ({ ...input, shape: defined(inputs[index], input.name).shape }));
  return instantiate({ ...graph, inputs: pinned }, graph.fixedBatch ?? 1, { simplify: false }).graph;
}

/** What is wrong with `actual`, or undefined where it is as expected. */
export function difference(actual: Tensor | undefined, expected: Tensor, { name, half }: NodeTest): string | undefined {
  if (actual === undefined) return 'is missing';
  const describe = ({ type, shape }: Tensor): string => `${type}[${shape.join(', ')}]`;
  if (actual.type !== expected.type || !sameShape(actual.shape, expected.shape))
    return `is ${describe(actual)}, not ${describe(expected)}`;
  const relative = half || looseTests.has(name) ? 1e-3 : 1e-5;
  const absolute = looseTests.has(name) ? 1e-5 : 1e-6;
  const [a, b] = [toNumbers(actual), toNumbers(expected)];
  const exact = actual.type !== 'float32' && actual.type !== 'float64';
  const wrong = a.findIndex((value, index) => {
    const other = b[index] as number;
    if (Object.is(value, other) || value === other) return false;
    return exact || !(Math.abs(value - other) <= absolute + relative * Math.abs(other));
  });
  return wrong < 0 ? undefined : `has ${a[wrong]} at ${wrong}, not ${b[wrong]}`;
}
