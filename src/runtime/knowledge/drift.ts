// Whether devices and links have become slower or faster than measured, from the rounds that devices report. The caller
// asks at a round boundary, and plans anew with what was found if that gains.

import type { Clock } from '../../clock.ts';
import type { Cluster, DeviceTimes, Plan, Profile } from '../../cluster/cluster.ts';
import { deviceTimes, scaledTimes } from '../../cluster/times.ts';
import { program } from '../../schedule/generate.ts';
import { type DeviceProgram, type Instruction, isLastPiece, isPass, type Program } from '../../schedule/program.ts';
import { simulate } from '../../simulator/simulate.ts';
import { median, quartiles } from '../../statistics.ts';
import type { LinkChange } from '../protocol/events.ts';
import type { RoundResult } from '../protocol/messages.ts';
import { LinkWatch } from './link-watch.ts';

export interface Refreshed {
  /** With the times of devices in `factors` under their own names; the same object where there are none. */
  readonly profile: Profile;
  /** How many times as long as the profile says a device computes: those that it is corrected by. */
  readonly factors: Readonly<Record<string, number>>;
}

/** What a device tells of a round's computing. */
export type DeviceRound = Pick<RoundResult, 'busyMs' | 'processMs' | 'linksMs' | 'reducingMs'>;

/** What became otherwise since plans were last asked for. */
export interface Changes {
  /** Devices that became so much slower or faster that it is told, with how many times as long they compute. */
  readonly factors: Readonly<Record<string, number>>;
  readonly links: readonly LinkChange[];
}

/** What a look at the rounds of a layout found. */
export interface Seen extends Refreshed {
  readonly links: readonly LinkChange[];
  /** Another plan may be better now, even where nothing is told; undefined: nobody need look for one. */
  readonly changes: Changes | undefined;
}

/** Fewer rounds say nothing. */
const leastRoundCount = 5;
/** With smaller differences the profile stands: rounds are not more alike. */
const usualDifference = 0.05;
/** Beyond these it is told that a device became slower or faster, and another plan is looked for soon. */
const [slower, faster] = [1.25, 0.8];
/**
 * Where devices became slower by factors that are further apart than this, another plan may be better, too: it is
 * looked for now and then.
 */
const leastSpread = 1.1;
/** The first rounds of a layout: code is compiled, memory is taken. They say nothing of those after them. */
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

/**
 * `rounds`: by device, what it told of its rounds under this plan. The profile is corrected where three quarters of the
 * rounds say so, by their median. Devices without samples, and names that the plan does not have, are left out.
 * (FTPipeHD, section III-D, estimates capacities in this way, from the time of a stage beside that of the same layers
 * in the profile.) `difference`: the fraction up to which a device may be off without a correction.
 */
export function refreshProfile(
  profile: Profile,
  plan: Plan,
  cluster: Cluster,
  rounds: Readonly<Record<string, readonly DeviceRound[]>>,
  difference: number = usualDifference,
): Refreshed {
  const steps = program(plan);
  const { devices: predicted } = simulate(steps, plan, profile, cluster, { events: false });
  const frames = frameCounts(steps, cluster);
  const passes = new Map(steps.devices.map((each) => [each.device, passCount(each)]));
  const factors: Record<string, number> = {};
  const devices: Record<string, DeviceTimes> = {};
  for (const device of cluster.devices) {
    const { busyMs = 0, handlingMs = 0, reducingMs = 0 } = predicted[device.name] ?? {};
    const own = rounds[device.name] ?? [];
    const computeMs = busyMs - handlingMs;
    if (computeMs === 0 || own.length < leastRoundCount) continue;
    const { compute, links, reducing, besideMs } = ratesOf(own, { computeMs, handlingMs, reducingMs }, difference);
    if (compute === 1 && links === 1 && reducing === 1 && besideMs === 0) continue;
    const measured = deviceTimes(profile, device);
    const { handlingMsPerMiB, reducingMsPerMiB = reducing === links ? undefined : handlingMsPerMiB } = measured;
    const counts = { passes: passes.get(device.name) ?? 0, frames: frames.get(device.name) ?? 0 };
    const linked = {
      ...(handlingMsPerMiB === undefined ? {} : { handlingMsPerMiB: handlingMsPerMiB * links }),
      ...(reducingMsPerMiB === undefined ? {} : { reducingMsPerMiB: reducingMsPerMiB * reducing }),
      ...besideBytes(measured, { links, besideMs, ...counts }),
    };
    factors[device.name] = compute;
    devices[device.name] = { ...scaledTimes(measured, compute), ...linked };
  }
  const isSame = Object.keys(factors).length === 0;
  return { profile: isSame ? profile : { ...profile, devices: { ...profile.devices, ...devices } }, factors };
}

/**
 * What frames and passes cost: so many times as long, and together so many milliseconds more in a round of so many of
 * them.
 */
function besideBytes(
  { frameMs, passMs }: DeviceTimes,
  {
    links,
    besideMs,
    frames,
    passes,
  }: { readonly links: number; readonly besideMs: number; readonly frames: number; readonly passes: number },
): Pick<DeviceTimes, 'frameMs' | 'passMs'> {
  const knownMs = ((frameMs ?? 0) * frames + (passMs ?? 0) * passes) * links;
  if (knownMs === 0) return besideMs === 0 ? {} : { passMs: besideMs / passes };
  const factor = links * (1 + besideMs / knownMs);
  return {
    ...(frameMs === undefined ? {} : { frameMs: frameMs * factor }),
    ...(passMs === undefined ? {} : { passMs: passMs * factor }),
  };
}

/** By device, the frames that it sends and receives in a round; the data's holder sends what others are given. */
function frameCounts({ devices }: Program, { dataDevice }: Cluster): ReadonlyMap<string, number> {
  const own = (isCounted: (step: Instruction) => boolean) => (device: Program['devices'][number]) =>
    device.instructions.filter(isCounted).length;
  const counts = new Map(
    devices.map((each) => [each.device, own(({ kind }) => kind === 'send' || kind === 'receive')(each)]),
  );
  const given = own((step) => step.kind === 'receive' && step.from === null);
  const others = devices.filter(({ device }) => device !== dataDevice);
  if (dataDevice !== undefined)
    counts.set(dataDevice, (counts.get(dataDevice) ?? 0) + others.reduce((sum, each) => sum + given(each), 0));
  return counts;
}

/** Passes of a device in a round: one that is cut counts once. */
function passCount(device: DeviceProgram): number {
  return device.instructions.filter((step) => isPass(step) && isLastPiece(step, device)).length;
}

/** What rounds say beside a prediction. */
interface Rates {
  /**
   * How many times as long the device computes, how many times as long what is between stages takes, and how many times
   * as long its AllReduces.
   */
  readonly compute: number;
  readonly links: number;
  readonly reducing: number;
  /** What the thread of the links does besides. */
  readonly besideMs: number;
}

function ratesOf(
  rounds: readonly DeviceRound[],
  {
    computeMs,
    handlingMs,
    reducingMs,
  }: { readonly computeMs: number; readonly handlingMs: number; readonly reducingMs: number },
  difference: number,
): Rates {
  const wholeMs = computeMs + handlingMs + reducingMs;
  const processMs = known(rounds.map((round) => round.processMs));
  // Of computing alone nobody knows whether bytes slowed it down: a device that has time to spare sends and receives in
  // it.
  if (processMs === undefined) {
    const compute = rate(
      rounds.map((round) => round.busyMs),
      [computeMs, wholeMs],
      difference,
    );
    return { compute, links: compute, reducing: compute, besideMs: 0 };
  }
  const linksMs = known(rounds.map((round) => round.linksMs));
  if (linksMs === undefined) {
    const compute = rate(processMs, [wholeMs, wholeMs], difference);
    return { compute, links: compute, reducing: compute, besideMs: 0 };
  }
  const restMs = processMs.map((ms, round) => ms - (linksMs[round] as number));
  const compute = rate(restMs, [computeMs, computeMs], difference);
  // Of a small AllReduce most is not its bytes but its frames and the thread's waking up: it says nothing of bytes.
  const reducedMs =
    reducingMs === 0 || reducingMs < handlingMs ? undefined : known(rounds.map((round) => round.reducingMs));
  const isUsual = (moreMs: number): boolean => Math.abs(moreMs) <= difference * wholeMs;
  return { compute, ...linkRates({ linksMs, reducedMs }, { handlingMs, reducingMs }, isUsual) };
}

/**
 * What AllReduces take of the links is told apart, or else is in proportion. `isUsual`: whether rounds differ by so
 * much.
 */
function linkRates(
  { linksMs, reducedMs }: { readonly linksMs: readonly number[]; readonly reducedMs: readonly number[] | undefined },
  { handlingMs, reducingMs }: { readonly handlingMs: number; readonly reducingMs: number },
  isUsual: (moreMs: number) => boolean,
): Omit<Rates, 'compute'> {
  const usual = { reducing: 1, links: 1, besideMs: 0 };
  if (reducedMs !== undefined) {
    const passesMs = median(linksMs.map((ms, round) => ms - (reducedMs[round] as number)));
    if (isUsual(median(reducedMs) - reducingMs) && isUsual(passesMs - handlingMs)) return usual;
    return { reducing: median(reducedMs) / reducingMs, ...passRates(passesMs, handlingMs) };
  }
  const predictedMs = handlingMs + reducingMs;
  const moreMs = median(linksMs) - predictedMs;
  if (isUsual(moreMs)) return usual;
  if (predictedMs === 0) return { ...usual, besideMs: moreMs };
  const reducing = median(linksMs) / predictedMs;
  const rates = passRates(handlingMs * reducing, handlingMs);
  return { reducing: reducingMs === 0 ? rates.links : reducing, ...rates };
}

/**
 * The thread of the links does more than move bytes between stages: what is beyond the prediction is no fault of
 * theirs.
 */
function passRates(toldMs: number, predictedMs: number): Pick<Rates, 'links' | 'besideMs'> {
  if (toldMs >= predictedMs) return { links: 1, besideMs: toldMs - predictedMs };
  return { links: toldMs / predictedMs, besideMs: 0 };
}

/**
 * What three quarters of the values say of times between these two, by the median; 1 where they do not differ by more
 * than `difference`.
 */
function rate(values: readonly number[], [leastMs, mostMs]: readonly [number, number], difference: number): number {
  const [low, middle, high] = quartiles(values);
  if (low < (1 + difference) * mostMs && high > (1 - difference) * leastMs) return 1;
  return middle / (middle > mostMs ? mostMs : leastMs);
}

/** Undefined where one is. */
function known(values: readonly (number | undefined)[]): readonly number[] | undefined {
  return values.every((value) => value !== undefined) ? values : undefined;
}
