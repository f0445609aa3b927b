// Where a command prints: for a person or, with --json, for a program. Also Ctrl-C.

import { systemClock } from '../clock.ts';
import type { Observer } from '../runtime/protocol/events.ts';
import { humanReporter, jsonReporter } from './report.ts';
import { createTerminal, type Terminal } from './terminal.ts';

export interface Output {
  readonly isJson: boolean;
  /** For events of a run. */
  readonly observe: Observer;
  /** For a person; with --json it writes to stderr. */
  readonly terminal: Terminal;
  /** One JSON document on one line, with --json only. */
  json(value: unknown): void;
}

/** Output for a command with these options. */
export function createOutput(options: { readonly json?: boolean }): Output {
  const isJson = options.json === true;
  const terminal = createTerminal(isJson ? process.stderr : process.stdout, process.env, systemClock.now);
  const write = (line: string): void => void process.stdout.write(`${line}\n`);
  return {
    isJson,
    terminal,
    observe: isJson ? jsonReporter(write) : humanReporter(terminal, systemClock.now),
    json: (value) => {
      if (isJson) write(JSON.stringify(value));
    },
  };
}

/** The exit code after Ctrl-C. */
export const interruptedExitCode = 130;

/**
 * Signals within this time count as one Ctrl-C: the terminal sends it to every process of the group, and npm passes it
 * on again.
 */
const togetherMs = 300;

/**
 * Aborted by the first Ctrl-C, a request to end (SIGTERM) or a closed terminal (SIGHUP); the second ends the process at
 * once.
 */
export function interruptSignal(
  { terminal }: Output,
  note = 'Stopping after this round; Ctrl-C again stops at once …',
): AbortSignal {
  const controller = new AbortController();
  let firstMs = 0;
  const stop = (): void => {
    if (controller.signal.aborted) {
      if (systemClock.now() - firstMs > togetherMs) process.exit(interruptedExitCode);
      return;
    }
    firstMs = systemClock.now();
    terminal.print(note);
    controller.abort();
  };
  for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(name, stop);
  return controller.signal;
}
