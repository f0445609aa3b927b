// Finds links that have become slower than measured before training, and slow ones that have recovered, from the rates
// that rounds report. A slow link that no layout uses any more reports nothing: it is measured again from time to time,
// less and less often while it stays slow.

import { defined } from '../../assert.ts';
import type { Clock } from '../../clock.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { links } from '../../cluster/links.ts';
import { overheadOf } from '../../cluster/overhead.ts';
import { deviceTimes } from '../../cluster/times.ts';
import { program } from '../../schedule/generate.ts';
import { createSimulator } from '../../simulator/simulate.ts';
import { quartiles } from '../../statistics.ts';
import type { LinkChange } from '../protocol/events.ts';

/** A cluster as its user describes it, with each link no faster than the last change says. */
export function withLinks(cluster: Cluster, changes: readonly LinkChange[]): Cluster {
  const last = new Map(changes.map((change) => [keyOf(change.between), change]));
  const names = new Set(cluster.devices.map(({ name }) => name));
  const known = [...last.values()].filter(({ between }) => between.every((name) => names.has(name)));
  if (known.length === 0) return cluster;
  const table = links(cluster);
  const pairs = known.map(({ between, mbps }) => {
    const [from, to] = [table.deviceIndex(between[0]), table.deviceIndex(between[1])];
    return {
      between,
      bandwidthMbps: Math.min(mbps, table.bandwidthMbps(from, to)),
      latencyMs: table.latencyMs(from, to),
    };
  });
  const others = (cluster.links.pairs ?? []).filter(({ between }) => !last.has(keyOf(between)));
  return { ...cluster, links: { ...cluster.links, pairs: [...others, ...pairs] } };
}

/** What a device reports after a round: by peer, the Mbps that its link to that peer carried while it was busy. */
export type LinkRates = Readonly<Record<string, number>>;

/** With fewer reports a link is not judged. */
const leastReportCount = 5;
/** A link has changed only if its rate is outside these multiples: busy devices read late what has arrived. */
const [slower, faster] = [0.5, 2];
/** A link is not slow if its bytes take less than this many times as long on the way as on its ends' processors. */
const transferCostFactor = 4;
/** A slow link that makes rounds longer by at most this part is ignored. */
const leastSlowdown = 0.05;
/** A slow link is measured again after the first of these, then each time after twice as long, up to the second. */
const [firstWaitMs, longestWaitMs] = [30_000, 600_000];
const mibMs = (mbps: number): number => (2 ** 20 * 8) / (mbps * 1000);

interface SlowLink {
  readonly between: readonly [string, string];
  readonly mbps: number;
  /** What it carried before training. */
  readonly measuredMbps: number;
  readonly waitMs: number;
  readonly askAtMs: number;
}

/** Judges the links of one run. */
export class LinkWatch {
  readonly #clock: Clock;
  readonly #slow = new Map<string, SlowLink>();
  #reports = new Map<string, { readonly between: readonly [string, string]; readonly mbps: number[] }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Forgets all reports. */
  begin(): void {
    this.#reports.clear();
  }

  /** The links of a device have been measured afresh, as before training: none of them counts as slow. */
  measured(device: string): void {
    for (const [key, { between }] of this.#slow) if (between.includes(device)) this.#slow.delete(key);
  }

  /** Notes what a device reports after a round. */
  add(device: string, rates: LinkRates): void {
    for (const [peer, mbps] of Object.entries(rates)) {
      const key = `${device} ${peer}`;
      const report = this.#reports.get(key) ?? { between: [device, peer], mbps: [] };
      report.mbps.push(mbps);
      this.#reports.set(key, report);
    }
  }

  /** The cluster as measured, with the present rates of its slow links. */
  corrected(cluster: Cluster): Cluster {
    if (this.#slow.size === 0) return cluster;
    const pairs = (cluster.links.pairs ?? []).map((pair) => {
      const slow = this.#slow.get(keyOf(pair.between));
      return slow === undefined ? pair : { ...pair, bandwidthMbps: slow.mbps };
    });
    return { ...cluster, links: { ...cluster.links, pairs } };
  }

  /**
   * Links whose rate differs from what `cluster` (a corrected one) says, judged from the reports since `begin`. From
   * now on `corrected` contains these changes.
   */
  look(profile: Profile, plan: Plan, cluster: Cluster): readonly LinkChange[] {
    const changes: LinkChange[] = [];
    for (const { between } of cluster.links.pairs ?? []) {
      const mbps = this.#judge(between, profile, cluster);
      if (mbps === undefined) continue;
      const beforeMbps = bandwidth(cluster, between);
      if (mbps < beforeMbps && !isFelt(profile, plan, cluster, { between, mbps })) continue;
      changes.push(this.#change(between, { beforeMbps, mbps }));
    }
    return changes;
  }

  /** What a link carries now, in Mbps; undefined if it has not changed. The slower direction counts. */
  #judge(between: readonly [string, string], profile: Profile, cluster: Cluster): number | undefined {
    const [from, to] = between;
    const directions = [`${from} ${to}`, `${to} ${from}`]
      .map((key) => this.#reports.get(key)?.mbps ?? [])
      .filter(({ length }) => length >= leastReportCount)
      .map(quartiles);
    if (directions.length === 0) return undefined;
    const [low, median, high] = directions.reduce((a, b) => [
      Math.min(a[0], b[0]),
      Math.min(a[1], b[1]),
      Math.min(a[2], b[2]),
    ]);
    const beforeMbps = bandwidth(cluster, between);
    if (high < slower * beforeMbps && mibMs(median) >= transferCostFactor * transferCost(profile, cluster, between))
      return median;
    const slow = this.#slow.get(keyOf(between));
    return slow !== undefined && low > faster * beforeMbps ? Math.min(slow.measuredMbps, median) : undefined;
  }

  #change(between: readonly [string, string], { beforeMbps, mbps }: Omit<LinkChange, 'between'>): LinkChange {
    const key = keyOf(between);
    const measuredMbps = this.#slow.get(key)?.measuredMbps ?? beforeMbps;
    if (mbps >= slower * measuredMbps) {
      this.#slow.delete(key);
      return { between, beforeMbps, mbps: measuredMbps };
    }
    const askAtMs = this.#clock.now() + firstWaitMs;
    this.#slow.set(key, { between, mbps, measuredMbps, waitMs: firstWaitMs, askAtMs });
    return { between, beforeMbps, mbps };
  }

  /** Slow links that are due to be measured again. */
  due(): readonly (readonly [string, string])[] {
    const nowMs = this.#clock.now();
    const due = [...this.#slow.values()].filter(({ askAtMs }) => askAtMs <= nowMs);
    for (const slow of due) {
      const waitMs = Math.min(longestWaitMs, 2 * slow.waitMs);
      this.#slow.set(keyOf(slow.between), { ...slow, waitMs, askAtMs: nowMs + waitMs });
    }
    return due.map(({ between }) => between);
  }

  /** A slow link was measured again. Returns undefined if it is as slow as before. */
  measuredAgain(between: readonly [string, string], mbps: number): LinkChange | undefined {
    const slow = this.#slow.get(keyOf(between));
    if (slow === undefined || mbps <= faster * slow.mbps) return undefined;
    return this.#change(slow.between, { beforeMbps: slow.mbps, mbps: Math.min(slow.measuredMbps, mbps) });
  }
}

function keyOf(between: readonly [string, string]): string {
  return [...between].sort().join(' ');
}

function bandwidth(cluster: Cluster, [from, to]: readonly [string, string]): number {
  const table = links(cluster);
  return table.bandwidthMbps(table.deviceIndex(from), table.deviceIndex(to));
}

/** What a MiB costs the processor of the link's busier end, in milliseconds. */
function transferCost(profile: Profile, cluster: Cluster, between: readonly [string, string]): number {
  const ends = cluster.devices.filter(({ name }) => between.includes(name));
  return Math.max(...ends.map((device) => overheadOf(deviceTimes(profile, device)).transferMsPerMiB));
}

/** Whether the plan's rounds become longer by more than `leastSlowdown` with the link at `mbps`. */
function isFelt(
  profile: Profile,
  plan: Plan,
  cluster: Cluster,
  { between, mbps }: Pick<LinkChange, 'between' | 'mbps'>,
): boolean {
  const pairs = (cluster.links.pairs ?? []).map((pair) =>
    keyOf(pair.between) === keyOf(between) ? { ...pair, bandwidthMbps: mbps } : pair,
  );
  const slowed = { ...cluster, links: { ...cluster.links, pairs } };
  const [beforeMs, afterMs] = [cluster, slowed].map(
    (world) => createSimulator(profile, world)(program(plan), plan, { events: false }).roundMs,
  );
  return defined(afterMs, 'a time') > (1 + leastSlowdown) * defined(beforeMs, 'a time');
}
