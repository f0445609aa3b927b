// asteroid quickstart: the whole main job on this machine, with nothing to download.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import { ownAddresses } from '../../runtime/host/addresses.ts';
import { usedDeviceCount } from '../../runtime/run/choose-plan.ts';
import { readRun } from '../inputs.ts';
import { createOutput, interruptSignal } from '../output.ts';
import { runInNewFolder, withLocalWorkers } from '../run.ts';
import { resolveSettings } from '../settings.ts';
import { command, duration, type Terminal } from '../terminal.ts';
import { version } from '../version.ts';
import { addDashboardFlag, type DashboardFlag } from '../window.ts';

/**
 * Three worker processes and five passes over 8,500 digits: 97.4 to 97.7 % on the other 1,500, for the seeds 0 to 3.
 */
const settings = {
  model: 'digits',
  data: 'mnist',
  workers: 3,
  useAll: true,
  batch: 100,
  epochs: 5,
  evalEvery: 0,
  optimizer: 'adam',
  lr: 0.005,
  lrSchedule: 'cosine',
} as const;

interface QuickstartOptions extends DashboardFlag {
  readonly json?: boolean;
  readonly out?: string;
}

/** Adds the command. */
export function addQuickstart(program: Command): Command {
  const command = program
    .command('quickstart')
    .description('train a net on handwritten digits over three worker processes of this machine')
    .option('--out <DIR>', 'the run folder (default: runs/<date>-<n>)');
  return addDashboardFlag(command)
    .addHelpText('after', '\nExample:\n  $ asteroid quickstart')
    .action((options: QuickstartOptions) => quickstart(options));
}

async function quickstart(options: QuickstartOptions): Promise<void> {
  const output = createOutput(options);
  const { terminal } = output;
  const signal = interruptSignal(output);
  const startMs = systemClock.now();
  if (!output.isJson) {
    const { bold } = terminal.colors;
    terminal.print(
      `${bold('Asteroid')} ${version}: a neural network learns digits over three worker processes of this machine\n`,
    );
  }
  const resolved = resolveSettings({ ...settings }, {}, '');
  const result = await withLocalWorkers(resolved, async (localWorkers) =>
    runInNewFolder(await readRun(resolved, undefined, output), options.out, {
      ...{ output, signal, localWorkers, dashboard: options },
    }),
  );
  if (result.stopped) return;
  const { evaluation, plan, trainSeconds } = result;
  output.json({
    testAccuracy: evaluation?.accuracy ?? null,
    workerCount: plan === undefined ? 0 : usedDeviceCount(plan),
    trainSeconds,
    runFolder: result.folder,
  });
  if (output.isJson) return;
  terminal.section('Took', `${duration((systemClock.now() - startMs) / 1000)} in all`);
  printNext(terminal, result.folder ?? '');
}

function printNext(terminal: Terminal, folder: string): void {
  const address = ownAddresses()[0] ?? 'THIS.MACHINES.ADDRESS';
  const next: readonly (readonly [what: string, line: string])[] = [
    ['the trained file, tested again', `eval --model ${folder}/model.onnx --data mnist`],
    ['a model of your own', 'train --model net.onnx --data npy:inputs.npy,labels.npy --workers 2'],
    ['with a second machine', `train --model digits --data mnist --workers 1 --remote 1 --host ${address}`],
  ];
  terminal.print('\nNext:');
  for (const [what, line] of next) terminal.print(`  ${terminal.colors.dim(`# ${what}`)}\n  ${command(line)}`);
}
