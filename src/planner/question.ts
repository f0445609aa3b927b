// What a planner is asked and what it answers. A planner settles the micro-batch size, the schedule and the stages; the
// simulator has the last word on how long its plan's round takes.

import type { Plan, PlanLayout, StagePlan } from '../cluster/cluster.ts';
import { bytesInMiB, stageMemoryBytes } from '../cluster/memory.ts';
import { splitsBackward } from '../schedule/generate.ts';
import type { RoundBounds } from './bounds.ts';
import { Evaluator, simulatedMs } from './evaluate.ts';
import { layoutPlan } from './layout.ts';
import { type Problem, type StageLayout, stageDemand, withMicroBatchSize } from './problem.ts';
import { withRecomputation } from './recomputation.ts';
import type { Steps } from './steps.ts';

export interface Question {
  /** The planner's name, for the plan and for messages. */
  readonly planner: string;
  /** With the first micro-batch size; the others share everything with it that does not depend on that. */
  readonly base: Problem;
  /** Ascending. One where the caller chose it. */
  readonly microBatchSizes: readonly number[];
  /** For each of them. */
  readonly bounds: readonly RoundBounds[];
  /** Absent where the caller leaves it to the planner. */
  readonly schedule?: string | undefined;
  /** Whether planners that can may let devices compute activations again. */
  readonly mayRecompute: boolean;
}

/** The question for a planner that can recompute. */
export function recomputing(question: Question): Question {
  return question.mayRecompute ? { ...question, base: withRecomputation(question.base) } : question;
}

/** A plan that a planner found, as the simulator sees it. */
export interface Answer {
  readonly layout: PlanLayout;
  readonly roundMs: number;
  readonly predicted: Plan['predicted'];
  /** Whether no plan of any micro-batch size and schedule that was asked for has a shorter round. */
  readonly isOptimal?: boolean;
  /** A round that none of them is below, where the planner knows a better one than lowerBoundMs (bounds.ts). */
  readonly boundMs?: number;
  /** The stages as places; absent for what is no pipeline (hetpipe). */
  readonly layouts?: readonly StageLayout[];
  readonly problem: Problem;
}

export interface PlannerOptions {
  /** Hears of each answer that is better than all before. */
  readonly report?: (answer: Answer) => void;
  /** See PlanInput. */
  readonly isTimeUp?: () => boolean;
}

/** A planner. Throws InputError, one sentence, where it has no plan. */
export type Planner = (question: Question, options: PlannerOptions) => Steps<Answer>;

/**
 * The question's problems with bounds, the most promising first: one for each micro-batch size and each schedule.
 * `isStraight`: all stages are single devices.
 */
export function problemsOf(
  { base, microBatchSizes, bounds, schedule }: Question,
  schedules: readonly string[],
  { isStraight = false }: { readonly isStraight?: boolean } = {},
): { problem: Problem; boundMs: number }[] {
  const asked = schedule === undefined ? schedules : [schedule];
  const found = microBatchSizes.flatMap((size, index) =>
    asked.map((name) => {
      const { anyMs, straightMs } = bounds[index] as RoundBounds;
      return {
        problem: withMicroBatchSize(base, size, name),
        boundMs: isStraight && !splitsBackward(name) ? straightMs : anyMs,
      };
    }),
  );
  return found.sort((a, b) => a.boundMs - b.boundMs);
}

/** A pipeline with what the simulator says of it: by the evaluator where that is the same, which is sooner. */
export function answerOf(problem: Problem, planner: string, layouts: readonly StageLayout[]): Answer {
  const evaluator = new Evaluator(problem);
  return answerIn(
    evaluator.isExactFor(layouts) ? evaluator.roundMs(layouts) : simulatedMs(problem, layouts),
    problem,
    planner,
    layouts,
  );
}

/** A pipeline with what is known of it without the simulator. */
export interface Candidate {
  readonly problem: Problem;
  readonly layouts: readonly StageLayout[];
  /** Its round, or what that is at least. */
  readonly leastMs: number;
  readonly isExact: boolean;
}

/** Undefined where its round is not shorter than the bar. */
export function candidateBelow(
  barMs: number,
  problem: Problem,
  layouts: readonly StageLayout[],
): Candidate | undefined {
  const evaluator = new Evaluator(problem);
  const leastMs = evaluator.roundMs(layouts, barMs);
  return leastMs >= barMs ? undefined : { problem, layouts, leastMs, isExact: evaluator.isExact };
}

/** The candidate with what the simulator says of it. */
export function answerOfCandidate({ problem, layouts, leastMs, isExact }: Candidate, planner: string): Answer {
  return answerIn(isExact ? leastMs : simulatedMs(problem, layouts), problem, planner, layouts);
}

function answerIn(roundMs: number, problem: Problem, planner: string, layouts: readonly StageLayout[]): Answer {
  const layout = layoutPlan(problem, planner, layouts);
  const samplesPerS = (layout.batchSize / roundMs) * 1000;
  const peakMemoryMiB: Record<string, number> = {};
  for (const { layers, devices, samples, inFlight, savedBytes } of layout.stages) {
    const demand = stageDemand(problem, ...layers, inFlight);
    for (const [index, name] of devices.entries()) {
      const kept = { ...demand, savedBytes: savedBytes?.[index] ?? demand.savedBytes };
      peakMemoryMiB[name] = stageMemoryBytes(kept, samples[index] ?? 0) / bytesInMiB;
    }
  }
  return { layout, layouts, problem, roundMs, predicted: { roundMs, samplesPerS, peakMemoryMiB } };
}

/** A device that a plan asks too much of. */
export interface Overload {
  readonly name: string;
  readonly neededMiB: number;
  readonly hasMiB: number;
}

/** The device of these stages that lacks the most memory by eq. 3; undefined when all fit. */
export function overloadOf(problem: Problem, stages: readonly StagePlan[]): Overload | undefined {
  let worst: Overload | undefined;
  for (const { layers, devices, samples, inFlight } of stages) {
    const demand = stageDemand(problem, ...layers, Math.min(inFlight, problem.microBatchCount));
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
