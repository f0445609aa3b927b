// Whether devices and links have become slower or faster than measured, from the rounds that devices report. The caller
// asks at a round boundary, and plans anew with what was found if that gains.

import type { Clock } from '../../clock.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import type { LinkChange } from '../protocol/events.ts';
import type { RoundResult } from '../protocol/messages.ts';
import { type DeviceRound, leastRoundCount, type Refreshed, refreshProfile } from './estimator.ts';
import { LinkWatch } from './link-watch.ts';

/** What became otherwise since plans were last asked for. */
export interface Changes {
  /** Devices whose speed changed enough to be reported, each with how many times as long it computes. */
  readonly factors: Readonly<Record<string, number>>;
  readonly links: readonly LinkChange[];
}

/** What a look at the rounds of a layout found. */
export interface Seen extends Refreshed {
  readonly links: readonly LinkChange[];
  /** Another plan may be better now, even where nothing is reported; undefined: no plan need be looked for. */
  readonly changes: Changes | undefined;
}

/** Beyond these factors a device's change is reported, and another plan is looked for soon. */
const [slower, faster] = [1.25, 0.8];
/**
 * Where devices became slower by factors that are further apart than this, another plan may be better, too: it is
 * looked for now and then.
 */
const leastSpread = 1.1;
/** The first rounds of a layout compile code and take memory: they say nothing of later ones. */
const settlingMs = 10_000;
/** From one look to the next. What changed within that time is seen at once: the later half of the rounds counts. */
const lookEveryMs = 10_000;
/** After drift the next one waits twice as long: a device that others use comes and goes. */
const [shortestPauseMs, longestPauseMs] = [10_000, 300_000];
/** Smaller differences wait so long. */
const nowAndThenMs = 60_000;

/** The rounds of a layout, from one look at them to the next. */
export class DriftWatch {
  readonly links: LinkWatch;
  readonly #clock: Clock;
  #rounds: Record<string, DeviceRound[]> = {};
  #sinceMs: number;
  #isSettling = true;
  /** By device, the product of what its times were corrected by since plans were last asked for. */
  #corrections = new Map<string, number>();
  #linkChanges: LinkChange[] = [];
  #pauseMs = shortestPauseMs;
  #judgedAtMs: number;
  #askedAtMs: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.links = new LinkWatch(clock);
    this.#sinceMs = clock.now();
    this.#judgedAtMs = this.#sinceMs;
    this.#askedAtMs = this.#sinceMs;
  }

  /** A new layout begins: what devices took before says nothing of it. */
  begin(): void {
    this.#isSettling = true;
    this.#forget();
  }

  /** Notes a round. True when there are enough of them for `look`. */
  add(results: Readonly<Record<string, DeviceRound & Pick<RoundResult, 'linkMbps'>>>): boolean {
    let roundCount = 0;
    for (const [device, { linkMbps = {}, ...round }] of Object.entries(results)) {
      this.links.add(device, linkMbps);
      this.#rounds[device] ??= [];
      roundCount = Math.max(roundCount, this.#rounds[device].push(round));
    }
    if (
      roundCount < leastRoundCount ||
      this.#clock.now() - this.#sinceMs < (this.#isSettling ? settlingMs : lookEveryMs)
    )
      return false;
    if (!this.#isSettling) return true;
    this.#isSettling = false;
    this.#forget();
    return false;
  }

  /**
   * What the rounds since the last look, or since the layout has settled, say. `cluster` is as `links` corrected it.
   */
  look(profile: Profile, plan: Plan, cluster: Cluster): Seen {
    const later = Object.entries(this.#rounds).map(([device, rounds]) => [
      device,
      rounds.slice(-Math.max(leastRoundCount, rounds.length >> 1)),
    ]);
    const refreshed = refreshProfile(profile, plan, cluster, Object.fromEntries(later));
    for (const [device, factor] of Object.entries(refreshed.factors))
      this.#corrections.set(device, (this.#corrections.get(device) ?? 1) * factor);
    const links = this.links.look(refreshed.profile, plan, cluster);
    this.#linkChanges.push(...links);
    const changes = this.#changes(Object.keys(this.#rounds));
    this.#forget();
    return { ...refreshed, links, changes };
  }

  #changes(devices: readonly string[]): Changes | undefined {
    const nowMs = this.#clock.now();
    if (nowMs - this.#judgedAtMs < this.#pauseMs) return undefined;
    this.#judgedAtMs = nowMs;
    const factors = Object.fromEntries(
      [...this.#corrections].filter(([, factor]) => factor >= slower || factor <= faster),
    );
    const isDrift = this.#linkChanges.length > 0 || Object.keys(factors).length > 0;
    this.#pauseMs = isDrift
      ? Math.min(longestPauseMs, 2 * this.#pauseMs)
      : Math.max(shortestPauseMs, this.#pauseMs / 2);
    const corrections = devices.map((device) => this.#corrections.get(device) ?? 1);
    const isUneven = Math.max(...corrections) >= leastSpread * Math.min(...corrections);
    if (!isDrift && !(isUneven && nowMs - this.#askedAtMs >= nowAndThenMs)) return undefined;
    const changes = { factors, links: this.#linkChanges };
    this.#askedAtMs = nowMs;
    this.#corrections.clear();
    this.#linkChanges = [];
    return changes;
  }

  #forget(): void {
    this.#rounds = {};
    this.links.begin();
    this.#sinceMs = this.#clock.now();
  }
}
