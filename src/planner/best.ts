// The default planner. Never worse than the planners it starts from, under the simulator; exact if branch and bound
// completes, in which case the plan's lower bound equals its round. Three parts: (1) every other planner's answer, and
// Algorithm 2 over other orders of the devices and without the slowest of them; (2) for small problems, every pipeline
// by branch and bound; (3) otherwise the best answers improved by local changes, also with other micro-batch sizes and
// schedules. Its work is limited by counts, so the same input has the same answer everywhere; a caller with a deadline
// says when the time is up (PlannerOptions) and gets the best plan so far, at least as good as that of the first
// planner, asteroid.

import { defined } from '../assert.ts';
import { InputError } from '../errors.ts';
import { type Schedule, type ScheduleName, schedules } from '../schedule/schedules.ts';
import { coarseGrids, coarseSearch } from './asteroid.ts';
import { type Budget, branchAndBound } from './branch-and-bound.ts';
import { pipelineCount } from './exhaustive.ts';
import { Improver } from './improve.ts';
import { refuse } from './infeasible.ts';
import { pipelineBoundMs } from './pipeline-bound.ts';
import { mayHaveStages, type Problem, type StageLayout, withMicroBatchSize } from './problem.ts';
import { type Answer, answerOf, type Planner, type PlannerOptions, type Question, recomputing } from './question.ts';
import { everySpace, wholeSpaces } from './spaces.ts';
import type { Steps } from './steps.ts';
import { candidateProblems } from './streams.ts';

/** Up to this many pipelines over all problems a question is small: branch and bound is then sure to complete. */
const smallCount = 3e8;
/** Work units of branch and bound, for small questions and for an attempt at others. */
const exactUnits = { small: 1e8, large: 3e5 };
/** Work units of local improvement, one for each device and micro-batch, in total and for one start. */
const improvementUnits = { all: 12e6, one: 1e6 };
const improvementDeviceCount = 64;
/** Work units spent on a lower bound if optimality is not proven. */
const boundUnits = 8e6;
/** Largest numbers of devices for a small question, for searching other orders, and for attempting a proof. */
const deviceLimits = { small: 10, orders: 24, proof: 6 };
/**
 * Local improvement ends in the optimum nearest to its start, so many different starts count for more than long
 * searches. `pool`: pipelines adapted to each problem; `first`: results improved, one for each problem, in the first
 * turn; `later`: turns at most.
 */
const startLimits = { pool: 20, first: 24, later: 12 };
const turnLimit = 4;
/** Factor by which a rough pipeline may exceed the best so far and still be improved. */
const roughSlack = 1.3;
/** Up to this many kinds of devices, every order of the kinds is tried. */
const orderedKindCount = 4;

/**
 * Schedules that are searched if the caller does not name one. An overlapping schedule is never longer than its
 * non-overlapping form, which is the case of one bucket.
 */
const searched: readonly Schedule[] = [schedules['1f1b-overlap'], schedules.gpipe, schedules['zb-h1-overlap']];

/** For each schedule, the simpler ones that need no more memory, the simplest first. */
const simplerSchedules: Readonly<Record<string, readonly ScheduleName[]>> = {
  '1f1b-overlap': ['1f1b'],
  'zb-h1-overlap': ['1f1b', 'zb-h1', '1f1b-overlap'],
};

interface State {
  readonly question: Question;
  readonly options: PlannerOptions;
  best: Answer | undefined;
  /** Everything found so far. */
  readonly pool: Answer[];
}

/** Starts from the answers of `others`; the first of them always runs to its end. */
export function* best(question: Question, options: PlannerOptions, others: readonly Planner[]): Steps<Answer> {
  const state: State = { question, options, best: undefined, pool: [] };
  const problems = candidateProblems(recomputing(question), searched);
  const isSmall =
    question.base.available.length <= deviceLimits.small &&
    problems.reduce((sum, { problem }) => sum + pipelineCount(problem), 0) <= smallCount;
  yield* askOthers(state, others);
  if (!isSmall) {
    yield* inTime(state, tryOrders(state, problems));
    yield* inTime(
      state,
      improveAll(
        state,
        problems.map(({ problem }) => problem),
      ),
    );
  }
  const isOptimal = yield* inTime(
    state,
    prove(state, problems, { left: isSmall ? exactUnits.small : exactUnits.large }),
  );
  if (state.best === undefined) return refuse(recomputing(question), everySpace);
  const found = withSimplestSchedule(state.best, question);
  if (isOptimal === true) return { ...found, isOptimal };
  const boundMs = yield* inTime(
    state,
    pipelineBoundMs(problems, problems[0]?.boundMs ?? 0, found.roundMs, { left: boundUnits }),
  );
  return boundMs === undefined ? found : { ...found, boundMs };
}

/** Runs the steps until the time is up, but at least until there is a plan. */
function* inTime<Result>(state: State, steps: Steps<Result>): Steps<Result | undefined> {
  while (state.best === undefined || state.options.isTimeUp?.() !== true) {
    const step = steps.next();
    if (step.done === true) return step.value;
    yield step.value;
  }
  return undefined;
}

/**
 * The same stages with a simpler schedule if that takes no longer: one device has nothing to reduce, and a short
 * pipeline may have nothing to delay.
 */
function withSimplestSchedule(found: Answer, { schedule, planner }: Question): Answer {
  const { layouts, problem, roundMs } = found;
  if (schedule !== undefined || layouts === undefined) return found;
  for (const name of simplerSchedules[problem.schedule.name] ?? []) {
    const other = answerOf(withMicroBatchSize(problem, problem.microBatchSize, schedules[name]), planner, layouts);
    if (other.roundMs <= roundMs) return other;
  }
  return found;
}

function offer(state: State, answer: Answer): void {
  state.pool.push(answer);
  if (state.best !== undefined && answer.roundMs >= state.best.roundMs) return;
  state.best = answer;
  state.options.report?.(answer);
}

function* askOthers(state: State, others: readonly Planner[]): Steps<void> {
  for (const planner of others) {
    try {
      yield* inTime(state, planner(state.question, { report: (answer) => offer(state, answer) }));
    } catch (error) {
      if (!(error instanceof InputError)) throw error; // this planner has no plan
    }
  }
}

/**
 * Algorithm 2 on a coarse grid of layers, for other orders and every micro-batch size; with the shortest round so far
 * as the bar, most searches end at once.
 */
function* tryOrders(state: State, problems: readonly { readonly problem: Problem }[]): Steps<void> {
  const { base, planner } = state.question;
  if (base.available.length > deviceLimits.orders || base.pins.size > 0) return;
  const orders = ordersOf(base);
  for (const size of new Set(problems.map(({ problem }) => problem.microBatchSize))) {
    const { problem } = defined(
      problems.find((each) => each.problem.microBatchSize === size),
      `micro-batches of ${size}`,
    );
    for (const cuts of coarseGrids(problem)) {
      for (const order of orders) {
        for (const space of [order, ...shorter(problem, order)].flatMap((each) => wholeSpaces(problem, each))) {
          const barMs = (state.best?.roundMs ?? Number.POSITIVE_INFINITY) * roughSlack;
          const found = yield* coarseSearch(problem, space, barMs, cuts);
          if (found !== undefined) offer(state, answerOf(problem, planner, found.layouts));
        }
      }
    }
  }
}

/** The first devices of an order: as many as there may be stages, where that is fewer. */
function shorter(problem: Problem, order: readonly number[]): readonly (readonly number[])[] {
  const most = order.findLastIndex((_, index) => mayHaveStages(problem, index + 1)) + 1;
  return most > 1 && most < order.length ? [order.slice(0, most)] : [];
}

/**
 * Orders of the devices to try: by memory and by speed, ascending and descending; the cluster's; along the fastest
 * links; without the slowest devices; and kind by kind in every order. Orders that differ only in identical devices
 * appear once.
 */
export function ordersOf({ available, classes, profile, table }: Problem): number[][] {
  const speed = available.map(({ classIndex }) => -(classes[classIndex]?.forward[0]?.[profile.layers.length] ?? 0));
  const indices = available.map((_, index) => index);
  const sorted = (key: (index: number) => number): number[] => [...indices].sort((a, b) => key(b) - key(a) || a - b);
  const byMemory = sorted((index) => available[index]?.memoryBytes ?? 0);
  const bySpeed = sorted((index) => speed[index] ?? 0);
  const place = (index: number): number => available[index]?.place ?? 0;
  const chain = [bySpeed[0] ?? 0];
  while (chain.length < indices.length) {
    const from = place(chain.at(-1) ?? 0);
    const left = indices.filter((index) => !chain.includes(index));
    chain.push(
      left.reduce((next, index) =>
        table.bandwidthMbps(from, place(index)) > table.bandwidthMbps(from, place(next)) ? index : next,
      ),
    );
  }
  const orders = [bySpeed, [...bySpeed].reverse(), [...byMemory].reverse(), indices, chain, [...chain].reverse()];
  for (let without = 1; without <= Math.min(3, indices.length - 1); without++) {
    const slowest = bySpeed.slice(-without);
    orders.push(
      byMemory.filter((index) => !slowest.includes(index)),
      chain.filter((index) => !slowest.includes(index)),
    );
  }
  const likeness = (index: number): string =>
    table.isUniform ? `${available[index]?.classIndex} ${available[index]?.memoryBytes}` : String(index);
  const kinds = [...new Set(indices.map(likeness))];
  if (kinds.length <= orderedKindCount)
    for (const order of permutations(kinds))
      orders.push(order.flatMap((kind) => indices.filter((index) => likeness(index) === kind)));
  return firstOfEach(orders, (order) => order.map(likeness).join()).map((order) => order.map(place));
}

export function permutations<Each>(all: readonly Each[]): Each[][] {
  if (all.length === 0) return [[]];
  return all.flatMap((first, index) => permutations(all.toSpliced(index, 1)).map((rest) => [first, ...rest]));
}

/**
 * Improves the best pipelines of the pool, and their adaptations to other micro-batch sizes and schedules, as long as
 * that helps.
 */
function* improveAll(state: State, problems: readonly Problem[]): Steps<void> {
  const { planner, base } = state.question;
  const improvers = new Map(problems.map((problem) => [keyOf(problem), { problem, improver: new Improver(problem) }]));
  const done = new Set<string>();
  const scale = Math.max(1, base.available.length / improvementDeviceCount) ** 2;
  const budget = { left: scale * improvementUnits.all };
  for (let turn = 0; turn < turnLimit; turn++) {
    const before = state.best?.roundMs;
    const starts: { layouts: readonly StageLayout[]; roundMs: number; key: string }[] = [];
    for (const answer of bestOf(state.pool)) {
      for (const [key, { improver }] of improvers) {
        yield 0;
        const adapted =
          key === keyOf(answer.problem)
            ? { layouts: answer.layouts ?? [], roundMs: answer.roundMs }
            : improver.adapt(answer.layouts ?? []);
        if (adapted !== undefined) starts.push({ ...adapted, key });
      }
    }
    starts.sort((a, b) => a.roundMs - b.roundMs);
    const fresh = starts.filter(({ key, layouts }) => !done.has(key + JSON.stringify(layouts)));
    for (const { key, ...start } of turn === 0
      ? firstOfEach(fresh, ({ key }) => key).slice(0, startLimits.first)
      : fresh.slice(0, startLimits.later)) {
      if (budget.left <= 0) return;
      done.add(key + JSON.stringify(start.layouts));
      const { problem, improver } = improvers.get(key) as { problem: Problem; improver: Improver };
      const allowed = Math.min(budget.left, scale * improvementUnits.one);
      const own = { left: allowed };
      const improved = yield* improver.improve(start, own);
      budget.left -= allowed - own.left;
      done.add(key + JSON.stringify(improved.layouts));
      offer(state, answerOf(problem, planner, improved.layouts));
    }
    if (fresh.length === 0 || (turn > 0 && state.best?.roundMs === before)) return;
  }
}

/** The best answers with distinct stages; orders and planners often find the same ones. */
function bestOf(pool: readonly Answer[]): Answer[] {
  const sorted = pool.filter(({ layouts }) => layouts !== undefined).sort((a, b) => a.roundMs - b.roundMs);
  const stages = ({ layouts }: Answer): string =>
    JSON.stringify(layouts?.map(({ layers, devices }) => [layers, devices]));
  return firstOfEach(sorted, stages).slice(0, startLimits.pool);
}

function firstOfEach<Each>(all: readonly Each[], keyOf: (each: Each) => string): Each[] {
  const seen = new Set<string>();
  return all.filter((each) => !seen.has(keyOf(each)) && seen.add(keyOf(each)));
}

function keyOf({ microBatchSize, microBatchCount, schedule }: Problem): string {
  return `${schedule.name} ${schedule.inFlight(0, 2, microBatchCount)} ${microBatchSize} `;
}

/** Branch and bound over all problems. True if no better plan exists. */
function* prove(
  state: State,
  problems: readonly { readonly problem: Problem; readonly boundMs: number }[],
  budget: Budget,
): Steps<boolean> {
  if (state.question.base.available.length > deviceLimits.proof) return false;
  for (const { problem, boundMs } of problems) {
    const barMs = state.best?.roundMs ?? Number.POSITIVE_INFINITY;
    if (boundMs >= barMs) return true;
    const { layouts, isComplete } = yield* branchAndBound(problem, barMs, budget);
    if (layouts !== undefined) offer(state, answerOf(problem, state.question.planner, layouts));
    if (!isComplete) return false;
  }
  return true;
}
