// --dashboard: the window of a run, and how its link is told.

import type { Command } from 'commander';
import { renderUnicodeCompact } from 'uqr';
import { systemClock } from '../clock.ts';
import type { OptimizerState } from '../cluster/memory.ts';
import type { RunEvent } from '../runtime/protocol/events.ts';
import { optimizerStateCount } from '../runtime/protocol/training-spec.ts';
import type { PreparedRun } from '../runtime/run/prepare.ts';
import type { OpenedWindow, RunWindow } from '../window/server/run-window.ts';
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
  hooks: { record(event: RunEvent): void; stop(): void; readonly optimizerState?: OptimizerState },
): Promise<RunWindow> {
  const { RunWindow } = await import('../window/server/run-window.ts');
  const { browserEngineAbsence } = await import('../window/server/page-files.ts');
  return new RunWindow({
    ...{ model, clock: systemClock, ...hooks },
    onOpen: (opened) => tellLink(output, opened, browserEngineAbsence()),
  });
}

/** How browsers look on a run. */
export interface Look {
  /** Absent: nobody looks on. */
  readonly window?: RunWindow;
  /** Aborted by a viewer who stops the run. */
  readonly signal: AbortSignal;
  close(): Promise<void>;
}

/** Opens the window of a training run, if it is wanted: at the workers' port, or, without workers, at its own. */
export async function lookOn(
  { settings, model, subject }: PreparedRun,
  { output, dashboard, observe }: { output: Output; dashboard: DashboardFlag; observe(event: RunEvent): void },
): Promise<Look> {
  const stopping = new AbortController();
  const { signal } = stopping;
  const hasWorkers = settings.workers + settings.remote > 0;
  if (!isDashboardWanted(dashboard, output, hasWorkers)) return { signal, close: async () => {} };
  const window = await createRunWindow(model.name, output, {
    ...{ record: observe, stop: () => stopping.abort() },
    ...(hasWorkers ? { optimizerState: optimizerStateCount(subject.training) } : {}),
  });
  if (hasWorkers) return { window, signal, close: () => window.close() };
  const { serveAlone } = await import('../window/server/own-server.ts');
  const server = await serveAlone(window, { ...settings, clock: systemClock });
  return {
    window,
    signal,
    async close() {
      await window.close();
      await server.close('the run is over');
    },
  };
}

/** Prints the links, and on a terminal each as a QR code, where phones can reach it. */
export function tellLink(output: Output, { link, deviceLink: join, isFar }: OpenedWindow, absence?: string): void {
  const deviceLink = absence === undefined ? join : undefined;
  output.json({ event: 'window', url: link(), ...(deviceLink === undefined ? {} : { deviceUrl: deviceLink }) });
  if (output.isJson) return;
  const { terminal } = output;
  const hasCodes = isFar && terminal.isInteractive;
  terminal.section('Window', terminal.colors.bold(link()));
  if (hasCodes) terminal.print(renderUnicodeCompact(link(), { border: 2 }));
  if (absence !== undefined && join !== undefined) terminal.section('Join', absence);
  if (deviceLink === undefined) return;
  terminal.section('Join', `a phone, or any browser, as a device: ${terminal.colors.bold(deviceLink)}`);
  if (isFar && deviceLink.startsWith('https:'))
    terminal.section('Join', 'its browser warns of the certificate unless it trusts it: docs/security.md says how');
  if (hasCodes) terminal.print(renderUnicodeCompact(deviceLink, { border: 2 }));
}
