// asteroid doctor: says what is fine on this device and how to fix what is not.

import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import { examine } from '../../runtime/host/doctor.ts';
import { createOutput } from '../output.ts';

/** Adds the command. */
export function addDoctor(program: Command): Command {
  return program
    .command('doctor')
    .description('look at this device: engine, memory, network, certificates, clock; and say how to fix what is wrong')
    .option('--port <N>', 'the port that asteroid train would listen on', '0')
    .addHelpText('after', '\nExample:\n  $ asteroid doctor --port 7700')
    .action((options: { readonly json?: boolean; readonly port: string }) => doctor(options));
}

async function doctor(options: { readonly json?: boolean; readonly port: string }): Promise<void> {
  const output = createOutput(options);
  const port = Number(options.port);
  if (!Number.isInteger(port) || port < 0 || port > 65535)
    throw new InputError(`--port ${options.port} must be a whole number of at most 65535.`);
  const findings = await examine({ port, nowMs: Date.now() });
  const isFine = findings.every(({ state }) => state !== 'wrong');
  output.json({ fine: isFine, findings });
  if (!output.isJson) {
    const { colors } = output.terminal;
    const marks = { fine: colors.green('ok     '), warning: colors.yellow('warning'), wrong: colors.red('wrong  ') };
    for (const { check, state, text } of findings) output.terminal.print(`${marks[state]}  ${check.padEnd(13)}${text}`);
  }
  process.exitCode = isFine ? 0 : 1;
}
