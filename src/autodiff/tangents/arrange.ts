// Orders a forward pass and its tangents so that few values are alive at a time, however deep the net. Engines run
// nodes on demand: one after another those whose results are not read, each with everything it needs, of a node's
// inputs the one latest in the list first (engine/execution-order.ts). With the tangents after everything else, they
// are followed to the first layer before anything is computed; then each value is computed right before its tangent. In
// the natural order the whole forward pass would run first, and all of it would be kept.

import type { Emitter } from '../../graph/emitter.ts';
import { int, type Node } from '../../graph/graph.ts';
import { isFloat } from '../../graph/tensor.ts';
import { mergeEqualNodes } from '../subgraph.ts';

/** A forward pass followed by its tangents, as the emitter holds them. */
export interface TangentPass {
  /** The number of leading nodes that are the forward pass. */
  readonly forwardCount: number;
  /** The inputs of the forward pass. */
  readonly data: readonly string[];
  /** Tangents of inputs. */
  readonly moving: readonly string[];
  /** The parameters' tangents from which the activations' first ones arise. */
  readonly starts: ReadonlySet<string>;
}

export interface Arranged {
  readonly nodes: readonly Node[];
  /** Outputs of merged nodes → the name of the equal value. */
  readonly aliases: ReadonlyMap<string, string>;
}

/**
 * The nodes that depend on tangents of activations, after those that do not. They read the latter through a reshape
 * that changes nothing: an engine that fuses nodes puts the fused one at the end of its list, but not a reshape of it.
 */
export function arrange(emitter: Emitter, { forwardCount, data, moving, starts }: TangentPass): Arranged {
  const forward = emitter.nodes.slice(0, forwardCount);
  const { nodes, aliases } = mergeEqualNodes(emitter.nodes.slice(forwardCount));
  const activations = new Set(data);
  const fusable = new Set<string>();
  const note = ({ inputs, outputs, domain }: Node, isFusable: boolean): void => {
    if (!inputs.some((input) => activations.has(input))) return;
    for (const output of outputs) if (output !== '') activations.add(output);
    if (isFusable && domain === '') for (const output of outputs) fusable.add(output);
  };
  for (const node of forward) note(node, true);
  const views = new Map<string, string>();
  const view = (value: string): string => {
    if (value === '' || !fusable.has(value)) return value;
    const known =
      views.get(value) ?? emitter.emit('Reshape', [value, emitter.int64s(emitter.shape(value))], { allowzero: int(1) });
    views.set(value, known);
    return known;
  };
  const waitedFor = new Set(moving);
  const ofWeights = new Set(starts);
  const [early, late]: [Node[], Node[]] = [[], []];
  const start = emitter.nodes.length;
  for (const node of nodes) {
    const { inputs, outputs } = node;
    const isLate = inputs.some((input) => waitedFor.has(input));
    // a start that meets an activation gives it a tangent
    const startsFrom = inputs.some((input) => ofWeights.has(input));
    const group =
      isLate || (startsFrom && inputs.some((input) => activations.has(input)))
        ? waitedFor
        : startsFrom
          ? ofWeights
          : undefined;
    for (const output of outputs) if (output !== '') group?.add(output);
    if (isLate) late.push({ ...node, inputs: inputs.map(view) });
    else {
      early.push(node);
      note(node, products.has(node.operator) && group === undefined);
    }
  }
  return { nodes: [...forward, ...early, ...emitter.nodes.slice(start), ...late], aliases };
}

/** Operators, among those that rules write, that engines fuse with others. */
const products: ReadonlySet<string> = new Set(['Conv', 'Gemm', 'MatMul']);

/**
 * The nodes whose results are read, then those whose results are not: those of the targets, and last the rest (outputs,
 * running statistics). A result in `outputs` that no node reads is copied: if its node were fused with others, it would
 * be last in the engine's list and run first.
 */
export function tangentsFirst(
  emitter: Emitter,
  {
    nodes,
    targets,
    outputs,
  }: Readonly<Record<'targets' | 'outputs', readonly string[]>> & { readonly nodes: readonly Node[] },
): readonly Node[] {
  const read = new Set(nodes.flatMap(({ inputs }) => inputs));
  const results: ReadonlySet<string> = new Set(outputs);
  const wantedFirst: ReadonlySet<string> = new Set(targets);
  const inner: Node[] = [];
  const [wanted, others]: [Node[], Node[]] = [[], []];
  for (const node of nodes) {
    const [first = ''] = node.outputs;
    if (node.outputs.some((output) => read.has(output))) inner.push(node);
    else if (node.outputs.some((output) => wantedFirst.has(output))) wanted.push(node);
    else if (
      targets.length === 0 ||
      node.outputs.length > 1 ||
      !results.has(first) ||
      !isFloat(emitter.type(first).type)
    )
      others.push(node);
    else if (node.operator === 'Gemm' || node.operator === 'Conv')
      others.push(node); // nothing after them to be fused with
    else {
      const original = emitter.fresh(first);
      inner.push({ ...node, outputs: [original] });
      others.push({
        operator: 'Sum',
        domain: '',
        name: emitter.fresh('Sum'),
        inputs: [original],
        outputs: [first],
        attributes: {},
      });
    }
  }
  return [...inner, ...wanted, ...others];
}
