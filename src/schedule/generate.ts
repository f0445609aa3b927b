// Plan -> Program: the schedule's passes between the receives that they wait for and the sends that they make possible.
// Pure. Schedules are rows in schedules.ts; check.ts proves what comes out.

import { assert } from '../assert.ts';
import type { PlanLayout } from '../cluster/cluster.ts';
import type { ActivationEncoding, Encoding } from '../cluster/compression.ts';
import { InputError } from '../errors.ts';
import { bucketsOf, isForwardOnly, isGradientWanted, paceOf } from './pace.ts';
import { addsGradients, isTaken, type Payload, passes, type StagePayload } from './passes.ts';
import {
  type DeviceProgram,
  type Instruction,
  type LayerRange,
  type Pass,
  type Program,
  type Receive,
  type SampleRange,
  type Send,
  samplesWithin,
} from './program.ts';
import { scheduleOf } from './schedules.ts';
import { stalenessOf } from './staleness.ts';

export interface ProgramOptions {
  /**
   * Whether inputs and labels arrive as pieces from the data feed (`from: null`). False: every device has its samples
   * already. In the simulator a feed without a `dataDevice` in the cluster costs nothing, so true is right everywhere.
   * Default true.
   */
  readonly feed?: boolean;
}

/**
 * A plan's layout for a round of `sampleCount` samples, at most its batch: fewer micro-batches, of which the last may
 * be smaller. Each device keeps its samples of a micro-batch, as far as they are there: only one device of a stage has
 * a share of another size than usual, and some may have none.
 */
export function layoutOf(plan: PlanLayout, sampleCount: number): PlanLayout {
  return { ...plan, batchSize: sampleCount, microBatchCount: Math.ceil(sampleCount / plan.microBatchSize) };
}

/** Samples of a round's last micro-batch. */
function lastMicroBatchSize({ batchSize, microBatchSize, microBatchCount }: PlanLayout): number {
  const left = batchSize - (microBatchCount - 1) * microBatchSize;
  return left > 0 && left < microBatchSize ? left : microBatchSize;
}

/** One device of a stage, with the samples that it owns in every micro-batch. */
interface Member {
  readonly device: string;
  readonly samples: SampleRange;
}

/**
 * One round of a plan as instructions for each device, in the plan's order of stages and devices. Samples of a
 * micro-batch are owned in the order of each stage's devices; between neighbouring stages the overlap of two ranges
 * travels; a batch that is no multiple of the micro-batch ends in a smaller one (`layoutOf`). Inputs are received
 * before the forward of the first stage, labels before the forward of the last (which computes the loss). InputError
 * for an unknown schedule, and for a plan in which a stage runs more forwards ahead than the one before: that would
 * wait for a gradient which the later one withholds until it has seen more micro-batches.
 */
export function program(plan: PlanLayout, options: ProgramOptions = {}): Program {
  return programOf(plan, ordersOf(plan), options);
}

/**
 * program() for rounds of `sampleCount` samples, at most the plan's batch. In the tick of a stream, passes of
 * micro-batches that are not there are left out, and all others keep their places and offsets.
 */
export function restProgram(plan: PlanLayout, sampleCount: number, options: ProgramOptions = {}): Program {
  const rest = layoutOf(plan, sampleCount);
  if (!scheduleOf(plan.schedule).isStream) return program(rest, options);
  const orders = ordersOf(plan).map((order) => order.filter(({ microBatch }) => microBatch < rest.microBatchCount));
  return programOf({ ...rest, staleness: stalenessOf(plan) }, orders, options);
}

/** The passes of each stage, in order. */
function ordersOf(plan: PlanLayout): readonly (readonly Pass[])[] {
  const schedule = scheduleOf(plan.schedule);
  if (plan.staleness !== undefined) stalenessOf(plan); // refuses what does not fit
  return plan.stages.map((_, stage) => {
    const pace = paceOf(plan, stage, schedule);
    if (schedule.gradients === 'backward') checkAhead(plan, stage, pace.ahead);
    const order = schedule.passes(plan.microBatchCount, pace);
    return isForwardOnly(plan, stage) ? forwardsOf(order) : order;
  });
}

/** What is left of a stage's passes where nothing is trained. */
function forwardsOf(order: readonly Pass[]): readonly Pass[] {
  return order
    .filter(({ kind }) => passes[kind].needs.length === 0)
    .map((pass) => ({ ...pass, kind: 'forward' as const }));
}

/**
 * program() with the passes of each stage in a given order, which may carry round offsets: then it is the tick of a
 * stream. What a pass receives and sends has its offset.
 */
export function programOf(
  plan: PlanLayout,
  orders: readonly (readonly Pass[])[],
  { feed = true }: ProgramOptions = {},
): Program {
  const { schedule, microBatchSize, microBatchCount } = plan;
  // A plan's own has been looked at, of the plan as it is for whole rounds.
  const staleness = scheduleOf(schedule).isStream ? (plan.staleness ?? stalenessOf(plan)) : undefined;
  const owners = plan.stages.map(membersOf);
  const lastSize = lastMicroBatchSize(plan);
  const isWhole = lastSize === microBatchSize;
  const lastOwners = isWhole ? owners : owners.map((members) => members.map((member) => within(member, lastSize)));
  const devices = plan.stages.flatMap(({ layers, savedBytes }, stage) =>
    (owners[stage] ?? []).map((member, index): DeviceProgram => {
      const saved = savedBytes?.[index];
      const kept = saved === undefined ? {} : { savedBytes: saved };
      const stale = staleness === undefined ? {} : { staleness: staleness[stage] ?? 0 };
      const own = isEmpty(member) ? [] : (orders[stage] ?? []);
      const lastMember = lastOwners[stage]?.[index] ?? member;
      const isLeftOut = !isWhole && isEmpty(lastMember);
      const order = isLeftOut ? own.filter(({ microBatch }) => microBatch < microBatchCount - 1) : own;
      const usual = bordersOf(plan, stage, member, owners, feed);
      const last = isWhole ? usual : bordersOf(plan, stage, lastMember, lastOwners, feed);
      const instructions = instructionsOf(plan, stage, order, { usual, last });
      return { device: member.device, stage, layers, samples: member.samples, ...kept, ...stale, instructions };
    }),
  );
  const program = { schedule, microBatchSize, microBatchCount, stageCount: plan.stages.length, devices };
  return isWhole ? program : { ...program, lastMicroBatchSize: lastSize };
}

function isEmpty({ samples }: Member): boolean {
  return samples[0] === samples[1];
}

/** The member with its samples of a smaller micro-batch. */
function within(member: Member, size: number): Member {
  return { device: member.device, samples: samplesWithin(member, size) };
}

/**
 * A device's round: its passes, the AllReduce of a group and the update. With a schedule that overlaps, the last pass
 * comes in buckets, each reduced while the next is computed; in a stream, a round is reduced while the next is
 * computed. Without samples, `order` is empty.
 */
function instructionsOf(
  plan: PlanLayout,
  stage: number,
  order: readonly Pass[],
  { usual, last: ofLast }: { readonly usual: Borders; readonly last: Borders },
): Instruction[] {
  const bordersAt = ({ microBatch }: Pass): Borders => (microBatch === plan.microBatchCount - 1 ? ofLast : usual);
  const group = plan.stages[stage]?.devices ?? [];
  const encoding = encoded(plan.compression?.allReduce);
  const { isStream, overlapsAllReduce, gradients, trains } = scheduleOf(plan.schedule);
  // Members of a group draw equal tangents, and all get the derivatives of all.
  const isReduced = group.length > 1 && !isForwardOnly(plan, stage) && gradients === 'backward';
  const isCut = isReduced && overlapsAllReduce;
  const into: Instruction[] = [];
  const lateUpdate =
    isReduced && isStream ? lateUpdateOf(order, (plan.staleness ?? stalenessOf(plan))[stage] ?? 0) : undefined;
  for (const [index, pass] of (isCut ? order.slice(0, -1) : order).entries()) {
    const borders = bordersAt(pass);
    if (index > 0 && index === lateUpdate) into.push({ kind: 'update', round: -1 });
    pushReceives(into, pass, borders);
    into.push(pass);
    pushSends(into, pass, borders);
    if (borders.result !== undefined) pushResult(into, pass, borders.result);
  }
  if (isReduced && isStream) {
    const layers = plan.stages[stage]?.layers;
    if (lateUpdate === order.length && lateUpdate > 0) into.push({ kind: 'update', round: -1 });
    into.push({ kind: 'all-reduce', group, ...(layers === undefined ? {} : { layers }), ...encoding });
    if (lateUpdate === 0) into.push({ kind: 'update' });
    return into;
  }
  if (isCut) {
    const last = order.at(-1);
    if (last !== undefined) pushReceives(into, last, bordersAt(last));
    const buckets = bucketsOf(plan, stage);
    for (const [index, layers] of buckets.entries()) {
      if (last !== undefined) into.push(pieceOf(last, layers));
      if (last !== undefined && index === buckets.length - 1) pushSends(into, last, bordersAt(last));
      into.push({ kind: 'all-reduce', group, layers, ...encoding });
    }
  } else if (isReduced) into.push({ kind: 'all-reduce', group, ...encoding });
  for (let microBatch = 0; microBatch < plan.microBatchCount; microBatch++) {
    const { received } = microBatch === plan.microBatchCount - 1 ? ofLast : usual;
    for (const { device: from, samples } of received.derivative)
      into.push({ kind: 'receive', payload: 'derivative', microBatch, from, samples, tangents: tangentCountOf(plan) });
  }
  if (trains) into.push({ kind: 'update' });
  return into;
}

/**
 * Where in the next tick a replicated stage applies a tick's update, whose AllReduce runs until then: before the first
 * forward that reads the new version, which is that of the round `staleness` after the tick's. 0: no pass comes before
 * it, so that the stage updates in the same tick.
 */
function lateUpdateOf(order: readonly Pass[], staleness: number): number {
  const first = order.findIndex(({ kind, round = 0 }) => kind === 'forward' && round >= staleness);
  return first === -1 ? order.length : first;
}

function pieceOf({ kind, ...rest }: Pass, layers: LayerRange): Pass {
  assert(addsGradients(kind), `the round ends with a ${kind}`);
  return { kind, ...rest, layers };
}

function checkAhead(plan: PlanLayout, stage: number, ahead: number): void {
  const before = stage === 0 ? ahead : paceOf(plan, stage - 1).ahead;
  if (before >= ahead) return;
  const what =
    `Stage ${stage} of the plan has inFlight ${ahead}, more than the ${before} of stage ${stage - 1}, ` +
    'and both would wait for ever';
  throw new InputError(`${what}; lower it to ${before}, or raise the other to ${ahead}.`);
}

function membersOf(stage: PlanLayout['stages'][number]): Member[] {
  let first = 0;
  return stage.devices.map((device, index) => {
    const end = first + (stage.samples[index] ?? 0);
    const member: Member = { device, samples: [first, end] };
    first = end;
    return member;
  });
}

/** A part of a device's samples that one other device gives or takes; null: the data feed. */
interface Piece {
  readonly device: string | null;
  readonly samples: SampleRange;
}

/** What crosses a device's borders for each micro-batch. */
interface Borders {
  readonly received: Readonly<Record<Payload, readonly Piece[]>>;
  readonly sent: Readonly<Record<StagePayload, readonly Member[]>>;
  readonly encodings: Readonly<Record<StagePayload, Encoded<ActivationEncoding>>>;
  /** Tangents that travel with what the stage before and the data's holder give, and with what this stage gives. */
  readonly tangents: { readonly received: number; readonly sent: number };
  /** The samples whose outputs are the round's results; absent where this stage gives none. */
  readonly result?: SampleRange;
}

/** The part of an instruction that says how its tensors travel; empty if they travel as they are. */
interface Encoded<E extends Encoding> {
  readonly encoding?: E;
}

function encoded<E extends Encoding>(encoding: E | undefined): Encoded<E> {
  return encoding === undefined ? {} : { encoding };
}

function bordersOf(
  plan: PlanLayout,
  stage: number,
  member: Member,
  owners: readonly (readonly Member[])[],
  feed: boolean,
): Borders {
  const { activation, gradient } = plan.compression ?? {};
  const { trains } = scheduleOf(plan.schedule);
  const taking = { stageCount: owners.length, hasFeed: feed, trains };
  const [before, after] = [pieces(member, owners[stage - 1]), pieces(member, owners[stage + 1])];
  const isBackward = scheduleOf(plan.schedule).gradients === 'backward';
  const givers = (owners.at(-1) ?? []).filter((other) => other.device !== member.device && !isEmpty(other));
  const fed = (payload: Payload): Piece[] =>
    isTaken(payload, stage, taking) ? [{ device: null, samples: member.samples }] : [];
  return {
    received: {
      input: fed('input'),
      label: fed('label'),
      activation: before,
      gradient: isBackward ? after : [],
      derivative: isBackward || isForwardOnly(plan, stage) ? [] : givers,
    },
    sent: {
      activation: after,
      gradient: isBackward && isGradientWanted(plan, stage) ? before : [],
      derivative: isBackward || stage !== owners.length - 1 ? [] : takersOf(plan, member, owners),
    },
    encodings: { activation: encoded(activation), gradient: encoded(gradient), derivative: {} },
    tangents: isBackward ? noTangents : { received: tangentsAt(plan, stage), sent: tangentsAt(plan, stage + 1) },
    ...(trains || stage < owners.length - 1 ? {} : { result: member.samples }),
  };
}

const noTangents: Borders['tangents'] = { received: 0, sent: 0 };

/** Tangents of a round. */
function tangentCountOf({ tangentCount = 1 }: PlanLayout): number {
  return tangentCount;
}

/** Tangents that cross the border before a stage: none where nothing before it is trained. */
function tangentsAt(plan: PlanLayout, stage: number): number {
  const isMoved = stage === plan.stages.length || (stage > 0 && !isForwardOnly(plan, stage - 1));
  return isMoved ? tangentCountOf(plan) : 0;
}

/** All devices that update with the derivatives that a device of the last stage has. */
function takersOf(
  plan: PlanLayout,
  { device: own, samples }: Member,
  owners: readonly (readonly Member[])[],
): Member[] {
  const trained = owners.filter((_, stage) => !isForwardOnly(plan, stage)).flat();
  return trained.flatMap(({ device }) => (device === own ? [] : [{ device, samples }]));
}

// A Program has thousands of these, and planners make many Programs: no field is spread that is not there.

function pushReceives(into: Instruction[], pass: Pass, { received, encodings, tangents }: Borders): void {
  const { microBatch, round } = pass;
  for (const payload of passes[pass.kind].takes) {
    const encoding = payload === 'activation' || payload === 'gradient' ? encodings[payload].encoding : undefined;
    const moved = payload === 'activation' ? tangents.received : 0;
    for (const { device: from, samples } of received[payload]) {
      const plain: Receive = { kind: 'receive', payload, microBatch, from, samples };
      into.push(
        round === undefined && encoding === undefined && moved === 0
          ? plain
          : withExtras(plain, round, moved, encoding),
      );
    }
  }
}

function pushSends(into: Instruction[], pass: Pass, { sent, encodings, tangents }: Borders): void {
  const { microBatch, round } = pass;
  for (const payload of passes[pass.kind].gives) {
    const { encoding } = encodings[payload];
    const moved = payload === 'gradient' ? 0 : tangents.sent;
    for (const { device: to, samples } of sent[payload]) {
      const plain: Send = { kind: 'send', payload, microBatch, to, samples };
      into.push(
        round === undefined && encoding === undefined && moved === 0
          ? plain
          : withExtras(plain, round, moved, encoding),
      );
    }
  }
}

function pushResult(into: Instruction[], { microBatch, round }: Pass, samples: SampleRange): void {
  into.push({ kind: 'result', microBatch, samples, ...(round === undefined ? {} : { round }) });
}

/** A transfer that is of another round than the tick's, takes tangents along, or travels encoded. */
function withExtras<Transfer extends Receive | Send>(
  plain: Transfer,
  round: number | undefined,
  tangents: number,
  encoding: ActivationEncoding | undefined,
): Transfer {
  return {
    ...plain,
    ...(round === undefined ? {} : { round }),
    ...(tangents === 0 ? {} : { tangents }),
    ...encoded(encoding),
  };
}

/** What each of `others` shares with `member`: [a, b) ∩ [c, d), if not empty. */
function pieces(member: Member, others: readonly Member[] | undefined): Member[] {
  const shared: Member[] = [];
  for (const other of others ?? []) {
    const first = Math.max(member.samples[0], other.samples[0]);
    const end = Math.min(member.samples[1], other.samples[1]);
    if (first < end) shared.push({ device: other.device, samples: [first, end] });
  }
  return shared;
}
