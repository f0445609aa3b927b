// Assembles a stage's training graphs from the nodes of one list: names, input order, and what is saved between them.

import type { Emitter } from '../graph/emitter.ts';
import type { Graph, Node } from '../graph/graph.ts';
import { byteLength, type ValueType } from '../graph/tensor.ts';
import type { DropoutInput } from './dropout.ts';
import type { BufferUpdate } from './forward.ts';
import type { Halves, Roles } from './split-backward.ts';
import { assemble, type Selection } from './subgraph.ts';

/** A value that is kept between two graphs. */
export interface SavedValue extends ValueType {
  readonly name: string;
  readonly bytes: number;
}

/**
 * A piece of a backward pass: its gradients are final, and later pieces continue from the values in `carried`. The last
 * piece of a whole pass also outputs the input gradients.
 */
export interface BackwardPiece {
  /** Outputs: the gradients, then `carried`. Has no nodes if it has no gradients of its own. */
  readonly graph: Graph;
  /** Outputs that later pieces read. */
  readonly carried: readonly string[];
  /** Its parameters that have a gradient. */
  readonly parameterGradients: readonly string[];
}

/** A stage's training graphs and the values that travel between them. */
export interface AssembledGraphs {
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
   * The pieces of the pass named by `options.pieces`; run in order, they output what that pass outputs. They read what
   * it reads, and `carried` values of earlier pieces.
   */
  readonly pieces: readonly BackwardPiece[];
  /** Exactly the values computed by `forward` that the backward graphs read. They may include outputs of the stage. */
  readonly saved: readonly SavedValue[];
  /**
   * Inputs of `forward` (data, dropout masks, buffers that `forward` replaces) that the backward graphs read, with
   * their values before `forward`.
   */
  readonly savedInputs: readonly SavedValue[];
  /** Parameters, and buffers that are never replaced, that the backward graphs read. */
  readonly usedParameters: readonly string[];
  /** Values that `backwardInput` computes and `backwardWeight` reads. */
  readonly intermediates: readonly SavedValue[];
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

/** The origin of a value that a backward graph reads. */
type ValueKind = 'seed' | 'backward' | 'input' | 'forward' | 'parameter';

/** The order of a backward graph's inputs. */
const inputOrder: readonly ValueKind[] = ['seed', 'backward', 'input', 'forward', 'parameter'];

/** Makes the graphs; their inputs are sorted by kind, their targets renamed. */
export function assembleGraphs(request: AssemblyRequest): AssembledGraphs {
  const { emitter, graph, halves, roles, forwardCount } = request;
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
  const backwardOf: AssembleSelection = (part, { nodes, leaves }, outputs) =>
    assemble(emitter, {
      name: `${graph.name}.${part}`,
      inputs: [...leaves].sort((a, b) => inputOrder.indexOf(kind(a)) - inputOrder.indexOf(kind(b))),
      nodes: Array.from(nodes, (index) => again.nodes[index] as Node),
      outputs,
      rename,
    });
  const saved = whole.leaves.filter((value) => kind(value) === 'forward');
  const intermediates = weightHalf.leaves.filter((value) => kind(value) === 'backward');
  return {
    forward: forwardGraph(request, saved),
    backward: backwardOf('backward', whole, [...inputTargets, ...parameterTargets]),
    backwardInput: backwardOf('backwardInput', inputHalf, [...new Set([...inputTargets, ...intermediates])]),
    backwardWeight: backwardOf('backwardWeight', weightHalf, parameterTargets),
    pieces: pieceGraphs(halves, backwardOf),
    saved: saved.map(describe),
    savedInputs: whole.leaves.filter((value) => kind(value) === 'input').map(describe),
    usedParameters: whole.leaves.filter((value) => kind(value) === 'parameter'),
    intermediates: intermediates.map(describe),
  };
}

type AssembleSelection = (part: string, selection: Selection, outputs: readonly string[]) => Graph;

function forwardGraph(
  { emitter, graph, halves: { list, rename }, bufferUpdates, dropouts }: AssemblyRequest,
  saved: readonly string[],
): Graph {
  const masks = dropouts.map(({ name }) => name);
  const data = graph.inputs.map(({ name }) => name).filter((name) => !masks.includes(name));
  const outputs = [
    ...new Set([...graph.outputs.map(({ name }) => name), ...bufferUpdates.map(({ output }) => output), ...saved]),
  ];
  const isConstant = (value: string): boolean => emitter.constantValue(value) !== undefined;
  const { nodes } = list.select(outputs, () => false, isConstant);
  return assemble(emitter, {
    name: `${graph.name}.forward`,
    inputs: [...data, ...graph.parameters, ...graph.buffers, ...masks],
    nodes: Array.from(nodes, (index) => list.nodes[index] as Node),
    outputs,
    rename,
  });
}

function pieceGraphs({ pieces, again, rename }: Halves, backwardOf: AssembleSelection): BackwardPiece[] {
  return pieces.map(({ selection, targets, parameterGradients }, index) => {
    const later = new Set(pieces.slice(index + 1).flatMap((piece) => piece.selection.leaves));
    const carried = [...selection.nodes].flatMap((node) =>
      (again.nodes[node] as Node).outputs.filter((output) => later.has(output)),
    );
    return {
      graph: backwardOf(`piece${index}`, selection, [...new Set([...targets, ...carried])]),
      carried: carried.map((value) => rename.get(value) ?? value),
      parameterGradients,
    };
  });
}
