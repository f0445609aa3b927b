// Plans of inference. PipeEdge's planner as it is published, the baselines, and `best`: stages with replicas, devices
// left out, the micro-batch size, for the throughput of many samples or the latency of a request. Exact where every
// pipeline can be tried; else never worse than the others, with a lower bound. Pure and deterministic.

import type { Cluster, Plan, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { bytesInMiB } from '../../cluster/memory.ts';
import { parseCluster, parseProfile } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { inferenceSchedule } from '../../schedule/schedules.ts';
import { ordersOf, permutations } from '../best.ts';
import { createBounds } from '../bounds.ts';
import { settleConstraints } from '../constraints.ts';
import { everyPipeline, pipelineCount } from '../exhaustive.ts';
import { pipeedge } from '../pipeedge.ts';
import { settleMicroBatchSizes } from '../plan.ts';
import type { StageLayout } from '../problem.ts';
import type { Steps } from '../steps.ts';
import { isBetter, type Objective, type Rated, rate, slowestMs } from './evaluate.ts';
import { improve } from './improve.ts';
import {
  fits,
  type InferenceInput,
  type InferenceProblem,
  inferenceBytes,
  inferenceProblem,
  leastBytes,
  memoryBytes,
} from './problem.ts';
import { evenShares, searchOrder } from './search.ts';

/** Micro-batches that are tried: larger ones only add to the latency. */
const microBatchLimit = 64;
/** Up to this many pipelines of all micro-batch sizes together, `best` tries every one. */
const everyLimit = 20_000;
/** The largest number of pipelines that `exhaustive` tries. */
const exhaustiveLimit = 2e6;
/** Sets of devices up to which PipeEdge's categories are exact: those of its Table IV all are. */
const categoryLimit = 20_000;
/** Up to this many devices, every order is tried. */
const permutedCount = 4;
/** By how much a pipeline of another micro-batch size may be better than one that is worth improving. */
const barSlack = 1.1;
/** Pipelines that are improved for each micro-batch size, the best first. */
const improvedCount = 3;

export interface InferencePlanInput extends Omit<InferenceInput, 'microBatchSize' | 'excluded'> {
  /** Samples of a round. */
  readonly batchSize: number;
  /** Must divide batchSize. If absent, every divisor up to 64 is tried. */
  readonly microBatchSize?: number;
  /** See inferencePlannerNames. */
  readonly planner: string;
  readonly objective: Objective;
  /** Senders choose the activations' bits; `encoding` is what is counted with. Default false. */
  readonly isAdaptive?: boolean;
  /** Names of devices that get no layers. */
  readonly exclude?: readonly string[];
  /** Asked between the steps of `best`; when true, the search ends with the best plan so far, if there is one. */
  readonly isTimeUp?: () => boolean;
  readonly onBetter?: (plan: Plan) => void;
}

/** The pipelines of one micro-batch size that a planner proposes; those that do not fit are passed over. */
type Proposals = (problem: InferenceProblem, objective: Objective, best: () => Rated | undefined) => Steps<Rated[]>;

const proposals: Readonly<Record<string, Proposals>> = {
  /** PipeEdge, Algorithm 1 with categories of devices. */
  pipeedge: function* (problem) {
    const layouts = yield* pipeedge(categoryLimit)(problem.base);
    return layouts.length === 0 ? [] : [rate(problem, layouts)];
  },
  /** As many layers on each device, in the cluster's order: GPipe as PipeEdge compares with it. */
  even: function* (problem) {
    yield 1;
    const places = problem.base.available.map(({ place }) => place);
    return [rate(problem, evenStages(problem, places))];
  },
  /** The fastest single device. */
  single: function* (problem) {
    yield 1;
    const stages = problem.base.available.flatMap(({ place }) => oneStage(problem, [place]) ?? []);
    return stages.map((stage) => rate(problem, [stage]));
  },
  /** Every device has the whole model. */
  dp: function* (problem) {
    yield 1;
    const layouts = oneStage(
      problem,
      problem.base.available.map(({ place }) => place),
    );
    return layouts === undefined ? [] : [rate(problem, layouts)];
  },
  exhaustive: function* (problem, objective) {
    yield 1;
    let best: Rated | undefined;
    for (const layouts of everyPipeline(problem.base)) {
      if (!fits(problem, layouts)) continue;
      const found = rate(problem, layouts);
      if (isBetter(found, best, objective)) best = found;
    }
    return best === undefined ? [] : [best];
  },
  best: proposeBest,
};

/** The names of the planners of inference. */
export const inferencePlannerNames: readonly string[] = Object.keys(proposals);

/** Planners whose pipelines `best` starts from. */
const startsFrom = ['pipeedge', 'even', 'single', 'dp'] as const;

function* proposeBest(problem: InferenceProblem, objective: Objective, best: () => Rated | undefined): Steps<Rated[]> {
  const found: Rated[] = [];
  for (const name of startsFrom) found.push(...(yield* (proposals[name] as Proposals)(problem, objective, best)));
  const feasible = (): Rated[] => found.filter(({ layouts }) => layouts.length > 0 && fits(problem, layouts));
  const deviceCount = problem.base.available.length;
  const isSmall = deviceCount <= 6;
  const limits = { groupLimit: isSmall ? deviceCount : 4, skipLimit: isSmall ? deviceCount : 2 };
  const places = problem.base.available.map(({ place }) => place);
  const orders = places.length <= permutedCount ? permutations(places) : ordersOf(problem.base);
  for (const [index, order] of orders.entries()) {
    yield index / orders.length;
    const own = feasible().map((rated) => barOf(rated, problem, objective));
    const least = Math.min(barOf(best(), problem, objective) * barSlack, ...own);
    const layouts = searchOrder(problem, order, objective, limits, least);
    if (layouts !== undefined) found.push(rate(problem, layouts));
  }
  const starts = feasible()
    .sort((a, b) => (isBetter(a, b, objective) ? -1 : 1))
    .slice(0, improvedCount);
  for (const start of starts) {
    yield 1;
    found.push(improve(start, objective));
  }
  return found;
}

/** What a pipeline of this problem must stay below to be worth knowing. */
function barOf(rated: Rated | undefined, { microBatchSize }: InferenceProblem, objective: Objective): number {
  if (rated === undefined) return Number.POSITIVE_INFINITY;
  if (objective === 'latency') return rated.latencyMs;
  return (rated.periodMs / rated.problem.microBatchSize) * microBatchSize;
}

function oneStage(problem: InferenceProblem, places: readonly number[]): readonly StageLayout[] | undefined {
  const samples = evenShares(problem, places);
  const layers = [0, problem.base.profile.layers.length] as const;
  return samples === undefined ? undefined : [{ layers, devices: places, samples }];
}

/** As many layers on each of the devices; with fewer layers than devices, on the first ones. */
export function evenStages(
  { base, microBatchSize }: InferenceProblem,
  places: readonly number[],
): readonly StageLayout[] {
  const layerCount = base.profile.layers.length;
  const count = Math.min(places.length, layerCount);
  return places.slice(0, count).map((place, index) => ({
    layers: [Math.round((index * layerCount) / count), Math.round(((index + 1) * layerCount) / count)],
    devices: [place],
    samples: [microBatchSize],
  }));
}

/**
 * The planner's plan. `predicted.roundMs` is a round's in the steady state, `latencyMs` a micro-batch's alone in the
 * pipeline; their bounds hold for every plan of these micro-batch sizes. Throws InputError, one sentence, for an
 * unknown planner and if nothing fits.
 */
export function* planInferenceSteps(input: InferencePlanInput): Steps<Plan> {
  const { planner, objective, batchSize, isTimeUp, onBetter } = input;
  const profile = parseProfile(input.profile);
  const cluster = parseCluster(input.cluster);
  const { excluded } = settleConstraints(input, profile, cluster);
  const microBatchSizes = settleMicroBatchSizes(batchSize, input.microBatchSize).filter(
    (size) => size <= microBatchLimit || size === input.microBatchSize,
  );
  const chosen = Object.hasOwn(proposals, planner) ? proposals[planner] : undefined;
  if (chosen === undefined)
    throw new InputError(
      `There is no planner "${planner}" of inference; use one of ${inferencePlannerNames.join(', ')}.`,
    );
  const problems = microBatchSizes.map((microBatchSize) =>
    inferenceProblem({ ...input, profile, cluster, excluded, microBatchSize }),
  );
  const count = problems.reduce((sum, { base }) => sum + pipelineCount(base), 0);
  if (planner === 'exhaustive' && count > exhaustiveLimit)
    throw new InputError(
      `Planner "exhaustive" would have to try ${count.toExponential(1)} plans, and tries ` +
        `${exhaustiveLimit.toExponential(0)} at most; use planner best, or fewer devices, layers or samples.`,
    );
  const isExact = planner === 'exhaustive' || (planner === 'best' && count <= everyLimit);
  const propose = isExact ? (proposals['exhaustive'] as Proposals) : chosen;
  let best: Rated | undefined;
  const finished = (rated: Rated, isOptimal: boolean): Plan => planOf(input, rated, boundsOf(problems), isOptimal);
  for (const problem of problems) {
    if (best !== undefined && isTimeUp?.() === true) break;
    for (const rated of yield* propose(problem, objective, () => best)) {
      if (rated.layouts.length === 0 || !fits(problem, rated.layouts) || !isBetter(rated, best, objective)) continue;
      best = rated;
      onBetter?.(finished(rated, false));
    }
  }
  if (best === undefined) return refuse(problems[0] as InferenceProblem, planner);
  return finished(best, isExact);
}

/** The plan with what it achieves on this cluster. Its devices all have samples. */
export function predictedInference(plan: PlanLayout, profile: Profile, cluster: Cluster): Plan {
  const { batchSize, microBatchSize, planner, compression } = plan;
  const encoding = compression?.activation;
  const problem = inferenceProblem({ profile, cluster, microBatchSize, encoding });
  const layouts = plan.stages.map(({ layers, devices, samples }) => ({
    ...{ layers, samples },
    devices: devices.map((name) => problem.base.table.deviceIndex(name)),
  }));
  const asked = { planner, batchSize, encoding, objective: 'throughput' } as const;
  return planOf(asked, rate(problem, layouts), boundsOf([problem]), false);
}

/** planInferenceSteps to its end, on the calling thread. */
export function planInference(input: InferencePlanInput): Plan {
  const steps = planInferenceSteps(input);
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

interface Bounds {
  /** Milliseconds a sample in the steady state: no plan has less. */
  readonly sampleMs: number;
  /** Milliseconds of a micro-batch alone in a pipeline. */
  readonly latencyMs: number;
}

/** All devices share all layers in any fractions, links take no time; a request has as many devices as samples. */
function boundsOf(problems: readonly InferenceProblem[]): Bounds {
  const bounds = problems.map(({ base, microBatchSize }): Bounds => {
    const { speeds, busiestMs } = createBounds(base);
    const own = base.available.map(({ classIndex }) => speeds[classIndex] ?? 0).sort((a, b) => b - a);
    const total = (some: readonly number[]): number => some.reduce((sum, speed) => sum + speed, 0);
    const ms = (speed: number): number => busiestMs(0, base.profile.layers.length, speed);
    return { sampleMs: ms(total(own)) / microBatchSize, latencyMs: ms(total(own.slice(0, microBatchSize))) };
  });
  return {
    sampleMs: Math.min(...bounds.map(({ sampleMs }) => sampleMs)),
    latencyMs: Math.min(...bounds.map(({ latencyMs }) => latencyMs)),
  };
}

function planOf(
  {
    planner,
    batchSize,
    objective,
    encoding,
    isAdaptive = false,
  }: Pick<InferencePlanInput, 'planner' | 'batchSize' | 'objective' | 'encoding' | 'isAdaptive'>,
  { problem, layouts, periodMs, latencyMs }: Rated,
  bounds: Bounds,
  isOptimal: boolean,
): Plan {
  const { microBatchSize, base } = problem;
  const microBatchCount = batchSize / microBatchSize;
  const roundMs = periodMs * microBatchCount;
  const peakMemoryMiB: Record<string, number> = {};
  for (const { layers, devices, samples } of layouts)
    for (const [index, place] of devices.entries())
      peakMemoryMiB[base.devices[place]?.name ?? ''] =
        inferenceBytes(problem, layers, samples[index] ?? 0, memoryBytes(problem, place)) / bytesInMiB;
  const stages = layouts.map(({ layers, devices, samples }) => ({
    layers,
    devices: devices.map((place) => base.devices[place]?.name ?? ''),
    samples,
    inFlight: microBatchCount,
  }));
  const isCompressed = encoding !== undefined && stages.length > 1;
  const layout: PlanLayout = {
    ...{ planner, schedule: inferenceSchedule, batchSize, microBatchSize, microBatchCount, stages },
    ...(isCompressed
      ? {
          compression: {
            activation: encoding,
            ...(isAdaptive ? { adaptive: { paceMs: slowestMs(problem, layouts) } } : {}),
          },
        }
      : {}),
  };
  const isFor = (other: Objective): boolean => isOptimal && objective === other;
  return {
    ...layout,
    predicted: {
      roundMs,
      samplesPerS: (batchSize / roundMs) * 1000,
      lowerBoundMs: isFor('throughput') ? roundMs : bounds.sampleMs * batchSize,
      latencyMs,
      latencyBoundMs: isFor('latency') ? latencyMs : bounds.latencyMs,
      peakMemoryMiB,
    },
  };
}

/** What the most roomy devices lack, if even a layer each does not fit. */
function refuse(problem: InferenceProblem, planner: string): never {
  const { base } = problem;
  const needed = (layer: number): number => leastBytes(problem, [layer, layer + 1], 1) / bytesInMiB;
  const wholeMiB = leastBytes(problem, [0, base.profile.layers.length], 1) / bytesInMiB;
  const largest = Math.max(...base.profile.layers.map((_, layer) => needed(layer)));
  const haveMiB = base.available.map(({ memoryBytes: bytes }) => bytes / bytesInMiB);
  throw new InputError(
    `Planner "${planner}" finds no way to hold the model: its stages together need ${Math.ceil(wholeMiB)} MiB, its ` +
      `largest layer ${Math.ceil(largest)} MiB, and the devices have ${haveMiB.map(Math.floor).join(', ')} MiB; add ` +
      'devices or memory, or take planner best.',
  );
}
