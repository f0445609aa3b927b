// plan(): profile and cluster in, Plan out. Chooses the micro-batch size where the caller did not, lets the named planner search, and lets
// the simulator decide between what was found and predict the winner. Pure and deterministic; runs to its end on the calling thread.

import type { Cluster, Plan, PlanLayout, Profile } from '../cluster/cluster.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import { parseCluster, parseProfile } from '../cluster/validate.ts';
import { InputError } from '../errors.ts';
import { inFlight, program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import { search } from './asteroid.ts';
import { lowerBoundMs } from './bounds.ts';
import { explainInfeasible } from './infeasible.ts';
import { createProblem, layoutPlan, type Problem, withMicroBatchSize } from './problem.ts';
import { plannerSpaces } from './spaces.ts';

export interface PlanInput {
  readonly profile: Profile;
  readonly cluster: Cluster;
  /** Samples of a round. */
  readonly batchSize: number;
  /** Must divide batchSize. Absent: every divisor is tried. */
  readonly microBatchSize?: number;
  /** Default '1f1b'. */
  readonly schedule?: string;
  /** See plannerNames. Default 'asteroid'. */
  readonly planner?: string;
  /** Copies of each weight that the optimizer keeps: 0 plain SGD, 1 momentum, 2 Adam. */
  readonly optimizerState: OptimizerState;
  /** Allows replicas of layers that depend on the whole batch, such as batch normalization; the run then differs from a single device's. Default false. */
  readonly replicateBatchDependent?: boolean;
  /** Looked at between the steps of the search. */
  readonly signal?: AbortSignal;
}

/**
 * The plan with the shortest simulated round among the planner's best for each micro-batch size. `predicted` is the simulator's, and
 * `lowerBoundMs` what no plan for this batch can beat. Throws InputError, one sentence, for input that is wrong or fits nowhere.
 */
export function plan(input: PlanInput): Plan {
  const { batchSize, optimizerState, signal, schedule = '1f1b', planner = 'asteroid', replicateBatchDependent = false } = input;
  const profile = parseProfile(input.profile);
  const cluster = parseCluster(input.cluster);
  inFlight(schedule, 0, 1, 1);
  const spaces = plannerSpaces(planner);
  const sizes = microBatchSizes(batchSize, input.microBatchSize);
  const smallest = createProblem({
    profile,
    cluster,
    schedule,
    batchSize,
    microBatchSize: sizes[0] ?? 1,
    optimizerState,
    replicateBatchDependent,
  });
  const problems = sizes.map((size) => withMicroBatchSize(smallest, size)).map((problem) => ({ problem, boundMs: lowerBoundMs(problem) }));
  problems.sort((a, b) => a.boundMs - b.boundMs);
  let best: Simulated | undefined;
  for (const { problem, boundMs } of problems) {
    // Sorted by bound: from here on nothing can be better.
    if (best !== undefined && boundMs >= best.roundMs) break;
    for (const space of spaces(problem)) {
      const found = search(problem, space, signal);
      if (found === undefined) continue;
      const candidate = simulated(problem, layoutPlan(problem, planner, found.layouts));
      if (best === undefined || candidate.roundMs < best.roundMs) best = candidate;
    }
  }
  if (best === undefined)
    throw explainInfeasible(
      smallest,
      planner,
      spaces,
      divisors(batchSize)
        .filter((size) => size < (sizes[0] ?? 1))
        .reverse(),
    );
  return { ...best.layout, predicted: { ...best.predicted, lowerBoundMs: problems[0]?.boundMs ?? 0 } };
}

interface Simulated {
  readonly layout: PlanLayout;
  readonly roundMs: number;
  readonly predicted: Plan['predicted'];
}

function simulated(problem: Problem, layout: PlanLayout): Simulated {
  const { profile, cluster, optimizerState } = problem;
  const { roundMs, samplesPerS, devices } = simulate(program(layout), layout, profile, cluster, { optimizerState, events: false });
  const used = layout.stages.flatMap((stage) => stage.devices);
  const peakMemoryMiB = Object.fromEntries(used.map((name) => [name, devices[name]?.peakMemoryMiB ?? 0]));
  return { layout, roundMs, predicted: { roundMs, samplesPerS, peakMemoryMiB } };
}

/** The sizes to try, ascending: the one that was asked for, or every divisor of the batch. */
function microBatchSizes(batchSize: number, asked: number | undefined): number[] {
  if (!Number.isInteger(batchSize) || batchSize < 1)
    throw new InputError(`The batch size is ${batchSize}; give a whole number of 1 or more.`);
  if (asked === undefined) return divisors(batchSize);
  if (!Number.isInteger(asked) || asked < 1) throw new InputError(`The micro-batch size is ${asked}; give a whole number of 1 or more.`);
  if (batchSize % asked === 0) return [asked];
  const near = divisors(batchSize).reduce((closest, size) => (Math.abs(size - asked) < Math.abs(closest - asked) ? size : closest));
  throw new InputError(
    `The batch of ${batchSize} samples cannot be cut into micro-batches of ${asked}; give a divisor of it, such as ${near}.`,
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
