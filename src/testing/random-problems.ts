// Random planning problems and pipelines for the planners' tests, from one seed.

import type { Cluster, DeviceTimes, Profile } from '../cluster/cluster.ts';
import { createProblem, type Problem, type StageLayout } from '../planner/problem.ts';
import { createRandom, permutation } from '../random.ts';
import { scheduleNames, scheduleOf } from '../schedule/schedules.ts';

/** A problem with a small random micro-batch size and count; each schedule in turn. */
export function randomProblem(seed: number, profile: Profile, cluster: Cluster): Problem {
  const random = createRandom(seed, 11);
  const microBatchSize = 1 + random.integer(12);
  return createProblem({
    profile,
    cluster,
    schedule: scheduleOf(scheduleNames[seed % scheduleNames.length] as string),
    batchSize: microBatchSize * (1 + random.integer(12)),
    microBatchSize,
    optimizerState: (seed % 3) as 0 | 1 | 2,
    replicateBatchDependent: false,
  });
}

/**
 * The profile with up to all of its leading layers frozen, though with backward times, as of a profile that was made
 * before.
 */
export function withFrozenPrefix(seed: number, profile: Profile): Profile {
  const count = createRandom(seed, 13).integer(profile.layers.length + 1);
  const layers = profile.layers.map((layer, index) =>
    index < count ? { ...layer, frozenBytes: layer.weightBytes } : layer,
  );
  return { ...profile, layers };
}

/** The profile with what most of its layers save when their activations are computed again. */
export function withRecomputed(seed: number, profile: Profile): Profile {
  const random = createRandom(seed, 14);
  const layers = profile.layers.map((layer) =>
    random.uniform() < 0.2
      ? layer
      : {
          ...layer,
          recomputed: {
            savedBytes: Math.floor(random.uniform() * 0.7 * layer.savedBytes),
            flops: random.uniform() * layer.flops,
          },
        },
  );
  return { ...profile, layers };
}

/** The profile with times of both passes as one step: a random part of their sum, layer by layer. */
export function withSteps(seed: number, profile: Profile): Profile {
  const random = createRandom(seed, 15);
  const devices = Object.entries(profile.devices).map(([name, times]): [string, DeviceTimes] => {
    const parts = profile.layers.map(() => 0.3 + 0.8 * random.uniform());
    const stepMs = times.forwardMs.map((row, point) =>
      row.map((ms, layer) => (ms + (times.backwardMs[point]?.[layer] as number)) * (parts[layer] as number)),
    );
    return [name, { ...times, stepMs }];
  });
  return { ...profile, devices: Object.fromEntries(devices) };
}

/** A random pipeline of the problem, whatever its memory: some devices in random order, none without samples. */
export function randomLayouts(seed: number, problem: Problem): StageLayout[] {
  const random = createRandom(seed, 12);
  const layerCount = problem.profile.layers.length;
  const order = [...permutation(problem.devices.length, random)].slice(0, 1 + random.integer(problem.devices.length));
  const stageCount = 1 + random.integer(Math.min(layerCount, order.length));
  const cuts = (count: number): number[] =>
    [...permutation(count - 1, random)]
      .slice(0, stageCount - 1)
      .map((cut) => cut + 1)
      .sort((a, b) => a - b);
  const [layerCuts, deviceCuts] = [
    [0, ...cuts(layerCount), layerCount],
    [0, ...cuts(order.length), order.length],
  ];
  return Array.from({ length: stageCount }, (_, stage) => {
    const devices = order.slice(deviceCuts[stage], deviceCuts[stage + 1]).slice(0, problem.microBatchSize);
    const borders = [...permutation(problem.microBatchSize - 1, random)]
      .slice(0, devices.length - 1)
      .map((border) => border + 1)
      .sort((a, b) => a - b);
    const ends = [...borders, problem.microBatchSize];
    return {
      layers: [layerCuts[stage] ?? 0, layerCuts[stage + 1] ?? 0] as const,
      devices,
      samples: ends.map((end, index) => end - (ends[index - 1] ?? 0)),
    };
  });
}

/** Every way to cut `layerCount` layers into `partCount` parts, each as the ends of its parts. */
export function* everyCut(layerCount: number, partCount: number, start = 0): Generator<number[], void, void> {
  if (partCount === 1) yield [layerCount];
  else
    for (let end = start + 1; end <= layerCount - partCount + 1; end++)
      for (const rest of everyCut(layerCount, partCount - 1, end)) yield [end, ...rest];
}
