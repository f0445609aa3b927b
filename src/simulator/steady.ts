// Rounds that follow each other, as in a run: a device begins the next one when it has its own update, while others are
// still at work on this one.

import type { PlanLayout } from '../cluster/cluster.ts';
import type { DeviceProgram, Instruction, Program } from '../schedule/program.ts';
import { scheduleOf } from '../schedule/schedules.ts';
import type { Simulator } from './simulate.ts';

/**
 * The time from the end of a round to the end of the next. Shorter than one round alone if its end, such as a late
 * AllReduce, overlaps with the beginning of the next.
 */
export function steadyRoundMs(simulator: Simulator, program: Program, plan: PlanLayout): number {
  // The time of a stream's round is that of its steady state.
  if (scheduleOf(plan.schedule).isStream) return simulator(program, plan, { events: false }).roundMs;
  const endMs = (count: number): number =>
    simulator(repeatedProgram(program, count), repeatedPlan(plan, count), { events: false }).roundMs;
  return endMs(3) - endMs(2);
}

/** `count` rounds as one, with micro-batches numbered consecutively. */
export function repeatedProgram({ devices, ...rest }: Program, count: number): Program {
  return {
    ...rest,
    devices: devices.map((device) => ({
      ...device,
      instructions: repeatedInstructions(device, rest.microBatchCount, count),
    })),
    microBatchCount: count * rest.microBatchCount,
  };
}

function repeatedInstructions(
  { instructions }: DeviceProgram,
  microBatchCount: number,
  count: number,
): readonly Instruction[] {
  return Array.from({ length: count }, (_, round) =>
    instructions.map((step) =>
      'microBatch' in step ? { ...step, microBatch: step.microBatch + round * microBatchCount } : step,
    ),
  ).flat();
}

function repeatedPlan(plan: PlanLayout, count: number): PlanLayout {
  return { ...plan, batchSize: count * plan.batchSize, microBatchCount: count * plan.microBatchCount };
}
