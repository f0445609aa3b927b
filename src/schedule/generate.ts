// Plan -> Program: the schedule's passes between the receives that they wait for and the sends that they make possible.
// Pure. Schedules are rows in schedules.ts; check.ts proves what comes out.

import { assert, defined } from '../assert.ts';
import type { PlanLayout } from '../cluster/cluster.ts';
import type { CutEncoding, Encoding } from '../cluster/compression.ts';
import { InputError } from '../errors.ts';
import { bucketsOf, isForwardOnly, isGradientWanted, paceOf } from './pace.ts';
import { exchanged, passes } from './passes.ts';
import type { DeviceProgram, Instruction, LayerRange, Program, SampleRange } from './program.ts';
import { type Computation, scheduleOf } from './schedules.ts';

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

/** How a stage's gradients are reduced over its group. */
interface Reduction extends Encoded<Encoding> {
  readonly group: readonly string[];
}

/**
 * One round of a plan as instructions for each device, in the plan's order of stages and devices. Samples of a
 * micro-batch are owned in the order of each stage's devices; between neighbouring stages the overlap of two ranges
 * travels. Inputs are received before the forward of the first stage, labels before the forward of the last (which
 * computes the loss). InputError for an unknown schedule, and for a plan in which a stage runs more forwards ahead than
 * the one before: that would wait for a gradient which the later one withholds until it has seen more micro-batches.
 */
export function program(plan: PlanLayout, { feed = true }: ProgramOptions = {}): Program {
  const owners = plan.stages.map(members);
  const devices = plan.stages.flatMap((_, stage) => stagePrograms(plan, stage, owners, feed));
  const { schedule, microBatchSize, microBatchCount } = plan;
  return { schedule, microBatchSize, microBatchCount, stageCount: plan.stages.length, devices };
}

/** The programs of a stage's devices. `owners`: by stage, who owns which samples. */
function stagePrograms(
  plan: PlanLayout,
  stage: number,
  owners: readonly (readonly Member[])[],
  feed: boolean,
): DeviceProgram[] {
  const { layers, devices: group, savedBytes } = defined(plan.stages[stage], 'a stage');
  const schedule = scheduleOf(plan.schedule);
  const pace = paceOf(plan, stage, schedule);
  checkAhead(plan, stage, pace.ahead);
  const forwardOnly = isForwardOnly(plan, stage);
  const order = schedule
    .passes(plan.microBatchCount, pace)
    .filter(({ kind }) => !forwardOnly || passes[kind].direction === 'forward');
  const isReduced = group.length > 1 && !forwardOnly;
  const buckets = isReduced && schedule.overlapsAllReduce ? bucketsOf(plan, stage) : undefined;
  const reduction: Reduction = { group, ...encoded(plan.compression?.allReduce) };
  return (owners[stage] ?? []).map((member, index): DeviceProgram => {
    const instructions: Instruction[] = [];
    if (member.samples[1] > member.samples[0]) {
      const borders = bordersOf(plan, stage, member, owners, feed);
      const whole = buckets === undefined ? order : order.slice(0, -1);
      for (const computation of whole) pushComputation(instructions, computation, member, borders);
      const last = order.at(-1);
      if (buckets !== undefined && last !== undefined)
        pushInBuckets(instructions, last, member, borders, { reduction, buckets });
    } else for (const bucket of buckets ?? []) instructions.push(allReduce(reduction, bucket));
    if (isReduced && buckets === undefined) instructions.push(allReduce(reduction));
    instructions.push({ kind: 'update' });
    const saved = savedBytes?.[index];
    const kept = saved === undefined ? {} : { savedBytes: saved };
    return { device: member.device, stage, layers, samples: member.samples, ...kept, instructions };
  });
}

/** An AllReduce of all layers, or of some. */
function allReduce({ group, ...encoding }: Reduction, layers?: LayerRange): Instruction {
  return { kind: 'all-reduce', group, ...(layers === undefined ? {} : { layers }), ...encoding };
}

function checkAhead(plan: PlanLayout, stage: number, ahead: number): void {
  const before = stage === 0 ? ahead : paceOf(plan, stage - 1).ahead;
  if (before >= ahead) return;
  const what =
    `Stage ${stage} of the plan has inFlight ${ahead}, more than the ${before} of stage ${stage - 1}, ` +
    'and both would wait for ever';
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

function bordersOf(
  plan: PlanLayout,
  stage: number,
  member: Member,
  owners: readonly (readonly Member[])[],
  feed: boolean,
): Borders {
  return {
    before: pieces(member, owners[stage - 1]),
    after: pieces(member, owners[stage + 1]),
    isGradientWanted: isGradientWanted(plan, stage),
    input: feed && stage === 0,
    label: feed && stage === plan.stages.length - 1,
    activation: encoded(plan.compression?.activation),
    gradient: encoded(plan.compression?.gradient),
  };
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

/** The last backward, or weight gradient, of a round, in buckets: each is reduced while the next is computed. */
function pushInBuckets(
  into: Instruction[],
  computation: Computation,
  member: Member,
  borders: Borders,
  { reduction, buckets }: { readonly reduction: Reduction; readonly buckets: readonly LayerRange[] },
): void {
  const { kind } = computation;
  assert(kind === 'backward' || kind === 'backward-weight', `the round ends with a ${kind}`);
  pushReceives(into, computation, member, borders);
  for (const [index, layers] of buckets.entries()) {
    into.push({ ...computation, kind, layers });
    if (index === buckets.length - 1) pushSends(into, computation, borders);
    into.push(allReduce(reduction, layers));
  }
}

function pushReceives(
  into: Instruction[],
  { kind, microBatch }: Computation,
  { samples }: Member,
  borders: Borders,
): void {
  const { direction, exchanges } = passes[kind];
  if (!exchanges) return;
  const forward = direction === 'forward';
  if (forward && borders.input) into.push({ kind: 'receive', payload: 'input', microBatch, from: null, samples });
  if (forward && borders.label) into.push({ kind: 'receive', payload: 'label', microBatch, from: null, samples });
  const payload = exchanged[direction];
  for (const piece of forward ? borders.before : borders.after)
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
  const { direction, exchanges } = passes[kind];
  if (!exchanges) return;
  const payload = exchanged[direction];
  const targets = direction === 'forward' ? borders.after : borders.isGradientWanted ? borders.before : [];
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
