// The command line's grammar: all commands with their flags, help and actions. Errors are thrown, not printed.

import { Command, type Option } from 'commander';
import { version } from './version.ts';

type AddCommand = (program: Command) => Command;

/**
 * By name, in the order of the help: each is loaded with all that it needs, which is most of the time that a short
 * command takes.
 */
const commands: Readonly<Record<string, () => Promise<AddCommand>>> = {
  quickstart: async () => (await import('./commands/quickstart.ts')).addQuickstart,
  train: async () => (await import('./commands/train.ts')).addTrain,
  worker: async () => (await import('./commands/worker.ts')).addWorker,
  doctor: async () => (await import('./commands/doctor.ts')).addDoctor,
  devices: async () => (await import('./commands/devices.ts')).addDevices,
  inspect: async () => (await import('./commands/inspect.ts')).addInspect,
  profile: async () => (await import('./commands/profile.ts')).addProfile,
  plan: async () => (await import('./commands/plan.ts')).addPlan,
  simulate: async () => (await import('./commands/simulate.ts')).addSimulate,
  'what-if': async () => (await import('./commands/what-if.ts')).addWhatIf,
  infer: async () => (await import('./commands/infer.ts')).addInfer,
  serve: async () => (await import('./commands/serve.ts')).addServe,
  report: async () => (await import('./commands/report.ts')).addReport,
  curve: async () => (await import('./commands/curve.ts')).addCurve,
  show: async () => (await import('./commands/show.ts')).addShow,
  drain: async () => (await import('./commands/drain.ts')).addDrain,
  eval: async () => (await import('./commands/eval.ts')).addEval,
  predict: async () => (await import('./commands/predict.ts')).addPredict,
  export: async () => (await import('./commands/export.ts')).addExport,
  verify: async () => (await import('./commands/verify.ts')).addVerify,
  lab: async () => (await import('./commands/lab.ts')).addLab,
  completion: async () => (await import('./commands/completion.ts')).addCompletion,
};

/** What an option is for, and its default as one would type it; none where it is that nothing is given. */
function described({ description, defaultValue, defaultValueDescription }: Option): string {
  const text = defaultValueDescription ?? (typeof defaultValue === 'boolean' ? '' : String(defaultValue ?? ''));
  return text === '' ? description : `${description} (default: ${text})`;
}

/**
 * The program `asteroid`, ready to parse words of which this is the first: with the command of this name, without any
 * for the version, else with all.
 */
export async function createProgram(first?: string): Promise<Command> {
  const all = Object.entries(commands);
  const named = first === 'completion' ? [] : all.filter(([name]) => name === first); // it completes all of them
  const loads = first === '--version' || first === '-V' ? [] : named.length > 0 ? named : all;
  const wanted = await Promise.all(loads.map(([, load]) => load()));
  const program = new Command('asteroid')
    .description('Trains one neural network on the devices you already own, as one machine.')
    .version(version)
    .configureHelp({ sortSubcommands: false, minWidthToWrap: 24, optionDescription: described })
    // Subcommands inherit these: errors are reported below, in our form.
    .configureOutput({ outputError: () => {} })
    .exitOverride()
    .addHelpText(
      'after',
      '\nThe first five minutes:\n  $ asteroid quickstart\n\nEvery command has --help with an example.',
    );

  for (const add of wanted) {
    add(program)
      .option('--json', 'print JSON on stdout; everything else goes to stderr')
      .option('--verbose', 'show where an error comes from');
  }
  return program;
}
