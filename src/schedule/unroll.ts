// A Program written out over rounds, as check.ts follows it: what each device does from the first tick to the last, the
// instructions of different rounds distinguished by a number for each micro-batch of the whole stretch.
// Filling and draining come out by themselves: instructions for rounds that do not exist are left out. Pure.

import type { DeviceProgram, Instruction, Program } from './program.ts';

/** A stretch of rounds of a Program. */
export interface Unrolled {
  readonly roundCount: number;
  /** Micro-batches of all rounds: micro-batch m of round t has the number t · microBatchCount + m. */
  readonly microBatchCount: number;
  /** Their instructions; `microBatch` is the number above, `round` the round itself. */
  readonly devices: readonly DeviceProgram[];
}

/** How many rounds after one another have instructions in a tick, beyond the first of them. */
export function roundsInTick(program: Program): number {
  const [least, most] = offsetsOf(program);
  return most - least;
}

/** The least and the most offset of all instructions and 0. */
function offsetsOf({ devices }: Program): readonly [least: number, most: number] {
  let [least, most] = [0, 0];
  for (const { instructions } of devices)
    for (const { round = 0 } of instructions) [least, most] = [Math.min(least, round), Math.max(most, round)];
  return [least, most];
}

/**
 * By default as many rounds as it takes to see each pair of rounds that meet in a tick, while the pipeline fills, runs
 * and drains: one where all offsets are equal.
 */
export function unroll(program: Program, roundCount: number = defaultRoundCount(program)): Unrolled {
  const { microBatchCount } = program;
  const [least, most] = offsetsOf(program);
  const devices = program.devices.map((device) => {
    if (roundCount === 1) return device;
    const instructions: Instruction[] = [];
    for (let tick = -most; tick < roundCount - least; tick++)
      for (const step of device.instructions) {
        const round = tick + (step.round ?? 0);
        if (round < 0 || round >= roundCount) continue;
        instructions.push(
          'microBatch' in step
            ? { ...step, round, microBatch: round * microBatchCount + step.microBatch }
            : { ...step, round },
        );
      }
    return { ...device, instructions };
  });
  return { roundCount, microBatchCount: roundCount * microBatchCount, devices };
}

function defaultRoundCount(program: Program): number {
  const more = roundsInTick(program);
  return more === 0 ? 1 : more + 2;
}
