// Where in a graph a tensor is read: in a weight's position, or beside values that depend on weights or on the inputs.

import { gradientInputs } from '../gradient-paths.ts';
import type { Node } from '../graph.ts';
import { producers } from '../liveness.ts';

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
/** By tensor in a position that is a weight's by the operator's meaning: the operators that read it there. */
export function weightReaders(nodes: readonly Node[]): ReadonlyMap<string, ReadonlySet<string>> {
  return sourcesOf(nodes, (node) =>
    Object.hasOwn(weightPositions, node.operator) ? (weightPositions[node.operator] ?? []) : [],
  );
}

/** The running statistics of batch normalization. */
export function runningStatistics(nodes: readonly Node[]): ReadonlySet<string> {
  return new Set(sourcesOf(nodes, (node) => (node.operator === 'BatchNormalization' ? [3, 4] : [])).keys());
}

/** The initial states of recurrent layers: their inputs behind the lengths. */
export function recurrentStates(nodes: readonly Node[]): ReadonlySet<string> {
  const positions: Readonly<Record<string, readonly number[]>> = { LSTM: [5, 6], GRU: [5], RNN: [5] };
  return new Set(
    sourcesOf(nodes, ({ operator }) => (Object.hasOwn(positions, operator) ? (positions[operator] ?? []) : [])).keys(),
  );
}

/** The values that the given inputs come from through rearranging nodes, with the operators that read them. */
function sourcesOf(nodes: readonly Node[], positions: (node: Node) => readonly number[]): Map<string, Set<string>> {
  const made = producers(nodes);
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

/** What a tensor, or what is computed from it and other tensors alone, is combined with. */
export interface Meeting {
  /** Values that depend on a tensor in a weight's position. */
  readonly weights: boolean;
  /** Values that depend on the model's inputs and on no such tensor: the operators that combine them. */
  readonly inputs: ReadonlySet<string>;
  /** True if it only is subtracted from the inputs or divides them, or shifts or scales the result of that. */
  readonly normalizesInputs: boolean;
}

/** By tensor of `tensors`: what it meets along gradient paths. `weights` are those in a weight's position. */
export function meetingsOf(
  nodes: readonly Node[],
  inputs: readonly string[],
  { tensors, weights }: { readonly tensors: Iterable<string>; readonly weights: ReadonlyMap<string, unknown> },
): ReadonlyMap<string, Meeting> {
  const sources = new Map<string, ReadonlySet<string>>();
  for (const name of tensors) sources.set(name, new Set([name]));
  const weighted = new Set(weights.keys());
  const given = new Set(inputs);
  const normalized = new Set<string>();
  const found = new Map<string, { weights: boolean; inputs: Set<string>; normalizesInputs: boolean }>();
  for (const node of nodes) {
    const read = gradientInputs(node);
    const [meetsWeights, meetsInputs] = [read.some((name) => weighted.has(name)), read.some((name) => given.has(name))];
    const own = read.filter((name) => !weighted.has(name) && !given.has(name));
    const all = new Set(own.flatMap((name) => [...(sources.get(name) ?? [])]));
    const isNormalizing =
      !meetsWeights &&
      all.size > 0 &&
      (['Sub', 'Div'].includes(node.operator) ||
        (['Add', 'Mul'].includes(node.operator) && read.some((name) => normalized.has(name))));
    if (isNormalizing) for (const output of node.outputs) normalized.add(output);
    for (const source of meetsWeights || meetsInputs ? all : []) {
      const meeting = found.get(source) ?? { weights: false, inputs: new Set<string>(), normalizesInputs: true };
      meeting.weights ||= meetsWeights;
      meeting.normalizesInputs &&= isNormalizing;
      if (!meetsWeights) meeting.inputs.add(node.operator);
      found.set(source, meeting);
    }
    const reached = meetsWeights ? weighted : meetsInputs ? given : undefined;
    for (const output of node.outputs) {
      if (reached !== undefined) reached.add(output);
      else sources.set(output, all);
    }
  }
  return found;
}
