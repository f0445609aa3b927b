// Whether a model that was freed from its batch size (rebatch.ts) is still the same model.

import type { Graph } from './graph.ts';
import { instantiate } from './static.ts';
import { sameShape } from './tensor.ts';

/**
 * The name of what differs, or undefined: at its own size the freed graph must equal the original, and other sizes must
 * work alike. Throws InputError where another size does not fit.
 */
export function freedDifference(original: Graph, freed: Graph, batchSize: number): string | undefined {
  const before = instantiate(original, batchSize);
  const after = instantiate(freed, batchSize);
  const computed = new Set(original.nodes.flatMap(({ outputs }) => outputs));
  for (const [name, { shape }] of before.types) {
    const now = after.types.get(name);
    if (now !== undefined && computed.has(name) && !sameShape(now.shape, shape)) return name;
  }
  instantiate(freed, batchSize + 3);
  // If the nodes themselves depend on the size, it is not a batch but the length of an unrolled sequence.
  const [few, many] = [batchSize + 3, batchSize + 4].map((size) => instantiate(freed, size, { simplify: false }));
  return few?.graph.nodes.length === many?.graph.nodes.length ? undefined : 'the nodes';
}
