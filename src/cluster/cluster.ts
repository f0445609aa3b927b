// The plain data that profiling, planning and running exchange (JSON contracts). Types here; checks in validate.ts.
// Units are in the names.

import type { Compression } from './compression.ts';
import type { OverheadFields, TimeTable } from './overhead.ts';

/** A link, full duplex, per direction. 1 Mbps = 10^6 bits a second. */
export interface LinkSpeed {
  readonly bandwidthMbps: number;
  /** Default 0. */
  readonly latencyMs?: number;
}

/** A device that a plan may use. */
export interface DeviceSpec {
  readonly name: string;
  /** Names a device model in the profile for devices without an entry of their own. */
  readonly kind?: string;
  /** What training may take of it. */
  readonly memoryMiB: number;
  readonly powerW?: number;
  /**
   * For `asteroid lab`: processor time a second of time that this device gets on the machine that stands for all.
   * Extension to the contract.
   */
  readonly cores?: number;
}

/** The devices, and what each pair's link carries: what a cluster's file holds. */
export interface Cluster {
  readonly devices: readonly DeviceSpec[];
  readonly links: {
    readonly default: LinkSpeed;
    readonly pairs?: readonly (LinkSpeed & { readonly between: readonly [string, string] })[];
  };
  /** Who holds the training data; absent: every device has it locally. */
  readonly dataDevice?: string;
}

/** What a layer takes on any device. */
export interface LayerProfile {
  readonly name: string;
  /** Per sample: every tensor alive across the cut after this layer. */
  readonly outputBytes: number;
  readonly weightBytes: number;
  /** Of weightBytes, those that are not trained. Extension to the contract; absent means 0. */
  readonly frozenBytes?: number;
  /** Per sample, kept for the backward pass. */
  readonly savedBytes: number;
  /**
   * Per sample, what the layer's pass has at once, of which a stage needs the most of any of its layers: of passes that
   * keep nothing (planner/forward-gradient.ts). Extension to the contract; absent means 0.
   */
  readonly workingBytes?: number;
  /**
   * What the runtime keeps for the layer besides eq. 3, whatever the share. Extension to the contract; absent means 0.
   */
  readonly runtimeBytes?: number;
  /**
   * Of runtimeBytes, what there is once more for each round beyond the first whose passes are under way (filters in the
   * kernels' order). Extension to the contract; absent means 0.
   */
  readonly filterBytes?: number;
  /**
   * Weights that a correction of staleness predicts for each version. Extension to the contract; absent means 0.
   */
  readonly predictedBytes?: number;
  /** Forward, per sample. */
  readonly flops: number;
  /**
   * Where the layer's activations are computed again for the backward pass, as far as the engine can: what is kept per
   * sample all the same, and the operations that run once more. Extension to the contract; absent: everything is kept.
   */
  readonly recomputed?: { readonly savedBytes: number; readonly flops: number };
  /**
   * True when samples of a batch influence each other here: such a layer is not replicated unless asked for. Extension
   * to the contract; absent means false.
   */
  readonly batchDependent?: boolean;
}

/** What a device takes for each layer, and what its processor pays besides. */
export interface DeviceTimes extends OverheadFields {
  /** [batchSize index][layer], milliseconds. */
  readonly forwardMs: TimeTable;
  readonly backwardMs: TimeTable;
  /**
   * Of backwardMs, the part that gives the input gradients (zero-bubble schedules compute the rest later). Extension to
   * the contract; absent means half. The part counts as no more than the whole.
   */
  readonly backwardInputMs?: TimeTable;
  /**
   * The other part as a pass of its own, which may take longer than what the whole leaves: what both parts need is
   * computed or read twice. Extension to the contract; absent means what the whole leaves, and so does less than that.
   */
  readonly backwardWeightMs?: TimeTable;
  /** Forward with one tangent (forward gradients). Extension to the contract; absent: estimated. */
  readonly tangentMs?: TimeTable;
  /** Milliseconds of one optimizer update, by layer; absent: 0. */
  readonly updateMs?: readonly number[];
}

/** What a model takes: sizes by layer, times by device, layer and batch size. A cluster's plans are made from it. */
export interface Profile {
  readonly model: string;
  /** Per sample. */
  readonly inputBytes: number;
  /** Per sample. */
  readonly labelBytes: number;
  readonly layers: readonly LayerProfile[];
  /** The only micro-batch with which the model runs, if it was exported for one batch size. */
  readonly fixedBatch?: number;
  /** Measured points, ascending; between them interpolate, above them extrapolate. */
  readonly batchSizes: readonly number[];
  /** By device name or kind. */
  readonly devices: Readonly<Record<string, DeviceTimes>>;
}

/** Consecutive layers, the devices that compute them, and each one's share of a micro-batch. */
export interface StagePlan {
  /** Half-open range of layer indices. */
  readonly layers: readonly [first: number, end: number];
  readonly devices: readonly string[];
  /**
   * Samples of each micro-batch for each device; sums to microBatchSize. A zero is legal: that device computes nothing,
   * holds the stage's weights, and takes part in its AllReduce and update (a warm spare). Our planners leave such a
   * device out.
   */
  readonly samples: readonly number[];
  /**
   * K_p: the most micro-batches kept at once for the backward pass. But for zb-h1, that is the forwards before the
   * first backward.
   */
  readonly inFlight: number;
  /**
   * Where schedules that overlap AllReduces with computing cut a replicated stage's layers into buckets: ascending,
   * inside its range. Extension to the contract; absent means at most four buckets of about as many layers each.
   */
  readonly buckets?: readonly number[];
  /**
   * Bytes a sample that each device keeps at most for its backward pass; what does not fit is computed again. Extension
   * to the contract; absent where all devices keep everything.
   */
  readonly savedBytes?: readonly number[];
}

/** Who computes which layers on which samples of each round, in which order, and what that is predicted to take. */
export interface Plan {
  readonly planner: string;
  /** One of schedule/schedules.ts: '1f1b', 'gpipe', 'zb-h1', 'async', … */
  readonly schedule: string;
  readonly batchSize: number;
  readonly microBatchSize: number;
  readonly microBatchCount: number;
  readonly stages: readonly StagePlan[];
  /**
   * Leading layers that only run forward, because nothing in them is trained: their stages have no backward, and no
   * gradient comes to them. Extension to the contract; absent means 0.
   */
  readonly forwardOnlyLayers?: number;
  /**
   * Of a schedule whose rounds overlap: by how many rounds the weights that each stage computes with lag behind.
   * Absent: the least, and the same in all stages (schedule/staleness.ts).
   */
  readonly staleness?: readonly number[];
  /** Of forward gradients: tangents of a round, which all travel with the activations. Absent: 1. */
  readonly tangentCount?: number;
  /** Where the last stage's copy goes in a run. Absent: to the stage before it (planner/replan/backups.ts). */
  readonly lastCopyTo?: 'first';
  /** What travels in fewer bits. Extension to the contract; absent: nothing. */
  readonly compression?: Compression;
  /**
   * Of planner hetpipe only, whose plans are no Programs: all its pipelines over the whole model; `stages` is the
   * first.
   */
  readonly virtualWorkers?: readonly VirtualWorker[];
  readonly predicted: {
    readonly roundMs: number;
    readonly samplesPerS: number;
    readonly lowerBoundMs?: number;
    /** Of a plan of inference: a micro-batch alone in the pipeline, and what no plan stays below. */
    readonly latencyMs?: number;
    readonly latencyBoundMs?: number;
    readonly peakMemoryMiB: Readonly<Record<string, number>>;
  };
}

/** One of several pipelines over the whole model, with its part of the round's micro-batches. */
export interface VirtualWorker {
  readonly stages: readonly StagePlan[];
  readonly microBatchCount: number;
}

/** A plan without its prediction: all that a Program needs. What a person writes by hand. */
export type PlanLayout = Omit<Plan, 'predicted'>;
