// Section memory: devices whose memory limits a plan fills as far as it can, and what it takes of them, profiles
// included.

import { defined } from '../../dist/assert.js';
import { processMiB } from '../../dist/cluster/memory.js';
import { table } from '../common/table.ts';
import { type Found, type Group, type LabBench, openBed, round, settingsOf } from './group.ts';
import { formOf } from './layout.ts';
import type { MemoryLimit } from './testbed.ts';

interface MemoryGroup extends Group {
  /** Absent: the planner's own. */
  readonly schedule?: string;
}

/**
 * With an AllReduce during the last backward pass, the last micro-batch comes in several graphs, the others in one.
 */
const groups: readonly MemoryGroup[] = [
  {
    name: 'memory-288',
    environment: ['tight', 100, 288],
    model: 'mobilenet',
    microBatch: 32,
    count: 8,
    schedule: '1f1b',
  },
  {
    name: 'memory-320-overlap',
    environment: ['tight', 100, 320],
    model: 'mobilenet',
    microBatch: 32,
    count: 8,
    schedule: '1f1b-overlap',
  },
  { name: 'memory-512', environment: ['tight', 100, 512], model: 'mobilenet', microBatch: 64, count: 4 },
];

interface MemoryResult {
  readonly cluster: string;
  readonly plan: string;
  readonly lost: readonly string[];
  readonly devices: readonly (MemoryLimit & { readonly predictedMiB: number; readonly measuredMiB: number })[];
}

async function measure(bench: LabBench, group: MemoryGroup): Promise<MemoryResult> {
  const bed = await openBed(bench, group);
  try {
    const lost: string[] = [];
    const args = [
      ...settingsOf(group),
      ...['--replicate-batch-norm', '--recompute', 'auto', '--planner', 'best'],
      ...(group.schedule === undefined ? [] : ['--schedule', group.schedule]),
      ...['--steps', String(bench.rounds)],
    ];
    const run = await bed.train(args, {
      batch: group.microBatch * group.count,
      onEvent: (event) => {
        if (event.event === 'left') lost.push(event.device);
      },
    });
    const { plan } = run.documents();
    const devices = bed.limits().map(({ device, limitMiB, killCount }) => ({
      device,
      limitMiB,
      predictedMiB: round(processMiB + (plan.predicted.peakMemoryMiB[device] ?? 0)),
      measuredMiB: round(defined(run.peakMemoryMiB[device], device)),
      killCount,
    }));
    const said = devices.map(
      (one) => `${one.device} ${one.measuredMiB} of ${one.limitMiB} MiB, ${one.killCount} kills`,
    );
    bench.log(`  ${formOf(plan)}: ${said.join('; ')}`);
    return { cluster: group.name, plan: formOf(plan), lost, devices };
  } finally {
    await bed.close();
  }
}

export async function memory(bench: LabBench): Promise<Found> {
  const results: MemoryResult[] = [];
  for (const group of groups) if (group.name.includes(bench.only)) results.push(await measure(bench, group));
  const limits = table(
    ['cluster', 'plan', 'device', 'limit MiB', 'predicted, process and stage', 'peak', 'killed by the system'],
    results.flatMap(({ cluster, plan, devices }) =>
      devices.map((one) => [cluster, plan, one.device, one.limitMiB, one.predictedMiB, one.measuredMiB, one.killCount]),
    ),
  );
  return { key: 'memory', results, tables: [limits] };
}
