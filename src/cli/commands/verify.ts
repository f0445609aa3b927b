// asteroid verify: shows on the user's own model that the planned, distributed run equals training on one device.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import { InputError } from '../../errors.ts';
import { type Comparison, verifyRun } from '../../runtime/verify.ts';
import { readRun } from '../inputs.ts';
import { createOutput, interruptedExitCode, interruptSignal, type Output } from '../output.ts';
import { addSettingFlags, givenFlags, resolveSettings } from '../settings.ts';

/** Adds the command. */
export function addVerify(program: Command): Command {
  const command = program
    .command('verify')
    .description('show that the distributed run equals training on one device')
    .option('--tolerance <T>', 'largest relative difference (default: 1e-5; 1e-3 with batch normalization, which amplifies rounding)')
    .addHelpText('after', '\nExample:\n  $ asteroid verify --model net.onnx --data npy:X.npy,Y.npy --workers 3 --steps 10 --lr 0.05');
  addSettingFlags(command);
  return command.action((options: Record<string, unknown> & { json?: boolean; tolerance?: string }) => verify(options));
}

async function verify(options: Record<string, unknown> & { json?: boolean; tolerance?: string }): Promise<void> {
  const output = createOutput(options);
  const signal = interruptSignal(output, 'Stopping …');
  const flags = givenFlags(options);
  const settings = resolveSettings({ workers: 3, useAll: true, ...(flags['epochs'] === undefined ? { steps: 10 } : {}), ...flags }, {}, '');
  if (settings.workers + settings.remote === 0) throw new InputError('--workers 0 leaves nothing to compare: give at least 1.');
  const run = await readRun(settings, undefined, output);
  const tolerance = toleranceOf(options.tolerance, run.model.graph.buffers.length > 0);
  const comparison = await verifyRun({ ...run, test: undefined }, { clock: systemClock, observe: output.observe, signal }, (part) => {
    if (!output.isJson)
      output.terminal.print(part === 'distributed' ? 'First     distributed' : 'Then      on one device, in this process');
  });
  if (comparison === undefined) {
    process.exitCode = interruptedExitCode;
    return;
  }
  const equal = comparison.lossDifference <= tolerance && comparison.weightDifference <= tolerance;
  print(comparison, tolerance, equal, output);
  if (!equal) process.exitCode = 1;
}

function toleranceOf(text: string | undefined, hasBatchNorm: boolean): number {
  if (text === undefined) return hasBatchNorm ? 1e-3 : 1e-5;
  const value = Number(text);
  if (!(value > 0)) throw new InputError(`--tolerance ${text} must be a number above 0.`);
  return value;
}

function print(comparison: Comparison, tolerance: number, equal: boolean, output: Output): void {
  const { losses, lossDifference, weightDifference, worstWeight } = comparison;
  output.json({
    equal,
    tolerance,
    lossDifference,
    weightDifference,
    worstWeight,
    losses: losses.map(([distributed, single]) => ({ distributed, single })),
  });
  if (output.isJson) return;
  const { terminal } = output;
  terminal.print('round  loss, distributed   loss, one device   relative difference');
  for (const [round, [distributed, single]] of losses.entries()) {
    const difference = Math.abs(distributed - single) / Math.max(Math.abs(single), 1e-12);
    terminal.print(
      `${String(round).padStart(5)}  ${distributed.toFixed(9).padStart(17)}  ${single.toFixed(9).padStart(17)}   ${difference.toExponential(1)}`,
    );
  }
  terminal.print(`Weights after the last round differ by at most ${weightDifference.toExponential(1)} (${worstWeight}).`);
  const { colors } = terminal;
  terminal.print(equal ? colors.green(`Equal within ${tolerance}.`) : colors.red(`Not equal within ${tolerance}.`));
}
