// Which layouts the coordinator asks for: the first one, a small change after a loss, one without a device that leaves,
// and, while training goes on, a better one. It plans with what is known of devices (device-knowledge.ts) and what
// rounds show.

import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { replicationInterval } from '../../planner/replan/replication.ts';
import { program } from '../../schedule/generate.ts';
import { createSimulator, simulate } from '../../simulator/simulate.ts';
import { steadyRoundMs } from '../../simulator/steady.ts';
import type { DeviceFacts } from '../protocol/device-facts.ts';
import type { RunEvent } from '../protocol/events.ts';
import type { Proposal } from '../protocol/layout-change.ts';
import type { LinkMeasurement, RoundResult, ToCoordinator } from '../protocol/messages.ts';
import { optimizerStateCount } from '../protocol/training-spec.ts';
import { CapacityWatch } from './capacity-watch.ts';
import { CopyPace } from './copy-pace.ts';
import { DeviceKnowledge } from './device-knowledge.ts';
import { DriftWatch } from './drift.ts';
import { wholeRounds } from './estimator.ts';
import type { LoweredBudget } from './memory-budgets.ts';
import { type LayoutsKnown, planAfterLoss, planByCapacity, type Repartition, withCopiesOf } from './plan-after-loss.ts';
import type { PlanningOptions } from './planning-options.ts';
import { CoolDown, isWorthwhile } from './reconsider.ts';
import { devicesOf, withNames, withPresent } from './renamed-plan.ts';
import { Reserve } from './reserve.ts';
import { SmallerRounds } from './smaller-rounds.ts';

/** Rounds between copies if no profile gives their cost. */
const unprofiledCopyEvery = 10;

/**
 * From this time of training on, devices prepare for losses: they compile for one plan after the other while they
 * train.
 */
const announceAfterMs = 30_000;
/** Between a new layout and the first plan: there may be a better layout soon. */
const announcePauseMs = 5_000;

/** How many times as long rounds of a plan may take that devices are ready for. */
const readyWorth = 1.1;

/** What the planner is asked for, when devices are lost. */
export interface PlanRequest {
  readonly devices: readonly string[];
  /** The layout that lost some of its devices; absent: there is none. */
  readonly from?: Plan;
  readonly lost: readonly string[];
}

/** What was found of devices and links in training. */
export type Drift = Omit<Extract<RunEvent, { kind: 'drift' }>, 'kind'>;

/** What is known of devices, and the plans that follow from it. */
export class LayoutPlanner {
  readonly #options: PlanningOptions;
  readonly #known: DeviceKnowledge;
  readonly #coolDown = new CoolDown();
  readonly #driftWatch: DriftWatch;
  readonly #smallerRounds = new SmallerRounds();
  readonly #copyPace: CopyPace;
  readonly #reserve = new Reserve();
  readonly #layouts: LayoutsKnown;
  /** Whether rounds have checked the profile on the stages of this layout. */
  #isChecked = false;
  /** The given plan with the names of devices that could hold it. */
  #fittedPlan: Plan | undefined;
  /** When devices may hear of the next plan in reserve; undefined before the first layout. */
  #announceAtMs: number | undefined;

  constructor(options: PlanningOptions) {
    this.#options = options;
    this.#driftWatch = new DriftWatch(options.clock);
    this.#known = new DeviceKnowledge(options, (cluster) => this.#driftWatch.links.corrected(cluster));
    this.#copyPace = new CopyPace(options.clock);
    this.#layouts = { options, known: this.#known, capacities: new CapacityWatch() };
  }

  /** Returns how what is counted on of the device's memory was lowered, if it was. */
  joined(device: string, facts: DeviceFacts): LoweredBudget | undefined {
    this.#reserve.clear();
    return this.#known.joined(device, facts);
  }

  /** A device has left, for whatever reason. */
  left(device: string): void {
    this.#coolDown.left(device, this.#options.clock.now());
  }

  /** A device has left without a word. `heldMiB`: what it was to hold, where that is known. */
  vanished(device: string, heldMiB: number | undefined): void {
    this.left(device);
    this.#known.budgets.vanished(device, heldMiB);
  }

  /** How long a device that came back is to stay before it is made ready for work; undefined where it is at once. */
  coolDownOf(device: string): { readonly departureCount: number; readonly seconds: number } | undefined {
    const remainingMs = this.#coolDown.remainingMs(device, this.#options.clock.now());
    return remainingMs === 0
      ? undefined
      : { departureCount: this.#coolDown.departureCount(device), seconds: remainingMs / 1000 };
  }

  /** What plans count on of a device's memory; devices of one machine share it. */
  memoryMiB(device: string): number {
    return this.#known.memoryMiB(device);
  }

  /** Bytes of a layer's weights and statistics. */
  layerBytes(layer: number): number {
    return this.#known.layerBytes(layer);
  }

  measured(device: string, links: readonly LinkMeasurement[]): void {
    this.#known.measured(device, links);
    this.#driftWatch.links.measured(device);
    this.#reserve.clear();
  }

  profiled(device: string, profile: ToCoordinator['profiled']): void {
    this.#known.profiled(device, profile);
    this.#reserve.clear();
  }

  /** A new layout begins, with `copyEvery` rounds between copies: measurements of the one before do not hold for it. */
  begin(plan: Plan, copyEvery: number): void {
    this.#driftWatch.begin();
    this.#smallerRounds.begin();
    this.#layouts.capacities.layoutBegins();
    this.#isChecked = false;
    const nowMs = this.#options.clock.now();
    this.#announceAtMs = Math.max(this.#announceAtMs ?? nowMs + announceAfterMs, nowMs + announcePauseMs);
    this.#copyPace.begin(
      this.#linksEvery(plan, [...new Set(plan.stages.flatMap((stage) => stage.devices))]) ?? 1,
      copyEvery,
    );
  }

  /** A round has committed. Returns the rounds between copies, where they are to be others than before. */
  committed(isCopying: boolean): number | undefined {
    return this.#copyPace.committed(isCopying);
  }

  /**
   * A plan for the devices that are there; undefined when `isOver` says that nobody wants it any more. InputError where
   * nothing fits.
   */
  async plan({ devices, from, lost }: PlanRequest, isOver: () => boolean): Promise<Plan | undefined> {
    const { givenPlan } = this.#options;
    if (from !== undefined) return this.#replanOrAnew(devices, from, lost, isOver);
    return givenPlan === undefined ? this.#planFromProfiles(devices, isOver) : this.#fitted(givenPlan, devices);
  }

  /**
   * Rounds between a layout's first copies of single-device stages: what its links have to spare, with rounds between
   * them that show what a copy costs.
   */
  copyEvery(plan: Plan, devices: readonly string[]): number {
    return Math.max(2, this.#linksEvery(plan, devices) ?? unprofiledCopyEvery);
  }

  /** The fewest rounds between copies at which they cost the links little, if a profile gives the cost. */
  #linksEvery(plan: Plan, devices: readonly string[]): number | undefined {
    if (!this.#known.isProfiled(devices)) return undefined;
    const optimizerState = optimizerStateCount(this.#options.subject.training);
    return replicationInterval({
      plan,
      profile: this.#known.profile(devices),
      cluster: this.#known.cluster(devices),
      optimizerState,
    }).everyRounds;
  }

  /**
   * The layout without a device that wants to leave; undefined as for `plan`. InputError where the others cannot do its
   * work.
   */
  async without(
    device: string,
    others: readonly string[],
    from: Plan,
    isOver: () => boolean,
  ): Promise<Proposal | undefined> {
    const plan = await this.#replanOrAnew(others, from, [device], isOver);
    return (
      plan && {
        plan,
        change: { cause: `${device} leaves`, lost: [], drained: device },
        copyEvery: this.copyEvery(plan, others),
      }
    );
  }

  /** Looks for a layout that pays in what is left of the run; undefined where there is none, and as for `plan`. */
  async better(
    devices: readonly string[],
    from: Plan,
    { round, isOver }: { round: number; isOver(): boolean },
  ): Promise<Proposal | undefined> {
    const { givenPlan, planAgain, machine, recovery } = this.#options;
    if (recovery !== undefined && recovery.replan !== 'light') return this.#withNewcomers(devices, from);
    if (givenPlan !== undefined) {
      const plan = this.#wholeGiven(givenPlan, devices);
      if (plan === undefined || !this.#isHeld(plan) || JSON.stringify(plan.stages) === JSON.stringify(from.stages))
        return undefined;
      const change = { cause: 'all devices of the given plan are here again', lost: [] };
      return { plan, change, copyEvery: this.copyEvery(plan, devices) };
    }
    if (planAgain === undefined || !this.#known.isProfiled(devices)) return undefined;
    const [profile, cluster] = [this.#known.profile(devices), this.#known.cluster(devices)];
    const plan = await planAgain(profile, cluster, { from, isUrgent: false, isOver });
    if (plan === undefined || isOver()) return undefined;
    const copies = 1 + optimizerStateCount(this.#options.subject.training);
    const bytes = (layer: number): number => copies * this.#known.layerBytes(layer);
    if (!isWorthwhile(from, { plan, profile, cluster, remainingRounds: machine.endRound - round, bytes }))
      return undefined;
    const used = new Set(from.stages.flatMap((stage) => stage.devices));
    const fresh = plan.stages.flatMap((stage) => stage.devices).filter((device) => !used.has(device));
    const cause = fresh.length > 0 ? `${fresh.join(' and ')} can help` : 'a faster plan was found';
    return { plan, change: { cause, lost: [] }, copyEvery: this.copyEvery(plan, devices) };
  }

  /**
   * The given plan where all of its devices are there; where the run only infers, others may have taken the places of
   * those that are gone, such as the same device under another name.
   */
  #wholeGiven(given: Plan, devices: readonly string[]): Plan | undefined {
    if (this.#options.subject.training.isInference) return withPresent(this.#fittedPlan ?? given, devices);
    return devicesOf(given).every((device) => devices.includes(device)) ? given : undefined;
  }

  /** By capacity, devices that have come are taken in at once; else layouts only change for a loss. */
  #withNewcomers(devices: readonly string[], from: Plan): Proposal | undefined {
    const used = new Set(from.stages.flatMap((stage) => stage.devices));
    const fresh = devices.filter((device) => !used.has(device));
    if (this.#options.recovery?.repartition === undefined || fresh.length === 0) return undefined;
    const plan = planByCapacity(this.#layouts, devices, from)?.plan;
    const change = { cause: `${fresh.join(' and ')} can help`, lost: [] };
    return plan && { plan, change, copyEvery: this.copyEvery(plan, devices) };
  }

  /** A batch has been computed. */
  batchTook(results: Readonly<Record<string, RoundResult>>): void {
    this.#layouts.capacities.add(results);
  }

  /** FTPipeHD's re-partition; undefined where nothing has been profiled. */
  repartitioned(devices: readonly string[], from: Plan): (Repartition & { readonly copyEvery: number }) | undefined {
    const found = planByCapacity(this.#layouts, devices, from);
    return found && { ...found, copyEvery: this.copyEvery(found.plan ?? from, devices) };
  }

  /**
   * Notes how long a round took. From time to time this corrects the devices' times, and the profile is announced
   * again, the first time with the round time that it predicts. If another plan may now be better, returns the devices
   * and links that have become much slower or faster, which may be none. `smallerCount`: the round's samples, where
   * they are fewer than a batch has.
   */
  computed(results: Readonly<Record<string, RoundResult>>, plan: Plan, smallerCount?: number): Drift | undefined {
    const devices = devicesOf(plan);
    // Without re-planning, rounds are not recorded.
    if (this.#options.planAgain === undefined || !this.#known.isProfiled(devices)) return undefined;
    const known = () => [this.#known.profile(devices), plan, this.#known.cluster(devices)] as const;
    const whole =
      smallerCount === undefined
        ? results
        : this.#smallerRounds.asWhole(smallerCount, results, () => wholeRounds(...known()));
    if (whole === undefined || !this.#driftWatch.add(whole)) return undefined;
    const { profile, factors, links, changes } = this.#driftWatch.look(...known());
    if (links.length > 0) this.#reserve.outdate();
    const corrected = Object.keys(factors);
    for (const device of corrected) if (this.#known.correct(device, profile.devices[device])) this.#reserve.outdate();
    const { hooks } = this.#options;
    if (corrected.length > 0)
      hooks.observe({ kind: 'profile', profile: this.#known.profile(this.#known.profiledDevices) });
    if (!this.#isChecked) {
      this.#isChecked = true;
      const roundMs = steadyRoundMs(createSimulator(profile, this.#known.cluster(devices)), program(plan), plan);
      hooks.observe({ kind: 'checked', roundMs, plannedMs: plan.predicted.roundMs });
    }
    return changes;
  }

  /** Links between these devices that were found slow and are to be measured again now. */
  linksToMeasure(devices: readonly string[]): readonly (readonly [string, string])[] {
    return this.#driftWatch.links.due().filter((pair) => pair.every((device) => devices.includes(device)));
  }

  /** A link that was slow was measured again; undefined where it still is. */
  measuredAgain(device: string, { peer, bandwidthMbps }: LinkMeasurement): Drift | undefined {
    const change = this.#driftWatch.links.measuredAgain([device, peer], bandwidthMbps);
    if (change === undefined) return undefined;
    this.#reserve.outdate();
    return { factors: {}, links: [change] };
  }

  /**
   * A given plan with the names of the devices that joined, in their order, unless it has them already. Where too few
   * are left, the others do their work.
   */
  #fitted(plan: Plan, devices: readonly string[]): Plan {
    const named = devicesOf(plan);
    const names = new Map(named.map((name, index) => [name, devices[index] ?? `${name} (missing)`]));
    const fitted = named.every((name) => devices.includes(name))
      ? plan
      : this.#replan(devices, withNames(plan, names), [...names.values()].slice(devices.length));
    this.#options.checkGiven?.(fitted, this.#known.cluster(devices));
    if (devices.length >= named.length) this.#fittedPlan = fitted;
    return fitted;
  }

  /**
   * Where the devices that are left cannot hold such a plan, another order of them, or other micro-batches, may fit.
   */
  async #replanOrAnew(
    devices: readonly string[],
    from: Plan,
    lost: readonly string[],
    isOver: () => boolean,
  ): Promise<Plan | undefined> {
    const { subject, planAgain } = this.#options;
    if (subject.training.isInference && planAgain && this.#known.isProfiled(devices))
      return planAgain(this.#known.profile(devices), this.#known.cluster(devices), { from, isUrgent: true, isOver });
    try {
      return this.#replan(devices, from, lost);
    } catch (error) {
      if (!(error instanceof InputError) || planAgain === undefined || !this.#known.isProfiled(devices)) throw error;
      return planAgain(this.#known.profile(devices), this.#known.cluster(devices), { from, isUrgent: true, isOver });
    }
  }

  /**
   * A plan close to the one before: a spare in the place of a lost device, else the lost work among those who are left.
   */
  #replan(devices: readonly string[], from: Plan, lost: readonly string[]): Plan {
    const used = new Set(from.stages.flatMap((stage) => stage.devices));
    const gone = [...used].filter((device) => lost.includes(device));
    if (gone.length === 0) return from;
    return this.#reserve.take(from, { lost: gone, devices }) ?? planAfterLoss(this.#layouts, devices, from, gone);
  }

  /**
   * Whether a given plan asks no device that was killed for want of memory for more than it is counted on for, or for
   * what nobody has predicted.
   */
  #isHeld({ stages, predicted }: Plan): boolean {
    const lowered = stages.flatMap((stage) => stage.devices).filter((device) => this.#known.budgets.isLowered(device));
    return lowered.every(
      (device) => (predicted.peakMemoryMiB[device] ?? Number.POSITIVE_INFINITY) <= this.#known.memoryMiB(device),
    );
  }

  /** Finds what to do if one more of the layout's devices were lost, in idle time. */
  prepare(devices: readonly string[], from: Plan): void {
    const { isInference = false } = this.#options.subject.training; // which is not compiled without its weights
    if (isInference || devices.length < 2 || !this.#known.isProfiled(devices)) return;
    const used = new Set(from.stages.flatMap((stage) => stage.devices));
    this.#reserve.add(from, devices, (lost, others, announced) => {
      if (!used.has(lost)) return from;
      const found = planAfterLoss(this.#layouts, others, from, [lost]);
      if (announced === undefined) return found;
      const [profile, cluster] = [this.#known.profile(others), this.#known.cluster(others)];
      const { roundMs, samplesPerS } = simulate(program(announced), announced, profile, cluster, { events: false });
      // What devices are ready for is worth more than a little speed.
      return roundMs > readyWorth * found.predicted.roundMs
        ? found
        : { ...announced, predicted: { ...announced.predicted, roundMs, samplesPerS } };
    });
  }

  /**
   * A plan in reserve that those who would run it do not know of yet; undefined where there is none, or it is too
   * early.
   */
  announceReserve(): Plan | undefined {
    return this.#announceAtMs === undefined || this.#options.clock.now() < this.#announceAtMs
      ? undefined
      : this.#reserve.announce();
  }

  /** Whether devices know what they would do after any one loss. */
  get isReserveAnnounced(): boolean {
    return this.#reserve.isAnnounced;
  }

  async #planFromProfiles(devices: readonly string[], isOver: () => boolean): Promise<Plan | undefined> {
    const cluster = this.#known.cluster(devices);
    this.#options.hooks.observe({ kind: 'cluster', cluster });
    const profile = this.#known.profile(devices);
    const { hooks, recovery } = this.#options;
    hooks.observe({ kind: 'profile', profile });
    if (recovery?.repartition === undefined) return this.#options.plan(profile, cluster, isOver);
    const plan = await this.#options.plan(this.#layouts.capacities.begin(profile, devices), cluster, isOver);
    return plan && withCopiesOf(plan, recovery);
  }
}
