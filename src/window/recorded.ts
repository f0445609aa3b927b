// Lines of a finished run's events.jsonl and metrics.jsonl, as events: what a file says is taken only where it has the
// form that the view relies on. Lines of other kinds, and damaged ones, are left out.

import { z } from 'zod';
import type { RunEvent } from '../runtime/protocol/events.ts';
import { count, milliseconds, name, plan } from '../runtime/protocol/message-values.ts';

const text: z.ZodString = z.string().max(10_000);
const number: z.ZodNumber = z.number();
const device = { device: name };
const phases = [
  ...['gathering', 'preparing', 'connecting', 'measuring', 'profiling', 'planning', 'deploying', 'training'],
  ...['snapshotting', 'waiting', 'ended'],
] as const;

/** By the name of the event: its other fields. */
const shapes: Readonly<Record<string, z.ZodRawShape>> = {
  joined: {
    ...{ ...device, cores: number, memoryMiB: number, engine: text },
    cpuModel: text.optional(),
    cpuQuotaCores: number.optional(),
  },
  left: { ...device, reason: text },
  'memory-lowered': { ...device, fromMiB: number, toMiB: number, killCount: count },
  relayed: { between: z.tuple([name, name]) },
  'cool-down': { ...device, departureCount: count, seconds: number },
  suspected: { ...device, silentMs: number, suspectAfterMs: number, deadAfterMs: number },
  recovering: {
    ...{ cause: text, lost: z.array(name).max(2000), plan, round: count, repeatedRounds: count },
    ...{ source: z.enum(['devices', 'checkpoint']), movedMiB: number },
  },
  recovered: { cause: text, round: count, seconds: number },
  stream: { round: count, staleness: z.array(count).max(2000) },
  'reserve-ready': { seconds: number },
  checked: { roundMs: number, plannedMs: number },
  drift: {
    factors: z.record(name, number),
    links: z.array(z.object({ between: z.tuple([name, name]), beforeMbps: number, mbps: number })).max(2000),
  },
  phase: { phase: z.enum(phases) },
  deployment: { plan },
  training: { firstRound: count, endRound: count, roundsPerEpoch: count },
  trace: {
    ...{ ...device, round: count },
    times: z.array(z.object({ instruction: count, startMs: milliseconds, endMs: milliseconds })).max(100_000),
  },
  checkpoint: { round: count, path: text },
  statistics: { ...device, eventLoopDelayP99Ms: number, eventLoopDelayMaxMs: number, peakMemoryMiB: number },
  note: { message: text },
  warning: { message: text },
  evaluated: { round: count, accuracy: number.nullable(), loss: number, sampleCount: count },
  asked: {
    ...{ what: z.enum(['stop', 'drain', 'learning-rate']), device: name.optional() },
    factor: number.optional(),
  },
  'learning-rate': { round: count, factor: number },
  stopped: { round: count },
  failed: { message: text },
};

const schemas: ReadonlyMap<string, z.ZodObject> = new Map(
  Object.entries(shapes).map(([kind, shape]) => [kind, z.object({ ...shape, atMs: milliseconds })]),
);

/** A line of events.jsonl with its time; undefined if the view has no use for it. */
export function recordedEvent(line: unknown): { readonly atMs: number; readonly event: RunEvent } | undefined {
  const kind: unknown = typeof line === 'object' && line !== null && 'event' in line ? line.event : undefined;
  const parsed = typeof kind === 'string' ? schemas.get(kind)?.safeParse(line) : undefined;
  if (parsed?.success !== true) return undefined;
  const { atMs, ...rest } = parsed.data as { readonly atMs: number };
  return { atMs, event: { kind, ...rest } as RunEvent };
}

/** A line of metrics.jsonl; `atMs`: absent in runs of earlier versions. */
export interface RecordedRound {
  readonly round: number;
  readonly loss: number | null;
  readonly samplesPerS: number;
  readonly lr: number;
  readonly accuracy: number | null;
  readonly atMs?: number | undefined;
}

const roundSchema: z.ZodType<RecordedRound> = z.object({
  ...{ round: count, loss: number.nullable(), samplesPerS: number.positive(), lr: number },
  ...{ accuracy: number.nullable().default(null), atMs: milliseconds.optional() },
});

/** A line of metrics.jsonl; undefined if it is none. */
export function recordedRound(line: unknown): RecordedRound | undefined {
  const parsed = roundSchema.safeParse(line);
  return parsed.success ? parsed.data : undefined;
}
