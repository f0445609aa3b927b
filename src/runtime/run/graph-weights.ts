// The weights of a run that only infers, piece by piece, out of the model's graph.

import type { LayerSequence } from '../../graph/layers.ts';
import type { WeightSource } from '../coordinator/options.ts';

/** Weights from the graph's tensors, which may be read from a file only when their elements are looked at. */
export function graphWeights({ graph, layers: all }: LayerSequence): WeightSource {
  const named = ([first, end]: readonly [number, number]): (readonly ['parameter' | 'buffer', string])[] =>
    all
      .slice(first, end)
      .flatMap(({ parameters, buffers }) => [
        ...parameters.map((name) => ['parameter', name] as const),
        ...buffers.map((name) => ['buffer', name] as const),
      ]);
  return {
    count: (range) => named(range).length,
    *entries(range) {
      for (const [role, name] of named(range)) {
        const value = graph.initializers.get(name);
        // Stored elements are read once, and only one tensor's at a time.
        if (value !== undefined) yield { role, name, value: { ...value, data: value.data } };
      }
    },
  };
}
