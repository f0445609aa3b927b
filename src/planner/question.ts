// A planner's input and output. A planner chooses the micro-batch size, the schedule and the stages; the simulator
// decides how long its plan's round takes.

import type { Plan, PlanLayout, StagePlan } from '../cluster/cluster.ts';
import { bytesInMiB, stageMemoryBytes } from '../cluster/memory.ts';
import type { Schedule } from '../schedule/schedules.ts';
import type { RoundBounds } from './bounds.ts';
import { Evaluator, simulatedMs } from './evaluate.ts';
import { layoutPlan } from './layout.ts';
import { type Problem, type StageLayout, stageDemand, withMicroBatchSize, withStages } from './problem.ts';
import { withRecomputation } from './recomputation.ts';
import type { Steps } from './steps.ts';

export interface Question {
  /** The planner's name, for the plan and for messages. */
  readonly planner: string;
  /** The problem with the first micro-batch size; the others share everything that does not depend on the size. */
  readonly base: Problem;
  /** Ascending; a single one if the caller chose it. */
  readonly microBatchSizes: readonly number[];
  /** By micro-batch size. */
  readonly bounds: readonly RoundBounds[];
  /** Absent if the planner may choose. */
  readonly schedule?: Schedule | undefined;
  /** Whether planners that support it may let devices recompute activations. */
  readonly mayRecompute: boolean;
  /** See PlanInput. */
  readonly isLeastStale: boolean;
}

/** The question with recomputation, for a planner that supports it. */
export function recomputing(question: Question): Question {
  return question.mayRecompute ? { ...question, base: withRecomputation(question.base) } : question;
}

/** A planner's plan with the simulator's prediction. */
export interface Answer {
  readonly layout: PlanLayout;
  readonly roundMs: number;
  readonly predicted: Plan['predicted'];
  /** Whether no plan of the requested micro-batch sizes and schedules has a shorter round. */
  readonly isOptimal?: boolean;
  /** A lower bound on their rounds, if the planner knows a better one than lowerBoundMs (bounds.ts). */
  readonly boundMs?: number;
  /** The stages as places; absent for answers that are no pipeline (hetpipe). */
  readonly layouts?: readonly StageLayout[];
  readonly problem: Problem;
}

export interface PlannerOptions {
  /** Called with each answer that is better than all before. */
  readonly report?: (answer: Answer) => void;
  /** See PlanInput.isTimeUp. */
  readonly isTimeUp?: () => boolean;
}

/** A planner. Throws InputError, one sentence, if it has no plan. */
export type Planner = (question: Question, options: PlannerOptions) => Steps<Answer>;

/**
 * The question's problems with bounds, the most promising first: one for each micro-batch size and schedule.
 * `isStraight`: all stages are single devices.
 */
export function problemsOf(
  { base, microBatchSizes, bounds, schedule }: Question,
  schedules: readonly Schedule[],
  { isStraight = false }: { readonly isStraight?: boolean } = {},
): { problem: Problem; boundMs: number }[] {
  const asked = schedule === undefined ? schedules : [schedule];
  const found = microBatchSizes.flatMap((size, index) =>
    asked.map((each) => {
      const { anyMs, straightMs } = bounds[index] as RoundBounds;
      return {
        problem: withMicroBatchSize(base, size, each),
        // Only rounds that fill and drain obey the second bound.
        boundMs: isStraight && !each.splitsBackward && !each.isStream ? straightMs : anyMs,
      };
    }),
  );
  return found.sort((a, b) => a.boundMs - b.boundMs);
}

/** A pipeline's answer; uses the evaluator if it equals the simulator, since it is faster. */
export function answerOf(problem: Problem, planner: string, layouts: readonly StageLayout[]): Answer {
  const evaluator = new Evaluator(problem);
  return answerIn(
    evaluator.isExactFor(layouts) ? evaluator.roundMs(layouts) : simulatedMs(problem, layouts),
    problem,
    planner,
    layouts,
  );
}

/** A pipeline before it is simulated. */
export interface Candidate {
  readonly problem: Problem;
  readonly layouts: readonly StageLayout[];
  /** Its round, or a lower bound on it. */
  readonly leastMs: number;
  readonly isExact: boolean;
}

/** The pipeline as a candidate; undefined if its round is not below the bar. */
export function candidateBelow(
  barMs: number,
  problem: Problem,
  layouts: readonly StageLayout[],
): Candidate | undefined {
  const evaluator = new Evaluator(problem);
  const leastMs = evaluator.roundMs(layouts, barMs);
  return leastMs >= barMs ? undefined : { problem, layouts, leastMs, isExact: evaluator.isExact };
}

/** The candidate as an answer, simulated. */
export function answerOfCandidate({ problem, layouts, leastMs, isExact }: Candidate, planner: string): Answer {
  return answerIn(isExact ? leastMs : simulatedMs(problem, layouts), problem, planner, layouts);
}

function answerIn(roundMs: number, problem: Problem, planner: string, layouts: readonly StageLayout[]): Answer {
  const layout = layoutPlan(problem, planner, layouts);
  const samplesPerS = (layout.batchSize / roundMs) * 1000;
  const peakMemoryMiB: Record<string, number> = {};
  for (const { layers, devices, samples, inFlight, savedBytes } of layout.stages) {
    const demand = stageDemand(withStages(problem, layout.stages.length), ...layers, inFlight);
    for (const [index, name] of devices.entries()) {
      const kept = { ...demand, savedBytes: savedBytes?.[index] ?? demand.savedBytes };
      peakMemoryMiB[name] = stageMemoryBytes(kept, samples[index] ?? 0) / bytesInMiB;
    }
  }
  return { layout, layouts, problem, roundMs, predicted: { roundMs, samplesPerS, peakMemoryMiB } };
}

/** A device whose memory a plan exceeds. */
export interface Overload {
  readonly name: string;
  readonly neededMiB: number;
  readonly hasMiB: number;
}

/** The device of these stages that lacks the most memory by eq. 3; undefined if all fit. */
export function overloadOf(problem: Problem, stages: readonly StagePlan[]): Overload | undefined {
  let worst: Overload | undefined;
  for (const { layers, devices, samples, inFlight } of stages) {
    const most = problem.schedule.isStream ? inFlight : Math.min(inFlight, problem.microBatchCount);
    const demand = stageDemand(withStages(problem, stages.length), ...layers, most);
    for (const [index, name] of devices.entries()) {
      const hasMiB = problem.cluster.devices[problem.table.deviceIndex(name)]?.memoryMiB ?? 0;
      const neededMiB = stageMemoryBytes(demand, samples[index] ?? 0) / bytesInMiB;
      if (
        neededMiB > hasMiB * (1 + 1e-12) &&
        neededMiB - hasMiB > (worst === undefined ? 0 : worst.neededMiB - worst.hasMiB)
      )
        worst = { name, neededMiB, hasMiB };
    }
  }
  return worst;
}
