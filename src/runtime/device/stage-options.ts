// The stage that a device's Program asks for: its layers and share, its form, and what it may keep for backward passes.

import type { DeviceProgram } from '../../schedule/program.ts';
import type { RunSubject } from '../protocol/run-subject.ts';
import { budgetCount, savedBudgetBytes } from './recomputation.ts';
import { stageFormOf } from './stage-form.ts';
import type { StageOptions } from './stage-graphs.ts';

/** The stage that a device runs in a layout. `memoryBytes`: what the device may use; undefined: not known. */
export function stageOptionsOf(
  { sequence, label, training }: Pick<RunSubject, 'sequence' | 'label' | 'training'>,
  device: DeviceProgram,
  { microBatchSize }: { readonly microBatchSize: number },
  memoryBytes: number | undefined,
): StageOptions {
  return {
    sequence,
    layers: device.layers,
    sampleCount: device.samples[1] - device.samples[0],
    training,
    label,
    microBatchSize,
    form: stageFormOf(device, training),
    savedBudgetBytes: savedBudgetBytes({ sequence, program: device, training, memoryBytes }),
    budgetCount: budgetCount({ program: device, training }),
    ...(device.staleness === undefined ? {} : { staleness: device.staleness }),
  };
}
