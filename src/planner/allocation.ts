// Asteroid's Algorithm 1: how a stage's devices share a micro-batch. Samples are whole; what the paper leaves open is settled here:
// - real shares are rounded by largest remainder, which never exceeds a device's memory;
// - a "block of samples" starts at an eighth of the micro-batch and is halved, down to one sample, when moving one no longer helps;
// - the move that does not help is taken back.

/** One stage's devices, by their place in the group. */
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
  /** The largest share that each device was ever offered: limits of at least this much would have changed nothing. */
  readonly highest: readonly number[];
}

/** Shares the micro-batch; undefined when it does not fit the devices' memory together. */
export function allocate(problem: AllocationProblem): Allocation | undefined {
  const shares = balance(problem);
  if (shares === undefined) return undefined;
  const samples = roundShares(shares, problem.samples);
  return { samples, highest: offload(problem, samples) };
}

/** Phase 1, MemoryAwareBalancing: in proportion to capacity v_d (eq. 9); what exceeds a device's memory goes to the others, again by capacity. */
function balance({ samples, limits, timeMs }: AllocationProblem): number[] | undefined {
  const shares: number[] = [];
  const capacities: number[] = [];
  let open: number[] = [];
  for (let device = 0; device < limits.length; device++) {
    shares.push(0);
    capacities.push(1 / Math.max(timeMs(device, samples), 1e-12));
    if ((limits[device] ?? 0) > 0) open.push(device);
  }
  let left = samples;
  while (left > 1e-9 * samples) {
    if (open.length === 0) return undefined;
    let total = 0;
    for (const device of open) total += capacities[device] ?? 0;
    const wanted = left;
    const stillOpen: number[] = [];
    for (const device of open) {
      const limit = limits[device] ?? 0;
      const share = (shares[device] ?? 0) + ((capacities[device] ?? 0) / total) * wanted;
      const taken = Math.min(share, limit);
      left -= taken - (shares[device] ?? 0);
      shares[device] = taken;
      if (taken < limit) stillOpen.push(device);
    }
    // Everybody took all that was offered: nothing is left but what rounding lost.
    if (stillOpen.length === open.length) break;
    open = stillOpen;
  }
  return shares;
}

/** Whole numbers with the same sum: down first, then up where most was lost. A limit is whole, so a share below it may be rounded up. */
function roundShares(shares: readonly number[], total: number): number[] {
  const whole = shares.map((share) => Math.floor(share + 1e-9));
  let left = total;
  for (const share of whole) left -= share;
  if (left > 0) {
    const byLoss = shares
      .map((share, device) => ({ device, loss: share - (whole[device] ?? 0) }))
      .sort((a, b) => b.loss - a.loss || a.device - b.device);
    for (const { device } of byLoss.slice(0, left)) whole[device] = (whole[device] ?? 0) + 1;
  }
  return whole;
}

/** Phase 2, StragglerWorkloadOffloading, in place: from the slowest to the fastest device with memory, while that makes the slowest faster. Returns the largest shares offered. */
function offload({ samples: total, limits, timeMs }: AllocationProblem, samples: number[]): number[] {
  const highest = [...samples];
  const times = samples.map((share, device) => timeMs(device, share));
  for (let block = Math.max(1, total >> 3); samples.length > 1; block >>= 1) {
    for (;;) {
      const from = slowest(times);
      const to = fastest(times, from, (device) => (samples[device] ?? 0) + block <= (limits[device] ?? 0));
      const [oldShare, oldMs] = [samples[from] ?? 0, times[from] ?? 0];
      if (to === -1 || oldShare < block) break;
      const [otherShare, otherMs] = [samples[to] ?? 0, times[to] ?? 0];
      highest[to] = Math.max(highest[to] ?? 0, otherShare + block);
      samples[from] = oldShare - block;
      samples[to] = otherShare + block;
      times[from] = timeMs(from, oldShare - block);
      times[to] = timeMs(to, otherShare + block);
      if ((times[slowest(times)] ?? 0) < oldMs) continue;
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

function slowest(times: readonly number[]): number {
  let found = 0;
  for (let device = 1; device < times.length; device++) if ((times[device] ?? 0) > (times[found] ?? 0)) found = device;
  return found;
}

function fastest(times: readonly number[], except: number, fits: (device: number) => boolean): number {
  let found = -1;
  for (let device = 0; device < times.length; device++) {
    if (device !== except && fits(device) && (found === -1 || (times[device] ?? 0) < (times[found] ?? 0))) found = device;
  }
  return found;
}
