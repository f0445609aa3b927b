// The interface of experiments: a table or figure of a paper reproduced by our planners and simulator, as markdown with
// charts. A new experiment is a new file and a line in experiments.ts.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import { profileOfKinds } from '../../cluster/device-kinds.ts';
import { parseCluster } from '../../cluster/validate.ts';
import { InputError } from '../../errors.ts';
import { type PlanInput, plan } from '../../planner/plan.ts';
import type { PaperModel } from './models.ts';

export interface Chart {
  /** File name without extension. */
  readonly name: string;
  readonly svg: string;
}

export interface Section {
  readonly title: string;
  /** Markdown; `![](NAME)` stands for a chart. */
  readonly text: string;
  readonly charts: readonly Chart[];
}

/** Computes a section from the test beds. */
export type Experiment = (testbeds: Testbeds) => Section | Promise<Section>;

/** The clusters of clusters/, by file name without extension. */
export type Testbeds = (name: string) => Cluster;

export function readTestbeds(root: string): Testbeds {
  return (name) => parseCluster(readFileSync(join(root, 'clusters', `${name}.yaml`), 'utf8'), name);
}

/** The cluster with another bandwidth on all links without one of their own. */
export function withBandwidth(cluster: Cluster, bandwidthMbps: number): Cluster {
  return { ...cluster, links: { ...cluster.links, default: { ...cluster.links.default, bandwidthMbps } } };
}

/** A plan and its planning time, or the reason why there is none. */
export type Planned =
  | { readonly plan: Plan; readonly planningMs: number }
  | { readonly plan?: undefined; readonly refusal: string };

/**
 * Plans a model for a cluster of known kinds, with replicas of batch normalization allowed, as in the papers; plain
 * SGD. The planning time is CPU time of this process. The refusal is an InputError's message, usually that something
 * does not fit.
 */
export function planFor(
  model: PaperModel,
  cluster: Cluster,
  planner: string,
  options: Partial<Pick<PlanInput, 'batchSize' | 'microBatchSize' | 'schedule'>> = {},
): Planned {
  return planWith(profileOfKinds(model.table, cluster), cluster, planner, { batchSize: model.batchSize, ...options });
}

/** planFor with a given profile. */
export function planWith(
  profile: Profile,
  cluster: Cluster,
  planner: string,
  options: Pick<PlanInput, 'batchSize'> & Partial<Pick<PlanInput, 'microBatchSize' | 'schedule'>>,
): Planned {
  const before = process.cpuUsage();
  try {
    // The papers' plans use 1F1B; ours are compared under the same schedule.
    const schedule = planner === 'best' ? { schedule: '1f1b' } : {};
    const found = plan({
      profile,
      cluster,
      planner,
      optimizerState: 0,
      replicateBatchDependent: true,
      ...schedule,
      ...options,
    });
    const { user, system } = process.cpuUsage(before);
    return { plan: found, planningMs: (user + system) / 1000 };
  } catch (error) {
    if (error instanceof InputError) return { refusal: error.message };
    throw error;
  }
}

/** A markdown table. */
export function markdownTable(headers: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
  return [line(headers), line(headers.map(() => '---')), ...rows.map(line)].join('\n');
}

/** "4.4x", or "×" for undefined. */
export function times(value: number | undefined): string {
  return value === undefined || !Number.isFinite(value) ? '×' : `${value.toFixed(value < 10 ? 2 : 1)}x`;
}

/** "+12 %": how far ours is above the published value. */
export function deviation(ours: number, published: number): string {
  const percent = Math.round((ours / published - 1) * 100);
  return `${percent > 0 ? '+' : percent < 0 ? '−' : ''}${Math.abs(percent)} %`;
}

/** Stages as "layers 0–84 on nano-1..4 (64 each)". */
export function describe({ stages, microBatchSize, microBatchCount, schedule }: Plan): string {
  const parts = stages.map(({ layers: [first, end], devices, samples }) => {
    const shares = devices.length === 1 ? '' : ` (${samples.join(', ')})`;
    return `${first}–${end - 1}: ${devices.join(' ')}${shares}`;
  });
  return `${schedule}, ${microBatchCount} x ${microBatchSize}; ${parts.join('; ')}`;
}
