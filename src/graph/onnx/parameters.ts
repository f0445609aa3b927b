// Which tensors of a file are weights to train, which ONNX does not say: by their position, as far as gradients reach.

import { usefulFor } from '../gradient-paths.ts';
import type { Node } from '../graph.ts';
import { producers } from '../liveness.ts';
import type { Tensor } from '../tensor.ts';
import type { TensorPlace } from './decode.ts';
import { madeUpName } from './made-up-name.ts';

/** The parts of a model that the search for weights uses. */
export interface WeightSearch {
  /** At the canonical opset, in topological order. */
  readonly nodes: readonly Node[];
  readonly outputs: readonly string[];
  readonly initializers: ReadonlyMap<string, Tensor>;
  /** The places of tensors in the file; tensors added by upgrading have none. */
  readonly places: ReadonlyMap<string, TensorPlace>;
  /** Whether the exporter declares a tensor a parameter; empty if it declares nothing. */
  readonly declared: ReadonlyMap<string, boolean>;
}

/** The inputs that are weights by an operator's meaning. */
const weightPositions: Readonly<Record<string, readonly number[]>> = {
  // com.microsoft's; ONNX's own reads queries, keys and values, which are not weights
  Attention: [1, 2],
  BatchNormalization: [1, 2],
  BiasGelu: [1],
  Conv: [1, 2],
  ConvTranspose: [1, 2],
  Einsum: [0, 1, 2, 3],
  FastGelu: [1],
  FusedConv: [1, 2],
  FusedGemm: [1, 2],
  FusedMatMul: [0, 1],
  GRU: [1, 2, 3],
  Gather: [0],
  Gemm: [1, 2],
  GroupNormalization: [1, 2],
  InstanceNormalization: [1, 2],
  LSTM: [1, 2, 3, 7],
  LayerNormalization: [1, 2],
  MatMul: [0, 1],
  MultiHeadAttention: [3],
  PRelu: [1],
  RMSNormalization: [1],
  RNN: [1, 2, 3],
  SimplifiedLayerNormalization: [1],
  SkipLayerNormalization: [2, 3, 4],
  SkipSimplifiedLayerNormalization: [2, 3],
};
/** Operators that may stand between a weight and its reader. */
const rearranging: ReadonlySet<string> = new Set([
  'Identity',
  'Transpose',
  'Reshape',
  'Flatten',
  'Squeeze',
  'Unsqueeze',
  'Expand',
  'Cast',
]);
/**
 * PyTorch's newer exporter's names for embedding rows that it looked up ahead, such as those of the positions 0 to T −
 * 1: a weight on their own.
 */
const lookedUpName = /^embedding(_\d+)?$/;
/** Numbers of this magnitude are never weights: they mask attention scores. */
const maskMagnitude = 1e9;

/**
 * Splits the float tensors of a file. `buffers` are the running statistics of batch normalization. `parameters` are,
 * among tensors with at least one dimension and a gradient path to an output, all initializers, and tensors of Constant
 * nodes in a weight's position, or in any position if the file has no float initializers at all. Excluded are: tensors
 * that the exporter declares to be no parameter; if it declares parameters or some weight has a name from the source,
 * undeclared tensors with generated names outside a weight's position (tables of rotary positions, masks, numbers of a
 * formula), except vectors that scale or shift results of weights; single elements outside a weight's position that are
 * a Constant or have a generated name; Constant scales of ones and biases of zeros (a normalization without either);
 * masks (isMask). Both in file order.
 */
export function findWeights({ nodes, outputs, initializers, places, declared }: WeightSearch): {
  parameters: readonly string[];
  buffers: readonly string[];
} {
  const made = producers(nodes);
  const buffers = sourcesOf(nodes, made, (node) => (node.operator === 'BatchNormalization' ? [3, 4] : []));
  const weights = sourcesOf(nodes, made, (node) =>
    Object.hasOwn(weightPositions, node.operator) ? (weightPositions[node.operator] ?? []) : [],
  );
  const reached = usefulFor(outputs, nodes);
  const isTensor = (value: Tensor): boolean =>
    (value.type === 'float32' || value.type === 'float64') && value.shape.length > 0 && value.data.length > 0;
  const inFile = [...initializers].filter(([name, value]) => places.has(name) && isTensor(value));
  const keepsInitializers = inFile.some(([name]) => places.get(name)?.kind === 'initializer' && reached.has(name));
  const hasDeclared = [...declared.values()].includes(true);
  const hasNamed = inFile.some(
    ([name, value]) =>
      places.get(name)?.kind === 'initializer' && !madeUpName.test(name) && isWeightPosition(value, weights.get(name)),
  );
  const shifting = shiftingValues(nodes, new Set(weights.keys()));
  const isWeight = (name: string, value: Tensor): boolean => {
    if (buffers.has(name) || !reached.has(name)) return false;
    const isDeclared = declared.get(name);
    if (isDeclared !== undefined) return isDeclared;
    if (isMask(value)) return false;
    const inPosition = isWeightPosition(value, weights.get(name));
    if (places.get(name)?.kind === 'initializer') {
      if (!hasDeclared && !madeUpName.test(name)) return true;
      if (!hasDeclared && !hasNamed) return inPosition || value.data.length > 1;
      if (inPosition) return !isNeutral(value, weights.get(name));
      return lookedUpName.test(name) || (isVector(value) && shifting.has(name));
    }
    return keepsInitializers ? inPosition && !isNeutral(value, weights.get(name)) : inPosition || value.data.length > 1;
  };
  return {
    parameters: inFile.filter(([name, value]) => isWeight(name, value)).map(([name]) => name),
    buffers: inFile.filter(([name]) => buffers.has(name)).map(([name]) => name),
  };
}

/** A one-dimensional table that is gathered from is a list of numbers, not an embedding. */
function isWeightPosition(value: Tensor, readers: ReadonlySet<string> | undefined): boolean {
  return readers !== undefined && [...readers].some((reader) => reader !== 'Gather' || value.shape.length >= 2);
}

function isVector({ shape, data }: Tensor): boolean {
  return data.length > 1 && shape.filter((dimension) => dimension !== 1).length === 1;
}

/**
 * Tensors added to or multiplied with a value that depends on one of `weights`: a normalization's scale that the
 * exporter reshaped ahead.
 */
function shiftingValues(nodes: readonly Node[], weights: ReadonlySet<string>): ReadonlySet<string> {
  const dependent = new Set(weights);
  const shifting = new Set<string>();
  for (const { operator, inputs, outputs } of nodes) {
    const [first = '', second = ''] = inputs;
    if (operator === 'Add' || operator === 'Mul') {
      if (dependent.has(first)) shifting.add(second);
      if (dependent.has(second)) shifting.add(first);
    }
    if (inputs.some((input) => dependent.has(input))) for (const output of outputs) dependent.add(output);
  }
  return shifting;
}

/** Ones or zeros that only normalizations read. */
function isNeutral({ data }: Tensor, readers: ReadonlySet<string> | undefined): boolean {
  const first = Number(data[0]);
  const isUniform = (data as Float32Array | Float64Array).every((element) => element === first);
  return (
    isUniform &&
    (first === 0 || first === 1) &&
    readers !== undefined &&
    [...readers].every((reader) => reader.endsWith('Normalization'))
  );
}

/** The values that the given inputs come from through rearranging nodes, with the operators that read them. */
function sourcesOf(
  nodes: readonly Node[],
  made: ReadonlyMap<string, Node>,
  positions: (node: Node) => readonly number[],
): Map<string, Set<string>> {
  const sources = new Map<string, Set<string>>();
  for (const node of nodes) {
    for (const position of positions(node)) {
      let name = node.inputs[position] ?? '';
      for (let step = made.get(name); step !== undefined && rearranging.has(step.operator); step = made.get(name))
        name = step.inputs[0] ?? '';
      if (name === '' || made.has(name)) continue;
      const readers = sources.get(name) ?? new Set();
      sources.set(name, readers.add(node.operator));
    }
  }
  return sources;
}

/** Infinities, huge numbers, or only zeros and one number below −10: added to attention scores to hide them. */
function isMask(value: Tensor): boolean {
  const data = value.data as Float32Array | Float64Array;
  let hidden = 0;
  let zeroCount = 0;
  let isTwoValued = true;
  // A plain loop: it runs over all weights of models of gigabytes.
  for (let index = 0; index < data.length; index++) {
    const element = data[index] as number;
    if (!(Math.abs(element) < maskMagnitude)) return true;
    if (element === 0) zeroCount++;
    else if (hidden === 0) hidden = element;
    else if (element !== hidden) isTwoValued = false;
  }
  return isTwoValued && hidden < -10 && zeroCount > 0;
}
