// The table of planners: name → function from a question to an answer. `plan` (plan.ts) is the entry point.

import { InputError } from '../errors.ts';
import { type ScheduleName, scheduleNames, schedules } from '../schedule/schedules.ts';
import { roughSearch, search } from './asteroid.ts';
import { dapple, gpipe, type Layouts, pipedream } from './baselines.ts';
import { best } from './best.ts';
import { fastestOfEvery, pipelineCount } from './exhaustive.ts';
import { ftpipehd } from './ftpipehd.ts';
import { hugeDeviceCount } from './grid.ts';
import { hetpipe } from './hetpipe.ts';
import { explainOverload, refuse } from './infeasible.ts';
import { layoutPlan } from './layout.ts';
import { pipeedge } from './pipeedge.ts';
import { mayHaveStages, type Problem } from './problem.ts';
import {
  type Answer,
  answerOf,
  answerOfCandidate,
  type Candidate,
  candidateBelow,
  type Overload,
  overloadOf,
  type Planner,
  type PlannerOptions,
  problemsOf,
  type Question,
  recomputing,
} from './question.ts';
import type { Found, Space } from './space.ts';
import { asteroidSpaces, dataParallelSpaces, everySpace, type Spaces, singleSpaces, straightSpaces } from './spaces.ts';
import type { Steps } from './steps.ts';
import { candidateProblems } from './streams.ts';

/** The largest number of plans that `exhaustive` tries. */
const exhaustiveLimit = 2e6;
/** Factor by which a rough plan may exceed the best one for its micro-batch size to be searched early. */
const earlySlack = 1.3;

export const planners: Readonly<Record<string, Planner>> = {
  /**
   * The default: under the simulator never worse than any other planner; exact if it can prove optimality. Skips
   * pipedream in huge clusters, which would take minutes.
   */
  best: (question, options) => {
    const isHuge = question.base.available.length >= hugeDeviceCount;
    return best(question, options, bestStartsFrom.filter((name) => !isHuge || name !== 'pipedream').map(plannerOf));
  },
  /** The paper: Algorithms 1 and 2. The micro-batch size is the best by the paper's formula (eq. 4). */
  asteroid,
  /** The fastest single device that fits. */
  single: bySearch(singleSpaces),
  /** Data parallelism over all devices, shares by Algorithm 1 (EDDL). */
  dp: bySearch(dataParallelSpaces),
  /**
   * A pipeline of single devices in the cluster's order, each with at least one layer, by eq. 4 (with fewer layers than
   * devices: the first ones).
   */
  straight: bySearch(straightSpaces),
  gpipe: byLayouts(() => gpipe, 'gpipe', { isStraight: true }),
  pipedream: byLayouts(() => pipedream, '1f1b'),
  dapple: byLayouts(() => dapple, '1f1b'),
  hetpipe: virtualWorkers,
  pipeedge: byLayouts(pipeedge, '1f1b', { isStraight: true }),
  ftpipehd: byLayouts(() => ftpipehd, '1f1b', { isStraight: true }),
  /** The oracle, for small problems. */
  exhaustive,
};

/** The names of the planners. */
export const plannerNames: readonly string[] = Object.keys(planners);

/** Planners that `best` starts from: all whose plans are Programs, except the oracle. */
const bestStartsFrom: readonly string[] = [
  'asteroid',
  'single',
  'dp',
  'gpipe',
  'straight',
  'pipeedge',
  'ftpipehd',
  'pipedream',
  'dapple',
];

/** The planner of that name; throws InputError listing the names if there is none. */
export function plannerOf(name: string): Planner {
  if (Object.hasOwn(planners, name)) return planners[name] as Planner;
  throw new InputError(`There is no planner "${name}"; use one of ${plannerNames.join(', ')}.`);
}

/** A planner that runs one search for each micro-batch size and space; the simulator chooses. */
function bySearch(spaces: Spaces): Planner {
  return function* (question, options) {
    let found: Answer | undefined;
    const problems = problemsOf(question, [schedules['1f1b']]);
    for (const { problem, boundMs } of problems) {
      // Sorted by bound: nothing after this can be better.
      if (found !== undefined && boundMs >= found.roundMs) break;
      for (const space of spaces(problem)) {
        const pipeline = yield* search(problem, space);
        if (pipeline !== undefined && mayHaveStages(problem, pipeline.layouts.length))
          found = better(found, answerOf(problem, question.planner, pipeline.layouts), options);
      }
    }
    return found ?? refuse(question, spaces);
  };
}

/**
 * The paper's planner, for every micro-batch size. A rough search first finds the most promising size, which is
 * searched first; with its round as the bar most other searches end at once.
 */
function* asteroid(question: Question, options: PlannerOptions): Steps<Answer> {
  let found: { problem: Problem; layouts: Answer['layouts'] } | undefined;
  let barMs = Number.POSITIVE_INFINITY;
  const searches: { problem: Problem; boundMs: number; space: Space; rough: Found | undefined }[] = [];
  let roughMs = Number.POSITIVE_INFINITY;
  for (const { problem, boundMs } of problemsOf(question, [schedules['1f1b']])) {
    for (const space of asteroidSpaces(problem)) {
      const rough = boundMs >= roughMs ? undefined : yield* roughSearch(problem, space, roughMs * earlySlack);
      roughMs = Math.min(roughMs, rough?.roundMs ?? roughMs);
      searches.push({ problem, boundMs, space, rough });
    }
  }
  const order = [...searches].sort(
    (a, b) => (a.rough?.roundMs ?? Number.MAX_VALUE) - (b.rough?.roundMs ?? Number.MAX_VALUE),
  );
  for (const { problem, boundMs, space, rough } of order) {
    if (boundMs >= barMs) continue;
    const pipeline = yield* search(problem, space, barMs, rough);
    if (pipeline === undefined || pipeline.roundMs >= barMs) continue;
    found = { problem, layouts: pipeline.layouts };
    barMs = pipeline.roundMs;
  }
  if (found?.layouts === undefined) return refuse(question, asteroidSpaces);
  return better(undefined, answerOf(found.problem, question.planner, found.layouts), options);
}

/**
 * A planner with one plan for each micro-batch size, with its own schedule unless another is given; the simulator
 * chooses among the plans that fit.
 */
function byLayouts(
  planner: () => Layouts,
  schedule: ScheduleName,
  kind: { readonly isStraight?: boolean } = {},
): Planner {
  return function* (question, options) {
    if (question.base.pins.size > 0)
      throw new InputError(
        `Planner "${question.planner}" takes no pins; use planner best or asteroid, or leave the pins out.`,
      );
    let nearest: (Overload & { readonly microBatchSize: number }) | undefined;
    const layoutsOf = planner();
    const problems = problemsOf(question, [schedules[schedule]], kind);
    const candidates: Candidate[] = [];
    let found: Answer | undefined;
    // The shortest known round.
    let barMs = Number.POSITIVE_INFINITY;
    for (const { problem, boundMs } of problems) {
      if (boundMs >= barMs) break;
      const layouts = yield* layoutsOf(problem);
      if (layouts.length === 0 || !mayHaveStages(problem, layouts.length)) continue;
      const overload = overloadOf(problem, layoutPlan(problem, question.planner, layouts).stages);
      if (overload === undefined && problems.length === 1)
        found = better(found, answerOf(problem, question.planner, layouts), options);
      else if (overload === undefined) {
        const candidate = candidateBelow(barMs, problem, layouts);
        if (candidate === undefined) continue;
        candidates.push(candidate);
        if (candidate.isExact) barMs = candidate.leastMs;
      } else if (nearest === undefined || overload.neededMiB - overload.hasMiB < nearest.neededMiB - nearest.hasMiB)
        nearest = { ...overload, microBatchSize: problem.microBatchSize };
    }
    // Simulates the candidates that may still be the fastest, the most promising first.
    for (const candidate of candidates.sort((a, b) => a.leastMs - b.leastMs)) {
      if (found !== undefined && candidate.leastMs >= found.roundMs) break;
      found = better(found, answerOfCandidate(candidate, question.planner), options);
      yield 1;
    }
    return found ?? (nearest === undefined ? refuse(question, singleSpaces) : explainOverload(question, nearest));
  };
}

function* virtualWorkers(question: Question, options: PlannerOptions): Steps<Answer> {
  if (question.base.pins.size > 0)
    throw new InputError(
      `Planner "${question.planner}" takes no pins; use planner best or asteroid, or leave the pins out.`,
    );
  let found: Answer | undefined;
  for (const { problem, boundMs } of problemsOf({ ...question, schedule: schedules['1f1b'] }, [])) {
    if (found !== undefined && boundMs >= found.roundMs) break;
    const answer = yield* hetpipe(problem);
    if (answer !== undefined) found = better(found, answer, options);
  }
  return found ?? refuse(question, straightSpaces);
}

function* exhaustive(asked: Question, options: PlannerOptions): Steps<Answer> {
  const question = recomputing(asked);
  const every = scheduleNames.map((name) => schedules[name]);
  const problems = candidateProblems(question, every);
  const count = problems.reduce((sum, { problem }) => sum + pipelineCount(problem), 0);
  if (count > exhaustiveLimit)
    throw new InputError(
      `Planner "exhaustive" would have to try ${count.toExponential(1)} plans, and tries ` +
        `${exhaustiveLimit.toExponential(0)} at most; use planner best, or fewer devices, layers or samples.`,
    );
  let found: Answer | undefined;
  for (const [index, { problem }] of problems.entries()) {
    yield index / problems.length;
    const fastest = fastestOfEvery(problem);
    if (fastest !== undefined) found = better(found, answerOf(problem, question.planner, fastest.layouts), options);
  }
  return found === undefined ? refuse(question, everySpace) : { ...found, isOptimal: true };
}

function better(found: Answer | undefined, answer: Answer, { report }: PlannerOptions): Answer {
  if (found !== undefined && found.roundMs <= answer.roundMs) return found;
  report?.(answer);
  return answer;
}
