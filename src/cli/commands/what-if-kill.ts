// asteroid what-if --kill: what the sudden loss of devices does, for a person to read.

import type { Plan } from '../../cluster/cluster.ts';
import type { Loss, Recovery } from '../../planner/replan/estimate.ts';
import type { LossPrediction } from '../../planner/replan/predict-loss.ts';
import { counted, duration, memory, type Terminal } from '../terminal.ts';

/** Prints a prediction: the loss, the light recovery, the transfers, and heavy rescheduling for comparison. */
export function printLoss(
  { before, losses, refusal, replication, light, heavy, speedup, throughputRatio }: LossPrediction,
  terminal: Terminal,
): void {
  terminal.section('Before', speed(before));
  for (const loss of losses) terminal.section('Lost', describe(loss));
  const { everyRounds, bytesPerRound, predictedCost } = replication;
  if (bytesPerRound > 0) {
    const interval = everyRounds === 1 ? 'after every round' : `every ${everyRounds} rounds`;
    const cost =
      predictedCost === 0
        ? 'in the idle time of the links'
        : `for ${(100 * predictedCost).toFixed(1)} % of the throughput`;
    terminal.section('Copies', `${mebibytes(bytesPerRound)} ${interval}, ${cost}`);
  }
  if (refusal !== undefined) terminal.section('Light', `not as before: ${refusal} A new plan is made:`);
  terminal.section('Light', outcome(light));
  for (const { layers, devices, samples } of light.plan.stages) {
    const shares = devices.map((device, index) => (devices.length === 1 ? device : `${device} (${samples[index]})`));
    terminal.section('Light', `layers ${layers[0]}–${layers[1] - 1}: ${shares.join(', ')}`);
  }
  if (light.bytes === 0) terminal.section('To move', 'nothing');
  for (const { from, to, bytes } of light.links)
    if (bytes > 0) terminal.section('To move', `${from ?? 'the coordinator'} -> ${to}  ${mebibytes(bytes)}`);
  terminal.section('Heavy', `${outcome(heavy)}, planned on ${heavy.planner}`);
  terminal.section(
    'Light',
    `recovers ${speedup.toFixed(1)}x as fast as heavy, with ${(100 * throughputRatio).toFixed(0)} % of its throughput`,
  );
}

function describe({ device, stage, layers, restoredFrom, holders }: Loss): string {
  const from = {
    peers: `${holders.join(', ')} of the same stage ${holders.length === 1 ? 'has' : 'have'} its weights`,
    copy: `its weights are copied on ${holders.join(', ')}`,
    checkpoint: 'its weights are in the last checkpoint only: the rounds since then are lost',
  }[restoredFrom];
  return `${device}, stage ${stage}, ${counted(layers[1] - layers[0], 'layer')}; ${from}`;
}

function outcome({ plan, detectionMs, planningMs, migrationMs, compileMs, totalMs, bytes }: Recovery): string {
  const seconds = (ms: number): string => duration(ms / 1000);
  const parts = [
    `seen in ${seconds(detectionMs)}`,
    planningMs === 0 ? 'planned before' : `planned in ${seconds(planningMs)}`,
    bytes === 0 ? 'nothing to move' : `${mebibytes(bytes)} moved in ${seconds(migrationMs)}`,
    ...(compileMs === 0 ? [] : [`compiled in ${seconds(compileMs)}`]),
  ];
  return `${speed(plan)} after ${seconds(totalMs)}: ${parts.join(', ')}`;
}

function mebibytes(bytes: number): string {
  return memory(bytes / 2 ** 20);
}

/** "22.4 samples/s (1.4 s a round)". */
export function speed({ predicted: { roundMs, samplesPerS } }: Plan): string {
  return `${samplesPerS.toFixed(1)} samples/s (${duration(roundMs / 1000)} a round)`;
}
