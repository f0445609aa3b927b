// A group is one lab with one model: its devices are profiled once, and every case of it runs there. Clusters, models,
// and what opens a group and runs its plans.

import { readFileSync } from 'node:fs';
import { defined } from '../../dist/assert.js';
import type { Cluster, PlanLayout, Profile } from '../../dist/cluster/cluster.js';
import { parseCluster } from '../../dist/cluster/validate.js';
import type { Priority } from '../../dist/lab/cgroups.js';
import { refreshProfile } from '../../dist/runtime/knowledge/estimator.js';
import type { Thoroughness } from '../../dist/runtime/protocol/profile-points.js';
import { program } from '../../dist/schedule/generate.js';
import { createSimulator, type Simulator } from '../../dist/simulator/simulate.js';
import type { Simulation } from '../../dist/simulator/simulation.js';
import { steadyRoundMs } from '../../dist/simulator/steady.js';
import type { DeviceRounds } from './events.ts';
import type { Sizes } from './layout.ts';
import { openTestbed, type RunDocuments, type Testbed, type TrainOptions, type TrainRun } from './testbed.ts';

/** The options of bench/lab.ts, and where it writes what it does. */
export interface LabBench {
  /** Only cases whose name contains it. */
  readonly only: string;
  /** Measured rounds of each case at most. */
  readonly rounds: number;
  readonly warmUpMs: number;
  readonly priority: Priority;
  readonly python: string | undefined;
  /** A folder for measured profiles. */
  readonly caches: string;
  readonly skipSingle: boolean;
  readonly profileEach: boolean;
  /** How devices are measured. */
  readonly thoroughness: Thoroughness;
  /** For which a planner may look for a plan. */
  readonly planningMs: number;
  /** Where section recovery draws its plot. */
  readonly plot: string | undefined;
  log(text: string): void;
  /** Called with each lab that is opened, so that it can be removed when the program is stopped. */
  opened(bed: Testbed): void;
}

/** What a section found: its results under a key of the JSON, and its tables as Markdown. */
export interface Found {
  readonly key:
    | 'cases'
    | 'memory'
    | 'together'
    | 'peers'
    | 'recovery'
    | 'slowed'
    | 'ftpipehd'
    | 'forward'
    | 'inference';
  readonly results: readonly object[];
  readonly tables: readonly string[];
}

export type Section = (bench: LabBench) => Promise<Found>;

const image = (size: number, classes: number) => `synthetic:3x${size}x${size}:${classes}:2000`;

export const models = {
  mobilenet: { model: 'mobilenet-v2-cifar', data: image(32, 10) },
  efficientnet: { model: 'efficientnet-b1:input=32,classes=10,dropout=0', data: image(32, 10) },
  // Shares of two samples are normalized by themselves: over maps of one place, as 32 x 32 leave them, gradients become
  // infinite (in PyTorch, 1e14).
  'efficientnet-64': { model: 'efficientnet-b1:input=64,classes=10,dropout=0', data: image(64, 10) },
  resnet: { model: 'resnet-50:input=64,classes=100', data: image(64, 100) },
  bert: { model: 'bert-small:sequence=32,classes=2', data: 'synthetic-tokens:32:30522:2:2000' },
} as const;

/** One lab with one model. */
export interface Group {
  readonly name: string;
  readonly environment: readonly [letter: string, bandwidthMbps: number, memoryMiB?: number];
  readonly model: keyof typeof models;
  /** Samples of a micro-batch, and how many a round has. */
  readonly microBatch: number;
  readonly count: number;
}

/** Clusters that the paper does not have, by the cores of their devices a, b, c, d. */
const ownClusters: Readonly<Record<string, readonly number[]>> = {
  pair: [0.6, 0.6],
  tight: [0.6, 0.6],
  mixed: [1, 0.35, 0.35],
  laptops: [0.8, 0.8, 0.12],
  tenth: [0.8, 0.8, 0.08],
  quadruplets: [0.4, 0.4, 0.4, 0.4],
};

/** An environment of the paper with another bandwidth between all, or one of `ownClusters`. */
function environment([letter, bandwidthMbps, memoryMiB = 2048]: Group['environment']): Cluster {
  const links = { default: { bandwidthMbps } };
  const own = ownClusters[letter];
  if (own !== undefined) {
    const names = ['a', 'b', 'c', 'd'];
    return { devices: own.map((cores, index) => ({ name: names[index] ?? '', memoryMiB, cores })), links };
  }
  const file = new URL(`../../clusters/asteroid-${letter.toLowerCase()}.yaml`, import.meta.url);
  return { ...parseCluster(readFileSync(file, 'utf8')), links };
}

/** SGD with momentum keeps one copy of each weight. */
export const optimizerState = 1;

/**
 * Rounds before those that count: programs and links of slow devices take some to become as fast as they stay. (On a
 * third of a core V8 optimizes for minutes: a tenth of a stage's processor time in the first, a fiftieth in the
 * second.) Of long rounds fewer do, and fewer are measured.
 */
const mostWarmUp = 130;
export const leastWarmUp = 4;
const [measuredMs, leastRounds] = [60_000, 6];
/** Of rounds that take longer than that, one before three that count. */
const longMs = 20_000;

/** How many rounds run of a plan whose round is predicted to take `predictedMs`. */
export interface RoundCounts {
  readonly warmUp: number;
  readonly rounds: number;
}

export function roundCounts({ rounds, warmUpMs }: LabBench, predictedMs: number): RoundCounts {
  if (predictedMs > longMs) return { warmUp: 1, rounds: 3 };
  const within = (least: number, most: number, ms: number) =>
    Math.min(most, Math.max(least, Math.ceil(ms / predictedMs)));
  return {
    warmUp: within(leastWarmUp, mostWarmUp, warmUpMs),
    rounds: within(Math.min(leastRounds, rounds), rounds, measuredMs),
  };
}

/** What a round of a layout is predicted to be. */
export type Prediction = Pick<Simulation, 'devices' | 'links' | 'roundMs'>;

/** A round with others before and after it, like the rounds that are measured. */
function predictedBy(simulate: Simulator, layout: PlanLayout): Prediction {
  const { devices, links } = simulate(program(layout), layout, { optimizerState, events: false });
  return { devices, links, roundMs: steadyRoundMs(simulate, program(layout), layout) };
}

function sizeArgs({ microBatchSize, microBatchCount }: Sizes): string[] {
  return ['--batch', String(microBatchSize * microBatchCount), '--micro-batch', String(microBatchSize)];
}

/** What is trained in a group, whatever the plan. */
export function settingsOf({ model: modelName, microBatch, count }: Group): string[] {
  const { model, data } = models[modelName];
  return [
    ...['--model', model, '--data', data],
    ...sizeArgs({ microBatchSize: microBatch, microBatchCount: count }),
    ...['--lr', '0.01', '--momentum', '0.9', '--no-shuffle'],
    ...['--checkpoint-every', '1000000', '--eval-every', '0'],
  ];
}

/** A number to `digits` significant digits. */
export function round(value: number, digits = 3): number {
  return Number(value.toPrecision(digits));
}

/** A group's lab. */
export async function openBed(bench: LabBench, group: Group): Promise<Testbed> {
  const { priority, caches } = bench;
  const bed = await openTestbed(environment(group.environment), { name: 'bench', priority, caches });
  bench.opened(bed);
  const devices = bed.lab.layout.devices.map(({ name, cores }) => `${name} ${cores}`);
  bench.log(`${group.name}: ${devices.join(', ')} cores`);
  return bed;
}

/** A group's lab with its devices profiled and its links measured: what runs the group's plans. */
export interface ReadyGroup {
  readonly bed: Testbed;
  readonly profile: Profile;
  readonly cluster: Cluster;
  /** Samples of a round. */
  readonly batch: number;
  readonly sizes: Sizes;
  /** The device with the most cores. */
  readonly fastest: string;
  predict(layout: PlanLayout): Prediction;
  /**
   * As the run itself would predict after rounds in which devices reported `one`, but without its patience with small
   * differences; and how many times as long each computed.
   */
  predictAfter(
    layout: PlanLayout,
    one: DeviceRounds,
  ): Prediction & { readonly factors: Readonly<Record<string, number>> };
  /** `asteroid train` with the group's settings. */
  train(args: readonly string[], options: Omit<TrainOptions, 'batch'>): Promise<TrainRun>;
  /** Runs a plan for as many rounds as its prediction asks for. */
  run(layout: PlanLayout): Promise<TrainRun>;
}

/** Whether devices copy their state to others. */
export interface Copying {
  readonly copies: boolean;
}

export async function openGroup(bench: LabBench, group: Group, copying: Copying): Promise<ReadyGroup> {
  const bed = await openBed(bench, group);
  return await measured(bench, group, bed, copying).catch(async (error: unknown) => {
    await bed.close();
    throw error;
  });
}

/** What a run measures of its devices and links. It ends once there is something to plan with. */
async function measurements(train: ReadyGroup['train']): Promise<Pick<RunDocuments, 'profile' | 'cluster'>> {
  const found: { profile?: Profile; cluster?: Cluster } = {};
  await train(['--steps', '1', '--planner', 'dp', '--schedule', '1f1b'], {
    onEvent: (event) => {
      if (event.event === 'cluster') found.cluster = event.cluster;
      if (event.event === 'profile') found.profile = event.profile;
    },
    isEnough: ({ event }) => event === 'profile',
    stopsAtOnce: true,
  });
  return { profile: defined(found.profile, 'a profile'), cluster: defined(found.cluster, 'a cluster') };
}

/** The group in a lab that is open, with what is measured now or cached. */
export async function measured(bench: LabBench, group: Group, bed: Testbed, { copies }: Copying): Promise<ReadyGroup> {
  const batch = group.microBatch * group.count;
  const copied = copies ? [] : ['--replicate-every', '0'];
  const settings = [...settingsOf(group), '--replicate-batch-norm', '--profile', bench.thoroughness, ...copied];
  const train: ReadyGroup['train'] = (args, options) => bed.train([...settings, ...args], { ...options, batch });
  const { profile, cluster } = await measurements(train);
  const simulate = createSimulator(profile, cluster);
  return {
    bed,
    profile,
    cluster,
    batch,
    sizes: { microBatchSize: group.microBatch, microBatchCount: group.count },
    fastest: defined(bed.lab.layout.devices.toSorted((a, b) => b.cores - a.cores)[0], 'a device').name,
    predict: (layout) => predictedBy(simulate, layout),
    predictAfter: (layout, one) => {
      const alike = Object.fromEntries(
        Object.entries(one).map(([device, each]) => [device, Array.from({ length: 5 }, () => each)]),
      );
      const { profile: corrected, factors } = refreshProfile(profile, layout, cluster, alike, 0);
      return { ...predictedBy(createSimulator(corrected, cluster), layout), factors };
    },
    train,
    run: (layout) => {
      const { warmUp, rounds } = roundCounts(bench, simulate(program(layout), layout, { events: false }).roundMs);
      const own = ['--steps', String(warmUp + rounds), '--plan', bed.writePlan(layout)];
      return train([...sizeArgs(layout), ...own], { warmUp });
    },
  };
}
