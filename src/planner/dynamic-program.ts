// Asteroid's Algorithm 2: dynamic programming over (l, n, p), the last l layers in p stages on the last n devices of an
// order; also over narrower spaces, which are the simplest baselines. O(N²L²P) candidates; Algorithm 1 runs at most
// once for each pair of a layer range and a group unless memory binds. Notation as in cost.ts; l′, n′ belong to the
// sub-pipeline behind the new stage.
//
// Eq. 4–6 reduce to two numbers for a pipeline. Let aligned(s) = M·E_s + Σ_{i<s}E_i with E = E_f + E_b; dm maximises
// it, by eq. 11. Then both branches of eq. 6 give T_e(s) = aligned(dm) − Σ_{i<s}E_i, so that T_w(s) + T_e(s) + T_a(s) =
// aligned(dm) + T_a(s) − Σ_{i<s}E_b(i), and latency = aligned(dm) + tail with tail = max_s(T_a(s) − Σ_{i<s}E_b(i)). A
// new execution step ne and communication step nc in front change them in constant time: aligned′ = max(aligned + E_ne
// + E_nc, M·E_ne, M·E_nc + E_ne) (eq. 11 with the sum up to, but without, the new index of dm*), tail′ = max(T_a(ne),
// tail − E_b(ne) − E_b(nc)).
//
// A stream has no rounds that fill and drain. Its period is the maximum of M·E of every execution step, M·E_f of every
// communication step, every T_a, and M/K_p times the way of a micro-batch from stage p to the last and back, which is
// the sum of the steps behind it: two numbers for a pipeline again, kept in place of `aligned`, with a tail of 0.
//
// Promises: nothing worse than Algorithm 2's result, which is not always optimal by eq. 4: the program keeps one
// sub-pipeline for each (l, n, p), and another one with a larger latency of its own can suit a longer pipeline better;
// so in 2 of 331 random problems, 12% at worst (asteroid.test.ts).
//
// Pruned candidates cannot win: a latency is at least M·E of every stage, and by bounds.ts at least that of the busiest
// device. The bar is the latency of a first, coarse search with few places to cut.

import type { LinkSpeed } from '../cluster/cluster.ts';
import { prefixSums, rangeOf } from '../cluster/times.ts';
import { type Bounds, createBounds } from './bounds.ts';
import { fastestLink, fedBytes, feedMs, transferMs } from './cost.ts';
import { gradientsCross, type Problem, pinsAllow, type StageLayout, withStages } from './problem.ts';
import type { Found, Space } from './space.ts';
import { type Group, inFlightFromEnd, neighbourGroups, reduceTimeMs, StageTable, type StageTimes } from './stages.ts';
import type { Steps } from './steps.ts';

/**
 * Where a search may cut: ascending, from 0 to the number of layers, and from 0 to the number of devices in the order.
 */
export interface Cuts {
  readonly layerCuts: readonly number[];
  readonly deviceCuts: readonly number[];
}

/** One run of Algorithm 2 over a grid of cuts. */
export class Search {
  readonly #problem: Problem;
  /** l and l′ count runs of layers between cuts from the end; n and n′ count runs of devices. */
  readonly #layerCuts: readonly number[];
  readonly #deviceCuts: readonly number[];
  readonly #layerRuns: number;
  readonly #deviceRuns: number;
  readonly #stageLimit: number;
  readonly #groupLimit: number;
  /** With single devices p always equals n. */
  readonly #isStraight: boolean;
  readonly #table: StageTable;
  readonly #group: (start: number, end: number) => Group;
  readonly #inFlight: readonly number[];
  /** Only pipelines with a smaller latency are searched. */
  readonly #bar: number;
  readonly #bounds: Bounds;
  /** Prefix sums of the devices' speeds, in their order. */
  readonly #speeds: Float64Array;
  /** Prefix sums of the devices' rates (samples a millisecond) for the layers chosen last. */
  readonly #rates: Float64Array;
  readonly #fastestLink: LinkSpeed;
  // By #index(l, n, p): the best sub-pipeline. Infinite latency: none.
  readonly #aligned: Float64Array;
  readonly #tail: Float64Array;
  /** Of streams: what a micro-batch takes to the last stage and back. */
  readonly #way: Float64Array;
  readonly #restLayers: Int32Array;
  readonly #restDevices: Int32Array;
  readonly #heads: (StageTimes | undefined)[];
  /** By l and n: the smallest and the largest p with a sub-pipeline, and the least `aligned` among them. */
  readonly #fewest: Int32Array;
  readonly #most: Int32Array;
  readonly #least: Float64Array;

  constructor(asked: Problem, { order, groupLimit, stageLimit }: Space, { layerCuts, deviceCuts }: Cuts, bar: number) {
    const problem = withStages(asked, Math.min(stageLimit, layerCuts.length - 1, deviceCuts.length - 1));
    this.#problem = problem;
    this.#layerCuts = layerCuts;
    this.#deviceCuts = deviceCuts;
    this.#layerRuns = layerCuts.length - 1;
    this.#deviceRuns = deviceCuts.length - 1;
    this.#stageLimit = Math.min(stageLimit, this.#layerRuns, this.#deviceRuns);
    this.#groupLimit = groupLimit;
    this.#isStraight = groupLimit === 1 && this.#deviceRuns === order.length && stageLimit >= order.length;
    this.#table = new StageTable(problem);
    this.#group = neighbourGroups(problem, order);
    this.#inFlight = inFlightFromEnd(problem, this.#stageLimit);
    this.#bar = bar;
    this.#bounds = createBounds(problem);
    this.#speeds = prefixSums(order.map((place) => this.#bounds.speeds[problem.devices[place]?.classIndex ?? 0] ?? 0));
    this.#rates = new Float64Array(order.length + 1);
    this.#fastestLink = fastestLink(problem.cluster);
    const size = this.#index(this.#layerRuns + 1, 0, 0);
    this.#aligned = new Float64Array(size).fill(Number.POSITIVE_INFINITY);
    this.#tail = new Float64Array(size);
    this.#way = new Float64Array(problem.schedule.isStream ? size : 0);
    this.#restLayers = new Int32Array(size);
    this.#restDevices = new Int32Array(size);
    this.#heads = new Array<StageTimes | undefined>(size).fill(undefined);
    const pairs = (this.#layerRuns + 1) * (this.#deviceRuns + 1);
    this.#fewest = new Int32Array(pairs).fill(this.#stageLimit + 1);
    this.#most = new Int32Array(pairs);
    this.#least = new Float64Array(pairs).fill(Number.POSITIVE_INFINITY);
  }

  *run(): Steps<readonly Found[]> {
    const [L, N] = [this.#layerRuns, this.#deviceRuns];
    for (let l = 1; l <= L; l++) {
      yield l / L;
      // A pipeline of all layers uses all devices; one of fewer leaves some to the stages in front of it, which must be
      // able to run the remaining layers.
      const sizes: number[] = [];
      for (let n = l === L ? N : 1; n < N || (l === L && n === N); n++)
        if (l === L || this.#mayPass(0, L - l, 0, N - n)) sizes.push(n);
      for (let rest = l - 1; rest >= 0; rest--) {
        if (!this.#mayPass(L - l, L - rest, 0, N)) break;
        this.#setLayers(this.#layer(L - l), this.#layer(L - rest));
        for (const n of sizes) this.#tryHeads(l, n, rest);
      }
    }
    return this.#best();
  }

  #layer(cut: number): number {
    return this.#layerCuts[cut] ?? 0;
  }

  #device(cut: number): number {
    return this.#deviceCuts[cut] ?? 0;
  }

  #setLayers(first: number, end: number): void {
    this.#table.setLayers(first, end);
    this.#table.prefixRates(this.#group(0, this.#rates.length - 1).devices, this.#rates);
  }

  /** Whether devices [start, end) of the cuts may run the layers between two cuts without exceeding the bar. */
  #mayPass(from: number, to: number, start: number, end: number): boolean {
    const speed = rangeOf(this.#speeds, this.#device(start), this.#device(end));
    return (
      this.#problem.microBatchCount * this.#bounds.busiestMs(this.#layer(from), this.#layer(to), speed) < this.#bar
    );
  }

  #index(l: number, n: number, p: number): number {
    const pair = l * (this.#deviceRuns + 1) + n;
    return this.#isStraight ? pair : pair * (this.#stageLimit + 1) + p;
  }

  #latency(index: number): number {
    return (this.#aligned[index] ?? 0) + (this.#tail[index] ?? 0);
  }

  /**
   * Tries stages of the layers in front of the last `rest` on devices in front of the last m, for every m; afterwards
   * the last n devices are used.
   */
  #tryHeads(l: number, n: number, rest: number): void {
    const [M, N] = [this.#problem.microBatchCount, this.#deviceRuns];
    const start = this.#device(N - n);
    const replicable = this.#table.mayReplicate();
    const { bandwidthMbps, latencyMs = 0 } = this.#fastestLink;
    const crossBits = rest === 0 ? 0 : this.#crossBits(rest);
    const ways = gradientsCross(this.#problem, this.#layer(this.#layerRuns - rest)) ? 2 : 1;
    // From small groups to large ones: the new stage becomes faster, the pipeline behind it slower.
    for (let m = rest === 0 ? 0 : n - 1; m >= (rest === 0 ? 0 : 1); m--) {
      const stop = this.#device(N - m);
      if (stop - start > this.#groupLimit) break;
      const pair = rest * (N + 1) + m;
      const behind = rest === 0 ? 0 : (this.#least[pair] ?? 0);
      if (behind >= this.#bar) continue;
      const leastMs = replicable
        ? (this.#problem.microBatchSize / rangeOf(this.#rates, start, stop)) * (1 - 1e-9)
        : this.#table.leastMs(this.#group(start, stop)) * (1 - 1e-9);
      // The micro-batch crosses in fewer pieces than there are devices on both sides, at best over the fastest link.
      const pieceCount = Math.max(1, this.#device(N) - start - 1);
      const crossMs = rest === 0 ? 0 : ways * (crossBits / (pieceCount * bandwidthMbps * 1000) + latencyMs);
      const { isStream } = this.#problem.schedule;
      const floorMs = isStream
        ? Math.max(behind, M * leastMs)
        : Math.max(behind + leastMs + crossMs, M * leastMs, M * crossMs + leastMs);
      if (floorMs >= this.#bar) continue;
      this.#tryStageCounts({ l, n, rest, m }, isStream ? 0 : leastMs + crossMs, floorMs);
    }
  }

  /** Bits of one micro-batch at the border in front of the last `rest` runs. */
  #crossBits(rest: number): number {
    const { profile, microBatchSize } = this.#problem;
    return (
      (profile.layers[this.#layer(this.#layerRuns - rest) - 1]?.outputBytes ?? 0) * microBatchSize * 8 * (1 - 1e-9)
    );
  }

  /** Puts the stage before each Q(rest, m, p − 1) with which it can win. */
  #tryStageCounts({ l, n, rest, m }: Split, frontMs: number, floorMs: number): void {
    const pair = rest * (this.#deviceRuns + 1) + m;
    const from = rest === 0 ? 1 : (this.#fewest[pair] ?? 0) + 1;
    const to = rest === 0 ? 1 : Math.min((this.#most[pair] ?? 0) + 1, this.#stageLimit);
    const group = this.#group(this.#device(this.#deviceRuns - n), this.#device(this.#deviceRuns - m));
    for (let p = from; p <= to; p++) {
      const behind = rest === 0 ? 0 : (this.#aligned[this.#index(rest, m, p - 1)] ?? 0);
      const best = Math.min(this.#latency(this.#index(l, n, p)), this.#bar);
      // The latency is at least aligned′: skip Algorithm 1 for candidates that cannot win.
      if (behind + frontMs >= best || floorMs >= best) continue;
      const head = this.#table.stage(group, this.#inFlight[p] ?? 1);
      if (head === undefined) break; // K_p grows with p: what does not fit now will not fit later.
      this.#join(head, group, { l, n, p, rest, m });
    }
  }

  /**
   * Latency of the head before its sub-pipeline (eq. 4, 6 and 11, as derived above); kept if it is the best of Q(l, n,
   * p).
   */
  #join(head: StageTimes, group: Group, { l, n, p, rest, m }: Split & { readonly p: number }): void {
    const { table, profile, sums, cluster, microBatchCount: M } = this.#problem;
    if (!this.#pinsAllow(head, l, rest)) return;
    const { forwardMs, backwardMs } = head;
    const target = this.#index(l, n, p);
    const best = Math.min(this.#latency(target), this.#bar);
    const cut = this.#layer(this.#layerRuns - rest);
    const each = forwardMs + backwardMs;
    let aligned = M * each;
    let tail = 0;
    const { isStream } = this.#problem.schedule;
    let way = each;
    if (rest > 0) {
      const sub = this.#index(rest, m, p - 1);
      aligned = Math.max((this.#aligned[sub] ?? 0) + (isStream ? 0 : each), M * each);
      if (aligned >= best) return;
      const next = this.#heads[sub] as StageTimes;
      const crossMs = transferMs(table, head.shares, next.shares, profile.layers[cut - 1]?.outputBytes ?? 0);
      const backMs = gradientsCross(this.#problem, cut) ? crossMs : 0;
      way += (this.#way[sub] ?? 0) + crossMs + backMs;
      if (isStream) aligned = Math.max(aligned, M * crossMs);
      else
        aligned = Math.max(
          (this.#aligned[sub] ?? 0) + each + crossMs + backMs,
          M * each,
          M * (crossMs + backMs) + each,
        );
      tail = isStream ? 0 : (this.#tail[sub] ?? 0) - backwardMs - backMs;
    }
    if (aligned >= best) return;
    const reduceMs = reduceTimeMs(table, head, group, sums.weightBytes(this.#layer(this.#layerRuns - l), cut));
    if (isStream) aligned = Math.max(aligned, reduceMs, (M * way) / (this.#inFlight[p] ?? 1));
    else tail = Math.max(tail, reduceMs);
    if (l === this.#layerRuns && cluster.dataDevice !== undefined) {
      const feed = feedMs(table, table.deviceIndex(cluster.dataDevice), head.shares, fedBytes(profile, p));
      aligned = Math.max(aligned + (isStream ? 0 : feed), M * feed);
    }
    if (aligned >= this.#bar || aligned + tail >= this.#latency(target)) return;
    this.#aligned[target] = aligned;
    this.#tail[target] = tail;
    this.#way[target] = way;
    this.#restLayers[target] = rest;
    this.#restDevices[target] = m;
    this.#heads[target] = head;
    const pair = l * (this.#deviceRuns + 1) + n;
    this.#fewest[pair] = Math.min(this.#fewest[pair] ?? 0, p);
    this.#most[pair] = Math.max(this.#most[pair] ?? 0, p);
    this.#least[pair] = Math.min(this.#least[pair] ?? 0, aligned);
  }

  #pinsAllow({ shares: { devices, samples } }: StageTimes, l: number, rest: number): boolean {
    if (this.#problem.pins.size === 0) return true;
    const used = devices.filter((_, index) => (samples[index] ?? 0) > 0);
    return pinsAllow(this.#problem, this.#layer(this.#layerRuns - l), this.#layer(this.#layerRuns - rest), used);
  }

  /** Q(L, N, p) for every p whose latency is below the bar, the best first; the answer is the minimum over p. */
  #best(): Found[] {
    const found: Found[] = [];
    for (let p = this.#isStraight ? this.#deviceRuns : 1; p <= this.#stageLimit; p++) {
      const roundMs = this.#latency(this.#index(this.#layerRuns, this.#deviceRuns, p));
      if (roundMs < this.#bar) found.push({ layouts: this.#follow(p), roundMs });
    }
    return found.sort((a, b) => a.roundMs - b.roundMs);
  }

  /** The stages of Q(L, N, p). */
  #follow(stageCount: number): StageLayout[] {
    let [l, n] = [this.#layerRuns, this.#deviceRuns];
    const layouts: StageLayout[] = [];
    for (let p = stageCount; p > 0; p--) {
      const index = this.#index(l, n, p);
      const { devices, samples } = (this.#heads[index] as StageTimes).shares;
      const rest = this.#restLayers[index] ?? 0;
      const used = devices.flatMap((_, place) => ((samples[place] ?? 0) > 0 ? [place] : []));
      layouts.push({
        layers: [this.#layer(this.#layerRuns - l), this.#layer(this.#layerRuns - rest)],
        devices: used.map((place) => devices[place] ?? 0),
        samples: used.map((place) => samples[place] ?? 0),
      });
      [l, n] = [rest, this.#restDevices[index] ?? 0];
    }
    return layouts;
  }
}

/**
 * A new stage in front of the last `rest` runs of layers and m runs of devices; the pipeline then has the last l and n.
 */
interface Split {
  readonly l: number;
  readonly n: number;
  readonly rest: number;
  readonly m: number;
}
