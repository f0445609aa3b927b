// asteroid doctor: says what is fine on this device and how to fix what is not.

import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import { checkListening, parseAdvertised } from '../../runtime/host/addresses.ts';
import { type DoctorOptions, examine } from '../../runtime/host/doctor.ts';
import { parseUrl } from '../../runtime/host/join.ts';
import { createOutput } from '../output.ts';

interface DoctorCommandOptions {
  readonly json?: boolean;
  readonly port: string;
  readonly host?: string;
  readonly advertise?: string;
  readonly join?: string;
  readonly gpu?: boolean;
}

/** Adds the command. */
export function addDoctor(program: Command): Command {
  return program
    .command('doctor')
    .description('look at this device: engine, memory, network, certificates, clock; and say how to fix what is wrong')
    .option('--port <N>', 'the port that asteroid train or worker would listen on', '0')
    .option('--host <ADDRESS>', 'the address that it would listen on (default: all of this device)')
    .option('--advertise <ADDRESS[:PORT]>', 'try whether this, which others are to dial, leads to this device')
    .option('--join <URL>', 'try whether this coordinator is reached from here')
    .option('--gpu', 'compare the kernels of the GPU with those of the CPU (worker --device gpu)')
    .addHelpText(
      'after',
      `
Examples:
  $ asteroid doctor --port 7700
  $ asteroid doctor --port 7700 --advertise 203.0.113.5:7700`,
    )
    .action((options: DoctorCommandOptions) => doctor(options));
}

async function doctor(options: DoctorCommandOptions): Promise<void> {
  const output = createOutput(options);
  const findings = await examine({ ...placeOf(options), nowMs: Date.now() });
  const isFine = findings.every(({ state }) => state !== 'wrong');
  output.json({ fine: isFine, findings });
  if (!output.isJson) {
    const { colors } = output.terminal;
    const marks = { fine: colors.green('ok     '), warning: colors.yellow('warning'), wrong: colors.red('wrong  ') };
    for (const { check, state, text } of findings) output.terminal.print(`${marks[state]}  ${check.padEnd(13)}${text}`);
  }
  process.exitCode = isFine ? 0 : 1;
}

/** What to try. Throws InputError. */
function placeOf({ host, advertise, join, ...options }: DoctorCommandOptions): Omit<DoctorOptions, 'nowMs'> {
  const port = Number(options.port);
  if (!Number.isInteger(port) || port < 0 || port > 65535)
    throw new InputError(`--port ${options.port} must be a whole number of at most 65535.`);
  if (host !== undefined) checkListening(host);
  return {
    port,
    ...(host === undefined ? {} : { host }),
    ...(advertise === undefined ? {} : { advertised: parseAdvertised(advertise) }),
    ...(join === undefined ? {} : { join: parseUrl(join) }),
    gpu: options.gpu === true,
  };
}
