// The schedules: one row each. A plan names its schedule; whoever reads the plan looks the row up once (`scheduleOf`)
// and asks the row. Pure. generate.ts makes Programs of them, check.ts proves what comes out.

import { InputError } from '../errors.ts';
import type { Pass } from './program.ts';

/** How a stage runs its micro-batches. */
export interface Pace {
  /** Forwards before the first backward; in a stream, by how many micro-batches forwards are ahead of backwards. */
  readonly ahead: number;
  /** By how many micro-batches a weight gradient follows its input gradient; undefined if they are one backward. */
  readonly delay: number | undefined;
}

/** Of stage p of P with M micro-batches; never more than M, but where rounds overlap. */
type StageCount = (stage: number, stageCount: number, microBatchCount: number) => number;

export interface Schedule {
  readonly name: ScheduleName;
  /** `Pace.ahead`: the fewest micro-batches that a stage keeps without slowing the pipeline. */
  readonly forwardsAhead: StageCount;
  /**
   * K_p, the most micro-batches that a stage keeps: 2(P − p) − 1 for 1f1b, M for gpipe; for zb-h1 the 2P − 1 of stage
   * 0, of which a plan may give less, down to `forwardsAhead`; for async P − p.
   */
  readonly inFlight: StageCount;
  /**
   * Whether rounds overlap: the Program is the tick of a stream, with passes of several rounds, and staleness.ts says
   * which versions of the weights they read. Nobody chooses such a schedule that was not asked for it.
   */
  readonly isStream: boolean;
  /**
   * Where gradients come from: backward passes, or tangents of forward passes, whose derivatives all devices get; then
   * a group needs no AllReduce.
   */
  readonly gradients: 'backward' | 'tangent';
  /** Whether K_p is the schedule's alone; otherwise a plan may choose it. */
  readonly isInFlightFixed: boolean;
  /** Whether the backward pass is split into input and weight gradients. */
  readonly splitsBackward: boolean;
  /**
   * Whether the last micro-batch's weight gradients come in buckets of layers, the deepest first, each reduced over its
   * group while the next is computed.
   */
  readonly overlapsAllReduce: boolean;
  /**
   * Whether there is anything to train. Otherwise stages only run forward, nobody takes labels, rounds end without an
   * update, and the last stage gives its outputs to whoever has the data.
   */
  readonly trains: boolean;
  /** A stage's passes in one round or tick, in order: backwards in the order of the micro-batches. */
  readonly passes: (microBatchCount: number, pace: Pace) => Pass[];
}

/**
 * `ahead` forwards, then one backward and one forward in turn, then the remaining backwards; with `ahead` = M this is
 * GPipe. Backwards run in the order of the micro-batches, so that gradients are always summed in one order.
 *
 *     1F1B, 2 stages, M = 4, K = 3, 1          GPipe
 *     0 | F0 F1 F2 B0 F3 B1 B2 B3              0 | F0 F1 F2 F3 B0 B1 B2 B3
 *     1 | F0 B0 F1 B1 F2 B2 F3 B3              1 | F0 F1 F2 F3 B0 B1 B2 B3
 *
 * With a delay d, a backward is its input gradient I and, before the next forward, the weight gradient W of d
 * micro-batches ago.
 *
 *     ZB-H1, 2 stages, M = 4, K = 3, 3
 *     0 | F0 F1 F2 B0 F3 B1 B2 B3
 *     1 | F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
 */
function forwardsAndBackwards(microBatchCount: number, { ahead: wanted, delay }: Pace): Pass[] {
  const order: Pass[] = [];
  const ahead = Math.min(wanted, microBatchCount);
  for (let microBatch = 0; microBatch < ahead; microBatch++) order.push({ kind: 'forward', microBatch });
  for (let microBatch = 0; microBatch < microBatchCount; microBatch++) {
    order.push({ kind: delay === undefined ? 'backward' : 'backward-input', microBatch });
    if (delay !== undefined && microBatch >= delay)
      order.push({ kind: 'backward-weight', microBatch: microBatch - delay });
    if (microBatch + ahead < microBatchCount) order.push({ kind: 'forward', microBatch: microBatch + ahead });
  }
  for (let microBatch = Math.max(0, microBatchCount - (delay ?? 0)); microBatch < microBatchCount; microBatch++)
    order.push({ kind: 'backward-weight', microBatch });
  return order;
}

/**
 * PipeDream and FTPipeHD (§III-C): for each micro-batch g of the tick's round, the forward of g + `ahead`, then the
 * backward of g; forwards reach into the rounds that follow. Nobody waits for the pipeline to drain.
 *
 *     3 stages, M = 1              M = 4
 *     0 | F0+2 B0                  0 | F2 B0 F3 B1 F0+1 B2 F1+1 B3
 *     1 | F0+1 B0                  1 | F1 B0 F2 B1 F3 B2 F0+1 B3
 *     2 | F0 B0                    2 | F0 B0 F1 B1 F2 B2 F3 B3
 */
function forwardsIntoNextRounds(microBatchCount: number, { ahead }: Pace): Pass[] {
  return Array.from({ length: microBatchCount }, (_, microBatch): Pass[] => {
    const round = Math.floor((microBatch + ahead) / microBatchCount);
    const forward: Pass = { kind: 'forward', microBatch: (microBatch + ahead) % microBatchCount };
    return [round === 0 ? forward : { ...forward, round }, { kind: 'backward', microBatch }];
  }).flat();
}

const atMostAll =
  (count: (stage: number, stageCount: number) => number): StageCount =>
  (stage, stageCount, microBatchCount) =>
    Math.min(microBatchCount, count(stage, stageCount));

/** K_p = 2(P − p) − 1 keeps the pipeline busy with the least memory (Asteroid §3.2, eq. 3). */
const oneForwardOneBackward: Omit<Schedule, 'name'> = {
  forwardsAhead: atMostAll((stage, stageCount) => 2 * (stageCount - stage) - 1),
  inFlight: atMostAll((stage, stageCount) => 2 * (stageCount - stage) - 1),
  isStream: false,
  gradients: 'backward',
  isInFlightFixed: false,
  splitsBackward: false,
  overlapsAllReduce: false,
  trains: true,
  passes: forwardsAndBackwards,
};

const allForwardsFirst: Omit<Schedule, 'name'> = {
  ...oneForwardOneBackward,
  forwardsAhead: (_stage, _stageCount, microBatchCount) => microBatchCount,
  inFlight: (_stage, _stageCount, microBatchCount) => microBatchCount,
  isInFlightFixed: true,
};

/**
 * ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism": 1F1B with the backward split. A stage delays its weight
 * gradients for as long as it keeps no more micro-batches than the first stage does under 1F1B: the last input
 * gradient, and with it the way back through the pipeline, comes earlier, and weight gradients fill the bubble. The
 * first stage, which gives nobody a gradient, runs both as one.
 */
const zeroBubble: Omit<Schedule, 'name'> = {
  ...oneForwardOneBackward,
  inFlight: atMostAll((_stage, stageCount) => 2 * stageCount - 1),
  splitsBackward: true,
};

/**
 * PipeEdge: forwards, one after the other. Nothing is kept for a backward pass, and nothing orders the rounds but the
 * data: a stage begins the next while others compute the one before.
 *
 *     2 stages, M = 2
 *     0 | F0 F1
 *     1 | F0 =0 F1 =1
 */
const forwardsOnly: Omit<Schedule, 'name'> = {
  ...allForwardsFirst,
  trains: false,
  passes: (microBatchCount) =>
    Array.from({ length: microBatchCount }, (_, microBatch): Pass => ({ kind: 'forward', microBatch })),
};

/**
 * K_p = P − p: one micro-batch for each stage from here to the last keeps all of them busy, if nothing had to travel.
 * Where transfers take long, a plan may keep more, for more staleness.
 */
const asynchronous: Omit<Schedule, 'name'> = {
  ...oneForwardOneBackward,
  forwardsAhead: (stage, stageCount) => stageCount - stage - 1,
  inFlight: (stage, stageCount) => stageCount - stage,
  isStream: true,
  passes: forwardsIntoNextRounds,
};

/**
 * AsyncFGD §4: stage p runs the round that is `staleness` rounds ahead of that whose derivatives update it, P − 1 − p
 * unless the plan says otherwise; with 0 rounds follow each other (FGD). Nothing is kept.
 *
 *     3 stages, M = 1
 *     0 | T0+2 U
 *     1 | T0+1 U
 *     2 | T0 U
 */
const forwardGradient: Omit<Schedule, 'name'> = {
  ...oneForwardOneBackward,
  forwardsAhead: (stage, stageCount, microBatchCount) => microBatchCount * (stageCount - stage - 1),
  inFlight: () => 1,
  isStream: true,
  isInFlightFixed: true,
  gradients: 'tangent',
  passes: (microBatchCount, { ahead }) =>
    Array.from({ length: microBatchCount }, (_, microBatch) => {
      const round = ahead / microBatchCount;
      return { kind: 'tangent', microBatch, ...(round === 0 ? {} : { round }) };
    }),
};

/** The names of the schedules whose rounds follow each other: what planners choose from. */
export const scheduleNames = ['1f1b', 'gpipe', 'zb-h1', '1f1b-overlap', 'zb-h1-overlap'] as const;

/** The names of the schedules that train in rounds which overlap. */
export const streamScheduleNames = ['async', 'forward-gradient'] as const;

/** The schedule of a run by forward gradients. */
export const tangentSchedule = 'forward-gradient';

/** The schedule of a run that only infers. */
export const inferenceSchedule = 'inference';

export type ScheduleName =
  | (typeof scheduleNames)[number]
  | (typeof streamScheduleNames)[number]
  | typeof inferenceSchedule;

export const schedules: { readonly [Name in ScheduleName]: Schedule } = {
  '1f1b': { name: '1f1b', ...oneForwardOneBackward },
  gpipe: { name: 'gpipe', ...allForwardsFirst },
  'zb-h1': { name: 'zb-h1', ...zeroBubble },
  '1f1b-overlap': { name: '1f1b-overlap', ...oneForwardOneBackward, overlapsAllReduce: true },
  'zb-h1-overlap': { name: 'zb-h1-overlap', ...zeroBubble, overlapsAllReduce: true },
  async: { name: 'async', ...asynchronous },
  'forward-gradient': { name: 'forward-gradient', ...forwardGradient },
  inference: { name: 'inference', ...forwardsOnly },
};

/** The schedule of a name that came from a plan or a person. InputError for an unknown one. */
export function scheduleOf(name: string): Schedule {
  if (Object.hasOwn(schedules, name)) return schedules[name as ScheduleName];
  const names = [...scheduleNames, ...streamScheduleNames, inferenceSchedule];
  throw new InputError(`There is no schedule "${name}"; use one of ${names.join(', ')}.`);
}
