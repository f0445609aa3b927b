// How long the simulator takes: CPU time for rounds of about a million instructions, with and without events, and for
// the Program itself.
// Usage: npm run bench -- simulator [--dist FOLDER]

import { parseArgs } from 'node:util';
import type { Cluster, PlanLayout, Profile } from '../dist/cluster/cluster.js';
import { loadFrom } from './common/build.ts';
import { cpuMs } from './common/numbers.ts';

const { values: flags } = parseArgs({ options: { dist: { type: 'string', default: 'dist' } } });
const load = loadFrom(flags.dist);
const { simulate } = await load('simulator/simulate.js');
const { program } = await load('schedule/generate.js');

/** `stageCount` stages of `groupSize` devices and three layers each, data on the first device, 100 Mbps. */
function round(
  stageCount: number,
  groupSize: number,
  microBatchCount: number,
): { plan: PlanLayout; profile: Profile; cluster: Cluster } {
  const microBatchSize = 12;
  const stages = Array.from({ length: stageCount }, (_, stage) => ({
    layers: [3 * stage, 3 * stage + 3] as const,
    devices: Array.from({ length: groupSize }, (_, index) => `d${stage}-${index}`),
    samples: Array.from(
      { length: groupSize },
      (_, index) =>
        Math.floor((microBatchSize * (index + 1)) / groupSize) - Math.floor((microBatchSize * index) / groupSize),
    ),
    inFlight: Math.min(microBatchCount, 2 * (stageCount - stage) - 1),
  }));
  const names = stages.flatMap((stage) => stage.devices);
  const times = [1, 4, 16].map((size) =>
    Array.from({ length: 3 * stageCount }, (_, layer) => 0.1 + size * (1 + ((layer * 7) % 5) / 10)),
  );
  const layer = { weightBytes: 1e5, savedBytes: 1e4, flops: 1 };
  return {
    plan: {
      planner: 'bench',
      schedule: '1f1b',
      batchSize: microBatchSize * microBatchCount,
      microBatchSize,
      microBatchCount,
      stages,
    },
    profile: {
      ...{ model: 'bench', inputBytes: 1000, labelBytes: 4, batchSizes: [1, 4, 16] },
      layers: Array.from({ length: 3 * stageCount }, (_, index) => ({
        ...layer,
        name: `l${index}`,
        outputBytes: 3000 + 100 * index,
      })),
      devices: { board: { forwardMs: times, backwardMs: times } },
    },
    cluster: {
      devices: names.map((name) => ({ name, kind: 'board', memoryMiB: 1000 })),
      links: { default: { bandwidthMbps: 100, latencyMs: 0.3 } },
      dataDevice: `d0-0`,
    },
  };
}

/** The least CPU time of five runs, in milliseconds. */
function leastCpuMs(work: () => unknown): number {
  const runs = Array.from({ length: 5 }, () => {
    const before = cpuMs();
    work();
    return cpuMs() - before;
  });
  return Math.min(...runs);
}

const shapes: readonly (readonly [stages: number, groupSize: number, microBatches: number])[] = [
  [8, 1, 21_500],
  [8, 2, 10_900],
  [4, 4, 11_400],
  [64, 1, 2600],
];
for (const shape of shapes) {
  const { plan, profile, cluster } = round(...shape);
  const whole = program(plan);
  const instructionCount = whole.devices.reduce((sum, device) => sum + device.instructions.length, 0);
  const line = {
    ...{ stages: shape[0], groupSize: shape[1], microBatches: shape[2], instructionCount },
    programMs: leastCpuMs(() => program(plan)),
    simulateMs: leastCpuMs(() => simulate(whole, plan, profile, cluster, { events: false })),
    withEventsMs: leastCpuMs(() => simulate(whole, plan, profile, cluster)),
  };
  process.stdout.write(`${JSON.stringify(line)}\n`);
}
