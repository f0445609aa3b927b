#!/usr/bin/env node
// The command `asteroid`: parses, calls the library, prints. Exits 0 when done, 1 when it failed, 2 when the input is wrong, 130 after Ctrl-C.

import { Command, CommanderError } from 'commander';
import { InputError, ProtocolError, RunError } from '../errors.ts';
import { addEval } from './commands/eval.ts';
import { addExport } from './commands/export.ts';
import { addPlan } from './commands/plan.ts';
import { addProfile } from './commands/profile.ts';
import { addQuickstart } from './commands/quickstart.ts';
import { addSimulate } from './commands/simulate.ts';
import { addTrain } from './commands/train.ts';
import { addVerify } from './commands/verify.ts';
import { addWorker } from './commands/worker.ts';
import { version } from './version.ts';

const program = new Command('asteroid')
  .description('Trains one neural network on the devices you already own, as one machine.')
  .version(version)
  .showHelpAfterError('(add --help for the flags and an example)')
  .configureHelp({ sortSubcommands: false })
  .exitOverride()
  .addHelpText('after', '\nThe first five minutes:\n  $ asteroid quickstart\n\nEvery command has --help with an example.');

for (const add of [addQuickstart, addTrain, addWorker, addProfile, addPlan, addSimulate, addEval, addExport, addVerify]) {
  const command = add(program);
  command
    .option('--json', 'print JSON on stdout; everything else goes to stderr')
    .option('--verbose', 'show where an error comes from')
    .exitOverride();
}

/** Runs the command line; the exit code. */
async function main(): Promise<number> {
  try {
    await program.parseAsync();
    return process.exitCode === undefined ? 0 : Number(process.exitCode);
  } catch (error) {
    // Commander has printed its message already.
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : 2;
    return report(error);
  }
}

function report(error: unknown): number {
  const expected = error instanceof InputError || error instanceof RunError || error instanceof ProtocolError;
  const isVerbose = process.argv.includes('--verbose');
  const text = error instanceof Error ? (isVerbose || !expected ? (error.stack ?? error.message) : error.message) : String(error);
  process.stderr.write(`${expected && !isVerbose ? `asteroid: ${text}` : text}\n`);
  return error instanceof InputError ? 2 : 1;
}

process.exitCode = await main();
