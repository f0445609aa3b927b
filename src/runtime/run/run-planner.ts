// The planner of one run: it turns the run's settings, and what devices and links have shown since, into questions to
// the planner, and checks each plan before it may run. Searches run in slices, so that the event loop goes on.

import type { Clock } from '../../clock.ts';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { planTangentSteps } from '../../planner/forward-gradient.ts';
import { checkGrains, planInSamples, profileInGrains } from '../../planner/grains.ts';
import { compareModesSteps } from '../../planner/modes.ts';
import { type CopiesOptions, planWithCopies } from '../../planner/replan/room-for-copies.ts';
import { remaining } from '../../planner/replan/survivors.ts';
import { runInSlices, type Steps } from '../../planner/steps.ts';
import { checkProgram } from '../../schedule/check.ts';
import { program } from '../../schedule/generate.ts';
import { withStaleness } from '../../schedule/staleness.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import { withLinks } from '../knowledge/link-watch.ts';
import type { PlanningOptions, PlanWish } from '../knowledge/planning-options.ts';
import type { LinkChange, Observer, RunEvent } from '../protocol/events.ts';
import type { Thoroughness } from '../protocol/profile-points.ts';
import { optimizerStateCount } from '../protocol/training-spec.ts';
import { choosePlanSteps } from './choose-plan.ts';
import { withForwardOnly } from './fine-tuning.ts';
import { keepPlan, keptPlan } from './kept-plans.ts';
import { checkPlanMemory, plannedMemoryMiB } from './plan-memory.ts';
import { checkPlanFits, type PreparedRun } from './prepare.ts';
import { autoSchedule, type TrainMode } from './settings.ts';

/** A search that is not over by then gives the best that it has found. */
const longestPlanningMs = 45_000;

/** The limits before the first round, for which all devices wait, by how thoroughly they have measured. */
const firstPlanningMs: Readonly<Record<Thoroughness, number>> = { quick: 5_000, full: 15_000 };

/** The limit while devices wait in the middle of a run. The plan may be improved at leisure. */
const urgentPlanningMs = 5_000;

interface PlannerEnvironment {
  readonly clock: Clock;
  readonly observe: Observer;
  /** Keeps first plans for the next run. Default: nowhere. */
  readonly planStore?: StageStore;
}

/** The schedule that a mode and the settings ask for; none: the planner chooses. */
function scheduleWish(mode: TrainMode | undefined, schedule: string): { readonly schedule?: string } {
  if (mode === 'async' || mode === 'forward-gradient') return { schedule: mode };
  return schedule === autoSchedule ? {} : { schedule };
}

/** Plans for one run, from its settings. */
export class RunPlanner {
  readonly #prepared: PreparedRun;
  readonly #environment: PlannerEnvironment;
  /** By device: what may still be used of its memory, whatever a given cluster says. */
  readonly #loweredMiB = new Map<string, number>();
  /** By pair of devices: links that were found slow, or fast again. */
  readonly #linkChanges = new Map<string, LinkChange>();
  /** The mode of the plans; with --mode auto, what the first plan was chosen for. */
  #mode: TrainMode | undefined;

  constructor(prepared: PreparedRun, environment: PlannerEnvironment) {
    this.#prepared = prepared;
    this.#environment = environment;
    this.#mode = prepared.settings.mode;
  }

  /** Notes what an event of the run says of devices and links. */
  observed(event: RunEvent): void {
    if (event.kind === 'drift')
      for (const change of event.links) this.#linkChanges.set([...change.between].sort().join(' '), change);
    if (event.kind === 'memory-lowered') this.#loweredMiB.set(event.device, event.toMiB);
  }

  /** The first plan; undefined when `isOver` says that nobody wants it any more. InputError: nothing fits. */
  async first(profile: Profile, measured: Cluster, isOver: () => boolean): Promise<Plan | undefined> {
    const cluster = this.#given(measured);
    const { clock, planStore } = this.#environment;
    const { settings, subject } = this.#prepared;
    const startMs = clock.now();
    // Plans of other modes are predicted otherwise: in grains, or in ticks of a stream.
    const { grain, forwardGradient } = subject.training;
    const isUsual = grain === undefined && forwardGradient === undefined && (settings.mode ?? 'sync') === 'sync';
    const store = isUsual ? planStore : undefined;
    const question = { profile, cluster, settings: this.#questionSettings() };
    const kept = store && (await keptPlan(store, question));
    if (kept !== undefined) return this.used(kept, clock.now() - startMs);
    const limitMs = firstPlanningMs[settings.profile];
    const steps = this.#mode === 'auto' ? this.#modeSteps : this.#planSteps;
    const plan = await runInSlices(steps.call(this, profile, cluster, limitMs), clock, isOver);
    const planningMs = clock.now() - startMs;
    if (store && plan && planningMs < limitMs) await keepPlan(store, question, plan);
    return plan && this.used(plan, planningMs);
  }

  /**
   * A plan for other devices than those that the run began with: with the same micro-batches, over which batches are
   * normalized, unless nothing fits with these and devices wait for it.
   */
  async again(profile: Profile, measured: Cluster, { from, isUrgent, isOver }: PlanWish): Promise<Plan | undefined> {
    const given = this.#given(measured);
    const { clock, observe } = this.#environment;
    const cluster = remaining(
      given,
      given.devices.flatMap(({ name }) => (measured.devices.some((device) => device.name === name) ? [] : [name])),
    );
    const find = async (microBatchSize?: number): Promise<Plan | undefined> => {
      const steps = this.#planSteps(profile, cluster, isUrgent ? urgentPlanningMs : longestPlanningMs, microBatchSize);
      const found = await runInSlices(steps, clock, isOver);
      return found && this.#checked(found);
    };
    try {
      return await find(from.microBatchSize);
    } catch (error) {
      if (!(error instanceof InputError) || !isUrgent) throw error;
      const plan = await find();
      if (plan !== undefined && this.#prepared.subject.sequence.layers.some(({ batchDependent }) => batchDependent)) {
        const message =
          `The devices left have no memory for micro-batches of ${from.microBatchSize} samples: from now on, ` +
          `batches are normalized over ${plan.microBatchSize}.`;
        observe({ kind: 'warning', message });
      }
      return plan;
    }
  }

  /** Throws InputError if the devices cannot hold what a given plan asks of them. */
  checkGiven(given: Plan, measured: Cluster): void {
    checkPlanMemory(given, this.#given(measured), this.#memoryOptions());
  }

  #memoryOptions() {
    const { subject, settings } = this.#prepared;
    return { ...subject, isCopied: settings.replicateEvery !== 0 };
  }

  /** A given plan, checked and announced, with what its devices keep where that has not been predicted. */
  usedAsGiven(given: Plan): Plan {
    const { predicted } = given;
    if (Object.keys(predicted.peakMemoryMiB).length > 0) return this.used(given, 0);
    const checked = this.#checked(given);
    const peakMemoryMiB = plannedMemoryMiB(checked, this.#memoryOptions());
    return this.used({ ...checked, predicted: { ...predicted, peakMemoryMiB } }, 0);
  }

  /** The plan that the run begins with, checked and announced. */
  used(found: Plan, planningMs: number): Plan {
    const plan = this.#checked(found);
    const layerNames = this.#prepared.subject.sequence.layers.map((layer) => layer.name);
    this.#environment.observe({ kind: 'plan', plan, planningMs, layerNames });
    return plan;
  }

  /** What re-plans are to know of memory: what the user's cluster allows, and what to do where it is short. */
  get memoryWishes(): Required<Pick<PlanningOptions, 'allowedMiB' | 'mayRecompute'>> {
    const devices = this.#prepared.cluster?.devices ?? [];
    const allowedMiB = (device: string): number | undefined => devices.find(({ name }) => name === device)?.memoryMiB;
    return { mayRecompute: this.mayRecompute, allowedMiB };
  }

  /** Whether devices may compute activations again, where they have too little memory. */
  get mayRecompute(): boolean {
    const { recompute, strict } = this.#prepared.settings;
    return recompute === 'auto' && !strict;
  }

  /**
   * The cluster that the user describes, with no more memory and bandwidth than devices and links have shown; by
   * default the measured one.
   */
  #given(measured: Cluster): Cluster {
    const { cluster } = this.#prepared;
    if (cluster === undefined) return measured;
    const devices = cluster.devices.map((device) => ({
      ...device,
      memoryMiB: Math.min(device.memoryMiB, this.#loweredMiB.get(device.name) ?? device.memoryMiB),
    }));
    return withLinks({ ...cluster, devices }, [...this.#linkChanges.values()]);
  }

  /** What the settings say of plans. */
  #questionSettings(microBatchSize?: number) {
    const { settings, subject } = this.#prepared;
    const { grain = 1 } = subject.training;
    const microBatch = microBatchSize ?? settings.microBatch ?? subject.sequence.fixedBatch;
    return {
      batchSize: settings.batch / grain,
      ...scheduleWish(this.#mode, settings.schedule),
      planner: settings.planner,
      compress: settings.compress,
      optimizerState: optimizerStateCount(subject.training),
      replicateBatchDependent: settings.replicateBatchNorm,
      mayRecompute: this.mayRecompute,
      ...(microBatch === undefined ? {} : { microBatchSize: microBatch / grain }),
      useAll: settings.useAll,
      ...(settings.staleness === undefined ? {} : { staleness: settings.staleness }),
    };
  }

  *#planSteps(profile: Profile, cluster: Cluster, limitMs: number, microBatchSize?: number): Steps<Plan> {
    const { clock } = this.#environment;
    const endMs = clock.now() + limitMs;
    const { training } = this.#prepared.subject;
    const { grain = 1, forwardGradient } = training;
    const { useAll, ...settings } = this.#questionSettings(microBatchSize);
    if (forwardGradient !== undefined) {
      const { batchSize, planner, microBatchSize: size } = settings;
      return yield* planTangentSteps({
        ...{ profile, cluster, batchSize, planner },
        ...{ tangentCount: forwardGradient.tangentCount, optimizerState: optimizerStateCount(training) },
        ...(this.#prepared.settings.staleness === 0 ? { staleness: 0 as const } : {}),
        ...(size === undefined ? {} : { microBatchSize: size }),
        isTimeUp: () => clock.now() > endMs,
      });
    }
    const asked = { ...settings, profile: grain === 1 ? profile : profileInGrains(profile, grain) };
    const find = (from: Cluster): Steps<Plan> =>
      choosePlanSteps({ isTimeUp: () => clock.now() > endMs, ...asked, cluster: from }, useAll);
    const found = yield* planWithCopies(cluster, this.#copiesOptions(asked.profile), find);
    return grain === 1 ? found : planInSamples(found, grain);
  }

  /** The plan of the fastest mode, which later plans of the run keep to. */
  *#modeSteps(profile: Profile, cluster: Cluster, limitMs: number): Steps<Plan> {
    const { clock, observe } = this.#environment;
    const { useAll: _, compress: __, ...settings } = this.#questionSettings();
    let endMs = clock.now() + limitMs;
    const { modes, chosen } = yield* compareModesSteps({
      ...{ ...settings, profile, cluster, isCopied: this.#prepared.settings.replicateEvery !== 0 },
      isTimeUp: () => clock.now() > endMs,
      onMode: () => {
        endMs = clock.now() + limitMs;
      },
    });
    this.#mode = chosen.mode;
    observe({ kind: 'modes', modes, chosen: chosen.mode });
    return chosen.plan;
  }

  #copiesOptions(profile: Profile): CopiesOptions {
    const { settings, subject } = this.#prepared;
    const optimizerState = optimizerStateCount(subject.training);
    return { profile, optimizerState, isCopied: settings.replicateEvery !== 0 };
  }

  /** Every plan is checked before it runs, given ones too. */
  #checked(found: Plan): Plan {
    const { settings, subject } = this.#prepared;
    const plan = withStaleness(withForwardOnly(found, subject.sequence), settings);
    const { grain } = subject.training;
    checkPlanFits(plan, subject.sequence, settings);
    if (grain !== undefined) checkGrains(plan, grain);
    checkProgram(program(plan), plan);
    return plan;
  }
}
