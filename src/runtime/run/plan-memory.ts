// What a plan asks of its devices' memory where nothing was profiled: for a plan that a person wrote.

import { defined } from '../../assert.ts';
import type { Cluster, DeviceTimes, LayerProfile, Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { frozenBytes, type LayerSequence } from '../../graph/layers.ts';
import { predictedPlan } from '../../planner/predict.ts';
import { withCopies } from '../../planner/replan/room-for-copies.ts';
import { filterBytes, withRuntimeBytes } from '../device/memory-need.ts';
import { optimizerStateCount, type TrainingSpec } from '../protocol/training-spec.ts';
import { layerTable } from './layer-table.ts';

/** By model: its layers, as if all were trained. Differentiating them takes a while. */
const tables = new WeakMap<LayerSequence, readonly LayerProfile[]>();

/** What the memory of a plan's devices depends on. */
interface PlanMemoryOptions {
  readonly sequence: LayerSequence;
  readonly training: TrainingSpec;
  /** Whether the run makes copies for the case of a loss. Default true. */
  readonly isCopied?: boolean;
}

/** Checks that each device can hold what the plan asks of it: eq. 3 and the runtime's buffers. Throws InputError. */
export function checkPlanMemory(plan: Plan, { devices }: Cluster, options: PlanMemoryOptions): void {
  const needed = plannedMemoryMiB(plan, options);
  for (const { name, memoryMiB } of devices) {
    const neededMiB = needed[name] ?? 0;
    if (neededMiB <= memoryMiB) continue;
    const {
      layers: [first, end],
    } = plan.stages.find((stage) => stage.devices.includes(name)) as Plan['stages'][number];
    throw new InputError(
      `The plan does not fit: device "${name}" has ${Math.floor(memoryMiB)} MiB for training, and layers ` +
        `${first} to ${end - 1} with its share take ${Math.ceil(neededMiB)}; give it fewer layers or samples, or ` +
        'leave the plan to the planner.',
    );
  }
}

/** By device of a plan: what it keeps, in MiB. */
export function plannedMemoryMiB(
  plan: Plan,
  { sequence, training, isCopied = true }: PlanMemoryOptions,
): Readonly<Record<string, number>> {
  const table = tables.get(sequence) ?? layerTable('', sequence).layers;
  tables.set(sequence, table);
  const frozen = new Set(training.frozen);
  const layers = table.map((layer, index): LayerProfile => {
    const own = defined(sequence.layers[index], layer.name);
    const found = { ...layer, frozenBytes: frozenBytes(sequence, own, frozen) };
    return withRuntimeBytes(found, filterBytes(sequence, own), training);
  });
  const names = [...new Set(plan.stages.flatMap((stage) => stage.devices))];
  const zeros = [layers.map(() => 0)];
  const times: DeviceTimes = { forwardMs: zeros, backwardMs: zeros };
  const profile = {
    ...{ model: '', inputBytes: 0, labelBytes: 0, batchSizes: [1] },
    layers,
    devices: Object.fromEntries(names.map((name) => [name, times])),
  };
  const cluster = {
    devices: names.map((name) => ({ name, memoryMiB: 1 })),
    links: { default: { bandwidthMbps: 1000 } },
  };
  const optimizerState = optimizerStateCount(training);
  const { predicted } = withCopies(predictedPlan(plan, profile, cluster, optimizerState), {
    ...{ profile, optimizerState, isCopied },
  });
  return predicted.peakMemoryMiB;
}
