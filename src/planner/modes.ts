// What each mode of training would cost, and which one to take: `--mode auto`. A mode is the same question with other
// schedules: rounds that follow each other, or rounds that overlap and compute with weights that lag behind. Pure.

import type { Plan, Profile } from '../cluster/cluster.ts';
import { bytesInMiB, layerSums } from '../cluster/memory.ts';
import { InputError } from '../errors.ts';
import { program } from '../schedule/generate.ts';
import { weightVersionCount } from '../schedule/staleness.ts';
import { simulate } from '../simulator/simulate.ts';
import { type PlanInput, planSteps } from './plan.ts';
import { planWithCopies } from './replan/room-for-copies.ts';
import { finish, type Steps } from './steps.ts';

/** The modes that are compared. */
export const plannedModes = ['sync', 'async'] as const;

export type PlannedMode = (typeof plannedModes)[number];

/** What is to be planned in several modes; see PlanInput. */
export interface ModesInput extends Omit<PlanInput, 'schedule'> {
  /** The modes that the user allows. Default: all. */
  readonly allowed?: readonly PlannedMode[];
  /** Whether the run makes copies for the case of a loss, for which a stream needs room. Default false. */
  readonly isCopied?: boolean;
  /** Called when the search for a mode begins. */
  readonly onMode?: (mode: PlannedMode) => void;
}

/** What a mode costs. */
export interface ModeCost {
  readonly mode: PlannedMode;
  readonly plan: Plan;
  /** Of a round, or from a round to the next where they overlap. */
  readonly roundMs: number;
  readonly samplesPerS: number;
  /** The mean part of a round for which the plan's devices are idle. */
  readonly bubbleShare: number;
  /** Rounds by which weights lag behind. */
  readonly staleness: number;
  /** By device of the plan: what it keeps, and how much of that is former versions of weights. */
  readonly peakMemoryMiB: Readonly<Record<string, number>>;
  readonly versionsMiB: Readonly<Record<string, number>>;
}

/** A mode for which there is no plan, or which is not allowed. */
export interface RefusedMode {
  readonly mode: PlannedMode;
  readonly refusal: string;
}

/** What each mode would take, and the one to train in. */
export interface ModeChoice {
  readonly modes: readonly (ModeCost | RefusedMode)[];
  /** One of `modes`. */
  readonly chosen: ModeCost;
}

/** Stale weights, and staler ones, are taken for this much more speed at least. */
export const leastGain = 1.03;

/** Plans each mode and chooses the fastest that is allowed; InputError where nothing fits in any of them. */
export function compareModes(input: ModesInput): ModeChoice {
  return finish(compareModesSteps(input));
}

/** compareModes in steps. */
export function* compareModesSteps(input: ModesInput): Steps<ModeChoice> {
  const { allowed = plannedModes, onMode, ...question } = input;
  const modes: (ModeCost | RefusedMode)[] = [];
  for (const mode of plannedModes) {
    onMode?.(mode);
    if (!allowed.includes(mode)) modes.push({ mode, refusal: 'not allowed' });
    else modes.push(yield* costOf(mode, question));
  }
  const planned = modes.filter((each): each is ModeCost => !('refusal' in each));
  const [first] = planned;
  const reasons = modes.flatMap((each) => ('refusal' in each && each.refusal !== 'not allowed' ? [each.refusal] : []));
  if (first === undefined) throw new InputError(reasons[0] ?? 'No mode is allowed; allow sync or async.');
  const chosen = planned.reduce(
    (best, each) => (each.samplesPerS >= leastGain * best.samplesPerS ? each : best),
    first,
  );
  return { modes, chosen };
}

type Question = Omit<ModesInput, 'allowed' | 'onMode'>;

function* costOf(mode: PlannedMode, question: Question): Steps<ModeCost | RefusedMode> {
  try {
    return mode === 'sync' ? costOfPlan(mode, yield* planSteps(question), question) : yield* staleCost(question);
  } catch (error) {
    if (error instanceof InputError) return { mode, refusal: error.message };
    throw error;
  }
}

/** The fastest stream, or the least stale one if that is hardly slower. */
function* staleCost(question: Question): Steps<ModeCost> {
  const asked = { ...question, schedule: 'async' };
  const fastest = costOfPlan('async', yield* streamSteps(asked), question);
  if (fastest.staleness === 0) return fastest;
  const calm = yield* leastStale(asked);
  const isWorth = calm === undefined || fastest.samplesPerS >= leastGain * calm.samplesPerS;
  return isWorth ? fastest : calm;
}

/** The stream with as few micro-batches in flight as keep all stages busy; undefined if none fits. */
function* leastStale(asked: Question & Pick<PlanInput, 'schedule'>): Steps<ModeCost | undefined> {
  try {
    return costOfPlan('async', yield* streamSteps({ ...asked, isLeastStale: true }), asked);
  } catch (error) {
    if (error instanceof InputError) return undefined;
    throw error;
  }
}

/** A stream, with room for its copies. */
function streamSteps({ isCopied = false, ...asked }: Question & Pick<PlanInput, 'schedule'>): Steps<Plan> {
  const { profile, optimizerState } = asked;
  return planWithCopies(asked.cluster, { profile, optimizerState, isCopied }, (cluster) =>
    planSteps({ ...asked, cluster }),
  );
}

/** What a plan costs in its mode. */
export function costOfPlan(
  mode: PlannedMode,
  plan: Plan,
  { profile, cluster, optimizerState }: Pick<PlanInput, 'profile' | 'cluster' | 'optimizerState'>,
): ModeCost {
  const { roundMs, samplesPerS, devices } = simulate(program(plan), plan, profile, cluster, {
    ...{ events: false, optimizerState },
  });
  const names = plan.stages.flatMap((stage) => stage.devices);
  const idle = names.reduce((sum, name) => sum + (devices[name]?.idleFraction ?? 0), 0);
  const versions = plan.stages.map((_, stage) => weightVersionCount(plan, stage) - 1);
  return {
    ...{ mode, plan, roundMs, samplesPerS },
    bubbleShare: idle / names.length,
    staleness: Math.max(...versions),
    peakMemoryMiB: Object.fromEntries(names.map((name) => [name, plan.predicted.peakMemoryMiB[name] ?? 0])),
    versionsMiB: versionsOf(plan, profile, versions),
  };
}

function versionsOf(plan: Plan, profile: Profile, versions: readonly number[]): Readonly<Record<string, number>> {
  const sums = layerSums(profile);
  return Object.fromEntries(
    plan.stages.flatMap(({ layers, devices }, stage) =>
      devices.map((name) => [name, ((versions[stage] ?? 0) * sums.weightBytes(...layers)) / bytesInMiB]),
    ),
  );
}
