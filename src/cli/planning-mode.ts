// `--mode` of the commands that plan: which schedules are asked for, and the search in all modes.

import type { Command } from 'commander';
import { systemClock } from '../clock.ts';
import { InputError } from '../errors.ts';
import type { TangentPlanInput } from '../planner/forward-gradient.ts';
import { compareModesSteps, type ModeChoice, type ModesInput, plannedModes } from '../planner/modes.ts';
import { tangentLimit } from '../runtime/protocol/training-spec.ts';
import { scheduleOf, tangentSchedule } from '../schedule/schedules.ts';
import { positive } from './flag-values.ts';
import type { Output } from './output.ts';
import { bestTimeLimitMs } from './planning.ts';

/** What `--mode` takes where plans are made. */
export const planningModes: readonly string[] = [...plannedModes, tangentSchedule, 'auto'];

/** The flags of a command that plans in any mode. */
export function addModeFlags(command: Command): Command {
  return command
    .option(
      '--mode <NAME>',
      'sync: rounds follow each other | async: rounds overlap, with weights that lag behind | forward-gradient: no ' +
        'backward passes (AsyncFGD) | auto: what sync and async would cost, and the faster one',
      'sync',
    )
    .option('--max-staleness <N>', 'of async and auto: rounds by which weights may lag behind at most')
    .option('--tangents <N>', 'of forward-gradient: random directions of an update (default: 1)')
    .option('--staleness <0>', 'of forward-gradient: rounds follow each other (default: they overlap)');
}

/** What a command says of plans by forward gradients. Throws InputError where the mode is another. */
export function tangentWish({
  mode,
  tangents,
  staleness,
}: {
  readonly mode: string;
  readonly tangents?: string;
  readonly staleness?: string;
}): Pick<TangentPlanInput, 'tangentCount' | 'staleness'> {
  if (mode !== tangentSchedule) {
    const given = tangents === undefined ? staleness && '--staleness' : '--tangents';
    if (given !== undefined) throw new InputError(`${given} needs --mode ${tangentSchedule}; leave it out.`);
    return { tangentCount: 1 };
  }
  if (staleness !== undefined && staleness !== '0')
    throw new InputError(`--staleness ${staleness} must be 0, for rounds that follow each other, or left out.`);
  const tangentCount = positive('--tangents', tangents ?? '1');
  if (tangentCount > tangentLimit) throw new InputError(`--tangents ${tangents} must be at most ${tangentLimit}.`);
  return { tangentCount, ...(staleness === undefined ? {} : { staleness: 0 }) };
}

/** The schedule to plan with; undefined leaves it to the planner. InputError where mode and schedule do not agree. */
export function scheduleOfMode(mode: string, schedule: string | undefined): string | undefined {
  if (!planningModes.includes(mode)) throw new InputError(`--mode ${mode} must be one of ${planningModes.join(', ')}.`);
  if (schedule === undefined) return mode === 'async' || mode === tangentSchedule ? mode : undefined;
  const { isStream } = scheduleOf(schedule);
  if (mode === tangentSchedule && schedule === mode) return schedule;
  if (mode === 'auto' || isStream !== (mode === 'async'))
    throw new InputError(
      `--mode ${mode} and --schedule ${schedule} do not go together: ` +
        'give async with --mode async, another schedule with --mode sync, or none with --mode auto.',
    );
  return schedule;
}

/** How long the search runs between two turns of the event loop. */
const sliceMs = 50;

/** Compares the modes while a person waits. Planner `best` has half of the time limit for each. */
export async function searchModes(
  input: ModesInput,
  output: Output,
  askedLimitMs?: number,
): Promise<{ readonly choice: ModeChoice; readonly planningMs: number }> {
  const startMs = systemClock.now();
  const limitMs = (askedLimitMs ?? bestTimeLimitMs) / plannedModes.length;
  let mode: string | undefined;
  let modeStartMs = startMs;
  const steps = compareModesSteps({
    ...input,
    isTimeUp: () => systemClock.now() - modeStartMs >= limitMs,
    onMode: (next) => {
      mode = next;
      modeStartMs = systemClock.now();
    },
  });
  let sliceEndMs = startMs + sliceMs;
  for (;;) {
    const step = steps.next();
    if (step.done === true) {
      output.terminal.live([]);
      return { choice: step.value, planningMs: systemClock.now() - startMs };
    }
    if (systemClock.now() < sliceEndMs) continue;
    output.terminal.live([`Planning   mode ${mode}`]);
    await new Promise((resolve) => setImmediate(resolve));
    sliceEndMs = systemClock.now() + sliceMs;
  }
}
