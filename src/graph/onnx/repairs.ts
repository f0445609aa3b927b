// Undoes what exporters do to weights: left out where they are zero, stored twice, looked up ahead, merged where equal.
// Each repair says in a note what it found.

import { retieCopies, retieRows } from './folded.ts';
import type { GraphProto } from './generated/onnx_pb.ts';
import { retieTransposes } from './retie.ts';
import { untieVectors } from './untie.ts';
import { restoreZeroBiases } from './zero-biases.ts';

interface Repair {
  readonly apply: (graph: GraphProto) => GraphProto;
  /** Initializers more or fewer for each thing that was repaired. */
  readonly step: number;
  readonly note: (count: number) => string;
}

const one = (count: number, singular: string, plural: string): string => (count === 1 ? singular : plural);

const repairs: readonly Repair[] = [
  {
    apply: restoreZeroBiases,
    step: 1,
    note: (count) =>
      `The exporter had left out ${count} ${one(count, 'bias', 'biases')} of zeros; ` +
      `${one(count, 'it is', 'they are')} trained again.`,
  },
  {
    apply: retieTransposes,
    step: -1,
    note: (count) =>
      `The exporter had stored ${count} ${one(count, 'weight', 'weights')} twice, ` +
      `${one(count, 'as it is and transposed; it is', 'as they are and transposed; they are')} one again.`,
  },
  {
    apply: retieCopies,
    step: -1,
    note: (count) =>
      `The exporter had stored shared weights once a use; ${count} ${one(count, 'copy is', 'copies are')} left out.`,
  },
  {
    apply: retieRows,
    step: 2,
    note: (count) =>
      `The exporter had looked up ${count} ${one(count, 'table', 'tables')} ahead, such as biases of relative ` +
      'positions; each element is trained once again.',
  },
  {
    apply: untieVectors,
    step: 1,
    note: (count) =>
      `The exporter had stored equal vectors once; ${count} of them ` +
      `${one(count, 'is a weight of its', 'are weights of their')} own again.`,
  },
];

/** The graph with its weights as the source has them, and a note for each repair that changed anything. */
export function repaired(graph: GraphProto): { readonly graph: GraphProto; readonly notes: readonly string[] } {
  const notes: string[] = [];
  let current = graph;
  for (const { apply, step, note } of repairs) {
    const next = apply(current);
    const count = (next.initializer.length - current.initializer.length) / step;
    if (count > 0) notes.push(note(count));
    current = next;
  }
  return { graph: current, notes };
}
