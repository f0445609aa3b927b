// A finished run, read from its folder for a replay: its events with their times, its rounds between them, and what the
// simulator expected of each of its layouts.

import { join } from 'node:path';
import { parseCluster, parsePlan, parseProfile } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import type { RunEvent } from '../../runtime/protocol/events.ts';
import { readLines } from '../../storage/line-log.ts';
import { nodeDisk } from '../../storage/node/disk.ts';
import { addPoint, type CurvePoint, emptyCurve } from '../curve.ts';
import type { ServerMessage, Timed } from '../messages.ts';
import { type RecordedRound, recordedEvent, recordedRound } from '../recorded.ts';
import { Translation } from './translation.ts';

/** Points that the rounds of a recording become at most: neighbours are merged. */
const mostRounds = 8192;

type Recording = Extract<ServerMessage, { readonly kind: 'recording' }>;

interface TimedEvent {
  readonly atMs: number;
  readonly event: RunEvent;
}

/** Reads a run's folder. Throws InputError where it is none. */
export async function readRecording(folder: string): Promise<Recording> {
  const lines = await readLines(join(folder, 'events.jsonl'), nodeDisk);
  if (lines === undefined)
    throw new InputError(`${folder} is not the folder of a run (it has no events.jsonl): name one that a run printed.`);
  const translation = new Translation();
  translation.profile = await documentIn(folder, 'profile.json', parseProfile);
  translation.cluster = await documentIn(folder, 'cluster.json', parseCluster);
  const told = inOneTime(lines.flatMap((line) => recordedEvent(line) ?? []));
  const rounds = ((await readLines(join(folder, 'metrics.jsonl'), nodeDisk)) ?? []).flatMap(
    (line) => recordedRound(line) ?? [],
  );
  const start = await firstLayout(folder, told);
  const batchSize = start?.kind === 'deployment' ? start.plan.batchSize : 1;
  const all = [...(start === undefined ? [] : [{ atMs: 0, event: start }]), ...told];
  const merged = [...all, ...roundsOf(rounds, all, batchSize)].sort((a, b) => a.atMs - b.atMs);
  const events = merged.flatMap(({ atMs, event }) => translation.of(event).map((shown): Timed => [atMs, shown]));
  const cluster = translation.cluster;
  if (cluster !== undefined) events.unshift([0, { kind: 'cluster', cluster }]);
  return { kind: 'recording', name: folder, model: translation.profile?.model ?? folder, events };
}

/** Times of a run that was resumed begin again: each session follows the one before. */
function inOneTime(events: readonly TimedEvent[]): TimedEvent[] {
  let [offsetMs, latestMs] = [0, 0];
  return events.map(({ atMs, event }) => {
    if (offsetMs + atMs < latestMs - 1000) offsetMs = latestMs;
    latestMs = Math.max(latestMs, offsetMs + atMs);
    return { atMs: offsetMs + atMs, event };
  });
}

/** The layout of a run whose events do not name it. */
async function firstLayout(folder: string, told: readonly TimedEvent[]): Promise<RunEvent | undefined> {
  if (told.some(({ event }) => event.kind === 'deployment')) return undefined;
  const plan = await documentIn(folder, 'plan.json', parsePlan);
  return plan?.predicted === undefined
    ? undefined
    : { kind: 'deployment', plan: { ...plan, predicted: plan.predicted } };
}

/** A document of the folder; undefined where it is missing or damaged: the rest can be shown without it. */
async function documentIn<T>(
  folder: string,
  name: string,
  parse: (text: string, name: string) => T,
): Promise<T | undefined> {
  try {
    return parse(new TextDecoder().decode(await nodeDisk.read(join(folder, name))), name);
  } catch {
    return undefined;
  }
}

/** Rounds as events; those without a time follow each other from the beginning of training, by their speed. */
function roundsOf(rounds: readonly RecordedRound[], told: readonly TimedEvent[], batchSize: number): TimedEvent[] {
  const startMs = told.find(({ event }) => event.kind === 'training')?.atMs ?? 0;
  const training = told.find(({ event }) => event.kind === 'training')?.event;
  const endRound = training?.kind === 'training' ? training.endRound : rounds.length;
  const curve = emptyCurve();
  let atMs = startMs;
  for (const { loss, accuracy, samplesPerS, lr, round, atMs: own } of rounds) {
    atMs = own ?? atMs + (batchSize / samplesPerS) * 1000;
    addPoint(curve, { round, atMs, count: 1, loss, accuracy, samplesPerS, lr, low: loss, high: loss }, mostRounds);
  }
  return curve.points.map((point) => ({ atMs: point.atMs, event: roundEvent(point, endRound) }));
}

function roundEvent({ round, loss, accuracy, samplesPerS, lr }: CurvePoint, endRound: number): RunEvent {
  const metrics = { round, epoch: 0, loss: loss ?? Number.NaN, samplesPerS, lr, accuracy };
  return { kind: 'round', metrics, endRound, busyFraction: {}, work: {} };
}
