// Asteroid's Algorithm 2: dynamic programming over (l, n, p), the last l layers in p stages on the last n devices of an order; and the
// same search over narrower spaces, which are our simplest baselines. O(N²L²P) candidates; Algorithm 1 runs at most once for each pair of
// a layer range and a group unless memory binds. Legend as in cost.ts; l′, n′ are what the sub-pipeline behind the new stage has.
//
// Eq. 4–6 reduce to two numbers for a pipeline. Let aligned(s) = M·E_s + Σ_{i<s}E_i with E = E_f + E_b; dm maximises it, by eq. 11. Then
// both branches of eq. 6 say T_e(s) = aligned(dm) − Σ_{i<s}E_i, so that
//     T_w(s) + T_e(s) + T_a(s) = aligned(dm) + T_a(s) − Σ_{i<s}E_b(i)   and   latency = aligned(dm) + tail,  tail = max_s(T_a(s) − Σ_{i<s}E_b(i)).
// A new execution step ne and communication step nc in front change them in constant time:
//     aligned′ = max(aligned + E_ne + E_nc, M·E_ne, M·E_nc + E_ne)  (eq. 11 with the sum up to the new index of dm*, less one)
//     tail′    = max(T_a(ne), tail − E_b(ne) − E_b(nc)).
//
// What it promises: nothing worse than Algorithm 2's result. That is not always the best by eq. 4: the program keeps one sub-pipeline for
// each (l, n, p), and another one with a larger latency of its own can serve a longer pipeline better: in 2 of 331 random
// problems, 12% at worst (asteroid.test.ts).
//
// What it leaves out cannot win: a latency is at least M·E of every stage, by bounds.ts at least that of the busiest device. The bar is the
// latency of a first, coarse search with few places to cut.

import { prefixSums, rangeOf } from '../cluster/times.ts';
import { type Bounds, createBounds } from './bounds.ts';
import { allReduceMs, fedBytes, feedMs, transferMs } from './cost.ts';
import type { Problem, StageLayout } from './problem.ts';
import { type Group, inFlightFromEnd, neighbourGroups, StageTable, type StageTimes } from './stages.ts';

/** Which pipelines a search looks at: stages take their devices from `order`, from the first to the last, all of them. */
export interface Space {
  /** Places in the cluster. */
  readonly order: readonly number[];
  /** Most devices in one stage. */
  readonly groupLimit: number;
  readonly stageLimit: number;
}

/** The pipeline that a search found. */
export interface Found {
  readonly layouts: readonly StageLayout[];
  /** By eq. 4, as in cost.ts. */
  readonly roundMs: number;
}

/** The best pipeline of a space by Algorithm 2; undefined when none fits the devices' memory. Throws when `signal` is aborted. */
export function search(problem: Problem, space: Space, signal?: AbortSignal): Found | undefined {
  const every = problem.profile.layers.map((_, layer) => layer);
  const layerCount = every.length;
  if (layerCount <= 2 * coarseCount) return new Search(problem, space, [...every, layerCount], Number.POSITIVE_INFINITY).run(signal);
  const some = Array.from({ length: coarseCount }, (_, index) => Math.round((index * layerCount) / coarseCount));
  const coarse = new Search(problem, space, [...some, layerCount], Number.POSITIVE_INFINITY).run(signal);
  const fine = new Search(problem, space, [...every, layerCount], coarse?.roundMs ?? Number.POSITIVE_INFINITY).run(signal);
  return fine ?? coarse;
}

/** Runs of layers that the first search does not cut. */
const coarseCount = 24;

class Search {
  readonly #problem: Problem;
  /** Layers at which a stage may start, ascending, and the number of layers. l and l′ count the runs between them from the end. */
  readonly #cuts: readonly number[];
  readonly #runCount: number;
  readonly #deviceCount: number;
  readonly #stageLimit: number;
  readonly #groupLimit: number;
  readonly #table: StageTable;
  readonly #group: (start: number, end: number) => Group;
  readonly #inFlight: readonly number[];
  /** Only pipelines with a smaller latency are wanted. */
  readonly #bar: number;
  readonly #bounds: Bounds;
  /** Prefix sums of the devices' speeds, in their order. */
  readonly #speeds: Float64Array;
  // By #index(l, n, p): the best sub-pipeline. Infinite latency: none.
  readonly #aligned: Float64Array;
  readonly #tail: Float64Array;
  readonly #restLayers: Int32Array;
  readonly #restDevices: Int32Array;
  readonly #heads: (StageTimes | undefined)[];

  constructor(problem: Problem, { order, groupLimit, stageLimit }: Space, cuts: readonly number[], bar: number) {
    this.#problem = problem;
    this.#cuts = cuts;
    this.#runCount = cuts.length - 1;
    this.#deviceCount = order.length;
    this.#stageLimit = Math.min(stageLimit, this.#runCount, order.length);
    this.#groupLimit = groupLimit;
    this.#table = new StageTable(problem);
    this.#group = neighbourGroups(problem, order);
    this.#inFlight = inFlightFromEnd(problem, this.#stageLimit);
    this.#bar = bar;
    this.#bounds = createBounds(problem);
    this.#speeds = prefixSums(order.map((place) => this.#bounds.speeds[problem.devices[place]?.classIndex ?? 0] ?? 0));
    const size = this.#index(this.#runCount + 1, 0, 0);
    this.#aligned = new Float64Array(size).fill(Number.POSITIVE_INFINITY);
    this.#tail = new Float64Array(size);
    this.#restLayers = new Int32Array(size);
    this.#restDevices = new Int32Array(size);
    this.#heads = new Array<StageTimes | undefined>(size).fill(undefined);
  }

  run(signal: AbortSignal | undefined): Found | undefined {
    const [L, N] = [this.#runCount, this.#deviceCount];
    for (let l = 1; l <= L; l++) {
      signal?.throwIfAborted();
      // A pipeline of all layers uses all devices; one of fewer leaves some to the stages in front of it, which must be able to do the rest.
      const sizes: number[] = [];
      for (let n = l === L ? N : 1; n < N || (l === L && n === N); n++) if (l === L || this.#mayPass(0, L - l, 0, N - n)) sizes.push(n);
      for (let rest = l - 1; rest >= 0; rest--) {
        if (!this.#mayPass(L - l, L - rest, 0, N)) break;
        this.#table.setLayers(this.#cut(L - l), this.#cut(L - rest));
        for (const n of sizes) {
          const smallest = Math.max(rest === 0 ? 0 : 1, n - this.#groupLimit);
          for (let m = smallest; m <= (rest === 0 ? 0 : n - 1); m++) {
            if (this.#mayPass(L - l, L - rest, N - n, N - m)) this.#tryHead(l, n, rest, m);
          }
        }
      }
    }
    return this.#best();
  }

  #cut(index: number): number {
    return this.#cuts[index] ?? 0;
  }

  /** Whether devices [start, end) of the order can run the layers between two cuts without passing the bar. */
  #mayPass(from: number, to: number, start: number, end: number): boolean {
    return (
      this.#problem.microBatchCount * this.#bounds.busiestMs(this.#cut(from), this.#cut(to), rangeOf(this.#speeds, start, end)) < this.#bar
    );
  }

  #index(l: number, n: number, p: number): number {
    return (l * (this.#deviceCount + 1) + n) * (this.#stageLimit + 1) + p;
  }

  #latency(index: number): number {
    return (this.#aligned[index] ?? 0) + (this.#tail[index] ?? 0);
  }

  /** Puts a stage of the layers in front of the last `rest` on the devices in front of the last m, before each Q(rest, m, p − 1). */
  #tryHead(l: number, n: number, rest: number, m: number): void {
    const N = this.#deviceCount;
    const group = this.#group(N - n, N - m);
    const from = rest === 0 ? 1 : 2;
    const to = rest === 0 ? 1 : Math.min(rest + 1, m + 1, this.#stageLimit);
    let leastMs = -1;
    for (let p = from; p <= to; p++) {
      const sub = this.#index(rest, m, p - 1);
      const behind = rest === 0 ? 0 : (this.#aligned[sub] ?? 0);
      const target = this.#index(l, n, p);
      const best = Math.min(this.#latency(target), this.#bar);
      // The latency is at least aligned′: what cannot win needs no Algorithm 1.
      if (behind >= best) continue;
      if (leastMs < 0) leastMs = this.#table.leastMs(group) * (1 - 1e-9);
      if (behind + leastMs >= best || this.#problem.microBatchCount * leastMs >= best) continue;
      const head = this.#table.stage(group, this.#inFlight[p] ?? 1);
      if (head === undefined) break; // K_p grows with p: what does not fit now will not fit later.
      this.#join(head, { l, n, p, rest, m });
    }
  }

  /** Latency of the head before its sub-pipeline (eq. 4, 6 and 11, as derived above); kept where it is the best of Q(l, n, p). */
  #join(head: StageTimes, { l, n, p, rest, m }: { l: number; n: number; p: number; rest: number; m: number }): void {
    const { table, profile, sums, cluster, microBatchCount: M } = this.#problem;
    const { forwardMs, backwardMs } = head;
    const cut = this.#cut(this.#runCount - rest);
    const each = forwardMs + backwardMs;
    const members = head.shares.devices.filter((_, index) => (head.shares.samples[index] ?? 0) > 0);
    const reduceMs = allReduceMs(table, members, sums.weightBytes(this.#cut(this.#runCount - l), cut));
    let aligned = M * each;
    let tail = reduceMs;
    if (rest > 0) {
      const sub = this.#index(rest, m, p - 1);
      const next = this.#heads[sub] as StageTimes;
      const crossMs = transferMs(table, head.shares, next.shares, profile.layers[cut - 1]?.outputBytes ?? 0);
      aligned = Math.max((this.#aligned[sub] ?? 0) + each + 2 * crossMs, M * each, M * 2 * crossMs + each);
      tail = Math.max(reduceMs, (this.#tail[sub] ?? 0) - backwardMs - crossMs);
    }
    if (l === this.#runCount && cluster.dataDevice !== undefined) {
      const feed = feedMs(table, table.deviceIndex(cluster.dataDevice), head.shares, fedBytes(profile, p));
      aligned = Math.max(aligned + feed, M * feed);
    }
    const target = this.#index(l, n, p);
    if (aligned >= this.#bar || aligned + tail >= this.#latency(target)) return;
    this.#aligned[target] = aligned;
    this.#tail[target] = tail;
    this.#restLayers[target] = rest;
    this.#restDevices[target] = m;
    this.#heads[target] = head;
  }

  /** min over p of Q(L, N, p), followed back to its stages. */
  #best(): Found | undefined {
    let [l, n, p] = [this.#runCount, this.#deviceCount, 1];
    for (let stages = 2; stages <= this.#stageLimit; stages++) {
      if (this.#latency(this.#index(l, n, stages)) < this.#latency(this.#index(l, n, p))) p = stages;
    }
    const roundMs = this.#latency(this.#index(l, n, p));
    const layouts: StageLayout[] = [];
    for (; p > 0; p--) {
      const index = this.#index(l, n, p);
      const head = this.#heads[index];
      if (head === undefined) return undefined;
      const rest = this.#restLayers[index] ?? 0;
      const used = head.shares.devices.flatMap((_, place) => ((head.shares.samples[place] ?? 0) > 0 ? [place] : []));
      layouts.push({
        layers: [this.#cut(this.#runCount - l), this.#cut(this.#runCount - rest)],
        devices: used.map((place) => head.shares.devices[place] ?? 0),
        samples: used.map((place) => head.shares.samples[place] ?? 0),
      });
      [l, n] = [rest, this.#restDevices[index] ?? 0];
    }
    return { layouts, roundMs };
  }
}
