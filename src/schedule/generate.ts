// Plan -> Program for the schedules in the table below. Pure. A new schedule is a new row in `schedules`; check.ts
// proves what comes out.
//
//   1f1b, 2 stages, 4 micro-batches          gpipe, the same
//   0 | F0 F1 F2 B0 F3 B1 B2 B3              0 | F0 F1 F2 F3 B0 B1 B2 B3
//   1 | F0 B0 F1 B1 F2 B2 F3 B3              1 | F0 F1 F2 F3 B0 B1 B2 B3
//
// zb-h1 (Qi et al., "Zero Bubble Pipeline Parallelism", ZB-H1) is 1f1b with the backward cut in two: I gives the input
// gradient, which goes on at once, W the weight gradient, which can wait. Each stage puts its W off for as long as it
// keeps no more micro-batches than stage 0 does under 1f1b, so that the last I, and with it the way back through the
// pipeline, comes earlier, and W fills what was idle. The first stage, which owes nobody a gradient, runs both as one.
//
//   zb-h1, 2 stages, 4 micro-batches, K = 3, 3
//   0 | F0 F1 F2 B0 F3 B1 B2 B3
//   1 | F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
//
// The schedules NAME-overlap are NAME with the last micro-batch's weight gradients computed in buckets of layers, the
// deepest first, each reduced over its group beside what is computed next.
//
// All run the backwards in the order of the micro-batches, so that gradients are always summed in the same order.

import { assert } from '../assert.ts';
import type { PlanLayout } from '../cluster/cluster.ts';
import type { CutEncoding, Encoding } from '../cluster/compression.ts';
import { InputError } from '../errors.ts';
import type { DeviceProgram, Instruction, LayerRange, Program, SampleRange } from './program.ts';

/** A computation of one micro-batch. */
export interface Computation {
  readonly kind: 'forward' | 'backward' | 'backward-input' | 'backward-weight';
  readonly microBatch: number;
}

/** Of stage p of P with M micro-batches. */
type StageCount = (stage: number, stageCount: number, microBatchCount: number) => number;

interface Schedule {
  /** Forwards before the first backward, before the cap by M. */
  readonly ahead: StageCount;
  /** K_p, the most micro-batches that it keeps, before the cap by M. */
  readonly inFlight: StageCount;
  /** Whether a plan may choose K_p itself. */
  readonly fixed: boolean;
  /** Whether the backward is cut into input and weight gradients. */
  readonly splits: boolean;
  /** Whether gradients are reduced in buckets beside the computing. */
  readonly overlaps: boolean;
}

// K_p = 2(P − p) − 1 keeps the pipeline busy with the least memory (Asteroid §3.2, eq. 3).
const oneForwardOneBackward: Schedule = {
  ahead: (stage, stageCount) => 2 * (stageCount - stage) - 1,
  inFlight: (stage, stageCount) => 2 * (stageCount - stage) - 1,
  fixed: false,
  splits: false,
  overlaps: false,
};

const all: StageCount = (_stage, _stageCount, microBatchCount) => microBatchCount;

// ZB-H1: all stages keep as many micro-batches as the first.
const zeroBubble: Schedule = {
  ...oneForwardOneBackward,
  inFlight: (_stage, stageCount) => 2 * stageCount - 1,
  splits: true,
};

const schedules: Readonly<Record<string, Schedule>> = {
  '1f1b': oneForwardOneBackward,
  gpipe: { ahead: all, inFlight: all, fixed: true, splits: false, overlaps: false },
  'zb-h1': zeroBubble,
  '1f1b-overlap': { ...oneForwardOneBackward, overlaps: true },
  'zb-h1-overlap': { ...zeroBubble, overlaps: true },
};

/** The names of the schedules. */
export const scheduleNames: readonly string[] = Object.keys(schedules);

function scheduleOf(name: string): Schedule {
  if (Object.hasOwn(schedules, name)) return schedules[name] as Schedule;
  throw new InputError(`There is no schedule "${name}"; use one of ${scheduleNames.join(', ')}.`);
}

/** Whether a schedule cuts the backward pass in two. InputError for an unknown schedule. */
export function splitsBackward(schedule: string): boolean {
  return scheduleOf(schedule).splits;
}

/** Whether a schedule reduces gradients beside the computing. InputError for an unknown schedule. */
export function overlapsAllReduce(schedule: string): boolean {
  return scheduleOf(schedule).overlaps;
}

/**
 * The K_p that a schedule gives stage `stage` of `stageCount`, never more than M: 2(P − p) − 1 for 1f1b, M for gpipe;
 * for zb-h1 the 2P − 1 of stage 0, of which a plan may give less, down to `forwardsAhead`. InputError for an unknown
 * schedule.
 */
export function inFlight(schedule: string, stage: number, stageCount: number, microBatchCount: number): number {
  return Math.min(microBatchCount, scheduleOf(schedule).inFlight(stage, stageCount, microBatchCount));
}

/**
 * Forwards before the first backward where memory does not matter: what a schedule needs to keep at least. InputError
 * for an unknown schedule.
 */
export function forwardsAhead(schedule: string, stage: number, stageCount: number, microBatchCount: number): number {
  return Math.min(microBatchCount, scheduleOf(schedule).ahead(stage, stageCount, microBatchCount));
}

/** Whether nothing in a stage, nor before it, is trained: it runs forward, and no gradient comes to it. */
export function isForwardOnly({ stages, forwardOnlyLayers = 0 }: PlanLayout, stage: number): boolean {
  return (stages[stage]?.layers[1] ?? Number.POSITIVE_INFINITY) <= forwardOnlyLayers;
}

/** Whether the stage before a stage has anything to train. */
function isGradientWanted({ stages, forwardOnlyLayers = 0 }: PlanLayout, stage: number): boolean {
  return (stages[stage]?.layers[0] ?? 0) > forwardOnlyLayers;
}

/** How a stage runs its micro-batches. */
export interface Pace {
  /** Forwards before the first backward. */
  readonly ahead: number;
  /** By how many micro-batches a weight gradient follows its input gradient; undefined where they are one backward. */
  readonly delay: number | undefined;
}

/** The pace of a plan's stage: what the plan's K_p allows. */
export function paceOf(plan: PlanLayout, stage: number): Pace {
  const { stages, microBatchCount } = plan;
  const schedule = scheduleOf(plan.schedule);
  if (isForwardOnly(plan, stage)) return { ahead: microBatchCount, delay: undefined };
  const planned = stages[stage]?.inFlight;
  const kept = Math.min(
    microBatchCount,
    schedule.fixed || planned === undefined ? inFlight(plan.schedule, stage, stages.length, microBatchCount) : planned,
  );
  if (!schedule.splits) return { ahead: kept, delay: undefined };
  const ahead = Math.min(kept, forwardsAhead(plan.schedule, stage, stages.length, microBatchCount));
  return { ahead, delay: isGradientWanted(plan, stage) ? kept - ahead : undefined };
}

/**
 * The most micro-batches that a plan's stage really keeps: what the plan says, capped by M; always M for gpipe, and for
 * a stage that has no backward to wait for.
 */
export function effectiveInFlight(plan: PlanLayout, stage: number): number {
  const { ahead, delay = 0 } = paceOf(plan, stage);
  return ahead + delay;
}

/**
 * `ahead` forwards, then one backward and one forward in turn, then the backwards that remain; with `ahead` = M this is
 * gpipe. With a delay d, a backward is its input gradient and, before the next forward, the weight gradient of d
 * micro-batches ago.
 */
export function computations(microBatchCount: number, { ahead: wanted, delay }: Pace): Computation[] {
  const order: Computation[] = [];
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
 * The most buckets of a stage. More would cost a device more in handing values from graph to graph than they hide. A
 * stage whose plan does not name them has as many as it can, of about as many layers each.
 */
export const bucketLimit: number = 4;

/**
 * The layers of a stage in the buckets in which their gradients are reduced, the deepest first; one where the schedule
 * does not overlap, or there is no group.
 */
export function bucketsOf(plan: PlanLayout, stage: number): readonly LayerRange[] {
  const found = plan.stages[stage];
  if (found === undefined) return [];
  const [first, end] = found.layers;
  if (!overlapsAllReduce(plan.schedule) || found.devices.length < 2 || isForwardOnly(plan, stage))
    return [[first, end]];
  const count = Math.min(bucketLimit, end - first);
  const even = Array.from(
    { length: count - 1 },
    (_, index) => first + Math.round(((index + 1) * (end - first)) / count),
  );
  const borders = [first, ...(found.buckets ?? even), end];
  return borders
    .slice(1)
    .map((border, index): LayerRange => [borders[index] as number, border])
    .reverse();
}

export interface ProgramOptions {
  /**
   * Whether inputs and labels arrive as pieces from the data feed (`from: null`). False: every device has its samples
   * already. In the simulator a feed without a `dataDevice` in the cluster costs nothing, so true is right everywhere.
   * Default true.
   */
  readonly feed?: boolean;
}

/** One device of a stage, with the samples that it owns in every micro-batch. */
interface Member {
  readonly device: string;
  readonly samples: SampleRange;
}

/**
 * One round of a plan as instructions for each device, in the plan's order of stages and devices. Samples of a
 * micro-batch are owned in the order of each stage's devices; between neighbouring stages the overlap of two ranges
 * travels. Inputs are received before the forward of the first stage, labels before the forward of the last (which
 * computes the loss). InputError for an unknown schedule, and for a plan in which a stage runs more forwards ahead than
 * the one before: that would wait for a gradient which the later one withholds until it has seen more micro-batches.
 */
export function program(plan: PlanLayout, { feed = true }: ProgramOptions = {}): Program {
  const stages = plan.stages.map(members);
  const devices: DeviceProgram[] = [];
  const { activation, gradient, allReduce } = plan.compression ?? {};
  const reduction = encoded(allReduce);
  for (const [stage, { layers, devices: group }] of plan.stages.entries()) {
    const pace = paceOf(plan, stage);
    checkAhead(plan, stage, pace.ahead);
    const forwardOnly = isForwardOnly(plan, stage);
    const order = computations(plan.microBatchCount, pace).filter(({ kind }) => kind === 'forward' || !forwardOnly);
    const isReduced = group.length > 1 && !forwardOnly;
    const buckets = isReduced && overlapsAllReduce(plan.schedule) ? bucketsOf(plan, stage) : undefined;
    for (const [index, member] of (stages[stage] ?? []).entries()) {
      const instructions: Instruction[] = [];
      if (member.samples[1] > member.samples[0]) {
        const borders: Borders = {
          before: pieces(member, stages[stage - 1]),
          isGradientWanted: isGradientWanted(plan, stage),
          after: pieces(member, stages[stage + 1]),
          input: feed && stage === 0,
          label: feed && stage === stages.length - 1,
          activation: encoded(activation),
          gradient: encoded(gradient),
        };
        const whole = buckets === undefined ? order : order.slice(0, -1);
        for (const computation of whole) pushComputation(instructions, computation, member, borders);
        const last = order.at(-1);
        if (buckets !== undefined && last !== undefined)
          pushInBuckets(instructions, last, member, borders, { group, buckets, reduction });
      } else
        for (const bucket of buckets ?? [])
          instructions.push({ kind: 'all-reduce', group, layers: bucket, ...reduction });
      if (isReduced && buckets === undefined) instructions.push({ kind: 'all-reduce', group, ...reduction });
      instructions.push({ kind: 'update' });
      const savedBytes = plan.stages[stage]?.savedBytes?.[index];
      const kept = savedBytes === undefined ? {} : { savedBytes };
      devices.push({ device: member.device, stage, layers, samples: member.samples, ...kept, instructions });
    }
  }
  const { schedule, microBatchSize, microBatchCount } = plan;
  return { schedule, microBatchSize, microBatchCount, stageCount: plan.stages.length, devices };
}

function checkAhead(plan: PlanLayout, stage: number, ahead: number): void {
  const before = stage === 0 ? ahead : paceOf(plan, stage - 1).ahead;
  if (before >= ahead) return;
  const what = `Stage ${stage} of the plan has inFlight ${ahead}, more than the ${before} of stage ${stage - 1}, and both would wait for ever`;
  throw new InputError(`${what}; lower it to ${before}, or raise the other to ${ahead}.`);
}

function members(stage: PlanLayout['stages'][number]): Member[] {
  let first = 0;
  return stage.devices.map((device, index) => {
    const end = first + (stage.samples[index] ?? 0);
    const member: Member = { device, samples: [first, end] };
    first = end;
    return member;
  });
}

/** What crosses a device's borders for each micro-batch. */
interface Borders {
  /** Its samples by the device of the stage before (after) that owns them; empty for the first (last) stage. */
  readonly before: readonly Member[];
  readonly after: readonly Member[];
  /** Whether the stage before has anything to train. */
  readonly isGradientWanted: boolean;
  /** Whether the data feed sends it inputs, labels. */
  readonly input: boolean;
  readonly label: boolean;
  /** How what goes forward and backward travels. */
  readonly activation: Encoded<CutEncoding>;
  readonly gradient: Encoded<CutEncoding>;
}

/** The part of an instruction that says how its tensors travel; nothing where they travel as they are. */
interface Encoded<E extends Encoding> {
  readonly encoding?: E;
}

function encoded<E extends Encoding>(encoding: E | undefined): Encoded<E> {
  return encoding === undefined ? {} : { encoding };
}

/** Appends a computation between the receives that it waits for and the sends that it makes possible. */
function pushComputation(into: Instruction[], computation: Computation, member: Member, borders: Borders): void {
  pushReceives(into, computation, member, borders);
  into.push(computation);
  pushSends(into, computation, borders);
}

/** The last backward, or weight gradient, of a round, in buckets: each is reduced beside what follows. */
function pushInBuckets(
  into: Instruction[],
  computation: Computation,
  member: Member,
  borders: Borders,
  {
    group,
    buckets,
    reduction,
  }: {
    readonly group: readonly string[];
    readonly buckets: readonly LayerRange[];
    readonly reduction: Encoded<Encoding>;
  },
): void {
  const { kind } = computation;
  assert(kind === 'backward' || kind === 'backward-weight', `the round ends with a ${kind}`);
  pushReceives(into, computation, member, borders);
  for (const [index, layers] of buckets.entries()) {
    into.push({ ...computation, kind, layers });
    if (index === buckets.length - 1) pushSends(into, computation, borders);
    into.push({ kind: 'all-reduce', group, layers, ...reduction });
  }
}

function pushReceives(
  into: Instruction[],
  { kind, microBatch }: Computation,
  { samples }: Member,
  borders: Borders,
): void {
  if (kind === 'backward-weight') return;
  const { before, after, input, label } = borders;
  const forward = kind === 'forward';
  if (forward && input) into.push({ kind: 'receive', payload: 'input', microBatch, from: null, samples });
  if (forward && label) into.push({ kind: 'receive', payload: 'label', microBatch, from: null, samples });
  const payload = forward ? 'activation' : 'gradient';
  for (const piece of forward ? before : after)
    into.push({
      kind: 'receive',
      payload,
      microBatch,
      from: piece.device,
      samples: piece.samples,
      ...borders[payload],
    });
}

function pushSends(into: Instruction[], { kind, microBatch }: Computation, borders: Borders): void {
  if (kind === 'backward-weight') return;
  const { before, after, isGradientWanted } = borders;
  const payload = kind === 'forward' ? 'activation' : 'gradient';
  const targets = kind === 'forward' ? after : isGradientWanted ? before : [];
  for (const piece of targets)
    into.push({ kind: 'send', payload, microBatch, to: piece.device, samples: piece.samples, ...borders[payload] });
}

/** What each of `others` shares with `member`: [a, b) ∩ [c, d), where it is not empty. */
function pieces(member: Member, others: readonly Member[] | undefined): Member[] {
  const shared: Member[] = [];
  for (const other of others ?? []) {
    const first = Math.max(member.samples[0], other.samples[0]);
    const end = Math.min(member.samples[1], other.samples[1]);
    if (first < end) shared.push({ device: other.device, samples: [first, end] });
  }
  return shared;
}
