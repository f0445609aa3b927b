// A rehearsal as plain data that follows from a seed: the devices, the plan, the network, and the faults with their
// times.

import { defined } from '../assert.ts';
import type { PlanLayout, StagePlan } from '../cluster/cluster.ts';
import { createRandom, permutation, type Random } from '../random.ts';
import type { RecoveryPolicy } from '../runtime/knowledge/recovery-policies.ts';
import { program } from '../schedule/generate.ts';
import { scheduleOf } from '../schedule/schedules.ts';
import { maxBatchSize } from './exact-model.ts';
import type { PathConditions } from './virtual-pipe.ts';

/** The coordinator's host and process. */
export const coordinatorName = 'coordinator';

/** A fault. `ms`: how long it lasts. */
export type FaultKind =
  /**
   * SIGKILL, with `isForMemory` by its own system; with `isDark` the whole host loses power, and no connection is
   * closed. `returnsAfterMs`: it is started again.
   */
  | {
      readonly kind: 'kill';
      readonly device: string;
      readonly isDark: boolean;
      readonly isDataLost: boolean;
      readonly returnsAfterMs?: number;
      readonly isForMemory?: boolean;
    }
  /** SIGSTOP, later SIGCONT, of a device or the coordinator. */
  | { readonly kind: 'freeze'; readonly process: string; readonly ms: number }
  /** Nothing passes between these hosts and all others; with `isOneWay`, nothing from them. */
  | { readonly kind: 'partition'; readonly hosts: readonly string[]; readonly isOneWay: boolean; readonly ms: number }
  | { readonly kind: 'reset'; readonly between: readonly [string, string] }
  /**
   * The next frames that arrive at one host from another are damaged: the receiver notices by their checksum, and ends
   * the connections.
   */
  | { readonly kind: 'damage'; readonly from: string; readonly to: string }
  /** A device is to leave: by `asteroid drain`, or with `isByOwner` because its worker is stopped (SIGINT). */
  | { readonly kind: 'drain'; readonly device: string; readonly isByOwner: boolean }
  /** All paths from and to a host are worse. */
  | { readonly kind: 'impair'; readonly host: string; readonly conditions: PathConditions; readonly ms: number }
  /** A device computes slower by this factor. */
  | { readonly kind: 'slow'; readonly device: string; readonly factor: number; readonly ms: number }
  /** A device that was not there before. */
  | { readonly kind: 'join'; readonly device: string }
  /**
   * The coordinator is killed, with `isPowerCut` losing its disk's unsynced writes, and started again from its last
   * checkpoint.
   */
  | { readonly kind: 'kill-coordinator'; readonly isPowerCut: boolean; readonly restartsAfterMs: number }
  /** The coordinator's disk refuses to write. */
  | { readonly kind: 'disk'; readonly code: 'ENOSPC' | 'EROFS' | 'EIO'; readonly ms: number };

/** A fault and its time: `delayMs` after `afterFrames` frames have arrived anywhere, evenly over the protocol. */
export type Fault = FaultKind & { readonly afterFrames: number; readonly delayMs: number };

export interface Scenario {
  readonly seed: number;
  /** The run only infers: rounds are requests. Absent, as in all scenarios of seeds: it trains. */
  readonly isInference?: true;
  /** One of so many rounds has fewer samples than a batch. Absent, as in all scenarios of seeds: none. */
  readonly smallerEvery?: number;
  /** The devices at the start. */
  readonly devices: readonly string[];
  /** The first plan; if devices are measured first, only its batch and schedule count. */
  readonly plan: PlanLayout;
  /** Links and devices are measured, and a planner decides; else the plan is given. */
  readonly isMeasured: boolean;
  /** The memory that each device reports. With 0 no plan can be repaired after a loss: each is made from scratch. */
  readonly memoryMiB: number;
  readonly layerCount: number;
  readonly isClipped: boolean;
  /** Layers whose weight is not trained. Absent, as in all scenarios of seeds: none. */
  readonly frozenLayers?: readonly number[];
  /** K of weight aggregation, where rounds overlap. Absent, as in all synchronous scenarios: never. */
  readonly aggregate?: number;
  /** Tangents of a round of forward gradients. Absent, as in all scenarios of seeds: it trains by backward passes. */
  readonly tangentCount?: number;
  readonly endRound: number;
  /** How the run follows slower devices and losses. Absent, as in all synchronous scenarios: as by default. */
  readonly recovery?: RecoveryPolicy;
  readonly checkpointEvery: number;
  /** Rounds between copies of single-device stages; 0: no copies. */
  readonly replicateEvery: number;
  /** True if the run waits for others when all devices have left. */
  readonly waitForDevices: boolean;
  readonly network: PathConditions & { readonly windowBytes: number };
  /** Milliseconds that a device of speed 1 takes for one layer and one sample, forward. */
  readonly msPerSample: number;
  /** By device: by which factor it is slower than a device of speed 1. */
  readonly slowness: Readonly<Record<string, number>>;
  /** How long workers try to reconnect. */
  readonly reconnectMs: number;
  /** By process: its monotonic clock at the start. */
  readonly clockOriginsMs: Readonly<Record<string, number>>;
  readonly faults: readonly Fault[];
}

const maxDeviceCount = 6;
/** Devices that may join later. */
const spareNames = ['d7', 'd8'];

/** The scenario of a seed. `kinds`: the faults that may happen; default: all. */
export function scenarioOf(seed: number, kinds?: readonly FaultKind['kind'][]): Scenario {
  const random = createRandom(seed, 0xa57e401d);
  const devices = Array.from({ length: 2 + random.integer(maxDeviceCount - 1) }, (_, index) => `d${index}`);
  const layerCount = 2 + random.integer(7);
  const plan = randomPlan(devices, layerCount, random);
  const endRound = 2 + random.integer(6);
  const names = [...devices, ...spareNames];
  const perName = (value: () => number): Record<string, number> =>
    Object.fromEntries([...names, coordinatorName].map((name) => [name, value()]));
  const bandwidthMbps = logarithmic(1, 1000, random);
  // Fast links take many mebibytes to measure, slow ones long.
  const isMeasured = bandwidthMbps > 30 && bandwidthMbps < 100 && random.uniform() < 0.7;
  const bare = {
    seed,
    devices,
    plan,
    isMeasured,
    memoryMiB: isMeasured && seed % 4 === 0 ? 0 : 1024,
    layerCount,
    isClipped: random.uniform() < 0.3,
    endRound,
    checkpointEvery: 1 + random.integer(5),
    replicateEvery: [0, 1, 1, 1, 2, 3][random.integer(6)] as number,
    waitForDevices: random.uniform() < 0.7,
    network: {
      latencyMs: logarithmic(0.1, 40, random),
      jitterMs: logarithmic(0.1, 20, random),
      patienceMs: logarithmic(0.1, 5000, random),
      bandwidthMbps,
      windowBytes: random.integer(3) === 0 ? 1 : 2 ** (8 + random.integer(8)),
    },
    msPerSample: logarithmic(0.02, 0.5, random),
    slowness: perName(() => logarithmic(0.5, 3, random)),
    reconnectMs: random.integer(4) === 0 ? 0 : 60_000,
    clockOriginsMs: perName(() => random.uniform() * 7.2e6),
  };
  return { ...bare, faults: randomFaults(bare, random, kinds) };
}

/** The part of a plan that is the same in all plans of a run. */
type Batching = Pick<PlanLayout, 'microBatchSize' | 'microBatchCount' | 'schedule'>;

const schedules = ['1f1b', '1f1b', 'gpipe', 'zb-h1', '1f1b-overlap', 'zb-h1-overlap'];

/** A random plan that uses all of these devices: any number of stages, any groups, any shares. */
export function randomPlan(
  devices: readonly string[],
  layerCount: number,
  random: Random,
  given?: Batching,
): PlanLayout {
  const order = [...permutation(devices.length, random)].map((index) => devices[index] as string);
  const stageCount = 1 + random.integer(Math.min(devices.length, layerCount));
  const microBatchCount = given?.microBatchCount ?? 1 + random.integer(4);
  const microBatchSize =
    given?.microBatchSize ?? 1 + random.integer(Math.min(6, Math.floor(maxBatchSize / microBatchCount)));
  const schedule = given?.schedule ?? (schedules[random.integer(schedules.length)] as string);
  const groupEnds = cuts(devices.length, stageCount, random);
  const layerEnds = cuts(layerCount, stageCount, random);
  const stages = groupEnds.map((end, stage): StagePlan => {
    const group = order.slice(groupEnds[stage - 1] ?? 0, end);
    const samples = randomShares(microBatchSize, group.length, random);
    const layers = [layerEnds[stage - 1] ?? 0, layerEnds[stage] as number] as const;
    return {
      layers,
      devices: group,
      samples,
      inFlight: scheduleOf(schedule).inFlight(stage, stageCount, microBatchCount),
    };
  });
  return {
    planner: 'rehearsal',
    schedule,
    batchSize: microBatchSize * microBatchCount,
    microBatchSize,
    microBatchCount,
    stages,
  };
}

/** Ends of `count` runs, none of them empty, over `total`. */
function cuts(total: number, count: number, random: Random): number[] {
  const inner = [...permutation(total - 1, random)]
    .slice(0, count - 1)
    .map((index) => index + 1)
    .sort((a, b) => a - b);
  return [...inner, total];
}

/** Often equal shares if the total is divisible, else any shares, some of them zero. */
function randomShares(total: number, count: number, random: Random): number[] {
  if (total % count === 0 && random.uniform() < 0.5) return new Array<number>(count).fill(total / count);
  const ends = Array.from({ length: count - 1 }, () => random.integer(total + 1)).sort((a, b) => a - b);
  return [...ends, total].map((end, index) => end - (ends[index - 1] ?? 0));
}

function logarithmic(low: number, high: number, random: Random): number {
  return low * (high / low) ** random.uniform();
}

/** About how many frames arrive in a run without faults. */
function frameCount({ devices, plan, layerCount, endRound }: Omit<Scenario, 'faults'>): number {
  const received = program(plan).devices.flatMap(({ instructions }) =>
    instructions.filter(({ kind }) => kind === 'receive'),
  );
  const reduced = plan.stages.reduce((sum, stage) => sum + 2 * stage.devices.length * (stage.devices.length - 1), 0);
  const perRound = received.length + reduced + 3 * devices.length;
  return 6 * devices.length + 2 * layerCount * devices.length + endRound * perRound;
}

function randomFaults(
  scenario: Omit<Scenario, 'faults'>,
  random: Random,
  kinds?: readonly FaultKind['kind'][],
): Fault[] {
  const count = [0, 1, 1, 1, 1, 2, 2, 2, 3, 3][random.integer(10)] as number;
  const frames = frameCount(scenario);
  const faults: Fault[] = [];
  for (let index = 0; index < count; index++) {
    const before = faults.at(-1);
    const kind = randomFault({ devices: scenario.devices, random }, kinds);
    // Half of the later faults come while the one before is being handled.
    if (before !== undefined && random.uniform() < 0.5)
      faults.push({
        ...kind,
        afterFrames: before.afterFrames,
        delayMs: before.delayMs + logarithmic(0.5, 15_000, random),
      });
    else
      faults.push({
        ...kind,
        afterFrames: random.integer(frames),
        delayMs: random.uniform() < 0.5 ? 0 : random.uniform() * 100,
      });
  }
  return faults;
}

/** What a fault is made from. */
interface Setting {
  readonly devices: readonly string[];
  readonly random: Random;
}

/** How often a kind of fault happens, relative to the others, and a random one of it. */
type FaultRow<Kind extends FaultKind['kind']> = readonly [
  weight: number,
  make: (setting: Setting) => Extract<FaultKind, { readonly kind: Kind }>,
];

const faultTable: { readonly [Kind in FaultKind['kind']]: FaultRow<Kind> } = {
  kill: [8, randomKill],
  freeze: [
    3,
    ({ devices, random }) => {
      const process = random.integer(5) === 0 ? coordinatorName : pick(devices, random);
      return { kind: 'freeze', process, ms: randomDurationMs(random) };
    },
  ],
  partition: [
    3,
    ({ devices, random }) => {
      const hosts = randomSide(devices, random);
      return { kind: 'partition', hosts, isOneWay: random.uniform() < 0.4, ms: randomDurationMs(random) };
    },
  ],
  reset: [2, ({ devices, random }) => ({ kind: 'reset', between: randomPair(devices, random) })],
  damage: [
    1,
    ({ devices, random }) => {
      const [from, to] = randomPair(devices, random);
      return { kind: 'damage', from, to };
    },
  ],
  drain: [
    2,
    ({ devices, random }) => ({ kind: 'drain', device: pick(devices, random), isByOwner: random.uniform() < 0.5 }),
  ],
  impair: [2, randomImpairment],
  slow: [
    1,
    ({ devices, random }) => {
      const device = pick(devices, random);
      return { kind: 'slow', device, factor: logarithmic(2, 20, random), ms: randomDurationMs(random) };
    },
  ],
  join: [2, ({ random }) => ({ kind: 'join', device: pick(spareNames, random) })],
  'kill-coordinator': [
    2,
    ({ random }) => {
      const isPowerCut = random.uniform() < 0.5;
      return { kind: 'kill-coordinator', isPowerCut, restartsAfterMs: logarithmic(100, 20_000, random) };
    },
  ],
  disk: [
    1,
    ({ random }) => {
      const code = pick(['ENOSPC', 'EROFS', 'EIO'] as const, random);
      return { kind: 'disk', code, ms: randomDurationMs(random) };
    },
  ],
};

/** All kinds of faults. */
export const faultKinds: readonly FaultKind['kind'][] = Object.keys(faultTable) as FaultKind['kind'][];

function randomFault(setting: Setting, kinds?: readonly FaultKind['kind'][]): FaultKind {
  const rows = Object.entries(faultTable)
    .filter(([kind]) => kinds === undefined || kinds.includes(kind as FaultKind['kind']))
    .map(([, row]) => row);
  let place = setting.random.uniform() * rows.reduce((sum, [weight]) => sum + weight, 0);
  for (const [weight, make] of rows) {
    place -= weight;
    if (place < 0) return make(setting);
  }
  return defined(rows[0], 'a fault')[1](setting);
}

function randomKill({ devices, random }: Setting): Extract<FaultKind, { readonly kind: 'kill' }> {
  const device = pick(devices, random);
  const [isDark, isDataLost] = [random.uniform() < 0.3, random.uniform() < 0.5];
  const fate = random.uniform();
  return {
    ...{ kind: 'kill', device, isDark, isDataLost },
    ...(fate < 0.4 ? { returnsAfterMs: logarithmic(100, 30_000, random) } : {}),
    ...(fate < 0.2 && !isDark ? { isForMemory: true } : {}),
  };
}

function randomImpairment({ devices, random }: Setting): Extract<FaultKind, { readonly kind: 'impair' }> {
  const host = pick([...devices, coordinatorName], random);
  const conditions = {
    latencyMs: logarithmic(5, 300, random),
    jitterMs: logarithmic(1, 300, random),
    bandwidthMbps: logarithmic(0.2, 100, random),
  };
  return { kind: 'impair', host, conditions, ms: randomDurationMs(random) };
}

function randomDurationMs(random: Random): number {
  return logarithmic(100, 60_000, random);
}

function pick<T>(values: readonly T[], random: Random): T {
  return defined(values[random.integer(values.length)], 'a choice');
}

/** Some hosts, but not all of them. */
function randomSide(devices: readonly string[], random: Random): string[] {
  const hosts = [...devices, coordinatorName];
  const order = [...permutation(hosts.length, random)].map((index) => hosts[index] as string);
  return order.slice(0, random.uniform() < 0.5 ? 1 : 1 + random.integer(hosts.length - 1));
}

/** Two different hosts. */
function randomPair(devices: readonly string[], random: Random): [string, string] {
  const hosts = [...devices, coordinatorName];
  const first = random.integer(hosts.length);
  const second = (first + 1 + random.integer(hosts.length - 1)) % hosts.length;
  return [hosts[first] as string, hosts[second] as string];
}
