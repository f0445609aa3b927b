// How well rounds of one layout correct a profile for their own and for another layout: made-up devices whose true
// costs differ from their profile. `node dist/testing/estimator.js [MODULE]` prints tables; MODULE is another build's
// module with a `refreshProfile` to compare with. Deterministic. bench/results/2026-11-28-estimator.md has the results.

import { pathToFileURL } from 'node:url';
import type { Cluster, DeviceTimes, Plan, Profile } from '../cluster/cluster.ts';
import { correctedOverhead } from '../cluster/overhead.ts';
import { scaledTimes } from '../cluster/times.ts';
import { createRandom, type Random } from '../random.ts';
import { type DeviceRound, refreshProfile } from '../runtime/knowledge/estimator.ts';
import { program } from '../schedule/generate.ts';
import { simulate } from '../simulator/simulate.ts';
import type { SimulatedDevice } from '../simulator/simulation.ts';
import { mean } from '../statistics.ts';

type Refresh = typeof refreshProfile;

const names = ['a', 'b', 'c', 'd'] as const;
const layerCount = 12;
const cluster: Cluster = {
  devices: names.map((name) => ({ name, memoryMiB: 4096 })),
  links: { default: { bandwidthMbps: 1000, latencyMs: 0.5 } },
  dataDevice: 'a',
};

/** Sizes and times like those of MobileNetV2 on devices of a third of a core (bench/results/2026-11-27-frames.md). */
function measuredProfile(random: Random): Profile {
  const between = (low: number, high: number): number => low + (high - low) * random.uniform();
  const layers = Array.from({ length: layerCount }, (_, index) => ({
    name: `layer${index}`,
    outputBytes: Math.round(between(4e4, 4e5) / (1 + index / 4)),
    weightBytes: Math.round(between(1e5, 2e6)),
    savedBytes: 1e6,
    flops: 1,
  }));
  const batchSizes = [1, 4, 16];
  const devices = names.map((name): [string, DeviceTimes] => {
    const work = layers.map(() => between(0.4, 1.6));
    const table = (scale: number): number[][] => batchSizes.map((size) => work.map((ms) => scale * ms * (0.5 + size)));
    const passMs = between(0.8, 1.3);
    const perMiB = { handlingMsPerMiB: between(2, 5), reducingMsPerMiB: between(3, 8) };
    return [name, { forwardMs: table(1), backwardMs: table(2), callMs: 0.3, ...perMiB, passMs, frameMs: 1.3 * passMs }];
  });
  return {
    model: 'made up',
    inputBytes: 12288,
    labelBytes: 8,
    layers,
    batchSizes,
    devices: Object.fromEntries(devices),
  };
}

function planOf(groups: readonly (readonly string[])[], cuts: readonly number[]): Plan {
  const borders = [0, ...cuts, layerCount];
  const stages = groups.map((devices, index) => ({
    layers: [borders[index] ?? 0, borders[index + 1] ?? 0] as const,
    devices,
    samples: devices.map(() => 12 / devices.length),
    inFlight: 2 * (groups.length - index) - 1,
  }));
  const predicted = { roundMs: 1, samplesPerS: 1, peakMemoryMiB: {} };
  const sizes = { batchSize: 96, microBatchSize: 12, microBatchCount: 8 };
  return { planner: 'hand', schedule: '1f1b', ...sizes, stages, predicted };
}

/** Layouts that have transfers, wakes and AllReduces in different proportions. */
const layouts: readonly Plan[] = [
  planOf([['a'], ['b'], ['c'], ['d']], [3, 6, 9]),
  planOf(
    [
      ['a', 'b'],
      ['c', 'd'],
    ],
    [5],
  ),
  planOf([['a', 'b', 'c', 'd']], []),
  planOf([['a', 'b', 'c'], ['d']], [8]),
  planOf([['d'], ['b', 'c'], ['a']], [2, 7]),
];

/** How many times as much as its profile says a device truly pays. */
interface Truth {
  readonly engine: number;
  readonly wake: number;
  readonly transfer: number;
  readonly reduce: number;
  /** Milliseconds of a round that no constant of the profile stands for. */
  readonly extraMs: number;
}

const asProfiled: Truth = { engine: 1, wake: 1, transfer: 1, reduce: 1, extraMs: 0 };

function allWithin(factor: number): (random: Random) => Truth {
  return (random) => {
    const about = (): number => factor ** (2 * random.uniform() - 1);
    return { engine: about(), wake: about(), transfer: about(), reduce: about(), extraMs: 0 };
  };
}

/** How truths differ from the profile: drawn for each device. */
const scenarios: Readonly<Record<string, (random: Random) => Truth>> = {
  'as profiled': () => asProfiled,
  'engine 0.7 to 1.6': (random) => ({ ...asProfiled, engine: 0.7 + 0.9 * random.uniform() }),
  'wakes 0.5 to 2.5': (random) => ({ ...asProfiled, wake: 0.5 + 2 * random.uniform() }),
  'transfer 0.5 to 2.5': (random) => ({ ...asProfiled, transfer: 0.5 + 2 * random.uniform() }),
  'AllReduce 0.5 to 2.5': (random) => ({ ...asProfiled, reduce: 0.5 + 2 * random.uniform() }),
  'all within 1.35': allWithin(1.35),
  'all within 2': allWithin(2),
  '20 ms a round of something else': () => ({ ...asProfiled, extraMs: 20 }),
};

function trueProfile(profile: Profile, truthOf: (name: string) => Truth): Profile {
  const devices = Object.entries(profile.devices).map(([name, times]): [string, DeviceTimes] => {
    const { engine, ...factors } = truthOf(name);
    return [name, { ...scaledTimes(times, engine), ...correctedOverhead(times, factors) }];
  });
  return { ...profile, devices: Object.fromEntries(devices) };
}

/** What rounds report of a device. */
const reports = ['engine and main thread apart', 'the whole process', 'the engine alone'] as const;
type Report = (typeof reports)[number];

/** Milliseconds of a device's round: computing, the main thread between stages, and its AllReduces. */
type Work = readonly [computeMs: number, linksMs: number, reduceMs: number];

function workOf({ busyMs = 0, handlingMs = 0, reducingMs = 0 }: Partial<SimulatedDevice> = {}): Work {
  return [busyMs - handlingMs, handlingMs, reducingMs];
}

function total(work: Work): number {
  return work.reduce((sum, ms) => sum + ms, 0);
}

/** A normal number, from the sum of twelve uniform ones. */
function normal(random: Random): number {
  return Array.from({ length: 12 }, () => random.uniform()).reduce((sum, each) => sum + each, -6);
}

/** Twelve rounds, computing within 3 % and the main thread within 8 %; one in ten takes 1.4 times as long. */
function roundsOf([compute, links, reduce]: Work, report: Report, random: Random): readonly DeviceRound[] {
  return Array.from({ length: 12 }, () => {
    const outlier = random.uniform() < 0.1 ? 1.4 : 1;
    const busyMs = compute * outlier * Math.exp(0.03 * normal(random));
    const reducingMs = reduce * outlier * Math.exp(0.08 * normal(random));
    const linksMs = links * outlier * Math.exp(0.08 * normal(random)) + reducingMs;
    if (report === 'the engine alone') return { busyMs };
    const processMs = busyMs + linksMs;
    if (report === 'the whole process') return { busyMs, processMs };
    return { busyMs, processMs, linksMs, ...(reduce === 0 ? {} : { reducingMs }) };
  });
}

/** Errors of predictions, as fractions: of devices' work in the same layout and in the next one, and of its round. */
interface Errors {
  readonly same: number[];
  readonly next: number[];
  readonly nextRound: number[];
}

/** An estimator with what it knows. */
interface Learner {
  readonly refresh: Refresh | undefined;
  readonly errors: Errors;
  known: Profile;
}

/** A layout in which a device computes a few percent off its sums of layers, which says nothing of other layouts. */
function noteErrors(plan: Plan, world: Profile, truths: ReadonlyMap<string, Truth>, learners: readonly Learner[]) {
  const { devices, roundMs } = simulate(program(plan), plan, world, cluster, { events: false });
  const truly = (name: string): Work => {
    const [compute, links, reduce] = workOf(devices[name]);
    return [compute, links + (truths.get(name)?.extraMs ?? 0), reduce];
  };
  const note = (kind: 'same' | 'next'): void => {
    for (const { errors, known } of learners) {
      const predicted = simulate(program(plan), plan, known, cluster, { events: false });
      for (const name of names)
        errors[kind].push(Math.abs(total(workOf(predicted.devices[name])) / total(truly(name)) - 1));
      if (kind === 'next') errors.nextRound.push(Math.abs(predicted.roundMs / roundMs - 1));
    }
  };
  return { truly, note };
}

/** Three layouts with four looks each. */
function run(scenario: (random: Random) => Truth, report: Report, seed: number, learners: readonly Learner[]): void {
  const random = createRandom(seed, 77);
  const profile = measuredProfile(random);
  const truths = new Map(names.map((name) => [name, scenario(random)]));
  for (const learner of learners) learner.known = profile;
  const start = random.integer(layouts.length);
  for (let place = 0; place < 3; place++) {
    const plan = layouts[(start + place * (1 + (seed % 2))) % layouts.length] as Plan;
    const here = new Map(names.map((name) => [name, Math.exp(0.03 * normal(random))]));
    const world = trueProfile(profile, (name) => {
      const truth = truths.get(name as (typeof names)[number]) ?? asProfiled;
      return { ...truth, engine: truth.engine * (here.get(name as (typeof names)[number]) ?? 1) };
    });
    const { truly, note } = noteErrors(plan, world, truths, learners);
    if (place > 0) note('next');
    for (let look = 0; look < 4; look++) {
      const rounds = Object.fromEntries(names.map((name) => [name, roundsOf(truly(name), report, random)]));
      for (const learner of learners)
        learner.known = learner.refresh?.(learner.known, plan, cluster, rounds).profile ?? learner.known;
      if (look === 0 || look === 3) note('same');
    }
  }
}

const other = process.argv[2];
const estimators: Readonly<Record<string, Refresh | undefined>> = {
  none: undefined,
  ...(other === undefined
    ? {}
    : { other: ((await import(pathToFileURL(other).href)) as { refreshProfile: Refresh }).refreshProfile }),
  ours: refreshProfile,
};
const columns = Object.keys(estimators);
for (const report of reports) {
  const heads = ['same layout', 'next layout', "next layout's round"].flatMap((what) =>
    columns.map((name) => `${what}: ${name}`),
  );
  console.log(`\nRounds report: ${report}. Mean errors in percent.\n\n| scenario | ${heads.join(' | ')} |`);
  console.log(`|${' --- |'.repeat(1 + heads.length)}`);
  const means: number[][] = [];
  for (const [name, scenario] of Object.entries(scenarios)) {
    const learners = columns.map((column): Learner => {
      const errors = { same: [], next: [], nextRound: [] };
      return { refresh: estimators[column], errors, known: measuredProfile(createRandom(0)) };
    });
    for (let seed = 0; seed < 40; seed++) run(scenario, report, seed, learners);
    means.push(
      (['same', 'next', 'nextRound'] as const).flatMap((kind) =>
        learners.map(({ errors }) => 100 * mean(errors[kind])),
      ),
    );
    console.log(
      `| ${name} | ${means
        .at(-1)
        ?.map((error) => error.toFixed(1))
        .join(' | ')} |`,
    );
  }
  const overall = heads.map((_, column) => mean(means.map((row) => row[column] ?? 0)).toFixed(2));
  console.log(`| all scenarios | ${overall.join(' | ')} |`);
}
