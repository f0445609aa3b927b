// Asteroid's Algorithm 1: shares a micro-batch among a stage's devices. Samples are whole numbers. Choices that the
// paper leaves open: real shares are rounded by largest remainder, which never exceeds a device's memory; a "block of
// samples" starts at an eighth of the micro-batch and is halved, down to one sample, when moving it no longer helps; a
// move that does not help is undone.

/** A stage's devices, identified by their index in the group. */
export interface AllocationProblem {
  /** B: samples of a micro-batch. */
  readonly samples: number;
  /** bs_d: the largest share that fits each device's memory. */
  readonly limits: ArrayLike<number>;
  /** Forward plus backward time of the stage on a device at a share; 0 for no samples. */
  readonly timeMs: (device: number, samples: number) => number;
}

export interface Allocation {
  /** y_d, which add up to B. */
  readonly samples: readonly number[];
  /** The largest share that each device was ever offered; higher limits would not have changed the result. */
  readonly highest: readonly number[];
}

/** Buffers that are reused between calls: a search calls `allocate` hundreds of thousands of times. */
const scratch = {
  shares: new Float64Array(0),
  capacities: new Float64Array(0),
  times: new Float64Array(0),
  open: new Uint8Array(0),
};

function reserve(count: number): void {
  if (scratch.shares.length >= count) return;
  for (const key of ['shares', 'capacities', 'times'] as const) scratch[key] = new Float64Array(2 * count);
  scratch.open = new Uint8Array(2 * count);
}

/** Shares the micro-batch among the devices; undefined if it exceeds their memory together. */
export function allocate(problem: AllocationProblem): Allocation | undefined {
  const count = problem.limits.length;
  reserve(count);
  if (!balance(problem)) return undefined;
  const samples = roundShares(count, problem.samples);
  return { samples, highest: offload(problem, samples) };
}

/**
 * Phase 1, MemoryAwareBalancing: shares in proportion to capacity v_d (eq. 9); samples that exceed a device's memory go
 * to the other devices, again by capacity.
 */
function balance({ samples, limits, timeMs }: AllocationProblem): boolean {
  const { shares, capacities, open } = scratch;
  const count = limits.length;
  let openCount = 0;
  for (let device = 0; device < count; device++) {
    shares[device] = 0;
    capacities[device] = 1 / Math.max(timeMs(device, samples), 1e-12);
    open[device] = (limits[device] ?? 0) > 0 ? 1 : 0;
    openCount += open[device] ?? 0;
  }
  let left = samples;
  while (left > 1e-9 * samples) {
    if (openCount === 0) return false;
    let total = 0;
    for (let device = 0; device < count; device++) if (open[device] === 1) total += capacities[device] ?? 0;
    const wanted = left;
    const before = openCount;
    for (let device = 0; device < count; device++) {
      if (open[device] === 0) continue;
      const limit = limits[device] ?? 0;
      const share = (shares[device] ?? 0) + ((capacities[device] ?? 0) / total) * wanted;
      const taken = Math.min(share, limit);
      left -= taken - (shares[device] ?? 0);
      shares[device] = taken;
      if (taken < limit) continue;
      open[device] = 0;
      openCount--;
    }
    // Every device took all it was offered: only rounding errors are left.
    if (openCount === before) break;
  }
  return true;
}

/**
 * Rounds to whole numbers with the same sum: all down, then up those with the largest remainders. Limits are whole, so
 * a share below its limit may be rounded up.
 */
function roundShares(count: number, total: number): number[] {
  const { shares } = scratch;
  const whole = new Array<number>(count);
  let left = total;
  for (let device = 0; device < count; device++) {
    const share = Math.floor((shares[device] ?? 0) + 1e-9);
    whole[device] = share;
    left -= share;
  }
  for (; left > 0; left--) {
    let most = 0;
    for (let device = 1; device < count; device++) {
      if ((shares[device] ?? 0) - (whole[device] ?? 0) > (shares[most] ?? 0) - (whole[most] ?? 0)) most = device;
    }
    whole[most] = (whole[most] ?? 0) + 1;
  }
  return whole;
}

/**
 * Phase 2, StragglerWorkloadOffloading, in place: moves samples from the slowest device to the fastest one with free
 * memory while the slowest device becomes faster. Returns the largest share offered to each device.
 */
function offload({ samples: total, limits, timeMs }: AllocationProblem, samples: number[]): number[] {
  const { times } = scratch;
  const count = samples.length;
  const highest = samples.slice();
  for (let device = 0; device < count; device++) times[device] = timeMs(device, samples[device] ?? 0);
  for (let block = Math.max(1, total >> 3); count > 1; block >>= 1) {
    for (;;) {
      const from = slowest(times, count);
      const oldShare = samples[from] ?? 0;
      if (oldShare < block) break;
      let to = -1;
      for (let device = 0; device < count; device++) {
        if (device === from || (samples[device] ?? 0) + block > (limits[device] ?? 0)) continue;
        if (to === -1 || (times[device] ?? 0) < (times[to] ?? 0)) to = device;
      }
      if (to === -1) break;
      const oldMs = times[from] ?? 0;
      const otherShare = samples[to] ?? 0;
      const otherMs = times[to] ?? 0;
      highest[to] = Math.max(highest[to] ?? 0, otherShare + block);
      samples[from] = oldShare - block;
      samples[to] = otherShare + block;
      times[from] = timeMs(from, oldShare - block);
      times[to] = timeMs(to, otherShare + block);
      if ((times[slowest(times, count)] ?? 0) < oldMs) continue;
      samples[from] = oldShare;
      samples[to] = otherShare;
      times[from] = oldMs;
      times[to] = otherMs;
      break;
    }
    if (block === 1) break;
  }
  return highest;
}

function slowest(times: Float64Array, count: number): number {
  let found = 0;
  for (let device = 1; device < count; device++) if ((times[device] ?? 0) > (times[found] ?? 0)) found = device;
  return found;
}

/** Identical devices of a group. */
export interface Kind {
  /** Indices in the group. */
  readonly members: readonly number[];
  /** The largest share that fits each. */
  readonly limit: number;
  readonly timeMs: (samples: number) => number;
}

/**
 * Shares that minimise the time of the slowest device (eq. 7), by bisection over that time to a relative 1e-4. Requires
 * times that grow with the share. O(kinds · log² samples), for groups that are too large for Algorithm 1. Undefined if
 * the samples do not fit.
 */
export function allocateByKind(samples: number, deviceCount: number, kinds: readonly Kind[]): number[] | undefined {
  const held = (withinMs: number): number =>
    kinds.reduce((sum, kind) => sum + kind.members.length * shareWithin(kind, withinMs), 0);
  let high = kinds.reduce((slowestMs, { timeMs, limit }) => Math.max(slowestMs, timeMs(limit)), 0);
  let excess = held(high) - samples;
  if (excess < 0) return undefined;
  for (let low = 0; excess > 0 && high - low > 1e-4 * high; ) {
    const middle = (low + high) / 2;
    const more = held(middle) - samples;
    if (more >= 0) [high, excess] = [middle, more];
    else low = middle;
  }
  const found = new Array<number>(deviceCount).fill(0);
  for (const kind of kinds) {
    const share = shareWithin(kind, high);
    for (const device of kind.members) found[device] = share;
  }
  for (let device = 0; excess > 0; device = (device + 1) % deviceCount) {
    if ((found[device] ?? 0) === 0) continue;
    found[device] = (found[device] ?? 0) - 1;
    excess--;
  }
  return found;
}

/** The largest share that a device finishes within `withinMs`. */
function shareWithin({ limit, timeMs }: Kind, withinMs: number): number {
  let [low, high] = [0, limit];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (timeMs(middle) <= withinMs) low = middle;
    else high = middle - 1;
  }
  return low;
}
