// First plans that are kept: the next run of the same model on the same devices begins with the plan of the one before.
// What is asked of the planner must be the same, but for what every run measures anew (links, and what they cost
// processors), which may differ as much as training bears without another plan; and the round must be predicted to
// take about as long. Only searches that came to their end are kept.

import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { parsePlan } from '../../cluster/validate.ts';
import { program } from '../../schedule/generate.ts';
import { createSimulator } from '../../simulator/simulate.ts';
import type { StageStore } from '../device/compiled-stages.ts';

/** What a plan is asked for. */
export interface PlanQuestion {
  readonly profile: Profile;
  readonly cluster: Cluster;
  /** All else that the plan depends on, as plain data. */
  readonly settings: unknown;
}

/** A link's figure is as before within this factor: training changes no plan for less (link-watch.ts). */
const nearFactor = 2;
/** A round is as before within this part of it. */
const nearPart = 0.05;

/** A question but for the figures that every run measures anew, and these. */
interface Asked {
  readonly key: string;
  readonly figures: readonly number[];
}

/** The plan of a question that was as good as this, with today's prediction; undefined if there is none. */
export async function keptPlan(store: StageStore, question: PlanQuestion): Promise<Plan | undefined> {
  const { key, figures } = askedOf(question);
  const bytes = await store.read(key);
  if (bytes === undefined) return undefined;
  try {
    const kept = JSON.parse(new TextDecoder().decode(bytes)) as { readonly figures: readonly number[]; plan: unknown };
    if (!areNear(kept.figures, figures)) return undefined;
    const { predicted: before, ...plan } = parsePlan(kept.plan);
    if (before === undefined) return undefined;
    const simulated = createSimulator(question.profile, question.cluster)(program(plan), plan, { events: false });
    const { roundMs, samplesPerS } = simulated;
    if (Math.abs(roundMs - before.roundMs) > nearPart * before.roundMs) return undefined;
    // A bound was proven for other figures.
    return { ...plan, predicted: { roundMs, samplesPerS, peakMemoryMiB: before.peakMemoryMiB } };
  } catch {
    return undefined; // another version's, or damaged: planned again and replaced
  }
}

/** Keeps a plan for the next run. */
export async function keepPlan(store: StageStore, question: PlanQuestion, plan: Plan): Promise<void> {
  const { key, figures } = askedOf(question);
  await store.write(key, [new TextEncoder().encode(JSON.stringify({ figures, plan }))]);
}

function askedOf({ profile, cluster, settings }: PlanQuestion): Asked {
  const figures: number[] = [];
  const apart = (value: unknown): unknown => {
    if (typeof value !== 'number') return value;
    figures.push(value);
    return null;
  };
  // Of a device's times, tables are of the model, and single figures of the processor.
  const devices = Object.entries(profile.devices).map(([name, times]) => [
    name,
    Object.entries(times).map(([field, value]) => [field, apart(value)]),
  ]);
  const links = JSON.stringify(cluster.links, (_, value: unknown) => apart(value));
  return { key: JSON.stringify([{ ...profile, devices }, { ...cluster, links }, settings]), figures };
}

function areNear(some: readonly number[], others: readonly number[]): boolean {
  const isNear = (one: number, other: number): boolean =>
    one === other || Math.max(one, other) <= nearFactor * Math.min(one, other);
  return some.length === others.length && some.every((one, index) => isNear(one, others[index] ?? Number.NaN));
}
