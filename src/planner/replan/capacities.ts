// FTPipeHD's dynamic scheduler while a run goes on (§III-D): capacities of the workers from what their batches took,
// and the model partitioned again by them, among the workers in their order. Only the central node's profile counts, as
// in the paper: a worker takes C_i times as long for every layer (eq. 3).

import type { Cluster, DeviceTimes, Plan, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { prefixSums, rangeOf, scaledTimes } from '../../cluster/times.ts';
import { InputError } from '../../errors.ts';
import { capacitiesOf, centralLayerMs, ftpipehd } from '../ftpipehd.ts';
import { layoutPlan } from '../layout.ts';
import { predictedPlan } from '../predict.ts';
import type { StageLayout } from '../problem.ts';
import { assumedProfile, type ReplanInput, remainingProblem } from './survivors.ts';

/** The central node, which profiled the model. It may be gone. */
export interface CentralNode {
  readonly name: string;
  readonly times: DeviceTimes;
}

/** By worker, how many times as long as the central node it takes: C_i. Who is not named has not been measured: 1. */
export type Capacities = Readonly<Record<string, number>>;

/** The profile in which each of these workers takes C_i times as long as the central node. */
export function profileByCapacity(
  profile: Profile,
  { times }: CentralNode,
  workers: readonly string[],
  capacities: Capacities = {},
): Profile {
  const devices = workers.map((name) => [name, scaledTimes(times, capacities[name] ?? 1)] as const);
  return { ...profile, devices: Object.fromEntries(devices) };
}

/**
 * C_i of each worker that has been measured (eq. 1 and 2). `batchMs`: by worker, the mean time that its batches took on
 * the layers that it has in the plan. The central node's is 1, whatever it takes now.
 */
export function measuredCapacities(
  plan: PlanLayout,
  profile: Profile,
  { central, batchMs }: { readonly central: CentralNode; readonly batchMs: Readonly<Record<string, number>> },
): Capacities {
  const cluster: Cluster = {
    devices: [{ name: central.name, memoryMiB: Number.MAX_SAFE_INTEGER }],
    links: { default: { bandwidthMbps: 1 } },
  };
  const known = profileByCapacity(profile, central, [central.name]);
  const layerMs = centralLayerMs(remainingProblem({ plan, profile: known, cluster, lost: [] }), 0).map(
    (ms) => ms * plan.microBatchCount,
  );
  const sums = prefixSums(layerMs);
  const measured = plan.stages.flatMap(({ layers, devices }) =>
    devices.flatMap((name) => (batchMs[name] === undefined ? [] : [{ name, layers, batchMs: batchMs[name] }])),
  );
  // Eq. 1 takes the central node first, where it has layers and where it has none any more.
  // Layers that take no time say nothing.
  const others = measured.filter(({ name, layers }) => name !== central.name && rangeOf(sums, ...layers) > 0);
  const [own = 1, ...found] = capacitiesOf(layerMs, [{ layers: [0, layerMs.length], batchMs: 0 }, ...others]);
  return Object.fromEntries([[central.name, own], ...others.map(({ name }, index) => [name, found[index] ?? 1])]);
}

/**
 * The model partitioned among `workers`, in this order, by their capacities: a straight pipeline with the micro-batches
 * and the schedule of the plan before. Without a profile all layers are alike. Throws InputError, with the worker and
 * what it lacks, if that does not fit.
 */
export function partitionedAgain(
  input: ReplanInput & { readonly workers: readonly string[]; readonly central: CentralNode | undefined },
  capacities: Capacities,
): Plan {
  const { workers, central, optimizerState = 0, plan } = input;
  const assumed = assumedProfile(input);
  const profile = central === undefined ? assumed : profileByCapacity(assumed, central, workers, capacities);
  const devices = workers.flatMap((name) => input.cluster.devices.find((device) => device.name === name) ?? []);
  const cluster = { ...input.cluster, devices };
  const problem = remainingProblem({ ...input, profile, cluster });
  const layout = layoutPlan(problem, plan.planner, layoutsOf(ftpipehd(problem)));
  const found = predictedPlan(layout, profile, cluster, optimizerState);
  for (const { name, memoryMiB } of devices) {
    const neededMiB = found.predicted.peakMemoryMiB[name] ?? 0;
    if (neededMiB > memoryMiB)
      throw new InputError(
        `Device "${name}" would need ${Math.ceil(neededMiB)} MiB for its part by capacity, and has ` +
          `${Math.floor(memoryMiB)}; give it more memory, or take planner best, which respects it.`,
      );
  }
  return found;
}

/** The search's result: it is one step. */
function layoutsOf(steps: ReturnType<typeof ftpipehd>): readonly StageLayout[] {
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}
