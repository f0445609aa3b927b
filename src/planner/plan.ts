// plan(): profile and cluster in, Plan out. Chooses the micro-batch size unless the caller gives one, lets the named
// planner search, and lets the simulator choose among the results and predict the winner. Pure and deterministic; runs
// to its end on the calling thread.

import type { Cluster, Plan, Profile } from '../cluster/cluster.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import { parseCluster, parseProfile } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { scheduleOf, schedules } from '../schedule/schedules.ts';
import { roundBounds } from './bounds.ts';
import { type Pin, settleConstraints } from './constraints.ts';
import { plannerOf } from './planners.ts';
import { createProblem, withMicroBatchSize } from './problem.ts';
import type { Answer, Question } from './question.ts';
import type { Steps } from './steps.ts';

/** What a plan is made for, and what it may be. */
export interface PlanInput {
  readonly profile: Profile;
  readonly cluster: Cluster;
  /** Samples of a round. */
  readonly batchSize: number;
  /** Must divide batchSize. If absent, every divisor is tried. */
  readonly microBatchSize?: number;
  /** If absent, the planner's own; `best` tries all. */
  readonly schedule?: string;
  /**
   * Of schedules whose rounds overlap: whether planners that may choose keep no more micro-batches in flight than it
   * takes (P − p), for the least staleness. Default false: whatever is faster.
   */
  readonly isLeastStale?: boolean;
  /** Of such schedules: rounds by which the weights of a plan may lag behind at most. Default: any number. */
  readonly maxStaleness?: number;
  /** Of such schedules: the staleness of the plan, where it needs no more. Default: what it needs. */
  readonly staleness?: number;
  /** See plannerNames. Default 'asteroid'. */
  readonly planner?: string;
  /** Copies of each weight that the optimizer keeps: 0 plain SGD, 1 momentum, 2 Adam. */
  readonly optimizerState: OptimizerState;
  /**
   * Allows replicas of layers that depend on the whole batch, such as batch normalization; the run then differs from a
   * single device's. Default false.
   */
  readonly replicateBatchDependent?: boolean;
  /**
   * Lets planners `best` and `exhaustive` make devices recompute activations that do not fit, if the profile gives the
   * cost (LayerProfile.recomputed). Default true.
   */
  readonly mayRecompute?: boolean;
  /** Layers pinned to devices: the stage of a pinned layer has exactly the devices pinned to it. */
  readonly pins?: readonly Pin[];
  /** Names of devices that get no layers. An excluded device that holds the data still sends it. */
  readonly exclude?: readonly string[];
  /** Checked between the steps of the search, which then throws the signal's reason. */
  readonly signal?: AbortSignal;
  /**
   * Asked between the steps of planner `best`; when true, the search ends with the best plan so far, but not before
   * planner `asteroid`, its first, has answered and some plan exists. Default: limited by counted work only.
   */
  readonly isTimeUp?: () => boolean;
  /** Called with every plan that is better than all before. */
  readonly onBetter?: (plan: Plan) => void;
  /** Called with the fraction, from 0 to 1, of the current part of the search that is done. */
  readonly onProgress?: (done: number) => void;
}

/**
 * The named planner's plan. `predicted` is the simulator's; `lowerBoundMs` is a round that no plan for this batch can
 * beat: if it equals `roundMs`, the plan is proven optimal. Throws InputError, one sentence, for invalid input and if
 * nothing fits.
 */
export function plan(input: PlanInput): Plan {
  const steps = planSteps(input);
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/** `plan` in steps, for callers that have other work to do between them. */
export function* planSteps(input: PlanInput): Steps<Plan> {
  const {
    batchSize,
    optimizerState,
    signal,
    isTimeUp,
    onBetter,
    onProgress,
    planner = 'asteroid',
    replicateBatchDependent = false,
    mayRecompute = true,
    isLeastStale = false,
  } = input;
  const profile = parseProfile(input.profile);
  const cluster = parseCluster(input.cluster);
  const schedule = input.schedule === undefined ? undefined : scheduleOf(input.schedule);
  const search = plannerOf(planner);
  const microBatchSizes = settleMicroBatchSizes(batchSize, input.microBatchSize);
  const microBatchSize = microBatchSizes[0] ?? 1;
  const rules = settleConstraints(input, profile, cluster);
  const base = createProblem({
    ...{
      profile,
      cluster,
      schedule: schedule ?? schedules['1f1b'],
      batchSize,
      microBatchSize,
      optimizerState,
      replicateBatchDependent,
      ...(input.maxStaleness === undefined ? {} : { maxStaleness: input.maxStaleness }),
      ...(input.staleness === undefined ? {} : { leastStaleness: input.staleness }),
    },
    ...rules,
  });
  const bounds = microBatchSizes.map((size) => roundBounds(withMicroBatchSize(base, size)));
  const question: Question = { planner, base, microBatchSizes, bounds, schedule, mayRecompute, isLeastStale };
  const boundMs = Math.min(...bounds.map(({ anyMs }) => anyMs));
  const finished = ({ layout, predicted, roundMs, isOptimal, boundMs: betterMs = 0 }: Answer): Plan => ({
    ...layout,
    predicted: { ...predicted, lowerBoundMs: isOptimal === true ? roundMs : Math.max(boundMs, betterMs) },
  });
  const steps = search(question, {
    ...(onBetter === undefined ? {} : { report: (answer) => onBetter(finished(answer)) }),
    ...(isTimeUp === undefined ? {} : { isTimeUp }),
  });
  for (;;) {
    signal?.throwIfAborted();
    const step = steps.next();
    if (step.done === true) return finished(step.value);
    onProgress?.(step.value);
    yield step.value;
  }
}

/** The micro-batch sizes to try, ascending: the one given, or every divisor of the batch. */
export function settleMicroBatchSizes(batchSize: number, asked: number | undefined): number[] {
  if (!Number.isInteger(batchSize) || batchSize < 1)
    throw new InputError(`The batch size is ${batchSize}; give a whole number of 1 or more.`);
  if (asked === undefined) return divisors(batchSize);
  if (!Number.isInteger(asked) || asked < 1)
    throw new InputError(`The micro-batch size is ${asked}; give a whole number of 1 or more.`);
  if (batchSize % asked === 0) return [asked];
  const near = divisors(batchSize).reduce((closest, size) =>
    Math.abs(size - asked) < Math.abs(closest - asked) ? size : closest,
  );
  throw new InputError(
    `The batch of ${batchSize} samples cannot be cut into micro-batches of ${asked}; give a divisor of it, ` +
      `such as ${near}.`,
  );
}

function divisors(whole: number): number[] {
  const found: number[] = [];
  for (let size = 1; size * size <= whole; size++) {
    if (whole % size !== 0) continue;
    found.push(size);
    if (size * size !== whole) found.push(whole / size);
  }
  return found.sort((a, b) => a - b);
}
