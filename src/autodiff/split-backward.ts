// Splits a backward pass into its halves and pieces: which nodes each consists of, given what is saved and recomputed.

import type { Emitter } from '../graph/emitter.ts';
import type { Node } from '../graph/graph.ts';
import { byteLength, type ValueType } from '../graph/tensor.ts';
import { isTrainingBatchNormalization } from './forward.ts';
import { mergeEqualNodes, NodeList, type Selection } from './subgraph.ts';
import { Targets } from './targets.ts';

/** The pass to split into pieces, and the parameters whose gradients each piece makes final, in execution order. */
export interface PiecesOption {
  readonly of: 'backward' | 'backward-weight';
  readonly parameters: readonly (readonly string[])[];
}

/** The forward pass as input to a choice of recomputed values. */
export interface ForwardPass {
  /** The nodes that depend on a micro-batch, in order, as they would run a second time. */
  readonly nodes: readonly Node[];
  /**
   * Bytes of the values that can be kept: outputs of `nodes` (Infinity for views, which are never kept), inputs, and a
   * batch's mean and variance.
   */
  readonly bytes: ReadonlyMap<string, number>;
  /** The values that the backward pass reads. */
  readonly required: readonly string[];
  type(value: string): ValueType;
}

/** The roles of the values that no node computes. */
export interface Roles {
  /** Gradients of outputs. */
  readonly seeds: ReadonlySet<string>;
  /** Parameters and the buffers that the forward pass does not change: the same for every micro-batch. */
  readonly fixed: ReadonlySet<string>;
  /** Data, masks, and the buffers that the forward pass replaces. */
  readonly inputs: ReadonlySet<string>;
}

/** The backward nodes, in one list with the forward ones, and which of them belong to which half. */
export interface Halves {
  readonly list: NodeList;
  /** The same list, with forward nodes as they run a second time; the selections index into it. */
  readonly again: NodeList;
  /** Input gradients, and parameter gradients, as values of the list. */
  readonly inputTargets: readonly string[];
  readonly parameterTargets: readonly string[];
  /** The names that the targets get. */
  readonly rename: ReadonlyMap<string, string>;
  readonly inputHalf: Selection;
  readonly weightHalf: Selection;
  readonly whole: Selection;
  readonly pieces: readonly PieceSelection[];
}

/** The nodes of a piece, given what is saved and what earlier pieces computed. */
interface PieceSelection {
  readonly selection: Selection;
  readonly targets: readonly string[];
  readonly parameterGradients: readonly string[];
}

interface SplitRequest {
  readonly forwardCount: number;
  readonly gradients: ReadonlyMap<string, string>;
  readonly inputs: readonly string[];
  readonly parameters: readonly string[];
  readonly roles: Roles;
  readonly recompute: Iterable<string> | ((pass: ForwardPass) => Iterable<string>);
  readonly pieces: PiecesOption | undefined;
}

/**
 * Splits the backward pass: the input half is everything the input gradients need; the weight half is the rest, given
 * the input half's values. Pieces continue from each other likewise.
 */
export function splitBackward(emitter: Emitter, request: SplitRequest): Halves {
  const { forwardCount, gradients, inputs, parameters } = request;
  const forwardNodes = emitter.nodes.slice(0, forwardCount);
  const merged = mergeEqualNodes(emitter.nodes.slice(forwardCount));
  const targets = new Targets(emitter, merged, gradients);
  const isConstant = (value: string): boolean => emitter.constantValue(value) !== undefined;
  const isPieced = request.pieces?.of === 'backward';
  // If the whole pass is split into pieces, the input gradients come last, and the halves are not used.
  const inputTargets = isPieced ? [] : targets.of(inputs, new Set());
  const forwardAgain = forwardNodes.map(runAgain);
  const before = new NodeList([...forwardAgain, ...targets.nodes]);
  const isForward = (value: string): boolean => (before.producer(value) ?? forwardCount) < forwardCount;
  const read = before.select(
    [...gradients.values()].map((total) => merged.aliases.get(total) ?? total),
    isForward,
    isConstant,
  ).leaves;
  const { isRecomputed, isFree } = recomputation(emitter, before, read, request);
  const isSaved = (value: string): boolean => isForward(value) && !isRecomputed(value);
  const inputHalf = before.select(inputTargets, isSaved, isConstant);
  const inInputHalf = new Set(outputsOf(before, inputHalf, forwardCount));
  const isGiven = (value: string): boolean => isSaved(value) || (inInputHalf.has(value) && !isRecomputed(value));
  const pieces = selectPieces(request, { targets, forwardAgain, inInputHalf, isGiven, isFree, isConstant });
  const inputsLast = isPieced ? targets.of(inputs, new Set()) : inputTargets;
  const parameterTargets = targets.of(parameters, inInputHalf);
  const again = new NodeList([...forwardAgain, ...targets.nodes]);
  return {
    list: new NodeList([...forwardNodes, ...targets.nodes]),
    again,
    inputTargets: inputsLast,
    parameterTargets,
    rename: targets.rename,
    inputHalf: isPieced ? again.select(inputsLast, isSaved, isConstant) : inputHalf,
    weightHalf: again.select(parameterTargets, isGiven, isConstant),
    whole: again.select([...inputsLast, ...parameterTargets], isSaved, isConstant),
    pieces,
  };
}

interface PiecesRequest {
  readonly targets: Targets;
  readonly forwardAgain: readonly Node[];
  /** Values that the input half computes. */
  readonly inInputHalf: ReadonlySet<string>;
  readonly isGiven: (value: string) => boolean;
  readonly isFree: (value: string) => boolean;
  readonly isConstant: (value: string) => boolean;
}

/** The nodes of each piece; adds copies to `targets` if a gradient is also carried or has another name. */
function selectPieces(
  { pieces: option, inputs, gradients }: SplitRequest,
  { targets, forwardAgain, inInputHalf, isGiven, isFree, isConstant }: PiecesRequest,
): PieceSelection[] {
  if (option === undefined) return [];
  const pieces: PieceSelection[] = [];
  const computed = new Set<string>();
  for (const [index, names] of option.parameters.entries()) {
    const hasInputs = option.of === 'backward' && index === option.parameters.length - 1;
    const own = [
      ...(hasInputs ? targets.of(inputs, computed) : []),
      ...targets.of(names, new Set([...inInputHalf, ...computed]), true),
    ];
    const list = new NodeList([...forwardAgain, ...targets.nodes]);
    const selection = list.select(
      own,
      (value) => isGiven(value) || (computed.has(value) && !isFree(value)),
      isConstant,
    );
    for (const value of outputsOf(list, selection, 0)) computed.add(value);
    pieces.push({ selection, targets: own, parameterGradients: names.filter((name) => gradients.has(name)) });
  }
  return pieces;
}

/** Outputs of the selected nodes with an index of at least `from`. */
function outputsOf(list: NodeList, { nodes }: Selection, from: number): string[] {
  return [...nodes].filter((index) => index >= from).flatMap((index) => (list.nodes[index] as Node).outputs);
}

/**
 * The node as it runs a second time. The batch's mean and variance are then known (they are small and always kept), and
 * normalizing with them takes one pass less.
 */
function runAgain(node: Node): Node {
  if (!isTrainingBatchNormalization(node)) return node;
  const { training_mode: _, momentum: __, ...attributes } = node.attributes;
  const [y, mean, variance] = node.outputs as [string, string, string];
  return { ...node, inputs: [...node.inputs.slice(0, 3), mean, variance], outputs: [y], attributes };
}

/** Operators whose result has its input's elements in the same order: recomputing them is free, saving them is not. */
const views = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze', 'Identity']);

/**
 * Returns a predicate for the values that a backward graph recomputes: the requested ones, and those that are free:
 * views of other values, and values that depend on parameters and constants alone (a transposed weight), which would
 * otherwise be kept for every micro-batch.
 */
function recomputation(
  emitter: Emitter,
  list: NodeList,
  read: readonly string[],
  { forwardCount, roles, recompute }: SplitRequest,
): { readonly isRecomputed: (value: string) => boolean; readonly isFree: (value: string) => boolean } {
  const varying = new Set([...roles.inputs, ...roles.seeds]);
  const statistics = emitter.nodes
    .slice(0, forwardCount)
    .flatMap((node) => (isTrainingBatchNormalization(node) ? node.outputs.slice(1) : []));
  for (const value of statistics) varying.add(value);
  for (const node of list.nodes) {
    if (node.inputs.some((input) => varying.has(input))) for (const output of node.outputs) varying.add(output);
  }
  const isView = (value: string): boolean => views.has(list.nodes[list.producer(value) ?? -1]?.operator ?? '');
  const choose = (): Iterable<string> => {
    if (typeof recompute !== 'function') return recompute;
    const nodes = list.nodes
      .slice(0, forwardCount)
      .filter((node) => node.outputs.some((output) => varying.has(output)));
    const type = (value: string): ValueType => emitter.type(value);
    const values = [
      ...roles.inputs,
      ...statistics,
      ...nodes.flatMap((node) => node.outputs.filter((output) => output !== '')),
    ];
    const bytes = new Map(
      values.map((value) => [value, isView(value) ? Number.POSITIVE_INFINITY : byteLength(type(value))]),
    );
    return recompute({ nodes, bytes, required: read.filter((value) => bytes.has(value)), type });
  };
  const chosen = new Set(choose());
  const isFree = (value: string): boolean =>
    list.producer(value) !== undefined && (isView(value) || !varying.has(value));
  return {
    isRecomputed: (value) => isFree(value) || (list.producer(value) !== undefined && chosen.has(value)),
    isFree,
  };
}
