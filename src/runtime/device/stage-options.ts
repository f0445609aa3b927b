// The stage that a device's Program asks for: its layers and share, its form, and what it may keep for backward passes.

import type { PlanLayout } from '../../cluster/cluster.ts';
import type { DeviceProgram } from '../../schedule/program.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import { budgetCount, savedBudgetBytes } from './recomputation.ts';
import { stageFormOf } from './stage-form.ts';
import type { StageOptions } from './stage-graphs.ts';

/** The stage that a device runs in a layout. `memoryBytes`: what the device may use; undefined: not known. */
export function stageOptionsOf(
  { sequence, label, training }: Pick<RunSubject, 'sequence' | 'label' | 'training'>,
  device: DeviceProgram,
  plan: Pick<PlanLayout, 'microBatchSize' | 'stages'>,
  memoryBytes: number | undefined,
): StageOptions {
  return {
    sequence,
    layers: device.layers,
    sampleCount: device.samples[1] - device.samples[0],
    training,
    label,
    microBatchSize: plan.microBatchSize,
    form: stageFormOf(device, training),
    savedBudgetBytes: savedBudgetBytes({ sequence, program: device, training, memoryBytes }),
    budgetCount: budgetCount({ program: device, training }),
    ...streamOptions(device, plan, training),
  };
}

/** What a stage of a stream has besides; nothing where rounds follow each other. Stage p of P has P − p versions. */
function streamOptions(
  { staleness, stage }: DeviceProgram,
  { stages }: Pick<PlanLayout, 'stages'>,
  { aggregate: every }: RunSubject['training'],
): Pick<StageOptions, 'staleness' | 'aggregation'> {
  if (staleness === undefined) return {};
  return { staleness, ...(every === undefined ? {} : { aggregation: { every, versionCount: stages.length - stage } }) };
}
