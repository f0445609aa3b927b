// What an executed Program comes to, by device and link.

import { defined } from '../assert.ts';
import { bytesInMiB, demandOf, type OptimizerState, stageMemoryBytes } from '../cluster/memory.ts';
import type { Compiled, Runner } from './compiled.ts';
import type { Ground } from './ground.ts';
import type { SimulatedDevice, SimulatedLink } from './simulation.ts';
import type { Work } from './world.ts';

export interface ReportContext {
  readonly compiled: Compiled;
  readonly ground: Ground;
  readonly optimizerState: OptimizerState;
}

/** Every device of the cluster, of a round that takes `roundMs`. `work` may be of several rounds. */
export function reportDevices(
  { compiled, ground, optimizerState }: ReportContext,
  work: Work,
  roundMs: number,
): Readonly<Record<string, SimulatedDevice>> {
  const { runners, roundCount } = compiled;
  const specs = ground.cluster.devices;
  const devices: Record<string, SimulatedDevice> = {};
  for (const { name, powerW } of specs)
    devices[name] = { busyMs: 0, idleFraction: 1, peakMemoryMiB: 0, ...(powerW === undefined ? {} : { energyJ: 0 }) };
  for (const [index, runner] of runners.entries()) {
    const busyMs = (work.busyMs[index] as number) / roundCount;
    const transferCpuMs = (work.transferCpuMs[index] as number) / roundCount;
    const reduceCpuMs = (work.reduceCpuMs[index] as number) / roundCount;
    const { powerW } = defined(specs[runner.place], 'a device');
    devices[runner.program.device] = {
      busyMs,
      ...(transferCpuMs === 0 ? {} : { handlingMs: transferCpuMs }),
      ...(reduceCpuMs === 0 ? {} : { reducingMs: reduceCpuMs }),
      idleFraction: roundMs === 0 ? 0 : 1 - busyMs / roundMs,
      peakMemoryMiB: peakMemoryMiB(ground, runner, optimizerState),
      ...(powerW === undefined ? {} : { energyJ: (powerW * busyMs) / 1000 }),
    };
  }
  return devices;
}

/** The links over which something was sent, by "sender->receiver", for a round. */
export function reportLinks({ compiled, ground }: ReportContext, work: Work): Readonly<Record<string, SimulatedLink>> {
  const { channels, roundCount } = compiled;
  const name = (place: number): string => defined(ground.cluster.devices[place], 'a device').name;
  const links = channels.map(({ from, to }, index): [string, SimulatedLink] => [
    `${name(from)}->${name(to)}`,
    {
      bytes: (work.linkBytes[index] as number) / roundCount,
      busyMs: (work.linkBusyMs[index] as number) / roundCount,
    },
  ]);
  return Object.fromEntries(links);
}

function peakMemoryMiB(
  { sums, kept }: Ground,
  { program, trainedFrom, inFlight, overlap }: Runner,
  optimizerState: OptimizerState,
): number {
  const [first, end] = program.layers;
  // Forward gradients keep nothing, and read the live weights alone.
  const isTangent = program.instructions.some(({ kind }) => kind === 'tangent');
  const mostBytes = isTangent ? 0 : sums.savedBytes(trainedFrom, end);
  const leastBytes = kept.leastBytes(trainedFrom, end);
  const demand = demandOf(sums, [first, end], {
    savedBytes: Math.min(mostBytes, Math.max(leastBytes, program.savedBytes ?? mostBytes)),
    inFlight,
    staleness: trainedFrom < end && !isTangent ? (program.staleness ?? 0) : 0,
    overlap,
    optimizerState,
  });
  return stageMemoryBytes(demand, program.samples[1] - program.samples[0]) / bytesInMiB;
}
