// How a run asks its devices to measure a model.

/**
 * `full`: stages at up to four batch sizes, a minute or more for a large model. `quick`: seconds, at two batch sizes;
 * rounds correct what is off (knowledge/estimator.ts).
 */
export const thoroughnesses = ['quick', 'full'] as const;

export type Thoroughness = (typeof thoroughnesses)[number];

/**
 * The batch sizes at which layers are measured, ascending: 1 and the largest share, and in a full profile two between
 * them in geometric steps. `fixedBatch`: only that one.
 */
export function profilePoints(
  largest: number,
  fixedBatch: number | undefined,
  thoroughness: Thoroughness = 'full',
): readonly number[] {
  if (fixedBatch !== undefined) return [fixedBatch];
  const exponents = thoroughness === 'quick' ? [0, 1] : [0, 1 / 3, 2 / 3, 1];
  return [...new Set(exponents.map((exponent) => Math.max(1, Math.round(largest ** exponent))))];
}
