// The planners of other systems by their papers' cost models, reduced to what they decide here: where to cut and on
// which devices; FTPipeHD's is ftpipehd.ts. They ignore memory (Asteroid §5.3); a plan that does not fit is refused. Of
// the micro-batch sizes that fit, the simulator chooses the best.
//
// gpipe: Huang et al. 2019. One device a stage in the cluster's order, cut evenly by time, regardless of bytes;
// balanced by each device's own speed, as in Asteroid's evaluation (§5.2). Schedule gpipe.
//
// pipedream: Narayanan et al. 2019, §3.1. A(j, m) = min over i, m′ of max(A(i, m − m′), 2a_i/b, T(i→j, m′)) with T(i→j,
// m) = max(Σ t, 2(m−1)Σw/b)/m: every micro-batch pays for the weights, as in the asynchronous original. Devices are
// taken as equal.
//
// dapple: Fan et al. 2021, eq. 1–3. With the pivot stage as the dominant step, its latency T_w + T_s + T_e equals
// Asteroid's eq. 4–6 term by term, and so does its dynamic program; the remaining difference is that devices are equal
// and memory is unlimited.

import type { Cluster, DeviceTimes, LinkSpeed, Profile } from '../cluster/cluster.ts';
import { deviceTimes } from '../cluster/times.ts';
import { search } from './asteroid.ts';
import { straightPartition } from './partition.ts';
import { createProblem, mayReplicate, type Problem, type StageLayout } from './problem.ts';
import { shareTimes } from './share-times.ts';
import type { Found } from './space.ts';
import type { Steps } from './steps.ts';

/** A baseline's stages for one micro-batch size and schedule. */
export type Layouts = (problem: Problem) => Steps<readonly StageLayout[]>;

/** The devices of a straight pipeline in the cluster's order; at most one for each layer. */
function straightOrder({ available, profile }: Problem): number[] {
  return available.map(({ place }) => place).slice(0, profile.layers.length);
}

function straight(problem: Problem, order: readonly number[], ends: readonly number[]): StageLayout[] {
  return order.map((place, index) => ({
    layers: [ends[index - 1] ?? 0, ends[index] ?? 0],
    devices: [place],
    samples: [problem.microBatchSize],
  }));
}

export function* gpipe(problem: Problem): Steps<readonly StageLayout[]> {
  yield 0;
  const order = straightOrder(problem);
  const times = shareTimes(problem);
  const B = problem.microBatchSize;
  const stageMs = (index: number, first: number, end: number): number =>
    times.forwardMs(order[index] ?? 0, first, end, B) + times.backwardMs(order[index] ?? 0, first, end, B);
  return straight(
    problem,
    order,
    straightPartition(problem.profile.layers.length, order.length, { stageMs, crossMs: () => 0 }),
  );
}

export function* pipedream(problem: Problem): Steps<readonly StageLayout[]> {
  const even = homogeneous(problem);
  const { profile, sums, microBatchSize: B } = even;
  const mbps = even.cluster.links.default.bandwidthMbps;
  const times = shareTimes(even);
  const [L, N] = [profile.layers.length, problem.available.length];
  const width = L + 1;
  const msOf = (bytes: number): number => (bytes * 8) / (mbps * 1000);
  const place = problem.available[0]?.place ?? 0;
  const totalMs = Float64Array.from(
    { length: width },
    (_, end) => times.forwardMs(place, 0, end, B) + times.backwardMs(place, 0, end, B),
  );
  const reduceMs = Float64Array.from({ length: width }, (_, end) => msOf(2 * sums.weightBytes(0, end)));
  const least = new Float64Array((N + 1) * width).fill(Number.POSITIVE_INFINITY);
  const cuts = new Int32Array((N + 1) * width);
  const sizes = new Int32Array((N + 1) * width);
  least[0] = 0;
  for (let count = 1; count <= N; count++) {
    yield count / N;
    for (let end = 1; end <= L; end++) {
      const at = count * width + end;
      for (let cut = end - 1; cut >= 0; cut--) {
        const computeMs = (totalMs[end] as number) - (totalMs[cut] as number);
        if (computeMs / Math.min(count, B) >= (least[at] as number)) break;
        const crossMs = cut === 0 ? 0 : msOf(2 * B * (profile.layers[cut - 1]?.outputBytes ?? 0));
        if (crossMs >= (least[at] as number)) continue;
        for (
          let m = mayReplicate(problem, cut, end) ? largestGroup(Math.min(count, B)) : 1;
          m >= 1;
          m = m > 16 ? m / 2 : m - 1
        ) {
          const before = least[(count - m) * width + cut] as number;
          if (before >= (least[at] as number)) continue;
          const ownMs = Math.max(computeMs, (m - 1) * ((reduceMs[end] as number) - (reduceMs[cut] as number))) / m;
          const ms = Math.max(before, crossMs, ownMs);
          if (ms < (least[at] as number)) [least[at], cuts[at], sizes[at]] = [ms, cut, m];
        }
      }
    }
  }
  let count = Array.from({ length: N }, (_, index) => index + 1).reduce((best, used) =>
    (least[used * width + L] as number) < (least[best * width + L] as number) ? used : best,
  );
  const layouts: StageLayout[] = [];
  for (let end = L; end > 0; ) {
    const at = count * width + end;
    const [cut, m] = [cuts[at] as number, sizes[at] as number];
    const devices = problem.available.slice(count - m, count).map((device) => device.place);
    layouts.unshift({ layers: [cut, end], devices, samples: evenShares(B, m) });
    [end, count] = [cut, count - m];
  }
  return layouts;
}

export function* dapple(problem: Problem): Steps<readonly StageLayout[]> {
  const order = problem.available.map(({ place }) => place);
  const found: Found | undefined = yield* search(homogeneous(problem), {
    order,
    groupLimit: order.length,
    stageLimit: order.length,
  });
  return found?.layouts ?? [];
}

/** Rounds a group size up to a power of two above 16, which keeps the search short for large clusters. */
function largestGroup(limit: number): number {
  return limit <= 16 ? limit : 2 ** Math.floor(Math.log2(limit));
}

/** Whole numbers that add up to `total` and differ by at most one. */
function evenShares(total: number, count: number): number[] {
  return Array.from(
    { length: count },
    (_, index) => Math.floor(((index + 1) * total) / count) - Math.floor((index * total) / count),
  );
}

/**
 * The problem as a data-centre planner sees it: every device is the mean of all, every link the mean link, memory is
 * unlimited and every device holds the data.
 */
function homogeneous(problem: Problem): Problem {
  const { profile, cluster, available } = problem;
  const specs = available.flatMap(({ place }) => cluster.devices[place] ?? []);
  const all = specs.map((device) => deviceTimes(profile, device));
  const mean = (tables: readonly (readonly (readonly number[])[])[]): number[][] =>
    profile.batchSizes.map((_, size) =>
      profile.layers.map(
        (_, layer) => tables.reduce((sum, table) => sum + (table[size]?.[layer] ?? 0), 0) / tables.length,
      ),
    );
  const times: DeviceTimes = {
    forwardMs: mean(all.map((each) => each.forwardMs)),
    backwardMs: mean(all.map((each) => each.backwardMs)),
  };
  const even: Profile = { ...profile, devices: { mean: times } };
  const devices = cluster.devices.map(({ name }) => ({
    name: `${name} `,
    kind: 'mean',
    memoryMiB: Number.MAX_SAFE_INTEGER,
  }));
  const alike: Cluster = { devices, links: { default: meanLink(problem) } };
  return createProblem({
    ...problem,
    batchSize: problem.microBatchSize * problem.microBatchCount,
    profile: even,
    cluster: alike,
  });
}

function meanLink({ table, available, cluster }: Problem): LinkSpeed {
  let [mbps, latencyMs, count] = [0, 0, 0];
  for (const { place: a } of available) {
    for (const { place: b } of available) {
      if (a === b) continue;
      mbps += table.bandwidthMbps(a, b);
      latencyMs += table.latencyMs(a, b);
      count++;
    }
  }
  return count === 0 ? cluster.links.default : { bandwidthMbps: mbps / count, latencyMs: latencyMs / count };
}
