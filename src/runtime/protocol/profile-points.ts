// Which batch sizes to measure a layer at.

/** At most four points: 1, the largest share, and two between them in geometric steps. `fixedBatch`: only that one. */
export function profilePoints(largest: number, fixedBatch: number | undefined): readonly number[] {
  if (fixedBatch !== undefined) return [fixedBatch];
  const points = [0, 1, 2, 3].map((index) => Math.max(1, Math.round(largest ** (index / 3))));
  return [...new Set(points)].sort((a, b) => a - b);
}
