// The control messages between coordinator and workers: the frame's kind and the schema of its `control` part. Whatever
// comes from the network is validated here and nowhere else. Tensors (a model's graph, state) travel in the same frame.
//
//   coordinator → worker                               worker → coordinator
//   model         the graph, as ONNX without weights   ready          the model is understood
//   connect       the peers' addresses                 connected      links to the peers stand
//   measure       time the links to these peers        measured       Mbps and ms
//   profile       time each layer                      profile-progress, profiled
//   deploy        a layout and the round it begins     deployed       compiled, weights in place, others have what
//                 with; then `state` frames                           they need
//   round         a round may begin                    prepared       gradients ready, loss; sometimes then trace
//   flush         where rounds overlap: the pipeline drains before this round
//   commit        it holds everywhere: its update stands  output       of a micro-batch, where nothing is trained
//   snapshot      send your weights                    `state` frames, statistics, snapshot-end
//   release       older versions and copies may go     replicated     holds a copy of a stage
//   probe         are you alive?                       alive, heartbeat
//   measure-link  measure this link again              link-measured
//   gone          a device left: do not wait for it    lost-peer      a link to a peer ended
//   reserve       a layout that may come: be ready     reserved       its stage is prepared, as far as possible
//   call          a peer cannot reach you: call it     (a call, or bytes over the coordinator: host/relay.ts)
//   end           the run is over                      leaving        this device wants to go
//                                                      failed         this worker cannot continue
//
// Between workers, next to pipeline data: `state` frames, then state-end, of weights and then of the optimizer's state
// (layers that change their owner); `replica` frames, then replica-end (a copy).

import { z } from 'zod';
import type { DeviceTimes, LayerProfile, Plan } from '../../cluster/cluster.ts';
import { ProtocolError } from '../../errors.ts';
import type { Delivery, Move } from '../../planner/replan/moves.ts';
import type { Frame } from '../../transport/link.ts';
import { count, deviceTimes, layerProfiles, milliseconds, moves, name, plan, range, size } from './message-values.ts';
import type { ModelMessage } from './model-message.ts';
import { type ProcessLoad, processLoad } from './process-load.ts';
import { type Thoroughness, thoroughnesses } from './profile-points.ts';
import { trainingSpecSchema } from './training-spec.ts';

export interface PeerAddress {
  readonly name: string;
  readonly url: string;
}

/** A trained parameter, a running statistic, or the optimizer's state of a parameter. */
export type StateRole = 'parameter' | 'buffer' | 'optimizer';

/** State by when it is needed: what a forward pass reads, and what the first update does. */
export const stateParts = ['weights', 'optimizer'] as const;
export type StatePart = (typeof stateParts)[number];

/** When a piece of state is needed. */
export function partOf(role: StateRole): StatePart {
  return role === 'optimizer' ? 'optimizer' : 'weights';
}

const peerAddress = z.object({ name, url: z.string().max(300) });
const peerAddresses = z.array(peerAddress).max(2000);

type Schemas<Messages> = { readonly [Kind in keyof Messages]: z.ZodType<Messages[Kind]> };

const state: z.ZodType<ToWorker['state']> = z.object({ role: z.enum(['parameter', 'buffer', 'optimizer']), name });

const tensorSpecs = z.array(z.object({ name, shape: z.array(count).max(8) })).max(100_000);

/** What the coordinator may send, by frame kind. */
export interface ToWorker {
  readonly model: ModelMessage;
  readonly connect: { readonly peers: readonly PeerAddress[] };
  /** `isBrief`: each link once; default: until measurements agree. */
  readonly measure: { readonly peers: readonly string[]; readonly isBrief?: boolean };
  /** Default: a full profile. */
  readonly profile: { readonly batchSizes: readonly number[]; readonly thoroughness?: Thoroughness };
  readonly deploy: {
    readonly plan: Plan;
    /** Rounds committed before: the version of the state to begin with. */
    readonly round: number;
    /** All state that travels, between any devices. */
    readonly moves: readonly Move[];
    /** Layers whose frozen weights come from the coordinator: the rest is in a copy, without them. Absent: none. */
    readonly frozen?: readonly Delivery[];
    /** `state` frames from the coordinator that follow for this worker. */
    readonly stateCount: number;
    /** Rounds that may be in flight beyond the oldest that has not committed (`MachineConfig.window`). Default 1. */
    readonly window?: number;
    /** All devices that may be talked to; each calls those before it to which it has no link. */
    readonly peers: readonly PeerAddress[];
  };
  readonly state: { readonly role: StateRole; readonly name: string };
  readonly round: {
    readonly round: number;
    readonly learningRate: number;
    /** Send a copy of the state before this round to the stage's backup, once it is committed. */
    readonly replicate: boolean;
    /** Samples of the round's batch. Absent: it is whole. */
    readonly sampleCount?: number;
    /** What sums of losses and gradients are multiplied by (round-batch.ts). Absent: 1. */
    readonly factor?: number;
    /** Tokens of its samples, one of the model's `lengths`. Absent: as many as the model takes. */
    readonly length?: number;
  };
  /** Where rounds overlap: this round begins, if ever, when all before it have committed. */
  readonly flush: { readonly round: number };
  readonly commit: { readonly round: number; readonly gradientScale: number };
  /** `withState` false: statistics only. */
  readonly snapshot: { readonly round: number; readonly withState: boolean };
  /** Versions after fewer rounds may go, except the last committed one. */
  readonly release: { readonly before: number };
  readonly probe: Record<string, never>;
  readonly 'measure-link': { readonly peer: string };
  /** A device left before it was linked to all others: nobody need wait for it. */
  readonly gone: { readonly peer: string };
  /**
   * A peer cannot reach this device: it is to call the peer, or else to come to it over the coordinator, which knows
   * the peer's wish by this ticket.
   */
  readonly call: { readonly peer: PeerAddress; readonly ticket: string };
  /** A layout that may come; the answer has the same `id`. */
  readonly reserve: { readonly plan: Plan; readonly id: number };
  readonly end: { readonly reason: string };
}

const toWorker: Schemas<ToWorker> = {
  model: z.object({
    parameters: tensorSpecs,
    buffers: tensorSpecs,
    training: trainingSpecSchema,
    layerNames: z.array(name),
    labelShape: z.array(count).max(8),
    labelType: z.enum(['int64', 'int32', 'uint8', 'float32']),
    lengths: z.array(size).max(16).exactOptional(),
    peerToken: z.string().min(16).max(200),
  }),
  connect: z.object({ peers: peerAddresses }),
  measure: z.object({ peers: z.array(name).max(2000), isBrief: z.boolean().exactOptional() }),
  profile: z.object({
    batchSizes: z.array(size).min(1).max(16),
    thoroughness: z.enum(thoroughnesses).exactOptional(),
  }),
  deploy: z.object({
    plan,
    round: count,
    moves,
    frozen: z
      .array(z.object({ layers: range, to: name }))
      .max(100_000)
      .exactOptional(),
    stateCount: count,
    window: count.exactOptional(),
    peers: peerAddresses,
  }),
  state,
  round: z.object({
    round: count,
    learningRate: z.number().min(0),
    replicate: z.boolean(),
    sampleCount: size.exactOptional(),
    factor: z.number().min(0).exactOptional(),
    length: size.exactOptional(),
  }),
  flush: z.object({ round: count }),
  commit: z.object({ round: count, gradientScale: z.number().min(0) }),
  snapshot: z.object({ round: count, withState: z.boolean() }),
  release: z.object({ before: count }),
  probe: z.object({}),
  'measure-link': z.object({ peer: name }),
  gone: z.object({ peer: name }),
  call: z.object({ peer: peerAddress, ticket: z.string().min(16).max(64) }),
  reserve: z.object({ plan, id: count }),
  end: z.object({ reason: z.string().max(1000) }),
};

export interface LinkMeasurement {
  readonly peer: string;
  readonly bandwidthMbps: number;
  readonly latencyMs: number;
  /**
   * Milliseconds of computing that a MiB, in pieces with a small frame each, cost the device that sent it, and its
   * peer. Absent if a device does not know.
   */
  readonly sendingMsPerMiB?: number;
  readonly receivingMsPerMiB?: number;
}

export interface RoundResult {
  readonly round: number;
  /** Sum over this device's samples (last stage), else 0. */
  readonly lossSum: number;
  /** Right predictions among them. */
  readonly correctCount: number;
  /**
   * This device's share of ‖gradient‖² (each parameter counted by one device of its group only), or 0 without
   * clipping.
   */
  readonly squaredNorm: number;
  /** True when loss and gradients are finite. */
  readonly finite: boolean;
  /** Milliseconds since the round's start; the round before may have ended after that. */
  readonly roundMs: number;
  /** Milliseconds of computing since the round before ended. */
  readonly busyMs: number;
  /**
   * The work of the whole process in that time, as milliseconds of computing. Absent unless the engine could use all of
   * the processor.
   */
  readonly processMs?: number;
  /** Of `processMs`, what was not computing: the work of links and program. Absent if it is not known. */
  readonly linksMs?: number;
  /** Of `processMs`, the work during the AllReduce after all passes. Absent without one, or if it is not known. */
  readonly reducingMs?: number;
  /** By peer, the Mbps that links carried while they were busy, if they were busy for long enough. */
  readonly linkMbps?: Readonly<Record<string, number>>;
  /** By peer to which activations travel in other bits than before. */
  readonly activationBits?: Readonly<Record<string, number>>;
}

export interface RoundTimes {
  readonly instruction: number;
  readonly startMs: number;
  readonly endMs: number;
}

/** What a worker may send, by frame kind. */
export interface ToCoordinator {
  readonly ready: { readonly listenUrl: string };
  readonly connected: Record<string, never>;
  readonly measured: { readonly links: readonly LinkMeasurement[] };
  readonly 'profile-progress': { readonly done: number; readonly total: number };
  readonly profiled: {
    readonly layers: readonly LayerProfile[];
    readonly times: DeviceTimes;
    readonly cached: boolean;
  };
  readonly deployed: { readonly valueBytes: number };
  readonly prepared: RoundResult;
  /** The outputs of this device's samples of a micro-batch, which the frame names. */
  readonly output: Record<string, never>;
  readonly state: { readonly role: StateRole; readonly name: string };
  readonly 'snapshot-end': { readonly round: number };
  readonly replicated: { readonly round: number; readonly layers: readonly [first: number, end: number] };
  /** With what the process takes of its machine, where that is known. */
  readonly heartbeat: { readonly load?: ProcessLoad };
  readonly 'link-measured': LinkMeasurement;
  readonly alive: Record<string, never>;
  /** Everything is done that makes the layout of that `reserve` start sooner. */
  readonly reserved: { readonly id: number };
  /** `isFault`: the peer has sent what the protocol does not allow. */
  readonly 'lost-peer': { readonly peer: string; readonly reason: string; readonly isFault: boolean };
  readonly leaving: Record<string, never>;
  readonly failed: { readonly message: string };
  readonly statistics: {
    readonly eventLoopDelayP99Ms: number;
    readonly eventLoopDelayMaxMs: number;
    readonly peakMemoryMiB: number;
  };
  readonly trace: { readonly round: number; readonly times: readonly RoundTimes[] };
}

const linkMeasurement: z.ZodType<LinkMeasurement> = z.object({
  peer: name,
  bandwidthMbps: z.number().positive(),
  latencyMs: milliseconds,
  sendingMsPerMiB: milliseconds.exactOptional(),
  receivingMsPerMiB: milliseconds.exactOptional(),
});

const toCoordinator: Schemas<ToCoordinator> = {
  ready: z.object({ listenUrl: z.string().max(300) }),
  connected: z.object({}),
  measured: z.object({
    links: z.array(linkMeasurement).max(2000),
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
    processMs: milliseconds.exactOptional(),
    linksMs: milliseconds.exactOptional(),
    reducingMs: milliseconds.exactOptional(),
    linkMbps: z.record(name, z.number().positive()).exactOptional(),
    activationBits: z.record(name, z.int().min(1).max(32)).exactOptional(),
  }),
  output: z.object({}),
  state,
  'snapshot-end': z.object({ round: count }),
  replicated: z.object({ round: count, layers: range }),
  heartbeat: z.object({ load: processLoad.exactOptional() }),
  'link-measured': linkMeasurement,
  alive: z.object({}),
  reserved: z.object({ id: count }),
  'lost-peer': z.object({ peer: name, reason: z.string().max(1000), isFault: z.boolean() }),
  leaving: z.object({}),
  failed: z.object({ message: z.string().max(2000) }),
  statistics: z.object({
    eventLoopDelayP99Ms: milliseconds,
    eventLoopDelayMaxMs: milliseconds,
    peakMemoryMiB: z.number().min(0),
  }),
  trace: z.object({
    round: count,
    times: z.array(z.object({ instruction: count, startMs: milliseconds, endMs: milliseconds })),
  }),
};

/** What workers may send each other, besides pipeline data, by frame kind. */
export interface ToPeer {
  readonly state: { readonly role: StateRole; readonly name: string };
  readonly 'state-end': {
    readonly layers: readonly [first: number, end: number];
    readonly part: StatePart;
    /** Frames sent. */
    readonly count: number;
  };
  readonly replica: { readonly role: StateRole; readonly name: string };
  readonly 'replica-end': {
    readonly layers: readonly [first: number, end: number];
    readonly count: number;
    /** The round of the copy that has the rest, which has not changed since; −1: none. */
    readonly base: number;
  };
}

const toPeer: Schemas<ToPeer> = {
  state,
  'state-end': z.object({ layers: range, part: z.enum(stateParts), count }),
  replica: state,
  'replica-end': z.object({ layers: range, count, base: z.number().int().min(-1).max(1e9) }),
};

/** Every message, by its receiver. A worker receives ToWorker from the coordinator, and ToPeer from other workers. */
export interface Messages {
  readonly worker: ToWorker;
  readonly coordinator: ToCoordinator;
  readonly peer: ToPeer;
}

/** The schema of every message, by its receiver and its kind. */
export const messageSchemas: { readonly [Receiver in keyof Messages]: Schemas<Messages[Receiver]> } = {
  worker: toWorker,
  coordinator: toCoordinator,
  peer: toPeer,
};

/** A validated message of one of the kinds of ToWorker, ToCoordinator or ToPeer, as a discriminated union. */
export type Message<Controls> = Controls extends unknown
  ? {
      [Kind in keyof Controls]: { readonly kind: Kind; readonly control: Controls[Kind]; readonly frame: Frame };
    }[keyof Controls]
  : never;

/** Validates a control frame from `sender`. Throws ProtocolError naming the sender and what is wrong. */
export function parseMessage<Receiver extends keyof Messages>(
  receiver: Receiver,
  frame: Frame,
  sender: string,
): Message<Messages[Receiver]> {
  const schemas: Schemas<Messages[Receiver]> = messageSchemas[receiver];
  if (!Object.hasOwn(schemas, frame.kind))
    throw new ProtocolError(`${sender} sent a message of the unknown kind "${frame.kind}".`);
  const kind = frame.kind as keyof Messages[Receiver];
  const parsed = schemas[kind].safeParse(frame.control);
  if (!parsed.success) {
    const issue = parsed.error.issues[0];
    const place = issue?.path.join('.') ?? '';
    throw new ProtocolError(
      `${sender} sent a wrong "${frame.kind}" message: ${place} ${issue?.message ?? ''}`.trimEnd(),
    );
  }
  return { kind, control: parsed.data, frame } as Message<Messages[Receiver]>;
}

/** A control frame of the given kind, by default of no round. */
export function message<Kind extends string>(
  kind: Kind,
  control: unknown,
  tensors: Frame['tensors'] = [],
  { epoch = 0, round = -1 }: { readonly epoch?: number; readonly round?: number } = {},
): Frame {
  return { kind, epoch, round, microBatch: -1, control, tensors };
}
