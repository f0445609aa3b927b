// The world of one rehearsal: time, network, disk, devices, and the witness, shared by all parts.

import { defined } from '../assert.ts';
import type { Tensor } from '../graph/tensor.ts';
import { createRandom, type Random } from '../random.ts';
import type { CoordinatorOptions } from '../runtime/coordinator/options.ts';
import type { StagePort } from '../runtime/device/stage.ts';
import type { Disk } from '../storage/disk.ts';
import type { Frame } from '../transport/link.ts';
import { samplesIn } from './exact-model.ts';
import { Oracle } from './exact-oracle.ts';
import type { StageWorld } from './exact-world.ts';
import type { Scenario } from './scenario.ts';
import { VirtualDisk } from './virtual-disk.ts';
import { VirtualNetwork } from './virtual-network.ts';
import { VirtualProcess } from './virtual-process.ts';
import { VirtualTime } from './virtual-time.ts';
import { Witness } from './witness.ts';

/** A mistake that is built in on purpose, to see that it is caught: each member wraps a part of the production. */
export interface Bug {
  readonly step?: NonNullable<CoordinatorOptions['step']>;
  stage?(stage: StagePort, device: string): StagePort;
  disk?(disk: Disk): Disk;
  /** The results that reach who asks, in a run that only infers, for those of a round. */
  results?(round: number, outputs: readonly Tensor[]): readonly (readonly [number, readonly Tensor[]])[];
  /** Of stages. */
  readonly world?: Pick<StageWorld, 'backwardReads' | 'aggregatesLate' | 'forgetsEarly' | 'drawsOtherDirections'>;
  /** The frames that a process receives for one that has arrived. */
  frame?(frame: Frame, way: FrameWay): readonly Frame[];
}

/**
 * Sender and receiver of a frame, and the epoch of the last layout that was announced to the receiver (0 for the
 * coordinator).
 */
export interface FrameWay {
  readonly from: string;
  readonly to: string;
  readonly epoch: number;
}

/** One device of the world. */
export interface Device {
  readonly name: string;
  process: VirtualProcess;
  /** Aborted: its owner wants it to leave. */
  leave: AbortController;
  /** By which factor it computes slower than a device of speed 1. */
  slowness: number;
  /** The epoch of the last layout that was announced to it. */
  epoch: number;
  /** How often its system has killed it for lack of memory. */
  oomKillCount: number;
}

/** The folder of the run's checkpoints. */
export const checkpointFolder = '/run/checkpoints';

export interface World {
  readonly scenario: Scenario;
  readonly bug: Bug | undefined;
  readonly time: VirtualTime;
  readonly random: Random;
  readonly witness: Witness;
  readonly network: VirtualNetwork;
  readonly disk: VirtualDisk;
  readonly oracle: Oracle;
  /** The samples of a round. */
  samplesIn(round: number): number;
  readonly devices: Map<string, Device>;
  /** Frames that have arrived, heartbeats not counted. */
  frameCount: number;
  /** How the run ended, in one sentence. */
  outcome: string | undefined;
}

/** A world in which nothing has happened yet. `isTraced`: keeps a line for each event. */
export function createWorld(
  scenario: Scenario,
  { bug, isTraced }: { readonly bug: Bug | undefined; readonly isTraced: boolean },
): World {
  const time = new VirtualTime();
  const { windowBytes, ...conditions } = scenario.network;
  const network = new VirtualNetwork(time, createRandom(scenario.seed, 3), {
    conditions,
    windowBytes,
    taken: (frame, from, to) => taken(world, frame, from, to),
  });
  const sizes = { ...scenario, batchSize: scenario.plan.batchSize };
  const world: World = {
    scenario,
    bug,
    time,
    random: createRandom(scenario.seed, 2),
    witness: new Witness(time, { isTraced }),
    network,
    disk: new VirtualDisk(createRandom(scenario.seed, 4), ['/run']),
    oracle: new Oracle(sizes), // of an asynchronous run, until its first stream begins
    samplesIn: (round) => samplesIn(sizes, round),
    devices: new Map(),
    frameCount: 0,
    outcome: undefined,
  };
  return world;
}

/** A process receives a frame, or what a bug makes of it. */
function taken(world: World, frame: Frame, from: string, to: string): readonly Frame[] {
  if (frame.kind !== 'heartbeat') {
    world.frameCount++;
    world.witness.note(from, '→', to, frame.kind, frame.epoch, frame.round, frame.microBatch);
  }
  const device = world.devices.get(to);
  if (device !== undefined && frame.kind === 'deploy') device.epoch = frame.epoch;
  return world.bug?.frame?.(frame, { from, to, epoch: device?.epoch ?? 0 }) ?? [frame];
}

/** Starts a process on the host of its name. */
export function startProcess({ time, scenario, network }: World, name: string): VirtualProcess {
  network.lit(name);
  return new VirtualProcess(time, { name, host: name, clockOriginMs: defined(scenario.clockOriginsMs[name], name) });
}

/** A process ends by itself: it must leave nothing behind. */
export function exitProcess({ network, witness }: World, process: VirtualProcess): void {
  if (process.state === 'dead') return;
  const standing = [...network.connections].filter(({ from }) => from === process).length;
  if (standing > 0) witness.violate(`${process.name} ended with ${standing} links open`);
  if (process.timerCount > 0) witness.violate(`${process.name} ended with ${process.timerCount} timers waiting`);
  process.end();
  network.ended(process, { isDark: false, isDataLost: false });
}

/** Reports an error that is no stated reason, but a mistake. */
export function crashed({ witness }: World, what: string, error: unknown): void {
  witness.violate(`${what}: ${String(error)}`, error instanceof Error ? error.stack : undefined);
}
