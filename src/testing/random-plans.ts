// Random but valid plans, profiles and clusters for property tests, all from one seed. Times and sizes are such that
// every duration of computing and of transfers is a multiple of 2^-10 ms, so that simulators which add in different
// orders agree exactly.

import type { Cluster, DeviceTimes, PlanLayout, Profile, StagePlan } from '../cluster/cluster.ts';
import { sumEncodingNames } from '../cluster/compression.ts';
import { createRandom, permutation, type Random } from '../random.ts';
import { scheduleNames, scheduleOf } from '../schedule/schedules.ts';

/**
 * A plan on devices d0, d1, … with up to `stageLimit` stages; some devices may have no samples, and K_p never grows
 * along the stages.
 */
export function randomPlan(seed: number, stageLimit = 4): PlanLayout {
  const random = createRandom(seed, 1);
  const stageCount = 1 + random.integer(stageLimit);
  const microBatchCount = 1 + random.integer(8);
  const microBatchSize = 1 + random.integer(12);
  const schedule = scheduleNames[random.integer(scheduleNames.length)] as string;
  const groupSizes = Array.from({ length: stageCount }, () => 1 + random.integer(3));
  const names = [
    ...permutation(
      groupSizes.reduce((sum, size) => sum + size, 0),
      random,
    ),
  ].map((index) => `d${index}`);
  const stages: StagePlan[] = [];
  let layer = 0;
  let ahead = Number.POSITIVE_INFINITY;
  for (const [stage, size] of groupSizes.entries()) {
    const end = layer + 1 + random.integer(3);
    const standard = scheduleOf(schedule).forwardsAhead(stage, stageCount, microBatchCount);
    ahead = Math.min(ahead, random.uniform() < 0.7 ? standard : 1 + random.integer(microBatchCount + 2));
    // What zb-h1 keeps beyond the forwards ahead, weight gradients wait with.
    const spare = schedule.startsWith('zb') && ahead === standard ? random.integer(5) : 0;
    stages.push({
      layers: [layer, end],
      devices: names.splice(0, size),
      samples: randomShares(microBatchSize, size, random),
      inFlight: ahead + spare,
      ...(random.uniform() < 0.5 && end - layer > 1 ? { buckets: randomBorders(layer, end, random) } : {}),
    });
    layer = end;
  }
  return {
    planner: 'random',
    schedule,
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages,
  };
}

/** The plan with some of what travels in fewer bits. */
export function withRandomCompression(plan: PlanLayout, seed: number): PlanLayout {
  const random = createRandom(seed, 4);
  const half = (): boolean => random.uniform() < 0.5;
  const allReduce = [undefined, ...sumEncodingNames][random.integer(1 + sumEncodingNames.length)];
  const [activation, gradient] = [
    half() && { activation: 'float16' as const },
    half() && { gradient: 'float16' as const },
  ];
  return { ...plan, compression: { ...activation, ...gradient, ...(allReduce && { allReduce }) } };
}

/** Some of the layers inside [first, end), ascending. */
function randomBorders(first: number, end: number, random: Random): number[] {
  const inside = Array.from({ length: end - first - 1 }, (_, index) => first + 1 + index);
  return inside.filter(() => random.uniform() < 0.5);
}

function randomShares(total: number, count: number, random: Random): number[] {
  const cuts = Array.from({ length: count - 1 }, () => random.integer(total + 1)).sort((a, b) => a - b);
  return [...cuts, total].map((cut, index) => cut - (cuts[index - 1] ?? 0));
}

/** A cluster that has at least the plan's devices, with some links of their own and sometimes a holder of the data. */
export function randomCluster(seed: number, plan: PlanLayout): Cluster {
  const random = createRandom(seed, 2);
  const used = plan.stages.flatMap((stage) => stage.devices);
  const names = [...used, 'extra'].sort();
  const speed = () => ({
    bandwidthMbps: 2 ** random.integer(6),
    ...(random.uniform() < 0.6 ? { latencyMs: random.integer(64) / 32 } : {}),
  });
  const pairs = names.flatMap((a, index) =>
    names
      .slice(index + 1)
      .flatMap((b) =>
        random.uniform() < 0.3
          ? [{ between: (random.uniform() < 0.5 ? [a, b] : [b, a]) as [string, string], ...speed() }]
          : [],
      ),
  );
  const holder = names[random.integer(names.length)] as string;
  return {
    devices: names.map((name) => ({ name, memoryMiB: 1024, ...(random.uniform() < 0.5 ? { kind: 'board' } : {}) })),
    links: { default: speed(), pairs },
    ...(random.uniform() < 0.7 ? { dataDevice: holder } : {}),
  };
}

/** A profile for the plan's layers, with times for some devices by name and for the rest as kind 'board' or by name. */
export function randomProfile(seed: number, plan: PlanLayout, cluster: Cluster): Profile {
  const [random, calls] = [createRandom(seed, 3), createRandom(seed, 5)];
  const layerCount = plan.stages.at(-1)?.layers[1] ?? 0;
  const batchSizes = ([[1, 2, 4, 8, 16], [2, 4], [4], [1, 5, 9]] as const)[random.integer(4)] as readonly number[];
  const bytes = (limit: number): number => 125 * random.integer(limit);
  const table = (): number[][] => {
    const rows: number[][] = [];
    for (const _ of batchSizes) {
      const above = rows.at(-1);
      rows.push(Array.from({ length: layerCount }, (_, layer) => (above?.[layer] ?? 0) + (1 + random.integer(64)) / 8));
    }
    return rows;
  };
  /**
   * Sometimes with input gradients of their own, a third or so of the whole, and then sometimes with weight gradients
   * that take more or less than the rest.
   */
  const backward = (): Pick<DeviceTimes, 'backwardMs' | 'backwardInputMs' | 'backwardWeightMs'> => {
    const backwardMs = table();
    if (random.uniform() < 0.5) return { backwardMs };
    const part = (numerator: number): number[][] =>
      backwardMs.map((row) => row.map((ms) => Math.floor((8 * ms * numerator) / 5) / 8));
    const backwardInputMs = part(2);
    return random.uniform() < 0.5
      ? { backwardMs, backwardInputMs }
      : { backwardMs, backwardInputMs, backwardWeightMs: part(2 + random.integer(4)) };
  };
  const times = (): DeviceTimes => ({
    forwardMs: table(),
    ...backward(),
    ...(random.uniform() < 0.3 ? { updateMs: Array.from({ length: layerCount }, () => random.integer(32) / 8) } : {}),
    ...(random.uniform() < 0.5 ? { handlingMsPerMiB: random.integer(3000) } : {}),
    ...(random.uniform() < 0.3 ? { passMs: random.integer(32) / 8 } : {}),
    ...(calls.uniform() < 0.3 ? { callMs: calls.integer(16) / 8 } : {}),
    ...(calls.uniform() < 0.3 ? { frameMs: calls.integer(16) / 8 } : {}),
    ...(calls.uniform() < 0.3 ? { reducingMsPerMiB: calls.integer(3000) } : {}),
  });
  const named = cluster.devices.filter((device) => device.kind === undefined || random.uniform() < 0.3);
  return {
    model: 'random',
    inputBytes: bytes(16),
    labelBytes: bytes(3),
    layers: Array.from({ length: layerCount }, (_, layer) => ({
      name: `layer${layer}`,
      outputBytes: bytes(24),
      weightBytes: 4 * random.integer(20000),
      savedBytes: bytes(100),
      flops: 1000,
    })),
    batchSizes,
    devices: { board: times(), ...Object.fromEntries(named.map((device) => [device.name, times()])) },
  };
}

/**
 * A planning instance with real-valued times: devices of up to three kinds with set-up costs, unequal links, sometimes
 * tight memory.
 */
export function randomInstance(
  seed: number,
  { deviceCount, layerCount }: { readonly deviceCount: number; readonly layerCount: number },
): { profile: Profile; cluster: Cluster } {
  const random = createRandom(seed, 4);
  const between = (low: number, high: number): number => low + (high - low) * random.uniform();
  const batchSizes = [1, 4, 16];
  const layers = Array.from({ length: layerCount }, (_, layer) => ({
    name: `layer${layer}`,
    outputBytes: Math.round(between(100, 40000)),
    weightBytes: Math.round(between(0, 4e6)),
    savedBytes: Math.round(between(1e4, 1e5)),
    flops: 1,
  }));
  const devices: Record<string, DeviceTimes> = {};
  for (const kind of ['slow', 'middle', 'fast']) {
    const factor = between(0.2, 2);
    const work = layers.map(() => between(0.2, 2) * factor);
    const setUp = between(0, 4);
    const table = (scale: number): number[][] =>
      batchSizes.map((size) => work.map((ms) => scale * ms * (setUp + size * between(0.9, 1.1))));
    devices[kind] = { forwardMs: table(1), backwardMs: table(between(1, 2.5)) };
    if (seed % 3 === 0)
      devices[kind] = {
        ...devices[kind],
        backwardWeightMs: table(between(0.5, 1.5)),
        handlingMsPerMiB: between(0, 100),
        passMs: between(0, 2),
        frameMs: between(0, 1),
      };
  }
  const kinds = Object.keys(devices);
  const wholeMiB = layers.reduce((sum, layer) => sum + 2 * layer.weightBytes + 16 * layer.savedBytes, 0) / 2 ** 20;
  const tight = random.uniform() < 0.4;
  const specs = Array.from({ length: deviceCount }, (_, index) => ({
    name: `d${index}`,
    kind: kinds[random.integer(kinds.length)] as string,
    memoryMiB: wholeMiB * (tight ? between(0.3, 1.5) : between(3, 6)),
  }));
  const speed = () => ({ bandwidthMbps: between(20, 1000), latencyMs: between(0, 1) });
  const pairs = specs.flatMap((a, index) =>
    specs
      .slice(index + 1)
      .flatMap((b) => (random.uniform() < 0.5 ? [{ between: [a.name, b.name] as [string, string], ...speed() }] : [])),
  );
  const cluster: Cluster = {
    devices: specs,
    links: { default: speed(), pairs },
    ...(random.uniform() < 0.5 ? { dataDevice: 'd0' } : {}),
  };
  return { profile: { model: 'random', inputBytes: 2000, labelBytes: 4, layers, batchSizes, devices }, cluster };
}
