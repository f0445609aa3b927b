// A Program in flat arrays: the types that compile.ts makes and simulate.ts runs.

import type { Overlap } from '../cluster/memory.ts';
import type { LayerTimes } from '../cluster/times.ts';
import { type PassKind, type Payload, passes } from '../schedule/passes.ts';
import type { DeviceProgram, Instruction } from '../schedule/program.ts';

/** Instruction kinds as small numbers. */
export const opcodes: Readonly<Record<Instruction['kind'], number>> = {
  receive: 0,
  send: 1,
  forward: 2,
  backward: 3,
  'backward-input': 4,
  'backward-weight': 5,
  'all-reduce': 6,
  update: 7,
  result: 8,
  tangent: 9,
};

/** By opcode: 1 for a pass after which a stage keeps one micro-batch less, or none of it (tangents). */
export const endsMicroBatch: Uint8Array = Uint8Array.from(Object.keys(opcodes), (kind) =>
  Object.hasOwn(passes, kind) && isLastOf(kind as PassKind) ? 1 : 0,
);

function isLastOf(kind: PassKind): boolean {
  const { keeps, does } = passes[kind];
  return keeps < 0 || does.includes('tangent');
}

/** The kind of an opcode. */
export const instructionKinds: readonly Instruction['kind'][] = Object.keys(opcodes) as Instruction['kind'][];

/** A device with its program. */
export interface Runner {
  readonly program: DeviceProgram;
  /** In cluster.devices. */
  readonly place: number;
  readonly times: LayerTimes;
  /** Milliseconds of an instruction over all of its layers, by opcode; 0 for those that do not compute. */
  readonly durations: Float64Array;
  /** Part of a backward's duration: of its first piece, where it is cut. */
  readonly recomputeMs: number;
  /** What AllReduces that overlap with its passes cost its processor. */
  overlappedReduceCpuMs: number;
  /** The first of its layers that has a backward pass, and keeps something for it. */
  readonly trainedFrom: number;
  /** K_p of its stage. */
  readonly inFlight: number;
  readonly overlap: Overlap;
  /** Flows of inputs and labels to it. */
  readonly feeds: number[];
}

/**
 * Pieces of one payload between two devices, one for each micro-batch. Piece m of flow f has the number f ·
 * microBatchCount + m.
 */
export interface Flow {
  readonly payload: Payload;
  /** Rule 4's order among pieces that are ready at the same time and belong to the same micro-batch. */
  readonly rank: number;
  /** −1: the data is there already. */
  readonly channel: number;
  readonly receiver: number;
  readonly senderStage: number;
  readonly bytes: number;
  /** For which a piece occupies the link. */
  readonly durationMs: number;
  readonly latencyMs: number;
}

/** One direction of a link, between places in cluster.devices. */
export interface Channel {
  readonly from: number;
  readonly to: number;
}

/** The devices of an AllReduce. */
export interface Group {
  readonly size: number;
  /** Eq. 5's time plus 2(|G| − 1) latencies. */
  readonly durationMs: number;
  /**
   * Where it overlaps with computing: the row of AllReduces that run one after the other, below `groups.length`. −1:
   * its members wait for it.
   */
  readonly row: number;
  /** Whose gradients it reduces, of rounds that overlap; otherwise 0. */
  readonly round: number;
  /** Whose gradients it reduces. */
  readonly layers: readonly [number, number];
  /** The places of its members in `runners`. */
  readonly members: readonly number[];
  /** What sending and receiving costs each of them. */
  readonly costsMs: readonly number[];
}

export interface Compiled {
  /** Of all rounds. */
  readonly microBatchCount: number;
  readonly roundCount: number;
  readonly runners: readonly Runner[];
  /** Instructions of runner r are those from firstInstruction[r] up to firstInstruction[r + 1]. */
  readonly firstInstruction: Int32Array;
  /** By instruction. */
  readonly opcode: Uint8Array;
  /**
   * By instruction: the piece's number (receive, send), the micro-batch (passes), the group (all-reduce), the round
   * (update).
   */
  readonly argument: Int32Array;
  /** By instruction: milliseconds of computing. */
  readonly durationMs: Float64Array;
  /** By instruction: milliseconds that the processor pays for what it is given. */
  readonly receivingMs: Float64Array;
  /** And for what it hands on. */
  readonly sendingMs: Float64Array;
  readonly flows: readonly Flow[];
  readonly channels: readonly Channel[];
  readonly groups: readonly Group[];
}
