// asteroid verify: shows on the user's own model that the planned, distributed run equals training on one device; where
// rounds overlap, one device whose gradients are as late.

import type { Command } from 'commander';
import { systemClock } from '../../clock.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { InputError } from '../../errors.ts';
import { verifyRun } from '../../runtime/host/session-here.ts';
import { usedDeviceCount } from '../../runtime/run/choose-plan.ts';
import { type Comparison, type Tolerances, tolerancesOf } from '../../runtime/run/verify.ts';
import { stalenessOf } from '../../schedule/staleness.ts';
import { describeRun } from '../describe-run.ts';
import { readRun } from '../inputs.ts';
import { createOutput, interruptedExitCode, interruptSignal, type Output } from '../output.ts';
import { addSettingFlags, givenFlags, resolveSettings } from '../settings.ts';
import { counted } from '../terminal.ts';

/** Adds the command. */
export function addVerify(program: Command): Command {
  const command = program
    .command('verify')
    .description('show that the distributed run equals training on one device')
    .option(
      '--tolerance <T>',
      'largest relative difference (default: 1e-5; 1e-3 where rounding is amplified: with batch normalization, ' +
        'and in the weights of Adam)',
    )
    .addHelpText(
      'after',
      '\nExample:\n  $ asteroid verify --model net.onnx --data npy:X.npy,Y.npy --workers 3 --steps 10 --lr 0.05',
    );
  addSettingFlags(command);
  return command.action((options: Record<string, unknown> & { json?: boolean; tolerance?: string }) => verify(options));
}

async function verify(options: Record<string, unknown> & { json?: boolean; tolerance?: string }): Promise<void> {
  const output = createOutput(options);
  const signal = interruptSignal(output, 'Stopping …');
  const flags = givenFlags(options);
  // By default every worker gets a part: a plan of one device would show nothing.
  const ours = {
    workers: 3,
    useAll: flags['planner'] === undefined,
    ...(flags['epochs'] === undefined ? { steps: 10 } : {}),
  };
  const settings = resolveSettings({ ...ours, ...flags }, {}, '');
  if (settings.workers + settings.remote === 0)
    throw new InputError('--workers 0 leaves nothing to compare: give at least 1.');
  const run = await readRun(settings, undefined, output);
  const tolerances = askedTolerances(options.tolerance) ?? tolerancesOf(run.subject);
  if (!output.isJson) describeRun(run, output.terminal);
  const environment = { clock: systemClock, observe: output.observe, signal };
  const comparison = await verifyRun({ ...run, test: undefined }, environment, (part) => {
    if (!output.isJson && part === 'single') output.terminal.section('Again', 'on one device, in this process');
  });
  if (comparison === undefined) {
    process.exitCode = interruptedExitCode;
    return;
  }
  const { lossDifference, weightDifference } = comparison;
  const equal = lossDifference <= tolerances.losses && weightDifference <= tolerances.weights;
  print(comparison, tolerances, equal, output);
  if (!equal) process.exitCode = 1;
}

/** What is to be added of a plan whose rounds overlap. */
function lateness(plan: Plan | undefined): string {
  const staleness = plan === undefined ? [] : stalenessOf(plan);
  const most = Math.max(0, ...staleness);
  if (most === 0) return '';
  const isUniform = staleness.every((rounds) => rounds === most);
  return ` with gradients that are ${isUniform ? '' : 'up to '}${counted(most, 'round')} late`;
}

function askedTolerances(text: string | undefined): Tolerances | undefined {
  if (text === undefined) return undefined;
  const value = Number(text);
  if (!(value > 0)) throw new InputError(`--tolerance ${text} must be a number above 0.`);
  return { losses: value, weights: value };
}

function print(comparison: Comparison, tolerances: Tolerances, equal: boolean, output: Output): void {
  const { losses, lossDifference, weightDifference, worstWeight, distributed } = comparison;
  output.json({
    event: 'verified',
    equal,
    tolerance: tolerances.losses,
    weightTolerance: tolerances.weights,
    lossDifference,
    weightDifference,
    worstWeight,
    losses: losses.map(([over, single]) => ({ distributed: over, single })),
  });
  if (output.isJson) return;
  const { terminal } = output;
  const { colors } = terminal;
  terminal.section('Losses', 'round  distributed    one device   difference');
  for (const [round, [over, single]] of losses.entries()) {
    const difference = Math.abs(over - single) / Math.max(Math.abs(single), 1e-12);
    const row = [
      String(round).padStart(5),
      over.toFixed(9).padStart(11),
      single.toFixed(9).padStart(12),
      difference.toExponential(1).padStart(11),
    ];
    terminal.section('Losses', row.join('  '));
  }
  const worst =
    weightDifference === 0
      ? 'do not differ'
      : `differ by at most ${weightDifference.toExponential(1)} (${worstWeight})`;
  terminal.section('Weights', `after the last round ${worst}`);
  const { plan } = distributed;
  const { losses: ofLosses, weights: ofWeights } = tolerances;
  const within = ofLosses === ofWeights ? `${ofLosses}` : `${ofLosses} in losses, ${ofWeights} in weights`;
  const devices = counted(plan === undefined ? 0 : usedDeviceCount(plan), 'device');
  if (equal)
    terminal.section('Equal', colors.green(`within ${within}: ${devices} trained as one does${lateness(plan)}`));
  else terminal.section('Unequal', colors.red(`by more than ${within}`));
}
