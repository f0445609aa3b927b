// asteroid show: a finished run in a browser, replayed by a time slider.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import { InputError } from '../../errors.ts';
import { showRun } from '../../window/server/show.ts';
import { createOutput, interruptSignal } from '../output.ts';
import { port } from '../setting-values.ts';
import { tellLink } from '../window.ts';

interface ShowCommandOptions {
  readonly host: string;
  readonly port: string;
  readonly json?: boolean;
}

/** Adds the command. */
export function addShow(program: Command): Command {
  return program
    .command('show')
    .description('show a finished run in a browser, and replay it')
    .argument('<DIR>', 'the run folder')
    .option('--host <ADDRESS>', 'the address to listen on', '127.0.0.1')
    .option('--port <N>', 'the port to listen on; 0 takes a free one', '0')
    .addHelpText('after', '\nExample:\n  $ asteroid show runs/2026-11-21-1')
    .action((folder: string, options: ShowCommandOptions) => show(folder, options));
}

async function show(folder: string, options: ShowCommandOptions): Promise<void> {
  const output = createOutput(options);
  const parsed = port.safeParse(options.port);
  if (!parsed.success) throw new InputError(`--port ${options.port} is no port: give a number from 0 to 65535.`);
  const signal = interruptSignal(output, 'Closing the window …');
  await showRun({
    ...{ folder, host: options.host, port: Number(parsed.data), clock: systemClock, signal },
    onOpen(link, isFar) {
      tellLink(output, { link, isFar });
      if (!output.isJson) output.terminal.section('Window', 'Ctrl-C closes it');
    },
  });
}
