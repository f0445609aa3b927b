// The curve of a run's rounds in bounded memory: when there are too many points, neighbours become one, with the mean
// of what they show and the span of their losses. The same values give the same curve wherever it is kept.

/** Some rounds that follow each other. */
export interface CurvePoint {
  /** The last of them. */
  round: number;
  /** When it committed, in milliseconds since the window's beginning. */
  atMs: number;
  /** How many they are. */
  count: number;
  /** Means; null where a number is not finite or there is none. */
  loss: number | null;
  accuracy: number | null;
  samplesPerS: number;
  lr: number;
  /** The least and the largest loss. */
  low: number | null;
  high: number | null;
}

/** The points, and how many rounds each of them but the last stands for. */
export interface Curve {
  points: CurvePoint[];
  stride: number;
}

/** Points of a curve, at most. */
export const mostPoints = 1024;

/** A curve without rounds. */
export function emptyCurve(): Curve {
  return { points: [], stride: 1 };
}

/** Adds a point, for as many rounds as it says; there are `most` points at most. */
export function addPoint(curve: Curve, point: CurvePoint, most: number = mostPoints): void {
  const last = curve.points.at(-1);
  if (last !== undefined && last.count < curve.stride) merge(last, point);
  else curve.points.push({ ...point });
  if (curve.points.length <= most) return;
  curve.stride *= 2;
  const points: CurvePoint[] = [];
  for (const next of curve.points) {
    const before = points.at(-1);
    if (before !== undefined && before.count + next.count <= curve.stride) merge(before, next);
    else points.push(next);
  }
  curve.points = points;
}

/** Makes one point of two. */
function merge(into: CurvePoint, next: CurvePoint): void {
  const count = into.count + next.count;
  const share = next.count / count;
  const mean = (a: number, b: number): number => a + (b - a) * share;
  const meanOf = (a: number | null, b: number | null): number | null =>
    a === null || b === null ? (a ?? b) : mean(a, b);
  into.loss = meanOf(into.loss, next.loss);
  into.accuracy = meanOf(into.accuracy, next.accuracy);
  into.samplesPerS = mean(into.samplesPerS, next.samplesPerS);
  into.low = extreme(Math.min, into.low, next.low);
  into.high = extreme(Math.max, into.high, next.high);
  into.lr = next.lr;
  into.round = next.round;
  into.atMs = next.atMs;
  into.count = count;
}

function extreme(of: (a: number, b: number) => number, a: number | null, b: number | null): number | null {
  return a === null || b === null ? (a ?? b) : of(a, b);
}
