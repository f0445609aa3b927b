// A Program: for each device, an ordered list of instructions. One Program, two executors: the simulator on a virtual
// clock, the runtime on the engine and the links. Plain data. passes.ts says what each pass is, schedules.ts in which
// order a stage runs them.
//
// A Program is the tick of a stream: at tick t a device runs an instruction for round t + `round`. In a synchronous
// schedule every offset is 0 and absent, a tick is a round. Instructions for rounds before the first or beyond the last
// are skipped, which fills and drains the pipeline.

import type { ActivationEncoding, SumEncoding } from '../cluster/compression.ts';
import { addsGradients, type PassKind, type Payload, passes, type StagePayload, type WeightPass } from './passes.ts';

/** Samples [first, end) of a micro-batch. */
export type SampleRange = readonly [first: number, end: number];

/** Layers [first, end) of the model. */
export type LayerRange = readonly [first: number, end: number];

/** Which round an instruction is for. */
export interface RoundOffset {
  /** Rounds after that of the tick; absent: 0. */
  readonly round?: number;
}

/** Wait until this piece has arrived. `from` is a device, or null for the data feed. */
export interface Receive extends RoundOffset {
  readonly kind: 'receive';
  readonly payload: Payload;
  readonly microBatch: number;
  readonly from: string | null;
  readonly samples: SampleRange;
  /** Tangents of it that travel with it; of derivatives, how many there are. Absent: none. */
  readonly tangents?: number;
  /** How it travels; absent: as it is. Of what the data feed sends, always. */
  readonly encoding?: ActivationEncoding;
}

/** Hand this piece to the link; does not wait for its arrival. */
export interface Send extends RoundOffset {
  readonly kind: 'send';
  readonly payload: StagePayload;
  readonly microBatch: number;
  readonly to: string;
  readonly samples: SampleRange;
  /** See Receive. */
  readonly tangents?: number;
  readonly encoding?: ActivationEncoding;
}

/**
 * Compute a pass of a micro-batch. With `layers`, one piece of a pass that makes weight gradients, which are then
 * final; pieces come deepest layers first.
 */
export type Pass = {
  readonly [Kind in PassKind]: RoundOffset & {
    readonly kind: Kind;
    readonly microBatch: number;
  } & (Kind extends WeightPass ? { readonly layers?: LayerRange } : unknown);
}[PassKind];

/**
 * Sum the gradients over `group` (device names in ring order, this device among them). With `layers`, only theirs,
 * while what follows computes: the update waits for it. A group's AllReduces run one after the other. With `encoding`,
 * its pieces travel so.
 */
export interface AllReduce extends RoundOffset {
  readonly kind: 'all-reduce';
  readonly group: readonly string[];
  readonly layers?: LayerRange;
  readonly encoding?: SumEncoding;
}

/** Apply the round's update, when every AllReduce is done and the round is known to commit. */
export interface Update extends RoundOffset {
  readonly kind: 'update';
}

/**
 * Give the outputs of a micro-batch to whoever has the data: the last stage of a schedule that only infers. Does not
 * wait for their arrival.
 */
export interface Result extends RoundOffset {
  readonly kind: 'result';
  readonly microBatch: number;
  readonly samples: SampleRange;
}

/** One thing that a device does, in its turn. */
export type Instruction = Receive | Send | Pass | AllReduce | Update | Result;

/**
 * What one device does in one round. Without samples it computes and moves nothing, and only takes part in its group's
 * AllReduce and update.
 */
export interface DeviceProgram {
  readonly device: string;
  readonly stage: number;
  /** Half-open range of layers. */
  readonly layers: LayerRange;
  /** The samples of every micro-batch that this device computes; of a smaller last one, those that are there. */
  readonly samples: SampleRange;
  /** Bytes a sample that it keeps at most for its backward pass; absent: everything. */
  readonly savedBytes?: number;
  /** In a stream: by how many rounds the weights that it computes with lag behind. Absent: rounds do not overlap. */
  readonly staleness?: number;
  readonly instructions: readonly Instruction[];
}

export function isPass(step: Instruction): step is Pass {
  const { kind } = step;
  return Object.hasOwn(passes, kind);
}

/** Whether it is all of a pass, or the piece of the deepest layers: the first. */
export function isFirstPiece(step: Pass, { layers }: DeviceProgram): boolean {
  return !('layers' in step) || step.layers === undefined || step.layers[1] === layers[1];
}

/** Whether it is all of a pass, or the last of its pieces. */
export function isLastPiece(step: Pass, { layers }: DeviceProgram): boolean {
  return !('layers' in step) || step.layers === undefined || step.layers[0] === layers[0];
}

/** Whether the device computes each micro-batch's backward pass right after its forward pass. */
export function isBackwardImmediate({ instructions }: DeviceProgram): boolean {
  const computed = instructions.filter(isPass);
  return computed.every((instruction, index) => {
    const next = computed[index + 1];
    if (instruction.kind !== 'forward') return true;
    return next?.kind === 'backward' && next.microBatch === instruction.microBatch && next.round === instruction.round;
  });
}

/** How a device's gradients are reduced while it computes. */
export interface BucketReduction {
  /** Its layers, in the order in which they are reduced. */
  readonly buckets: readonly LayerRange[];
  /** The pass that comes in pieces, one for each bucket; absent for a device without samples. */
  readonly pass?: { readonly kind: WeightPass; readonly microBatch: number };
}

/** Undefined if the device does not reduce in buckets. */
export function bucketReductionOf({ instructions }: DeviceProgram): BucketReduction | undefined {
  const buckets = instructions.flatMap((step) =>
    step.kind === 'all-reduce' && step.layers !== undefined ? [step.layers] : [],
  );
  if (buckets.length === 0) return undefined;
  for (const step of instructions) {
    if ((step.kind === 'backward' || step.kind === 'backward-weight') && step.layers !== undefined)
      return { buckets, pass: { kind: step.kind, microBatch: step.microBatch } };
  }
  return { buckets };
}

/**
 * Whether one pass gives all gradients that the device's update takes, and reads what it updates: one micro-batch, no
 * group to sum with, no stream.
 */
export function isUpdateImmediate({ instructions, staleness }: DeviceProgram): boolean {
  if (staleness !== undefined) return false;
  const adding = instructions.filter((step) => isPass(step) && addsGradients(step.kind));
  return adding.length === 1 && !instructions.some(({ kind }) => kind === 'all-reduce');
}

/** Whether the gradients of a device's round come from one micro-batch. */
export function isRoundSingle({ instructions }: DeviceProgram): boolean {
  return instructions.filter((step) => isPass(step) && passes[step.kind].keeps === 1).length <= 1;
}

/** One round of a plan, for all devices. */
export interface Program {
  readonly schedule: string;
  readonly microBatchSize: number;
  readonly microBatchCount: number;
  /** Samples of the last micro-batch, where it is smaller than the others. Absent: it is not. */
  readonly lastMicroBatchSize?: number;
  readonly stageCount: number;
  readonly devices: readonly DeviceProgram[];
}

/** A device's samples of a micro-batch of `size` samples: of a smaller one, what of its share is there. */
export function samplesWithin({ samples }: Pick<DeviceProgram, 'samples'>, size: number): SampleRange {
  return samples[1] <= size ? samples : [Math.min(samples[0], size), size];
}

/** What both executors emit for each instruction that takes time; times in milliseconds from the round's start. */
export interface ProgramEvent {
  readonly device: string;
  readonly kind: Instruction['kind'] | 'transfer';
  readonly stage: number;
  /** Of rounds that overlap: which one. */
  readonly round?: number;
  /** Of its round. */
  readonly microBatch?: number;
  /** Of a piece of a backward pass, and of its AllReduce, which overlaps with computing. */
  readonly layers?: LayerRange;
  readonly payload?: Payload;
  /** Of a transfer: who receives it. `device` is the sender. */
  readonly to?: string;
  /** Of a transfer. */
  readonly bytes?: number;
  /** Of a transfer: `endMs` is when the link is free again; the piece arrives one latency later. */
  readonly startMs: number;
  readonly endMs: number;
}

/** Whether an event is of an AllReduce that overlaps with what its device computes. */
export function isOverlapped({ kind, layers }: ProgramEvent): boolean {
  return kind === 'all-reduce' && layers !== undefined;
}
