// PipeEdge's boards and plans in our terms, for its figures: forward passes only, `asteroid plan --schedule inference`.

import type { Cluster, Plan, Profile } from '../../cluster/cluster.ts';
import type { ActivationEncoding } from '../../cluster/compression.ts';
import { kindModel, type ModelTable, profileOfKinds } from '../../cluster/device-kinds.ts';
import { links } from '../../cluster/links.ts';
import { InputError } from '../../errors.ts';
import { evaluate } from '../../planner/inference/evaluate.ts';
import { planInference } from '../../planner/inference/plan.ts';
import { inferenceProblem } from '../../planner/inference/problem.ts';
import type { StageLayout } from '../../planner/problem.ts';
import { gigaflop } from './models.ts';

/**
 * The profile of a model on these boards. PyTorch holds weights twice while it loads them: with that ViT-Large,
 * ViT-Huge and BERT-Large need two, four and two MinnowBoards, as in the paper.
 */
export function boardProfile(table: ModelTable, cluster: Cluster): Profile {
  const profile = profileOfKinds(table, cluster);
  return { ...profile, layers: profile.layers.map((layer) => ({ ...layer, weightBytes: 2 * layer.weightBytes })) };
}

export interface BoardPlanOptions {
  readonly planner?: string;
  /** Default 1, as the paper's planner counts. */
  readonly microBatchSize?: number;
  readonly encoding?: ActivationEncoding | undefined;
}

/** The plan for the throughput, or undefined where nothing fits. */
export function boardPlan(table: ModelTable, cluster: Cluster, options: BoardPlanOptions = {}): Plan | undefined {
  const { planner = 'pipeedge', microBatchSize = 1, encoding } = options;
  try {
    return planInference({
      ...{ cluster, planner, microBatchSize, encoding },
      profile: boardProfile(table, cluster),
      batchSize: microBatchSize,
      objective: 'throughput',
    });
  } catch (error) {
    if (error instanceof InputError) return undefined;
    throw error;
  }
}

export const perSecond = (plan: Plan | undefined): number | undefined => plan?.predicted.samplesPerS;

export const deviceCountOf = ({ stages }: Plan): number => stages.reduce((sum, { devices }) => sum + devices.length, 0);

/** Items a second of stages that no planner made. */
export function rateOf(table: ModelTable, cluster: Cluster, layouts: readonly StageLayout[]): number {
  const problem = inferenceProblem({ cluster, profile: boardProfile(table, cluster), microBatchSize: 1 });
  return 1000 / evaluate(problem, layouts).periodMs;
}

/**
 * Items a second of a plan whose boards have one port each, with the bandwidth of their fastest link: all that a board
 * sends leaves through it, one piece after the other, and all that it receives comes in through it.
 */
export function throughPorts(table: ModelTable, cluster: Cluster, plan: Plan): number {
  const { base } = inferenceProblem({
    ...{ cluster, microBatchSize: plan.microBatchSize },
    profile: boardProfile(table, cluster),
  });
  const speeds = links(cluster);
  const portMbps = cluster.devices.map((_, a) =>
    Math.max(...cluster.devices.map((_, b) => (a === b ? 0 : speeds.bandwidthMbps(a, b)))),
  );
  let periodMs = plan.predicted.roundMs / plan.microBatchCount;
  for (const [stage, { layers, devices, samples }] of plan.stages.entries())
    for (const [index, name] of devices.entries()) {
      const bytes = (cut: number): number => (samples[index] ?? 0) * (base.profile.layers[cut - 1]?.outputBytes ?? 0);
      const most = Math.max(
        stage === 0 ? 0 : bytes(layers[0]),
        stage + 1 === plan.stages.length ? 0 : bytes(layers[1]),
      );
      periodMs = Math.max(periodMs, (most * 8) / ((portMbps[speeds.deviceIndex(name)] ?? 1) * 1000));
    }
  return (plan.microBatchSize * 1000) / periodMs;
}

/** So many boards of a kind, all links alike. */
export function homogeneous(kind: string, memoryMiB: number, count: number, bandwidthMbps: number): Cluster {
  const devices = Array.from({ length: count }, (_, index) => ({ name: `${kind}-${index + 1}`, kind, memoryMiB }));
  return { devices, links: { default: { bandwidthMbps } } };
}

/** Items a second of all boards together, each computing alone: no partition exceeds this under the model. */
export function aloneTogether(table: ModelTable, cluster: Cluster): number {
  return cluster.devices.reduce((sum, { kind = '' }) => sum + (kindModel(kind)?.gigaflops ?? 0), 0) / gigaflop(table);
}
