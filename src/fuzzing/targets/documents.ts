// Documents that people write or commands print: clusters, profiles, plans, settings, in JSON or YAML.

import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import { configOf } from '../../cli/files.ts';
import { resolveSettings, settingsDocument } from '../../cli/settings.ts';
import type { Cluster, Plan, PlanLayout, Profile } from '../../cluster/cluster.ts';
import { checkTogether, parseCluster, parsePlan, parseProfile } from '../../cluster/validate.ts';
import type { Random } from '../../random.ts';
import { checkProgram } from '../../schedule/check.ts';
import { program } from '../../schedule/generate.ts';
import { scheduleNames } from '../../schedule/schedules.ts';
import { handPlan } from '../../testing/hand-plans.ts';
import { parseDataSpec } from '../../training/data/spec.ts';
import { parseSchedule } from '../../training/schedules.ts';
import { damagedDocument, oneOf } from '../inputs.ts';
import type { Target } from '../target.ts';

const cluster: Cluster = {
  devices: [
    { name: 'a', kind: 'jetson-nano', memoryMiB: 3072, powerW: 10 },
    { name: 'b', kind: 'jetson-tx2@50%', memoryMiB: 7168, cores: 0.5 },
    { name: 'c', memoryMiB: 512 },
  ],
  links: { default: { bandwidthMbps: 100, latencyMs: 1 }, pairs: [{ between: ['a', 'b'], bandwidthMbps: 1000 }] },
  dataDevice: 'a',
};
const [few, many] = [
  [1, 2, 3],
  [2, 4, 6],
];
const times = {
  forwardMs: [few, many],
  backwardMs: [many, many],
  backwardInputMs: [few, few],
  stepMs: [many, many],
  updateMs: few,
};
const profile: Profile = {
  model: 'net',
  inputBytes: 100,
  labelBytes: 8,
  layers: ['x', 'y', 'z'].map((name, index) => ({
    name,
    outputBytes: 1000 * index,
    weightBytes: 500,
    savedBytes: 2000,
    flops: 1e6,
    ...(index === 1 ? { frozenBytes: 500, batchDependent: true } : {}),
    ...(index === 2 ? { recomputed: { savedBytes: 100, flops: 1e5 } } : {}),
  })),
  batchSizes: [1, 4],
  devices: {
    a: times,
    b: { ...times, callMs: 0.5, handlingMsPerMiB: 2, reducingMsPerMiB: 3, frameMs: 0.5, passMs: 1 },
    c: times,
  },
};
const plans: readonly unknown[] = [
  ...scheduleNames.map((schedule) =>
    handPlan({ schedule, cuts: [1, 2], shares: [[4], [3, 1], [2, 2]], microBatchCount: 4 }, 3),
  ),
  {
    plan: {
      ...handPlan({ schedule: '1f1b', cuts: [2], shares: [[4], [4]], microBatchCount: 2 }, 3),
      forwardOnlyLayers: 1,
      compression: { allReduce: 'int8' },
    },
    predictedMs: 3,
  },
  {
    ...handPlan({ schedule: 'zb-h1-overlap', cuts: [], shares: [[2, 2]], microBatchCount: 3 }, 3),
    predicted: { roundMs: 1, samplesPerS: 2, peakMemoryMiB: { a: 3 } },
  },
];

/** A document of one kind: a value that was read is the same when it is written and read again. */
function documentTarget<T>(
  samples: readonly unknown[],
  parse: (text: string) => T,
  use: (value: T) => void,
): Target<string> {
  return {
    input: (random: Random) => damagedDocument(samples, random),
    take(text) {
      const value = parse(text);
      assert.ok(isDeepStrictEqual(parse(JSON.stringify(value)), value), 'a document that was written again is another');
      use(value);
    },
  };
}

/** Clusters. */
export function clusterTarget(): Target<string> {
  return documentTarget(
    [cluster],
    (text) => parseCluster(text, 'cluster.yaml'),
    () => {},
  );
}

/** Profiles. */
export function profileTarget(): Target<string> {
  return documentTarget(
    [profile],
    (text) => parseProfile(text, 'profile.json'),
    () => {},
  );
}

/** Plans, as far as a run takes them before any device starts: their Programs are checked. */
export function planTarget(): Target<string> {
  const target = documentTarget(
    plans,
    (text) => parsePlan(text, 'plan.json'),
    (plan) => {
      checkProgram(program(plan), plan);
      checkTogether(plan as Plan, profile, cluster);
    },
  );
  // Damage rarely makes large numbers that agree.
  const grown = (random: Random): string => {
    const plan = oneOf(plans.slice(0, scheduleNames.length), random) as PlanLayout;
    const microBatchCount = oneOf([100, 500, 20_000, 1e6, 2 ** 31], random);
    return JSON.stringify({ ...plan, microBatchCount, batchSize: plan.microBatchSize * microBatchCount });
  };
  return { ...target, input: (random) => (random.integer(200) === 0 ? grown(random) : target.input(random)) };
}

const settings: readonly Readonly<Record<string, unknown>>[] = [
  {
    model: 'digits',
    data: 'mnist',
    batch: 32,
    'micro-batch': 8,
    epochs: 2,
    lr: 0.1,
    'lr-schedule': 'cosine:warmup=10',
    optimizer: 'sgd',
    momentum: 0.9,
    nesterov: true,
  },
  {
    model: 'net.onnx',
    data: 'npz:d.npz',
    batch: 16,
    steps: 100,
    loss: 'mse',
    optimizer: 'adamw',
    'clip-norm': 1,
    freeze: ['conv*'],
    recompute: 1e6,
    compress: 'all',
    strict: false,
    shuffle: false,
  },
];

/** Settings files of runs. */
export function settingsTarget(): Target<string> {
  const read = (text: string): ReturnType<typeof resolveSettings> =>
    resolveSettings({}, configOf(text, 'config.yaml'), 'config.yaml');
  return {
    input: (random) => (random.integer(20) === 0 ? JSON.stringify(settings[0]) : damagedDocument(settings, random)),
    take(text) {
      const found = read(text);
      assert.ok(
        isDeepStrictEqual(read(JSON.stringify(settingsDocument(found))), found),
        'settings that were written again are others',
      );
      parseDataSpec(found.data);
      parseSchedule(found.lrSchedule);
    },
  };
}
