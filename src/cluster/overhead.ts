// What a device's processor pays besides the layers that it computes: the constants, their names in profiles, and the
// prices that follow from them (docs/cost-model.md). A constant is added here and nowhere else.

import type { z } from 'zod';

/** A table of times: [batch size][layer], milliseconds. */
export type TimeTable = readonly (readonly number[])[];

/** The constants as a profile's device has them. Milliseconds; an absent one is 0, where it does not say otherwise. */
export interface OverheadFields {
  /**
   * Forward and backward together in a last stage that runs each backward right after its forward: one graph then,
   * which keeps nothing between them. Absent means the sum of the two.
   */
  readonly stepMs?: TimeTable;
  /**
   * What each pass of a micro-batch takes besides its layers, however few samples it has: the engine's call. A pass of
   * weight gradients of its own, and each piece of a pass that is cut, is one more.
   */
  readonly callMs?: number;
  /** What a MiB costs, sent or received, on a device whose processor does both. */
  readonly handlingMsPerMiB?: number;
  /**
   * What a MiB of an AllReduce costs: processors of a group work for each other at the same time, and small ones delay
   * each other. Absent means `handlingMsPerMiB`.
   */
  readonly reducingMsPerMiB?: number;
  /**
   * What a frame costs besides its bytes, sent or received, with its acknowledgement: an input, a label, an activation
   * or a gradient of a micro-batch, from or to each of the devices that share it out.
   */
  readonly frameMs?: number;
  /** What a pass of a micro-batch costs the main thread: housekeeping of the program. */
  readonly passMs?: number;
}

/** How a field of a device's times is laid out: by batch size and layer, by layer, or a single number. */
export type FieldShape = 'table' | 'row' | 'number';

/** The one enumeration of the constants. */
export const overheadShapes: {
  readonly [Field in keyof OverheadFields]-?: Field extends 'stepMs' ? 'table' : 'number';
} = {
  stepMs: 'table',
  callMs: 'number',
  handlingMsPerMiB: 'number',
  reducingMsPerMiB: 'number',
  frameMs: 'number',
  passMs: 'number',
};

/** The one schema of the constants; `ms` makes the number that a text describes. */
export function overheadSchema<Table extends z.ZodType>(
  table: Table,
  ms: (what: string) => z.ZodNumber,
): { readonly [Field in keyof OverheadFields]-?: z.ZodExactOptional<Field extends 'stepMs' ? Table : z.ZodNumber> } {
  return {
    stepMs: table.exactOptional(),
    callMs: ms('milliseconds that a pass takes besides its layers').exactOptional(),
    handlingMsPerMiB: ms('milliseconds of computing that a MiB costs').exactOptional(),
    reducingMsPerMiB: ms('milliseconds of computing that a MiB of an AllReduce costs').exactOptional(),
    frameMs: ms('milliseconds of computing that a frame costs besides its bytes').exactOptional(),
    passMs: ms('milliseconds of computing that a pass costs besides').exactOptional(),
  };
}

/** The constants with all defaults filled in. Milliseconds of computing. */
export interface Overhead {
  /** Each call of the engine. */
  readonly callMs: number;
  /** Waking the main thread for a pass, and for a frame sent or received. */
  readonly wakeMs: number;
  readonly frameWakeMs: number;
  /** A MiB sent or received; of an AllReduce. */
  readonly transferMsPerMiB: number;
  readonly reduceMsPerMiB: number;
}

/** What crosses a device's links and wakes its main thread. */
export interface Traffic {
  readonly bytes: number;
  readonly frames: number;
  readonly passes: number;
}

/** What a pass of a micro-batch is given and hands on. Its wake is counted with what it hands on. */
export interface PassTraffic {
  readonly received: Traffic;
  readonly sent: Traffic;
}

/**
 * What a frame costs besides its bytes, in passes: both wake the main thread, which does something short. A ratio for
 * all devices: rounds say 1.2 to 1.6, trials before a run up to twice as much from one run to the next
 * (bench/results/2026-11-27-reducing.md).
 */
const wakesPerFrame = 1.3;

/** The constants of a device, from its times in a profile. */
export function overheadOf(fields: OverheadFields): Overhead {
  const { callMs = 0, passMs = 0, frameMs = 0, handlingMsPerMiB = 0, reducingMsPerMiB = handlingMsPerMiB } = fields;
  const perMiB = { transferMsPerMiB: handlingMsPerMiB, reduceMsPerMiB: reducingMsPerMiB };
  return { callMs, wakeMs: passMs, frameWakeMs: frameMs, ...perMiB };
}

/** What a device measures: both of its passes as one graph, its calls, and its main thread's part of a pass. */
export function measuredOverhead(
  passes: readonly PassRows[],
  { fusedFactors, callMs, wakeMs }: { fusedFactors: readonly number[]; callMs: number; wakeMs: number | undefined },
): OverheadFields {
  const stepMs = passes.map(({ forwardMs, backwardMs }, point) =>
    forwardMs.map((ms, layer) => (ms + (backwardMs[layer] ?? 0)) * (fusedFactors[point] ?? 1)),
  );
  return { stepMs, ...passOverhead(callMs, wakeMs) };
}

/** What a device measures of any pass: the engine's call, and its main thread's part, undefined where not known. */
export function passOverhead(callMs: number, wakeMs: number | undefined): OverheadFields {
  return { callMs, ...(wakeMs === undefined ? {} : { passMs: wakeMs }) };
}

/** Whether it is known what links cost this device. */
export function knowsLinks({ handlingMsPerMiB }: OverheadFields): boolean {
  return handlingMsPerMiB !== undefined;
}

/** Times completed with what links cost the processor: per MiB, and per frame in proportion to passes. */
export function withLinkCosts<Times extends OverheadFields>(
  times: Times,
  { transferMsPerMiB, reduceMsPerMiB }: { transferMsPerMiB: number; reduceMsPerMiB: number | undefined },
): Times {
  return {
    ...times,
    handlingMsPerMiB: transferMsPerMiB,
    ...(reduceMsPerMiB === undefined ? {} : { reducingMsPerMiB: reduceMsPerMiB }),
    ...(times.passMs === undefined ? {} : { frameMs: wakesPerFrame * times.passMs }),
  };
}

/** What moving `bytes` over links costs a processor at one end. */
export function transferCpuMs({ transferMsPerMiB }: Pick<Overhead, 'transferMsPerMiB'>, bytes: number): number {
  return (transferMsPerMiB * bytes) / 2 ** 20;
}

/** What `bytes` of an AllReduce, sent and received, cost a member's processor; it takes no less than this. */
export function reduceCpuMs({ reduceMsPerMiB }: Pick<Overhead, 'reduceMsPerMiB'>, bytes: number): number {
  return (reduceMsPerMiB * bytes) / 2 ** 20;
}

/**
 * What the main thread pays for traffic: transfer · MiB + frame wake · frames + wake · passes. A pass pays for what it
 * is given and what it hands on; the data's holder pays with its forward passes for what it hands out. `round` puts
 * each price on a grid of times.
 */
export function processorMs(
  overhead: Overhead,
  { bytes, frames, passes }: Traffic,
  round: (ms: number) => number = (ms) => ms,
): number {
  const { frameWakeMs, wakeMs } = overhead;
  return round(transferCpuMs(overhead, bytes)) + frames * round(frameWakeMs) + passes * round(wakeMs);
}

/** How many times as much as its profile says a device pays. */
export interface OverheadFactors {
  readonly wake: number;
  readonly transfer: number;
  /** Undefined where nothing is known of it: as before, or as transfers are where a profile has no value of its own. */
  readonly reduce: number | undefined;
}

/** What a device pays for links and wakes after these factors; `unknownWakeMs`: a pass's cost if it is unknown. */
export function correctedOverhead(
  { handlingMsPerMiB, reducingMsPerMiB, frameMs, passMs }: OverheadFields,
  { wake, transfer, reduce }: OverheadFactors,
  unknownWakeMs = 0,
): OverheadFields {
  const isApart = reduce !== undefined && reduce !== transfer;
  const reduceMsPerMiB = reducingMsPerMiB ?? (isApart ? handlingMsPerMiB : undefined);
  const pass = passMs === undefined && frameMs === undefined && unknownWakeMs > 0 ? unknownWakeMs : passMs;
  return {
    ...(handlingMsPerMiB === undefined ? {} : { handlingMsPerMiB: handlingMsPerMiB * transfer }),
    ...(reduceMsPerMiB === undefined ? {} : { reducingMsPerMiB: reduceMsPerMiB * (reduce ?? 1) }),
    ...(frameMs === undefined ? {} : { frameMs: frameMs * wake }),
    ...(pass === undefined ? {} : { passMs: pass === passMs ? pass * wake : pass }),
  };
}

/** A pass's time from that of its layers: with the engine's call, and nothing where there is nothing to compute. */
export function calledMs({ callMs }: Overhead, isEmpty: boolean, layersMs: number): number {
  return isEmpty ? 0 : layersMs + callMs;
}

/** The two passes at one batch size, by layer. */
export interface PassRows {
  readonly forwardMs: readonly number[];
  readonly backwardMs: readonly number[];
}

/** Tables of a device's two passes. */
export interface PassTables {
  readonly forwardMs: TimeTable;
  readonly backwardMs: TimeTable;
}

/** Whether both passes as one graph take other times than their sum. */
export function hasFusedTimes({ stepMs }: OverheadFields): boolean {
  return stepMs !== undefined;
}

/**
 * The tables of the two passes where they are one graph: its time, in the proportion that they have apart. Unchanged
 * where the profile does not know it.
 */
export function fusedTables({ forwardMs, backwardMs, stepMs }: PassTables & OverheadFields): PassTables {
  if (stepMs === undefined) return { forwardMs, backwardMs };
  const forward = stepMs.map((row, point) =>
    row.map((ms, layer) => {
      const [own, other] = [forwardMs[point]?.[layer] ?? 0, backwardMs[point]?.[layer] ?? 0];
      return own + other > 0 ? (ms * own) / (own + other) : 0;
    }),
  );
  return {
    forwardMs: forward,
    backwardMs: stepMs.map((row, point) => row.map((ms, layer) => ms - (forward[point]?.[layer] ?? 0))),
  };
}

/** The times of both passes as one graph where the first `layerCount` layers only run forward. */
export function fusedForwardOnly(times: PassTables & OverheadFields, layerCount: number): OverheadFields {
  const { stepMs } = times;
  if (stepMs === undefined) return {};
  const { forwardMs } = fusedTables(times);
  return {
    stepMs: stepMs.map((row, point) =>
      row.map((ms, layer) => (layer < layerCount ? (forwardMs[point]?.[layer] ?? 0) : ms)),
    ),
  };
}

/** Times of which both passes as one graph are not known. */
export function withoutFused<Times extends OverheadFields>({ stepMs: _, ...rest }: Times): Omit<Times, 'stepMs'> {
  return rest;
}
