// `--mode` of the commands that plan: which schedules are asked for, and the table of what each mode would cost.

import type { Command } from 'commander';
import { systemClock } from '../clock.ts';
import { InputError } from '../errors.ts';
import { compareModesSteps, type ModeChoice, type ModesInput, plannedModes } from '../planner/modes.ts';
import { scheduleOf, streamScheduleNames } from '../schedule/schedules.ts';
import type { Output } from './output.ts';
import { bestTimeLimitMs } from './planning.ts';
import { memory, type Terminal } from './terminal.ts';

/** What `--mode` takes where plans are made. */
export const planningModes: readonly string[] = [...plannedModes, 'auto'];

/** The flags of a command that plans in any mode. */
export function addModeFlags(command: Command): Command {
  return command
    .option(
      '--mode <NAME>',
      'sync: rounds follow each other | async: rounds overlap, with weights that lag behind | auto: what each would ' +
        'cost, and the faster one',
      'sync',
    )
    .option('--max-staleness <N>', 'of async and auto: rounds by which weights may lag behind at most');
}

/** The schedule to plan with; undefined leaves it to the planner. InputError where mode and schedule do not agree. */
export function scheduleOfMode(mode: string, schedule: string | undefined): string | undefined {
  if (!planningModes.includes(mode)) throw new InputError(`--mode ${mode} must be one of ${planningModes.join(', ')}.`);
  if (schedule === undefined) return mode === 'async' ? streamScheduleNames[0] : undefined;
  const { isStream } = scheduleOf(schedule);
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

/** One line a mode, and the choice. */
export function printModes({ modes, chosen }: ModeChoice, terminal: Terminal): void {
  const rows = modes.map((each): string[] => {
    if ('refusal' in each) return [each.mode, each.refusal];
    const [device, mib] = Object.entries(each.versionsMiB).reduce((most, other) => (other[1] > most[1] ? other : most));
    const versions = mib === 0 ? 'none' : `${memory(mib)} on ${device}`;
    const peak = Math.max(...Object.values(each.peakMemoryMiB));
    return [
      ...[each.mode, `${each.roundMs.toFixed(1)} ms`, each.samplesPerS.toFixed(1)],
      ...[`${(100 * each.bubbleShare).toFixed(0)} %`, `${each.staleness}`, versions, memory(peak)],
    ];
  });
  const head = ['mode', 'a round', 'samples/s', 'bubbles', 'staleness', 'versions', 'memory at most'];
  const widths = head.map((title, column) =>
    Math.max(title.length, ...rows.filter((row) => row.length > 2).map((row) => row[column]?.length ?? 0)),
  );
  for (const row of [head, ...rows])
    terminal.section(
      'Modes',
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd(),
    );
  terminal.section('Chosen', chosen.mode);
}
