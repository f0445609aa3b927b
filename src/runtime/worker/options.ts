// What a worker's host provides, and how a worker ends. The worker itself is portable: processes, threads, meters and
// whatever else a host has of its own come in here.

import type { Clock } from '../../clock.ts';
import type { Engine } from '../../engine/engine.ts';
import type { ProcessClock } from '../../engine/process-clock.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import type { Frame, Link } from '../../transport/link.ts';
import type { StageStore } from '../device/compiled-stages.ts';
import type { StageWish } from '../device/create-stage.ts';
import type { ProfileCache } from '../device/measure/cached-profile.ts';
import type { MeasuredProfile, ProfileOptions } from '../device/measure/measurement.ts';
import type { StagePort } from '../device/stage.ts';
import type { StageOptions } from '../device/stage-graphs.ts';
import type { WeightFiles } from '../device/weight-files.ts';
import type { ModelMessage } from '../protocol/model-message.ts';
import type { ProcessLoad } from '../protocol/process-load.ts';
import type { Model } from './model.ts';
import type { PeerNetwork } from './peers.ts';

export interface WorkerOptions {
  /** The name that the coordinator gave this device. */
  readonly name: string;
  readonly coordinator: Link;
  /** Listens for peers that know `token`; their links go to `onLink`. */
  createNetwork(name: string, token: string, onLink: (link: Link) => void): Promise<PeerNetwork>;
  readonly clock: Clock;
  /** The caller closes it. */
  readonly engine: Engine;
  readonly profileCache?: ProfileCache;
  /** Measures a model elsewhere. Default: on `engine`. */
  startProfile?(job: ProfileJob, onProgress: (done: number, total: number) => void): ProfileProcess;
  /** Keeps what stages are compiled to. */
  readonly stageStore?: StageStore;
  /** Keeps weights of stages that infer, where memory is short. Default: they stay in memory. */
  readonly weightFiles?: WeightFiles;
  /** Prepares stages that later layouts may need; the worker closes it. Default: none are prepared. */
  readonly stagesAhead?: StagePreparer;
  /** Aborted: asks the coordinator to be let go. */
  readonly leave?: AbortSignal;
  /** Memory that this device may use, `comparableMiB` of it. Default: not known. */
  readonly memoryBytes?: number;
  /** Compiles the stage that computes. Default: on `engine`. */
  createStage?(options: StageOptions): Promise<StagePort>;
  /**
   * Reads the model that the coordinator sent. Default: its graph, cut into layers. Throws ProtocolError or InputError.
   */
  readModel?(message: ModelMessage, frame: Frame): LayerSequence;
  /** Default: zeros. */
  readonly meters?: ProcessMeters;
  /** The process's work so far. Default: not known. */
  readonly processWork?: ProcessClock;
}

/** How a worker's part ended. */
export interface WorkerEnd {
  /** True when the coordinator said so. */
  readonly clean: boolean;
  /**
   * True when the link to the coordinator ended without a word: it may have given up a device that was only away, or be
   * started again.
   */
  readonly lost?: boolean;
  readonly reason: string;
}

/** A model to measure. */
export interface ProfileJob extends Pick<ProfileOptions, 'batchSizes' | 'thoroughness'> {
  readonly message: ModelMessage;
  /** The graph, as the coordinator sent it. */
  readonly graph: Uint8Array;
  /** Memory that trials may use. */
  readonly memoryBytes: number | undefined;
}

/** A measurement in progress. */
export interface ProfileProcess {
  /** Rejects with InputError or RunError where the model cannot be measured. */
  readonly profile: Promise<MeasuredProfile>;
  /** Ends it, done or not. */
  end(): void;
}

/** Prepares stages while the device works. */
export interface StagePreparer {
  /**
   * A stage that this device would run. Resolves when it is kept, or cannot be: then it is made, and fails, when it is
   * needed.
   */
  add(model: Model, wish: StageWish): Promise<void>;
  /** Gives up what is not done. */
  close(): Promise<void>;
}

/** The measurements of one worker's process. */
export interface ProcessMeters {
  /** Begins to watch the event loop, unless it is watched already. */
  start(): void;
  stop(): void;
  eventLoopDelayP99Ms(): number;
  eventLoopDelayMaxMs(): number;
  residentBytes(): number;
  /** What the process takes, since the last call. Absent: not known. */
  load?(): ProcessLoad;
}

/** The meters of a process that nobody measures. */
export const noMeters: ProcessMeters = {
  start: () => {},
  stop: () => {},
  eventLoopDelayP99Ms: () => 0,
  eventLoopDelayMaxMs: () => 0,
  residentBytes: () => 0,
};
