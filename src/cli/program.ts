// The command line's grammar: all commands with their flags, help and actions. Errors are thrown, not printed.

import { Command } from 'commander';
import { addCurve } from './commands/curve.ts';
import { addDevices } from './commands/devices.ts';
import { addDoctor } from './commands/doctor.ts';
import { addDrain } from './commands/drain.ts';
import { addEval } from './commands/eval.ts';
import { addExport } from './commands/export.ts';
import { addLab } from './commands/lab.ts';
import { addPlan } from './commands/plan.ts';
import { addProfile } from './commands/profile.ts';
import { addQuickstart } from './commands/quickstart.ts';
import { addSimulate } from './commands/simulate.ts';
import { addTrain } from './commands/train.ts';
import { addVerify } from './commands/verify.ts';
import { addWhatIf } from './commands/what-if.ts';
import { addWorker } from './commands/worker.ts';
import { version } from './version.ts';

/** The program `asteroid`, ready to parse. */
export function createProgram(): Command {
  const program = new Command('asteroid')
    .description('Trains one neural network on the devices you already own, as one machine.')
    .version(version)
    .configureHelp({ sortSubcommands: false })
    // Subcommands inherit these: errors are reported below, in our form.
    .configureOutput({ outputError: () => {} })
    .exitOverride()
    .addHelpText('after', '\nThe first five minutes:\n  $ asteroid quickstart\n\nEvery command has --help with an example.');

  for (const add of [
    addQuickstart,
    addTrain,
    addWorker,
    addDoctor,
    addDevices,
    addProfile,
    addPlan,
    addSimulate,
    addWhatIf,
    addCurve,
    addDrain,
    addEval,
    addExport,
    addVerify,
    addLab,
  ]) {
    add(program)
      .option('--json', 'print JSON on stdout; everything else goes to stderr')
      .option('--verbose', 'show where an error comes from');
  }
  return program;
}
