// The control messages between coordinator and workers: the frame's kind and the schema of its `control` part. What comes from
// the network is validated here and nowhere else. Tensors ride along in the frame (model bytes, weights, pipeline pieces).
//
//   coordinator → worker                              worker → coordinator
//   model      the graph, as ONNX without weights     ready           the model is understood
//   connect    the peers' addresses                   connected       links to all peers stand
//   measure    time the links to these peers          measured        Mbps and ms
//   profile    time each layer                        profile-progress, profiled
//   deploy     the plan; then `state` frames          deployed        compiled, weights in place
//   round      a round may begin                      prepared        gradients ready, loss
//   commit     it holds everywhere: its update stands
//   snapshot   send your weights                      state frames, then snapshot-end
//   end        the run is over                        failed          this worker cannot go on

import { z } from 'zod';
import type { DeviceTimes, LayerProfile, Plan, StagePlan } from '../cluster/cluster.ts';
import { ProtocolError } from '../errors.ts';
import type { Frame } from '../transport/link.ts';
import { type TrainingSpec, trainingSpecSchema } from './training-spec.ts';

const name = z.string().min(1).max(300);
const count = z.number().int().min(0).max(1e9);
const milliseconds = z.number().min(0).max(1e9);
/** Samples or micro-batches: what a device makes room for. */
const size = z.number().int().positive().max(1e6);

export interface PeerAddress {
  readonly name: string;
  readonly url: string;
}

export interface TensorSpec {
  readonly name: string;
  readonly shape: readonly number[];
}

export interface ModelMessage {
  readonly parameters: readonly TensorSpec[];
  readonly buffers: readonly TensorSpec[];
  readonly training: TrainingSpec;
  /** Names of the layers as the coordinator sees them; the worker must find the same. */
  readonly layerNames: readonly string[];
  /** Shape of one sample's label. */
  readonly labelShape: readonly number[];
  readonly labelType: 'int64' | 'int32' | 'uint8' | 'float32';
  /** The secret by which this run's workers know each other. */
  readonly peerToken: string;
}

const tensorSpecs = z.array(z.object({ name, shape: z.array(count).max(8) })).max(100_000);

export interface LinkMeasurement {
  readonly peer: string;
  readonly bandwidthMbps: number;
  readonly latencyMs: number;
}

export type StateRole = 'parameter' | 'buffer' | 'optimizer';

export interface RoundResult {
  readonly round: number;
  /** Sum over this device's samples (last stage), else 0. */
  readonly lossSum: number;
  /** Right predictions among them. */
  readonly correctCount: number;
  /** This device's share of ‖gradient‖² (each parameter counted by one device of its group only), or 0 where nothing clips. */
  readonly squaredNorm: number;
  /** True when loss and gradients are finite. */
  readonly finite: boolean;
  /** Milliseconds from the round's start to here, and those spent computing. */
  readonly roundMs: number;
  readonly busyMs: number;
}

export interface RoundTimes {
  readonly instruction: number;
  readonly startMs: number;
  readonly endMs: number;
}

const stagePlan: z.ZodType<StagePlan> = z.object({
  layers: z.tuple([count, count]),
  devices: z.array(name).min(1),
  samples: z.array(count).min(1),
  inFlight: z.number().int().positive(),
  buckets: z.array(count).max(1000).exactOptional(),
});

const plan: z.ZodType<Plan> = z.object({
  planner: name,
  schedule: name,
  batchSize: size,
  microBatchSize: size,
  microBatchCount: size,
  stages: z.array(stagePlan).min(1),
  forwardOnlyLayers: count.exactOptional(),
  predicted: z.object({
    roundMs: z.number(),
    samplesPerS: z.number(),
    peakMemoryMiB: z.record(z.string(), z.number()),
  }),
});

const deviceTimes: z.ZodType<DeviceTimes> = z.object({
  forwardMs: z.array(z.array(milliseconds)),
  backwardMs: z.array(z.array(milliseconds)),
  backwardInputMs: z.array(z.array(milliseconds)).exactOptional(),
});

const layerProfiles: z.ZodType<readonly LayerProfile[]> = z.array(
  z.object({
    name,
    outputBytes: z.number().min(0),
    weightBytes: z.number().min(0),
    frozenBytes: z.number().min(0).exactOptional(),
    savedBytes: z.number().min(0),
    flops: z.number().min(0),
    batchDependent: z.boolean(),
  }),
);

/** What the coordinator may send, by frame kind. */
export interface ToWorker {
  readonly model: ModelMessage;
  readonly connect: { readonly peers: readonly PeerAddress[] };
  readonly measure: { readonly peers: readonly string[] };
  readonly profile: { readonly batchSizes: readonly number[] };
  readonly deploy: { readonly plan: Plan; readonly stateCount: number; readonly step: number };
  readonly state: { readonly role: StateRole; readonly name: string };
  readonly round: { readonly round: number; readonly learningRate: number };
  readonly commit: { readonly round: number; readonly gradientScale: number };
  readonly snapshot: { readonly round: number /** False: statistics only. */; readonly withState: boolean };
  readonly end: { readonly reason: string };
}

/** What a worker may send, by frame kind. */
export interface ToCoordinator {
  readonly ready: { readonly listenUrl: string };
  readonly connected: Record<string, never>;
  readonly measured: { readonly links: readonly LinkMeasurement[] };
  readonly 'profile-progress': { readonly done: number; readonly total: number };
  readonly profiled: { readonly layers: readonly LayerProfile[]; readonly times: DeviceTimes; readonly cached: boolean };
  readonly deployed: { readonly valueBytes: number };
  readonly prepared: RoundResult;
  readonly state: { readonly role: StateRole; readonly name: string };
  readonly 'snapshot-end': { readonly round: number };
  readonly failed: { readonly message: string };
  readonly statistics: { readonly eventLoopDelayP99Ms: number; readonly eventLoopDelayMaxMs: number; readonly peakMemoryMiB: number };
  readonly trace: { readonly round: number; readonly times: readonly RoundTimes[] };
}

type Schemas<Messages> = { readonly [Kind in keyof Messages]: z.ZodType<Messages[Kind]> };

const state: z.ZodType<ToWorker['state']> = z.object({ role: z.enum(['parameter', 'buffer', 'optimizer']), name });

export const toWorkerSchemas: Schemas<ToWorker> = {
  model: z.object({
    parameters: tensorSpecs,
    buffers: tensorSpecs,
    training: trainingSpecSchema,
    layerNames: z.array(name),
    labelShape: z.array(count).max(8),
    labelType: z.enum(['int64', 'int32', 'uint8', 'float32']),
    peerToken: z.string().min(16).max(200),
  }),
  connect: z.object({ peers: z.array(z.object({ name, url: z.string().max(300) })).max(2000) }),
  measure: z.object({ peers: z.array(name).max(2000) }),
  profile: z.object({ batchSizes: z.array(size).min(1).max(16) }),
  deploy: z.object({ plan, stateCount: count, step: count }),
  state,
  round: z.object({ round: count, learningRate: z.number().min(0) }),
  commit: z.object({ round: count, gradientScale: z.number().min(0) }),
  snapshot: z.object({ round: count, withState: z.boolean() }),
  end: z.object({ reason: z.string().max(1000) }),
};

export const toCoordinatorSchemas: Schemas<ToCoordinator> = {
  ready: z.object({ listenUrl: z.string().max(300) }),
  connected: z.object({}),
  measured: z.object({
    links: z.array(z.object({ peer: name, bandwidthMbps: z.number().positive(), latencyMs: milliseconds })).max(2000),
  }),
  'profile-progress': z.object({ done: count, total: count }),
  profiled: z.object({ layers: layerProfiles, times: deviceTimes, cached: z.boolean() }),
  deployed: z.object({ valueBytes: z.number().min(0) }),
  prepared: z.object({
    round: count,
    lossSum: z.number(),
    correctCount: z.number().min(0),
    squaredNorm: z.number().min(0),
    finite: z.boolean(),
    roundMs: milliseconds,
    busyMs: milliseconds,
  }),
  state,
  'snapshot-end': z.object({ round: count }),
  failed: z.object({ message: z.string().max(2000) }),
  statistics: z.object({ eventLoopDelayP99Ms: milliseconds, eventLoopDelayMaxMs: milliseconds, peakMemoryMiB: z.number().min(0) }),
  trace: z.object({ round: count, times: z.array(z.object({ instruction: count, startMs: milliseconds, endMs: milliseconds })) }),
};

/** A validated message of one of the kinds of `Messages`, as a discriminated union. */
export type Message<Messages> = {
  [Kind in keyof Messages]: { readonly kind: Kind; readonly control: Messages[Kind]; readonly frame: Frame };
}[keyof Messages];

/** Validates a control frame. Throws ProtocolError naming the peer and what is wrong. */
export function parseMessage<Messages>(schemas: Schemas<Messages>, frame: Frame, peer: string): Message<Messages> {
  if (!Object.hasOwn(schemas, frame.kind)) throw new ProtocolError(`${peer} sent a message of the unknown kind "${frame.kind}".`);
  const kind = frame.kind as keyof Messages;
  const parsed = schemas[kind].safeParse(frame.control);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    throw new ProtocolError(
      `${peer} sent a wrong "${frame.kind}" message: ${issue?.path.join('.') ?? ''} ${issue?.message ?? ''}`.trimEnd(),
    );
  }
  return { kind, control: parsed.data, frame };
}

/** A control frame of the given kind. */
export function message<Kind extends string>(kind: Kind, control: unknown, tensors: Frame['tensors'] = []): Frame {
  return { kind, epoch: 0, round: -1, microBatch: -1, control, tensors };
}
