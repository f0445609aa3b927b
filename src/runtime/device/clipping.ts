// Between which two ends a tensor's values are rounded to a few levels. Outliers that are let in make every step
// larger; those that are clipped are wrong themselves. ACIQ (Banner et al. 2019) has the best compromise in closed
// form, if the values are spread as a Laplace or a normal distribution. Real activations are neither: as in DS-ACIQ
// (Wang et al., QuantPipe, arXiv 2211.04515), a directed search goes on from the analytical ends; here in the direction
// in which the error of a sample of the values falls. Nothing is allocated for a tensor.

/** The values between which levels are placed; those beyond take the nearer end. */
export interface Ends {
  readonly low: number;
  readonly high: number;
}

/** Values that are looked at for the ends. */
const sampleCount = 2048;
/** First and last factor by which the search widens or narrows the ends. */
const factors = [1.3, 1.1] as const;
/** Steps of the search at most, for each factor. */
const stepLimit = 12;
/** How often the whole range is halved for further starts. */
const halvingCount = 5;

const sample = new Float32Array(sampleCount);

/**
 * ACIQ for a Laplace distribution: the distance from the mean to an end, in mean absolute deviations, where the
 * derivative of the expected squared error 2b²·e^(−α/b) + α²/(3·4^bits) is 0: α/b = W(3·4^bits), W being Lambert's.
 */
export function laplaceClip(bits: number): number {
  const wanted = 3 * 4 ** bits;
  let found = Math.log(wanted);
  // Newton's method for w·e^w = wanted.
  for (let turn = 0; turn < 20; turn++) {
    const grown = Math.exp(found);
    found -= (found * grown - wanted) / (grown * (found + 1));
  }
  return found;
}

/**
 * ACIQ for a normal distribution: the distance in standard deviations, where the derivative of the expected squared
 * error (1 + α²)·2·Q(α) − 2α·φ(α) + α²/(3·4^bits) is 0: 4·(φ(α) − α·Q(α)) = 2α/(3·4^bits), Q the upper tail of the
 * density φ.
 */
export function gaussianClip(bits: number): number {
  let [low, high] = [0, 16];
  for (let turn = 0; turn < 60; turn++) {
    const middle = (low + high) / 2;
    const slope = (2 * middle) / (3 * 4 ** bits) - 4 * (normalDensity(middle) - middle * upperTail(middle));
    if (slope > 0) high = middle;
    else low = middle;
  }
  return high;
}

function normalDensity(x: number): number {
  return Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);
}

/** Q(x) for x ≥ 0: the density times Mills' ratio, by its continued fraction beyond 2, by the series of erf below. */
function upperTail(x: number): number {
  if (x < 2) {
    let [term, sum] = [x, x];
    for (let index = 1; index < 60; index++) {
      term *= (x * x) / (2 * index + 1);
      sum += term;
    }
    return 0.5 - normalDensity(x) * sum;
  }
  let ratio = x;
  for (let index = 80; index >= 1; index--) ratio = x + index / ratio;
  return normalDensity(x) / ratio;
}

/** By bits; empty where there is no such encoding. */
const clips = Array.from({ length: 9 }, (_, bits) =>
  bits < 2 ? undefined : { laplace: laplaceClip(bits), gaussian: gaussianClip(bits) },
);

/** Fractions of the golden ratio spread evenly over any length, whatever period the values have. */
const goldenFraction = (Math.sqrt(5) - 1) / 2;

/**
 * The ends for values [first, end), all finite, whose least and largest are known. `bits`: 2 to 8. The whole range is
 * always a candidate: values that levels hit exactly, such as a mask's two, are not clipped.
 */
export function clippedEnds(values: Float32Array, first: number, end: number, whole: Ends, bits: number): Ends {
  const { low, high } = whole;
  const found = clips[bits];
  if (!(high > low) || found === undefined) return whole;
  const count = takeSample(values, first, end);
  let mean = 0;
  for (let index = 0; index < count; index++) mean += sample[index] as number;
  mean /= count;
  let [deviation, variance] = [0, 0];
  for (let index = 0; index < count; index++) {
    const distance = Math.abs((sample[index] as number) - mean);
    deviation += distance;
    variance += distance * distance;
  }
  const farthest = Math.max(high - mean, mean - low);
  const errorAt = (alpha: number): number =>
    roundingError(count, Math.max(low, mean - alpha), Math.min(high, mean + alpha), 2 ** bits - 1);
  const starts = [(found.laplace * deviation) / count, found.gaussian * Math.sqrt(variance / count)];
  // A few outliers make the error fall towards two ends: near them and near the rest.
  for (let halving = 1; halving <= halvingCount; halving++) starts.push(farthest / 2 ** halving);
  let [best, error] = [farthest, errorAt(farthest)];
  for (const start of starts) {
    if (start >= farthest) continue;
    const at = errorAt(start);
    if (at < error) [best, error] = [start, at];
  }
  for (const factor of factors) {
    for (const direction of [factor, 1 / factor]) {
      for (let step = 0; step < stepLimit; step++) {
        const next = Math.min(farthest, best * direction);
        const at = next === best ? error : errorAt(next);
        if (!(at < error)) break;
        [best, error] = [next, at];
      }
    }
  }
  return { low: Math.max(low, mean - best), high: Math.min(high, mean + best) };
}

/** Fills `sample`; returns how many there are. */
function takeSample(values: Float32Array, first: number, end: number): number {
  const length = end - first;
  if (length <= sampleCount) {
    for (let index = 0; index < length; index++) sample[index] = values[first + index] as number;
    return length;
  }
  let fraction = 0;
  for (let index = 0; index < sampleCount; index++) {
    sample[index] = values[first + Math.floor(fraction * length)] as number;
    fraction += goldenFraction;
    if (fraction >= 1) fraction -= 1;
  }
  return sampleCount;
}

/** The sum of squares of what the sample loses between these ends; `last` is the number of the highest level. */
function roundingError(count: number, low: number, high: number, last: number): number {
  const step = (high - low) / last;
  const inverse = step > 0 ? 1 / step : 0;
  let sum = 0;
  for (let index = 0; index < count; index++) {
    const value = (sample[index] as number) - low;
    const at = value * inverse + 0.5;
    const level = at > last ? last : at > 0 ? at | 0 : 0;
    const lost = value - level * step;
    sum += lost * lost;
  }
  return sum;
}
