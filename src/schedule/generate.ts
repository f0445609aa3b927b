// Plan -> Program for the schedules 'gpipe' and '1f1b'. Pure. A new schedule is a new row in `schedules`; check.ts proves what comes out.
//
//   1f1b, 2 stages, 4 micro-batches          gpipe, the same
//   0 | F0 F1 F2 B0 F3 B1 B2 B3              0 | F0 F1 F2 F3 B0 B1 B2 B3
//   1 | F0 B0 F1 B1 F2 B2 F3 B3              1 | F0 F1 F2 F3 B0 B1 B2 B3
//
// Both run the backwards in the order of the micro-batches, so that gradients are always summed in the same order.

import type { PlanLayout } from '../cluster/cluster.ts';
import { InputError } from '../errors.ts';
import type { DeviceProgram, Instruction, Program, SampleRange } from './program.ts';

/** A forward or backward of one micro-batch. */
export interface Computation {
  readonly kind: 'forward' | 'backward';
  readonly microBatch: number;
}

interface Schedule {
  /** K_p for stage p of P with M micro-batches, before the cap by M. */
  readonly inFlight: (stage: number, stageCount: number, microBatchCount: number) => number;
  /** Whether a plan may choose K_p itself. */
  readonly fixed: boolean;
}

const schedules: Readonly<Record<string, Schedule>> = {
  // K_p = 2(P − p) − 1 keeps the pipeline busy with the least memory (Asteroid §3.2, eq. 3).
  '1f1b': { inFlight: (stage, stageCount) => 2 * (stageCount - stage) - 1, fixed: false },
  gpipe: { inFlight: (_stage, _stageCount, microBatchCount) => microBatchCount, fixed: true },
};

/** The names of the schedules. */
export const scheduleNames: readonly string[] = Object.keys(schedules);

function scheduleOf(name: string): Schedule {
  if (Object.hasOwn(schedules, name)) return schedules[name] as Schedule;
  throw new InputError(`There is no schedule "${name}"; use one of ${scheduleNames.join(', ')}.`);
}

/** The K_p that a schedule gives stage `stage` of `stageCount`: 2(P − p) − 1 for 1f1b, M for gpipe, never more than M. InputError for an unknown schedule. */
export function inFlight(schedule: string, stage: number, stageCount: number, microBatchCount: number): number {
  return Math.min(microBatchCount, scheduleOf(schedule).inFlight(stage, stageCount, microBatchCount));
}

/** Whether nothing in a stage, nor before it, is trained: it runs forward, and no gradient comes to it. */
export function isForwardOnly({ stages, forwardOnlyLayers = 0 }: PlanLayout, stage: number): boolean {
  return (stages[stage]?.layers[1] ?? Number.POSITIVE_INFINITY) <= forwardOnlyLayers;
}

/** The K_p at which a plan's stage really runs: what the plan says, capped by M; always M for gpipe, and for a stage that has no backward to wait for. */
export function effectiveInFlight(plan: PlanLayout, stage: number): number {
  if (isForwardOnly(plan, stage)) return plan.microBatchCount;
  const schedule = scheduleOf(plan.schedule);
  const planned = plan.stages[stage]?.inFlight;
  if (schedule.fixed || planned === undefined) return inFlight(plan.schedule, stage, plan.stages.length, plan.microBatchCount);
  return Math.min(planned, plan.microBatchCount);
}

/** K forwards, then one backward and one forward in turn, then the backwards that remain. With K = M this is gpipe. */
export function computations(microBatchCount: number, inFlightCount: number): Computation[] {
  const order: Computation[] = [];
  const ahead = Math.min(inFlightCount, microBatchCount);
  for (let microBatch = 0; microBatch < ahead; microBatch++) order.push({ kind: 'forward', microBatch });
  for (let microBatch = 0; microBatch < microBatchCount; microBatch++) {
    order.push({ kind: 'backward', microBatch });
    if (microBatch + ahead < microBatchCount) order.push({ kind: 'forward', microBatch: microBatch + ahead });
  }
  return order;
}

export interface ProgramOptions {
  /**
   * Whether inputs and labels arrive as pieces from the data feed (`from: null`). False: every device has its samples already.
   * In the simulator a feed without a `dataDevice` in the cluster costs nothing, so true is right everywhere. Default true.
   */
  readonly feed?: boolean;
}

/** One device of a stage, with the samples that it owns in every micro-batch. */
interface Member {
  readonly device: string;
  readonly samples: SampleRange;
}

/**
 * One round of a plan as instructions for each device, in the plan's order of stages and devices. Samples of a micro-batch are owned in
 * the order of each stage's devices; between neighbouring stages the overlap of two ranges travels. Inputs are received before the forward
 * of the first stage, labels before the forward of the last (which computes the loss). InputError for an unknown schedule, and for a plan
 * whose inFlight grows from one stage to the next: the earlier stage would wait for a gradient that the later one withholds until it has
 * seen more micro-batches.
 */
export function program(plan: PlanLayout, { feed = true }: ProgramOptions = {}): Program {
  const stages = plan.stages.map(members);
  const devices: DeviceProgram[] = [];
  for (const [stage, { layers, devices: group }] of plan.stages.entries()) {
    const ahead = effectiveInFlight(plan, stage);
    const before = stage === 0 ? ahead : effectiveInFlight(plan, stage - 1);
    if (before < ahead) {
      const what = `Stage ${stage} of the plan has inFlight ${ahead}, more than the ${before} of stage ${stage - 1}, and both would wait for ever`;
      throw new InputError(`${what}; lower it to ${before}, or raise the other to ${ahead}.`);
    }
    const forwardOnly = isForwardOnly(plan, stage);
    const order = computations(plan.microBatchCount, ahead).filter(({ kind }) => kind === 'forward' || !forwardOnly);
    for (const member of stages[stage] ?? []) {
      const instructions: Instruction[] = [];
      if (member.samples[1] > member.samples[0]) {
        const borders: Borders = {
          before: pieces(member, stages[stage - 1]),
          isGradientWanted: layers[0] > (plan.forwardOnlyLayers ?? 0),
          after: pieces(member, stages[stage + 1]),
          input: feed && stage === 0,
          label: feed && stage === stages.length - 1,
        };
        for (const computation of order) pushComputation(instructions, computation, member, borders);
      }
      if (group.length > 1 && !forwardOnly) instructions.push({ kind: 'all-reduce', group });
      instructions.push({ kind: 'update' });
      devices.push({ device: member.device, stage, layers, samples: member.samples, instructions });
    }
  }
  const { schedule, microBatchSize, microBatchCount } = plan;
  return { schedule, microBatchSize, microBatchCount, stageCount: plan.stages.length, devices };
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
}

/** Appends a forward or backward between the receives that it waits for and the sends that it makes possible. */
function pushComputation(
  into: Instruction[],
  { kind, microBatch }: Computation,
  { samples }: Member,
  { before, after, isGradientWanted, input, label }: Borders,
): void {
  const forward = kind === 'forward';
  const payload = forward ? 'activation' : 'gradient';
  const [sources, targets] = forward ? [before, after] : [after, isGradientWanted ? before : []];
  if (forward && input) into.push({ kind: 'receive', payload: 'input', microBatch, from: null, samples });
  if (forward && label) into.push({ kind: 'receive', payload: 'label', microBatch, from: null, samples });
  for (const piece of sources) into.push({ kind: 'receive', payload, microBatch, from: piece.device, samples: piece.samples });
  into.push({ kind, microBatch });
  for (const piece of targets) into.push({ kind: 'send', payload, microBatch, to: piece.device, samples: piece.samples });
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
