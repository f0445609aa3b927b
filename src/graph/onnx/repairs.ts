// Undoes what exporters do to weights: left out where they are zero, stored twice, looked up ahead, merged where equal.
// Each repair says in a note what it found.

import { restoreExponents, retieCopies, retieRows } from './folded.ts';
import type { GraphProto } from './generated/onnx_pb.ts';
import { retieTransposes } from './retie.ts';
import { untieVectors } from './untie.ts';
import { restoreZeroBiases } from './zero-biases.ts';

interface Repair {
  readonly apply: (graph: GraphProto) => GraphProto;
  /** What was repaired, from the initializers and nodes that are more afterwards. */
  readonly count: (added: { readonly initializers: number; readonly nodes: number }) => number;
  readonly note: (count: number) => string;
}

const one = (count: number, singular: string, plural: string): string => (count === 1 ? singular : plural);

const repairs: readonly Repair[] = [
  {
    apply: restoreZeroBiases,
    count: ({ initializers }) => initializers,
    note: (count) =>
      `The exporter had left out ${count} ${one(count, 'bias', 'biases')} of zeros; ` +
      `${one(count, 'it is', 'they are')} trained again.`,
  },
  {
    apply: retieTransposes,
    count: ({ initializers }) => -initializers,
    note: (count) =>
      `The exporter had stored ${count} ${one(count, 'weight', 'weights')} twice, ` +
      `${one(count, 'as it is and transposed; it is', 'as they are and transposed; they are')} one again.`,
  },
  {
    apply: retieCopies,
    count: ({ initializers }) => -initializers,
    note: (count) =>
      `The exporter had stored shared weights once a use; ${count} ${one(count, 'copy is', 'copies are')} left out.`,
  },
  {
    apply: retieRows,
    count: ({ initializers }) => initializers / 2,
    note: (count) =>
      `The exporter had looked up ${count} ${one(count, 'table', 'tables')} ahead, such as biases of relative ` +
      'positions; each element is trained once again.',
  },
  {
    apply: restoreExponents,
    count: ({ nodes }) => nodes,
    note: (count) =>
      `The exporter had computed ${count} ${one(count, 'exponential', 'exponentials')} ahead; ` +
      `${one(count, 'its exponent is', 'their exponents are')} trained again.`,
  },
  {
    apply: untieVectors,
    count: ({ initializers }) => initializers,
    note: (count) =>
      `The exporter had stored equal vectors once; ${count} of them ` +
      `${one(count, 'is a weight of its', 'are weights of their')} own again.`,
  },
];

/** The graph with its weights as the source has them, and a note for each repair that changed anything. */
export function repaired(graph: GraphProto): { readonly graph: GraphProto; readonly notes: readonly string[] } {
  const notes: string[] = [];
  let current = graph;
  for (const { apply, count, note } of repairs) {
    const next = apply(current);
    const found = count({
      initializers: next.initializer.length - current.initializer.length,
      nodes: next.node.length - current.node.length,
    });
    if (found > 0) notes.push(note(found));
    current = next;
  }
  return { graph: current, notes };
}
