// asteroid quickstart: the whole main job on this machine, with nothing to download.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import { createRunFolder } from '../../storage/run-folder.ts';
import { createOutput, interruptSignal } from '../output.ts';
import { resolveSettings } from '../settings.ts';
import { duration } from '../terminal.ts';
import { prepare, runInFolder } from './train.ts';

/** Three worker processes and eight passes over 8,500 digits: 98 % on the other 1,500, whatever the seed. */
const settings = {
  model: 'digits',
  data: 'mnist',
  workers: 3,
  batch: 100,
  epochs: 8,
  optimizer: 'adam',
  lr: 0.004,
  lrSchedule: 'cosine',
} as const;

/** Adds the command. */
export function addQuickstart(program: Command): Command {
  return program
    .command('quickstart')
    .description('train a net on handwritten digits over three worker processes of this machine')
    .option('--out <DIR>', 'the run folder (default: runs/<date>-<n>)')
    .addHelpText('after', '\nExample:\n  $ asteroid quickstart')
    .action((options: { json?: boolean; out?: string }) => quickstart(options));
}

async function quickstart(options: { json?: boolean; out?: string }): Promise<void> {
  const output = createOutput(options);
  const { terminal } = output;
  const signal = interruptSignal(() => terminal.print('Stopping after this round (Ctrl-C again stops at once) …'));
  const startMs = systemClock.now();
  terminal.print(`${terminal.colors.bold('Asteroid')}  one neural network, trained over ${settings.workers} worker processes on this machine`);
  const input = await prepare(resolveSettings({ ...settings }, {}, ''), undefined, output);
  const { train, test } = input;
  terminal.print(`Data      handwritten digits (MNIST): ${train.sampleCount} to train, ${test?.sampleCount ?? 0} to test`);
  const folder = await createRunFolder({ date: new Date(), ...(options.out === undefined ? {} : { out: options.out }) });
  const result = await runInFolder({ ...input, folder }, output, signal);
  const workerCount = new Set(result.plan.stages.flatMap((stage) => stage.devices)).size;
  output.json({
    testAccuracy: result.evaluation?.accuracy ?? null,
    workerCount,
    trainSeconds: result.trainSeconds,
    runFolder: folder.path,
  });
  if (output.isJson || result.stopped) return;
  terminal.print(`Took      ${duration((systemClock.now() - startMs) / 1000)} in all`);
  terminal.print('');
  terminal.print('Next:');
  terminal.print(`  asteroid eval --model ${folder.path}/model.onnx --data mnist             # the trained ONNX file, tested again`);
  terminal.print('  asteroid train --model YOURS.onnx --data npy:X.npy,Y.npy --workers 2    # a model of your own');
  terminal.print('  asteroid train --model digits --data mnist --remote 1 --host 0.0.0.0 --insecure   # with a second machine');
}
