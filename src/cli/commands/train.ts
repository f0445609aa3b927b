// asteroid train: coordinates a training run, in this process or over workers.

import { join } from 'node:path';
import type { Command } from 'commander';
import { InputError } from '../../errors.ts';
import type { TrainSettings } from '../../runtime/settings.ts';
import { resumeRunFolder } from '../../storage/run-folder.ts';
import { isThere, readConfig } from '../files.ts';
import { readRun } from '../inputs.ts';
import { createOutput, interruptSignal } from '../output.ts';
import { runIn, runInNewFolder } from '../run.ts';
import { addSettingFlags, flagName, givenFlags, resolveSettings } from '../settings.ts';

interface TrainOptions extends Record<string, unknown> {
  readonly json?: boolean;
  readonly config?: string;
  readonly resume?: string;
  readonly out?: string;
}

/** What a run is: with another one of these it would be another run. */
const fixedOnResume = ['model', 'headClasses', 'data', 'batch', 'seed', 'optimizer', 'loss', 'shuffle'] as const;

/** Adds the command. */
export function addTrain(program: Command): Command {
  const command = program
    .command('train')
    .description('train a model, here or over workers')
    .option('--out <DIR>', 'the run folder (default: runs/<date>-<n>)')
    .option('--config <FILE>', 'settings as YAML; a flag wins over the file')
    .option('--resume <DIR>', 'go on with the run in this folder from its last checkpoint')
    .addHelpText(
      'after',
      `
Examples:
  $ asteroid train --model digits --data mnist --workers 3 --optimizer adam --lr 0.002 --epochs 3
  $ asteroid train --model net.onnx --data npy:inputs.npy,labels.npy --batch 64 --lr 0.05 --momentum 0.9 --out runs/net
  $ asteroid train --resume runs/net`,
    );
  addSettingFlags(command);
  return command.action((options: TrainOptions) => train(options));
}

async function train(options: TrainOptions): Promise<void> {
  const output = createOutput(options);
  const signal = interruptSignal(output);
  const { resume, out } = options;
  const settings = await effectiveSettings(options);
  const run = await readRun(settings, resume, output);
  if (resume === undefined) await runInNewFolder(run, out, output, signal);
  else {
    const onWarning = (message: string): void => output.observe({ kind: 'warning', message });
    await runIn({ folder: await resumeRunFolder(resume, run.machine.firstRound, { onWarning }) }, run, output, signal);
  }
}

async function effectiveSettings({ resume, out, config, ...options }: TrainOptions): Promise<TrainSettings> {
  const flags = givenFlags(options);
  if (resume === undefined) return resolveSettings(flags, config === undefined ? {} : await readConfig(config), config ?? '');
  if (out !== undefined) throw new InputError('--resume goes on in its own folder: leave --out away.');
  if (config !== undefined) throw new InputError('--resume goes on with the settings in its folder: leave --config away.');
  for (const name of fixedOnResume) {
    if (Object.hasOwn(flags, name))
      throw new InputError(`${flagName(name)} cannot change when a run is resumed: leave it away, or start a new run.`);
  }
  const file = join(resume, 'config.yaml');
  if (!(await isThere(file))) {
    throw new InputError(
      `${resume} is not the folder of a run (it has no config.yaml): name the folder that --out or the run's last lines named.`,
    );
  }
  const saved = await readConfig(file);
  // How long to train may be said anew in either way.
  if (flags['steps'] !== undefined) delete saved['epochs'];
  if (flags['epochs'] !== undefined) delete saved['steps'];
  return resolveSettings(flags, saved, file);
}
