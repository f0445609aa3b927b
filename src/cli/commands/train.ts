// asteroid train: coordinates a training run, in this process or over workers.

import { join } from 'node:path';
import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import type { TrainSettings } from '../../runtime/run/settings.ts';
import { nodeDisk } from '../../storage/node/disk.ts';
import { resumeRunFolder } from '../../storage/run-folder.ts';
import { withCodeFile } from '../code-file.ts';
import { isThere, readConfig } from '../files.ts';
import { readRun } from '../inputs.ts';
import { createOutput, interruptSignal } from '../output.ts';
import { runIn, runInNewFolder, withLocalWorkers } from '../run.ts';
import { addSettingFlags, flagName, givenFlags, resolveSettings } from '../settings.ts';
import { addDashboardFlag, type DashboardFlag } from '../window.ts';

interface TrainOptions extends Record<string, unknown>, DashboardFlag {
  readonly json?: boolean;
  readonly config?: string;
  readonly resume?: string;
  readonly out?: string;
  readonly codeFile?: string;
  readonly metrics?: string;
}

/** What defines a run: a different value of one of these would be a different run. */
const fixedOnResume = [
  'model',
  'headClasses',
  'lora',
  'adapter',
  'modulesToSave',
  'data',
  'batch',
  'accumulate',
  'dropLast',
  'seed',
  'optimizer',
  'ema',
  'loss',
  'output',
  'ignoreLabel',
  'shuffle',
] as const;

/** Adds the command. */
export function addTrain(program: Command): Command {
  const command = program
    .command('train')
    .description('train a model, here or over workers')
    .option('--out <DIR>', 'the run folder (default: runs/<date>-<n>)')
    .option('--config <FILE>', 'settings as YAML; a flag wins over the file')
    .option('--code-file <FILE>', 'write the join code there too, for workers that a script starts')
    .option('--metrics <ADDRESS:PORT>', 'answer Prometheus there (GET /metrics), such as 127.0.0.1:9464')
    .option('--resume <DIR>', 'continue the run in this folder from its last checkpoint')
    .addHelpText(
      'after',
      `
Examples:
  $ asteroid train --model digits --data mnist --workers 3 --optimizer adam --lr 0.002 --epochs 3
  $ asteroid train --model net.onnx --data npy:inputs.npy,labels.npy --batch 64 --lr 0.05 --momentum 0.9 --out runs/net
  $ asteroid train --resume runs/net`,
    );
  addDashboardFlag(command);
  addSettingFlags(command);
  return command.action((options: TrainOptions) => train(options));
}

async function train(options: TrainOptions): Promise<void> {
  const plain = createOutput(options);
  const signal = interruptSignal(plain);
  const { resume, out, codeFile, metrics } = options;
  const output = codeFile === undefined ? plain : withCodeFile(codeFile, plain);
  const settings = await effectiveSettings(options);
  await withLocalWorkers(settings, async (localWorkers) => {
    const run = await readRun(settings, resume, output);
    const surroundings = { output, signal, localWorkers, dashboard: options, metrics };
    if (resume === undefined) return runInNewFolder(run, out, surroundings);
    const onWarning = (message: string): void => output.observe({ kind: 'warning', message });
    const folder = await resumeRunFolder(resume, run.machine.firstRound, { disk: nodeDisk, onWarning });
    return runIn({ folder }, run, surroundings);
  });
}

async function effectiveSettings({
  resume,
  out,
  config,
  codeFile: _codeFile,
  metrics: _metrics,
  ...options
}: TrainOptions): Promise<TrainSettings> {
  const flags = givenFlags(options);
  if (resume === undefined)
    return resolveSettings(flags, config === undefined ? {} : await readConfig(config), config ?? '');
  if (out !== undefined) throw new InputError('--resume continues in the folder of the run: leave out --out.');
  if (config !== undefined)
    throw new InputError('--resume continues with the settings in its folder: leave out --config.');
  for (const name of fixedOnResume) {
    if (Object.hasOwn(flags, name))
      throw new InputError(`${flagName(name)} cannot change when a run is resumed: leave it out, or start a new run.`);
  }
  const file = join(resume, 'config.yaml');
  if (!(await isThere(file))) {
    throw new InputError(
      `${resume} is not the folder of a run (it has no config.yaml): ` +
        "name the folder that --out or the run's last lines named.",
    );
  }
  const saved = await readConfig(file);
  // A run that knew no smaller batches goes on as it began.
  saved['drop-last'] ??= true;
  // The length of training may change, in steps or in epochs.
  if (flags['steps'] !== undefined) delete saved['epochs'];
  if (flags['epochs'] !== undefined) delete saved['steps'];
  return resolveSettings(flags, saved, file);
}
