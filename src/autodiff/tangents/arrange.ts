// Orders a forward pass and its tangents so that few values are alive at a time, however deep the net. Engines run nodes on demand: one after the
// other what nobody reads, with all that it needs, of what a node reads the latest in the list first (engine/execution-order.ts). Tangents
// behind everything else are followed to the first layer before anything is computed; then each value is computed right before its
// tangent. In the natural order the whole forward pass would run first, and all of it would be kept.

import type { Emitter } from '../../graph/emitter.ts';
import { int, type Node } from '../../graph/graph.ts';

/** What {@link arrange} orders. */
export interface TangentNodes {
  readonly forward: readonly Node[];
  /** What rules wrote, in an order in which it can run behind `forward`. */
  readonly tangent: readonly Node[];
  /** The values of `forward` that depend on its data. */
  readonly activations: ReadonlySet<string>;
  /** The tangents of activations. */
  readonly tangents: ReadonlySet<string>;
}

/**
 * The nodes that read tangents of activations, or what depends on them, behind those that do not. What they read of these they read through a
 * reshape that changes nothing: an engine that fuses nodes puts the fused one at the end of its list, but not a reshape of it.
 */
export function arrange(emitter: Emitter, { forward, tangent, activations, tangents }: TangentNodes): readonly Node[] {
  const fusable = new Set(forward.flatMap(({ outputs }) => outputs.filter((output) => activations.has(output))));
  const views = new Map<string, string>();
  const view = (value: string): string => {
    if (!fusable.has(value)) return value;
    const known = views.get(value) ?? emitter.emit('Reshape', [value, emitter.int64s(emitter.shape(value))], { allowzero: int(1) });
    views.set(value, known);
    return known;
  };
  const waitedFor = new Set(tangents);
  const [early, late]: [Node[], Node[]] = [[], []];
  const start = emitter.nodes.length;
  for (const node of tangent) {
    if (node.inputs.some((input) => waitedFor.has(input))) {
      for (const output of node.outputs) waitedFor.add(output);
      late.push({ ...node, inputs: node.inputs.map(view) });
    } else {
      early.push(node);
      if (products.has(node.operator)) for (const output of node.outputs) if (!tangents.has(output)) fusable.add(output);
    }
  }
  return [...forward, ...early, ...emitter.nodes.slice(start), ...late];
}

/** Of the nodes that rules write, those that engines fuse with others. */
const products: ReadonlySet<string> = new Set(['Conv', 'Gemm', 'MatMul']);

/** The nodes that others read, then those that nobody reads: the targets, and last the rest (the outputs themselves, running statistics). */
export function tangentsFirst(nodes: readonly Node[], targets: readonly string[]): readonly Node[] {
  const read = new Set(nodes.flatMap(({ inputs }) => inputs));
  const rank = ({ outputs }: Node): number =>
    outputs.some((output) => read.has(output)) ? 0 : outputs.some((output) => targets.includes(output)) ? 1 : 2;
  return [0, 1, 2].flatMap((wanted) => nodes.filter((node) => rank(node) === wanted));
}
