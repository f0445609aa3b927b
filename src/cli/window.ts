// --dashboard: the window of a run, and how its link is told.

import type { Command } from 'commander';
import { systemClock } from '../clock.ts';
import type { RunEvent } from '../runtime/protocol/events.ts';
import type { RunWindow } from '../window/server/run-window.ts';
import type { Output } from './output.ts';

/** The flag as it was given. */
export interface DashboardFlag {
  readonly dashboard?: boolean;
}

/** Adds --dashboard and --no-dashboard. */
export function addDashboardFlag(command: Command): Command {
  return command
    .option('--dashboard', "show the run in a browser, at the workers' port (default: on a terminal, with workers)")
    .option('--no-dashboard', 'no window for browsers');
}

/** Whether to open the window: if it is asked for, else where a person looks on and the port is open anyway. */
export function isDashboardWanted({ dashboard }: DashboardFlag, output: Output, hasWorkers: boolean): boolean {
  return dashboard ?? (output.terminal.isInteractive && !output.isJson && hasWorkers);
}

/** A window that tells its link where the command prints. */
export async function createRunWindow(
  model: string,
  output: Output,
  hooks: { record(event: RunEvent): void; stop(): void },
): Promise<RunWindow> {
  const { qrText, RunWindow } = await import('../window/server/run-window.ts');
  return new RunWindow({
    ...{ model, clock: systemClock, record: hooks.record, stop: hooks.stop },
    onOpen(link, isFar) {
      output.json({ event: 'window', url: link() });
      if (output.isJson) return;
      output.terminal.section('Window', output.terminal.colors.bold(link()));
      if (isFar && output.terminal.isInteractive) output.terminal.print(qrText(link()));
    },
  });
}
