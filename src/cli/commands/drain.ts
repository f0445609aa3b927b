// asteroid drain: takes a device out of a run while it continues, without losing work.

import { setTimeout } from 'node:timers/promises';
import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import { requestDrain } from '../../runtime/host/drain-requests.ts';
import { createOutput } from '../output.ts';

interface DrainCommandOptions {
  readonly run: string;
  readonly json?: boolean;
}

const timeoutMs = 60_000;

/** Adds the command. */
export function addDrain(program: Command): Command {
  return program
    .command('drain')
    .description(
      'take a device out of a run that continues: its work moves to the others first, and nothing is computed twice',
    )
    .argument('<DEVICE>', 'its name in the run')
    .requiredOption('--run <DIR>', 'the run folder')
    .addHelpText('after', '\nExample:\n  $ asteroid drain laptop --run runs/2026-11-21-1')
    .action((device: string, options: DrainCommandOptions) => drain(device, options));
}

async function drain(device: string, options: DrainCommandOptions): Promise<void> {
  const output = createOutput(options);
  const result = await requestDrain({
    folder: options.run,
    device,
    clock: systemClock,
    timeoutMs,
    pause: async (milliseconds) => void (await setTimeout(milliseconds)),
  });
  output.json(result);
  if (!output.isJson) output.terminal.print(`${result.message}.`);
}
