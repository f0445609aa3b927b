// Reverse mode on graphs with static shapes: from a stage's graph to the graphs that train it, as plain data. The
// forward graph gives what the backward ones read (`saved`, counted in bytes); the backward pass comes whole and split
// into its two halves, because zero-bubble schedules compute input gradients first and weight gradients when there is
// time.

import type { Emitter } from '../graph/emitter.ts';
import type { Graph, Node } from '../graph/graph.ts';
import type { StaticGraph } from '../graph/static.ts';
import { byteLength, isFloat, type ValueType } from '../graph/tensor.ts';
import { backpropagate } from './backward.ts';
import { type DropoutInput, replaceDropouts } from './dropout.ts';
import { type ConvolutionForms, plainForms } from './forms.ts';
import { type BufferUpdate, checkNames, isTrainingBatchNormalization, loadForward } from './forward.ts';
import { assemble, mergeEqualNodes, NodeList, type Selection } from './subgraph.ts';
import { Targets } from './targets.ts';

/** What to differentiate. */
export interface DifferentiateOptions {
  /** Graph inputs that need gradients: those that come from an earlier stage's trained layers. */
  readonly inputs: readonly string[];
  /** Parameters that are trained; others are frozen and cost no gradient work. Default: all of the graph's. */
  readonly parameters?: readonly string[];
  /** Float outputs that receive gradients from outside. Default: all of them. */
  readonly outputs?: readonly string[];
  /**
   * Values of the forward pass that the backward pass computes again instead of reading them from `saved`, or what
   * chooses them. Default: none.
   */
  readonly recompute?: Iterable<string> | ((pass: ForwardPass) => Iterable<string>);
  /** Cuts the whole backward pass, or its second half, into pieces besides. Default: none. */
  readonly pieces?: PiecesOption;
  /** Chooses the forms of convolutions' gradients. Default: those that ONNX Runtime's plain kernels compute fastest. */
  readonly forms?: ConvolutionForms;
  /**
   * Rewrites the whole pass before it is cut into its graphs; gets the gradients deferred. Default: nothing, and
   * gradients written out.
   */
  readonly lower?: (pass: TrainingPass) => TrainingPass;
}

/**
 * Which pass comes in pieces, and the parameters whose gradients each piece makes final, in the order in which the
 * pieces run.
 */
export interface PiecesOption {
  readonly of: 'backward' | 'backward-weight';
  readonly parameters: readonly (readonly string[])[];
}

/**
 * A piece of a backward pass: its gradients are final, and the next pieces go on from what it carries. The last one of
 * a whole pass gives the input gradients too.
 */
export interface BackwardPiece {
  /** Outputs: the gradients, then what is carried. Without gradients of its own it has no nodes. */
  readonly graph: Graph;
  /** Outputs that later pieces read. */
  readonly carried: readonly string[];
  /** Those of its parameters that have a gradient. */
  readonly parameterGradients: readonly string[];
}

/** A forward pass with its backward pass behind it, in one list of nodes. */
export interface TrainingPass {
  /** Holds the nodes, with all types and constants. */
  readonly emitter: Emitter;
  /** How many of the nodes are the forward pass. */
  readonly forwardCount: number;
  /** The results of the forward pass, each under its own name: the stage's outputs and new buffers. */
  readonly results: readonly string[];
  /** The gradients by the value that they belong to. */
  readonly gradients: ReadonlyMap<string, string>;
}

/** What there is to choose from, when values are computed again. */
export interface ForwardPass {
  /** The nodes that depend on a micro-batch, in order, as they would run again. */
  readonly nodes: readonly Node[];
  /**
   * Bytes of the values that can be kept: outputs of `nodes` (Infinity for views, which are never kept), inputs, a
   * batch's mean and variance.
   */
  readonly bytes: ReadonlyMap<string, number>;
  /** Those that the backward pass reads. */
  readonly required: readonly string[];
  type(value: string): ValueType;
}

/** A value that is kept from one graph to another. */
export interface SavedValue extends ValueType {
  readonly name: string;
  readonly bytes: number;
}

/**
 * The graphs that train a stage. Every graph's inputs are exactly what it reads, but for `forward`, which has all the
 * stage's inputs.
 */
export interface StageGraphs {
  /**
   * Inputs: the stage's inputs, parameters, buffers, dropout masks. Outputs: the stage's outputs, new buffers, saved
   * values (each once).
   */
  readonly forward: Graph;
  /**
   * Inputs: `outputGradientName(output)`, saved inputs and values, parameters. Outputs: `gradientName(…)` of inputs,
   * then parameters.
   */
  readonly backward: Graph;
  /** Outputs: the input gradients, then `intermediates`. Without input gradients it has no nodes. */
  readonly backwardInput: Graph;
  /** Also reads `intermediates`. Outputs: the parameter gradients. */
  readonly backwardWeight: Graph;
  /**
   * Of the pass that `options.pieces` names; run after each other they give what it gives. They read what it reads, and
   * what pieces before them carry.
   */
  readonly pieces: readonly BackwardPiece[];
  readonly bufferUpdates: readonly BufferUpdate[];
  /** Masks to feed to the forward graph. */
  readonly dropouts: readonly DropoutInput[];
  /**
   * Exactly the values computed by `forward` that the backward graphs read. One may be an output of the stage at the
   * same time.
   */
  readonly saved: readonly SavedValue[];
  /**
   * Inputs of `forward` (data, dropout masks, buffers that `forward` replaces) that the backward graphs read, as they
   * were then.
   */
  readonly savedInputs: readonly SavedValue[];
  /** Parameters, and buffers that nothing replaces, that the backward graphs read. */
  readonly usedParameters: readonly string[];
  /** Values that `backwardInput` computes and `backwardWeight` reads. */
  readonly intermediates: readonly SavedValue[];
  /** The inputs that have a gradient. */
  readonly inputGradients: readonly string[];
  /** The parameters that have a gradient. */
  readonly parameterGradients: readonly string[];
  /**
   * The inputs and parameters asked for to which no output has a path: their gradient is zero and no graph computes it.
   */
  readonly withoutGradient: readonly string[];
}

/** The backward graphs' name for the gradient that an output receives from outside. */
export function outputGradientName(output: string): string {
  return `outputGradient(${output})`;
}

/** Operators whose result has its input's elements in their order: computing them again is free, saving them is not. */
const views = new Set(['Reshape', 'Flatten', 'Squeeze', 'Unsqueeze', 'Identity']);

/**
 * The graphs that train a stage: forward, backward, and backward in two halves.
 * Throws InputError naming node and operator where a gradient would have to pass an operator without a rule.
 */
export function differentiate(stage: StaticGraph, options: DifferentiateOptions): StageGraphs {
  const { stage: masked, dropouts } = replaceDropouts(stage);
  const { graph } = masked;
  const parameters = options.parameters ?? graph.parameters;
  const outputs = options.outputs ?? graph.outputs.filter(({ type }) => isFloat(type)).map(({ name }) => name);
  checkNames(graph, { inputs: options.inputs, parameters, outputs });
  const isFloatValue = (name: string): boolean => isFloat((masked.types.get(name) as ValueType).type);
  const sources = [...options.inputs, ...parameters].filter(isFloatValue);
  const forward = loadForward(masked, sources);
  const { bufferUpdates, moved } = forward;
  const written = forward.emitter.nodes.length;
  const seeds = new Map<string, string>();
  for (const output of outputs) if (moved.has(output)) seeds.set(output, declareSeed(forward.emitter, output));
  const { forms = plainForms, lower } = options;
  const all = backpropagate(forward.emitter, { moved, seeds, forms, deferred: lower !== undefined });
  const wanted = new Map([...all].filter(([name]) => options.inputs.includes(name) || parameters.includes(name)));
  const results = [...graph.outputs.map(({ name }) => name), ...bufferUpdates.map(({ output }) => output)];
  const pass: TrainingPass = { emitter: forward.emitter, forwardCount: written, results, gradients: wanted };
  const { emitter, forwardCount, gradients } = lower === undefined ? pass : lower(pass);
  const roles = rolesOf(graph, bufferUpdates, seeds);
  const halves = splitBackward(emitter, {
    forwardCount,
    gradients,
    inputs: options.inputs,
    parameters,
    roles,
    recompute: options.recompute ?? [],
    pieces: options.pieces,
  });
  return {
    ...assembleGraphs({ emitter, graph, halves, roles, bufferUpdates, dropouts, forwardCount }),
    bufferUpdates,
    dropouts,
    inputGradients: options.inputs.filter((name) => gradients.has(name)),
    parameterGradients: parameters.filter((name) => gradients.has(name)),
    withoutGradient: [...options.inputs, ...parameters].filter((name) => !gradients.has(name)),
  };
}

function declareSeed(emitter: Emitter, output: string): string {
  const { type, shape } = emitter.type(output);
  return emitter.input(outputGradientName(output), type, shape);
}

/** What the values are that no node computes. */
interface Roles {
  /** Gradients of outputs. */
  readonly seeds: ReadonlySet<string>;
  /** Parameters and the buffers that the forward pass leaves as they are: the same for every micro-batch. */
  readonly fixed: ReadonlySet<string>;
  /** Data, masks, and the buffers that the forward pass replaces. */
  readonly inputs: ReadonlySet<string>;
}

function rolesOf(graph: Graph, bufferUpdates: readonly BufferUpdate[], seeds: ReadonlyMap<string, string>): Roles {
  const replaced = new Set(bufferUpdates.map(({ buffer }) => buffer));
  return {
    seeds: new Set(seeds.values()),
    fixed: new Set([...graph.parameters, ...graph.buffers].filter((name) => !replaced.has(name))),
    inputs: new Set([...graph.inputs.map(({ name }) => name), ...replaced]),
  };
}

/** The backward nodes, in one list with the forward ones, and which of them belong to which half. */
interface Halves {
  readonly list: NodeList;
  /** The same list with the nodes as they run again. The selections are from this one. */
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

/** What a piece computes, from what is saved and what pieces before it computed. */
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
 * The input half is all that the input gradients need; the weight half is the rest, given the first half's values.
 * Pieces go on from each other likewise.
 */
function splitBackward(emitter: Emitter, request: SplitRequest): Halves {
  const { forwardCount, gradients, inputs, parameters } = request;
  const forwardNodes = emitter.nodes.slice(0, forwardCount);
  const merged = mergeEqualNodes(emitter.nodes.slice(forwardCount));
  const targets = new Targets(emitter, merged, gradients);
  const isConstant = (value: string): boolean => emitter.constantValue(value) !== undefined;
  const isPieced = request.pieces?.of === 'backward';
  // Where the whole pass is cut into pieces, the input gradients come last, and nobody runs the halves.
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
  const outputsOf = (list: NodeList, { nodes }: Selection, from: number): string[] =>
    [...nodes].filter((index) => index >= from).flatMap((index) => (list.nodes[index] as Node).outputs);
  const inputHalf = before.select(inputTargets, isSaved, isConstant);
  const inInputHalf = new Set(outputsOf(before, inputHalf, forwardCount));
  const isGiven = (value: string): boolean => isSaved(value) || (inInputHalf.has(value) && !isRecomputed(value));
  const pieces: PieceSelection[] = [];
  const computed = new Set<string>();
  for (const [index, names] of (request.pieces?.parameters ?? []).entries()) {
    const isLast = index === (request.pieces?.parameters.length ?? 0) - 1;
    const own = [
      ...(isPieced && isLast ? targets.of(inputs, computed) : []),
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

/**
 * The node as it runs a second time. The batch's mean and variance are known then (they are always kept, being small):
 * normalizing with them takes one pass less.
 */
function runAgain(node: Node): Node {
  if (!isTrainingBatchNormalization(node)) return node;
  const { training_mode: _, momentum: __, ...attributes } = node.attributes;
  const [y, mean, variance] = node.outputs as [string, string, string];
  return { ...node, inputs: [...node.inputs.slice(0, 3), mean, variance], outputs: [y], attributes };
}

/**
 * Tells the values that a backward graph computes again instead of reading them: those asked for, and those that are
 * free: views of other values, and what depends on parameters and constants alone (a transposed weight), which would
 * otherwise be kept once a micro-batch.
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

interface AssemblyRequest {
  readonly emitter: Emitter;
  readonly graph: Graph;
  readonly halves: Halves;
  readonly roles: Roles;
  readonly bufferUpdates: readonly BufferUpdate[];
  readonly dropouts: readonly DropoutInput[];
  readonly forwardCount: number;
}

/** Where a value that a backward graph reads comes from. */
type ValueKind = 'seed' | 'backward' | 'input' | 'forward' | 'parameter';

/** The order of a backward graph's inputs. */
const inputOrder: readonly ValueKind[] = ['seed', 'backward', 'input', 'forward', 'parameter'];

type AssembledGraphs = Pick<
  StageGraphs,
  | 'forward'
  | 'backward'
  | 'backwardInput'
  | 'backwardWeight'
  | 'pieces'
  | 'saved'
  | 'savedInputs'
  | 'usedParameters'
  | 'intermediates'
>;

function assembleGraphs({
  emitter,
  graph,
  halves,
  roles,
  bufferUpdates,
  dropouts,
  forwardCount,
}: AssemblyRequest): AssembledGraphs {
  const { list, again, rename, inputTargets, parameterTargets, inputHalf, weightHalf, whole } = halves;
  const kind = (value: string): ValueKind => {
    const producer = list.producer(value);
    if (producer !== undefined) return producer < forwardCount ? 'forward' : 'backward';
    return roles.seeds.has(value) ? 'seed' : roles.fixed.has(value) ? 'parameter' : 'input';
  };
  const describe = (value: string): SavedValue => {
    const { type, shape } = emitter.type(value);
    return { name: rename.get(value) ?? value, type, shape, bytes: byteLength({ type, shape }) };
  };
  const graphOf = (
    part: string,
    nodes: readonly Node[],
    inputs: readonly string[],
    outputs: readonly string[],
  ): Graph => assemble(emitter, { name: `${graph.name}.${part}`, inputs, nodes, outputs, rename });
  const backwardOf = (part: string, { nodes, leaves }: Selection, outputs: readonly string[]): Graph =>
    graphOf(
      part,
      Array.from(nodes, (index) => again.nodes[index] as Node),
      [...leaves].sort((a, b) => inputOrder.indexOf(kind(a)) - inputOrder.indexOf(kind(b))),
      outputs,
    );
  const pieces = halves.pieces.map(({ selection, targets, parameterGradients }, index): BackwardPiece => {
    const later = new Set(halves.pieces.slice(index + 1).flatMap((piece) => piece.selection.leaves));
    const carried = [...selection.nodes].flatMap((node) =>
      (again.nodes[node] as Node).outputs.filter((output) => later.has(output)),
    );
    return {
      graph: backwardOf(`piece${index}`, selection, [...new Set([...targets, ...carried])]),
      carried: carried.map((value) => rename.get(value) ?? value),
      parameterGradients,
    };
  });
  const saved = whole.leaves.filter((value) => kind(value) === 'forward');
  const intermediates = weightHalf.leaves.filter((value) => kind(value) === 'backward');
  const masks = dropouts.map(({ name }) => name);
  const data = graph.inputs.map(({ name }) => name).filter((name) => !masks.includes(name));
  const forwardOutputs = [
    ...new Set([...graph.outputs.map(({ name }) => name), ...bufferUpdates.map(({ output }) => output), ...saved]),
  ];
  const isConstant = (value: string): boolean => emitter.constantValue(value) !== undefined;
  const { nodes } = list.select(forwardOutputs, () => false, isConstant);
  const forwardNodes = Array.from(nodes, (index) => list.nodes[index] as Node);
  return {
    forward: graphOf(
      'forward',
      forwardNodes,
      [...data, ...graph.parameters, ...graph.buffers, ...masks],
      forwardOutputs,
    ),
    backward: backwardOf('backward', whole, [...inputTargets, ...parameterTargets]),
    backwardInput: backwardOf('backwardInput', inputHalf, [...new Set([...inputTargets, ...intermediates])]),
    backwardWeight: backwardOf('backwardWeight', weightHalf, parameterTargets),
    pieces,
    saved: saved.map(describe),
    savedInputs: whole.leaves.filter((value) => kind(value) === 'input').map(describe),
    usedParameters: whole.leaves.filter((value) => kind(value) === 'parameter'),
    intermediates: intermediates.map(describe),
  };
}
