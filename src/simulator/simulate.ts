// Runs a Program on a virtual clock with a profile's times, by the rules of the simulated world (planner.md, "The simulated world", cited
// here as rule 1 to rule 6). Pure and deterministic: O(E log E) for E events. What it settles where the rules are silent:
// - labels are pieces of the last stage's forward, which computes the loss;
// - a device is busy while it computes (forward, backward, update), not while it waits in an AllReduce, which is no link's traffic either;
// - the two halves of a split backward take half of the profile's backward time each.
// Times are kept on a grid of 2^-30 ms, on which sums are exact: two pieces that are ready at the same time by the rules tie here too,
// whatever order their additions took.

import { assert, defined } from '../assert.ts';
import type { Cluster, PlanLayout, Profile } from '../cluster/cluster.ts';
import { type LinkTable, links, slowestInGroup } from '../cluster/links.ts';
import { bytesInMiB, type LayerSums, layerSums, type OptimizerState, stageMemoryBytes } from '../cluster/memory.ts';
import { deviceTimes, layerTimes } from '../cluster/times.ts';
import { effectiveInFlight } from '../schedule/generate.ts';
import type { DeviceProgram, Instruction, Payload, Program, ProgramEvent } from '../schedule/program.ts';
import { createHeap, type Heap } from './heap.ts';

export interface SimulatedDevice {
  /** Time spent computing. */
  readonly busyMs: number;
  /** 1 − busyMs / roundMs. */
  readonly idleFraction: number;
  /** Eq. 3 with the device's own share. */
  readonly peakMemoryMiB: number;
}

export interface SimulatedLink {
  readonly bytes: number;
  /** Time for which messages occupied it. */
  readonly busyMs: number;
}

export interface Simulation {
  /** By start; empty when they were not asked for. */
  readonly events: readonly ProgramEvent[];
  readonly roundMs: number;
  readonly samplesPerS: number;
  /** Every device of the cluster, by name; one that the plan leaves out is idle. */
  readonly devices: Readonly<Record<string, SimulatedDevice>>;
  /** By "sender->receiver", where something was sent. */
  readonly links: Readonly<Record<string, SimulatedLink>>;
}

export interface SimulateOptions {
  /** Copies of each weight that the optimizer keeps, for the peak memory. Default 0 (plain SGD). */
  readonly optimizerState?: OptimizerState;
  /** Whether to keep the events. Default true. */
  readonly events?: boolean;
}

/**
 * Simulates one round. `program` is one of `plan` (checkProgram has passed), and `plan`, `profile` and `cluster` agree (checkTogether has
 * passed). Throws an Error when the program waits for ever.
 */
export function simulate(
  program: Program,
  plan: PlanLayout,
  profile: Profile,
  cluster: Cluster,
  options: SimulateOptions = {},
): Simulation {
  const world = new World(program, plan, profile, cluster, options.events ?? true);
  world.run();
  return world.report(options.optimizerState ?? 0);
}

const gridPerMs = 2 ** 30;

function onGrid(ms: number): number {
  return Math.round(ms * gridPerMs) / gridPerMs;
}

/** Rule 4's order among pieces that are ready at the same time and belong to the same micro-batch. */
const payloadRank: Readonly<Record<Payload, number>> = { input: 0, activation: 1, gradient: 2, label: 3 };

/** A piece on its way. Devices are places in cluster.devices; `from` is −1 for data that is everywhere already. */
interface Message {
  readonly payload: Payload;
  readonly microBatch: number;
  readonly from: number;
  readonly to: number;
  readonly receiver: Runner;
  readonly bytes: number;
  readyMs: number;
  arrived: boolean;
}

/** A device with its program and how far it has come. */
interface Runner {
  readonly program: DeviceProgram;
  readonly place: number;
  readonly forwardMs: number;
  readonly backwardMs: number;
  readonly updateMs: number;
  /** K_p of its stage. */
  readonly inFlight: number;
  /** The piece that each receive or send is about, by the instruction's position. */
  readonly pieces: (Message | undefined)[];
  /** Pieces of the data feed, by micro-batch. */
  readonly feed: Map<number, Message[]>;
  position: number;
  awaited: Message | undefined;
  busyMs: number;
  endMs: number;
}

/** One direction of a link. `queue` is in rule 4's order from `head` on. */
interface Channel {
  readonly from: number;
  readonly to: number;
  readonly queue: Message[];
  head: number;
  freeMs: number;
  /** Whether a departure is already on the agenda. */
  scheduled: boolean;
  bytes: number;
  busyMs: number;
}

/** An agenda entry. At equal times what ends comes before what departs, so that a departing link sees every piece that is ready. */
type Happening = { readonly timeMs: number; readonly order: number } & (
  | { readonly kind: 'end'; readonly runner: Runner }
  | { readonly kind: 'arrive'; readonly message: Message }
  | { readonly kind: 'depart'; readonly channel: Channel }
);

class World {
  readonly #program: Program;
  readonly #plan: PlanLayout;
  readonly #profile: Profile;
  readonly #cluster: Cluster;
  readonly #table: LinkTable;
  readonly #sums: LayerSums;
  readonly #runners: Runner[];
  readonly #channels = new Map<number, Channel>();
  readonly #groups = new Map<string, Runner[]>();
  readonly #agenda: Heap<Happening> = createHeap(happensBefore);
  readonly #events: ProgramEvent[] = [];
  readonly #keepsEvents: boolean;
  #order = 0;

  constructor(program: Program, plan: PlanLayout, profile: Profile, cluster: Cluster, keepsEvents: boolean) {
    this.#program = program;
    this.#plan = plan;
    this.#profile = profile;
    this.#cluster = cluster;
    this.#keepsEvents = keepsEvents;
    this.#table = links(cluster);
    this.#sums = layerSums(profile);
    this.#runners = program.devices.map((device) => this.#createRunner(device));
    this.#createMessages();
  }

  run(): void {
    for (const runner of this.#runners) {
      for (const [microBatch, pieces] of runner.feed) {
        if (microBatch < runner.inFlight) for (const piece of pieces) this.#release(piece, 0);
      }
    }
    for (const runner of this.#runners) this.#advance(runner, 0);
    for (let next = this.#agenda.pop(); next !== undefined; next = this.#agenda.pop()) {
      if (next.kind === 'end') this.#end(next.runner, next.timeMs);
      else if (next.kind === 'arrive') this.#arrive(next.message, next.timeMs);
      else this.#depart(next.channel, next.timeMs);
    }
    for (const { program, position } of this.#runners) {
      const step = program.instructions[position];
      assert(step === undefined, `"${program.device}" waits for ever at ${JSON.stringify(step)}`);
    }
  }

  report(optimizerState: OptimizerState): Simulation {
    const roundMs = this.#runners.reduce((latest, runner) => Math.max(latest, runner.endMs), 0);
    const devices: Record<string, SimulatedDevice> = {};
    for (const { name } of this.#cluster.devices) devices[name] = { busyMs: 0, idleFraction: 1, peakMemoryMiB: 0 };
    for (const { program, busyMs, inFlight } of this.#runners) {
      const [first, end] = program.layers;
      const demand = {
        weightBytes: this.#sums.weightBytes(first, end),
        savedBytes: this.#sums.savedBytes(first, end),
        inFlight,
        optimizerState,
      };
      const peakMemoryMiB = stageMemoryBytes(demand, program.samples[1] - program.samples[0]) / bytesInMiB;
      devices[program.device] = { busyMs, idleFraction: roundMs === 0 ? 0 : 1 - busyMs / roundMs, peakMemoryMiB };
    }
    const name = (place: number): string => defined(this.#cluster.devices[place], 'a device').name;
    const channels = [...this.#channels.values()].map(
      ({ from, to, bytes, busyMs }) => [`${name(from)}->${name(to)}`, { bytes, busyMs }] as const,
    );
    const batchSize = this.#program.microBatchSize * this.#program.microBatchCount;
    return {
      events: this.#events.sort((a, b) => a.startMs - b.startMs || a.endMs - b.endMs),
      roundMs,
      samplesPerS: (batchSize / roundMs) * 1000,
      devices,
      links: Object.fromEntries(channels),
    };
  }

  #createRunner(program: DeviceProgram): Runner {
    const place = this.#table.deviceIndex(program.device);
    const times = layerTimes(deviceTimes(this.#profile, defined(this.#cluster.devices[place], 'a device')), this.#profile.batchSizes);
    const [first, end] = program.layers;
    const samples = program.samples[1] - program.samples[0];
    return {
      program,
      place,
      forwardMs: onGrid(times.forwardMs(first, end, samples)),
      backwardMs: onGrid(times.backwardMs(first, end, samples)),
      updateMs: onGrid(times.updateMs(first, end)),
      inFlight: effectiveInFlight(this.#plan, program.stage),
      pieces: new Array<Message | undefined>(program.instructions.length).fill(undefined),
      feed: new Map(),
      position: 0,
      awaited: undefined,
      busyMs: 0,
      endMs: 0,
    };
  }

  /** One message for each receive, found again by the send that it matches. */
  #createMessages(): void {
    const byKey = new Map<string, Message>();
    for (const receiver of this.#runners) {
      for (const [position, step] of receiver.program.instructions.entries()) {
        if (step.kind !== 'receive') continue;
        const message = this.#createMessage(receiver, step);
        receiver.pieces[position] = message;
        if (step.from !== null) byKey.set(pieceKey(step, message.from, message.to), message);
        else receiver.feed.set(step.microBatch, [...(receiver.feed.get(step.microBatch) ?? []), message]);
      }
    }
    for (const sender of this.#runners) {
      for (const [position, step] of sender.program.instructions.entries()) {
        if (step.kind !== 'send') continue;
        const key = pieceKey(step, sender.place, this.#table.deviceIndex(step.to));
        sender.pieces[position] = defined(byKey.get(key), `the receive of ${JSON.stringify(step)}`);
      }
    }
  }

  #createMessage(receiver: Runner, step: Instruction & { kind: 'receive' }): Message {
    const { payload, microBatch, samples } = step;
    const holder = this.#cluster.dataDevice;
    const from = step.from !== null ? this.#table.deviceIndex(step.from) : holder === undefined ? -1 : this.#table.deviceIndex(holder);
    const bytes = (samples[1] - samples[0]) * this.#bytesPerSample(payload, receiver.program.layers);
    return { payload, microBatch, from, to: receiver.place, receiver, bytes, readyMs: 0, arrived: false };
  }

  /** What one sample of a payload weighs on its way to a device with these layers. */
  #bytesPerSample(payload: Payload, [first, end]: readonly [number, number]): number {
    if (payload === 'input') return this.#profile.inputBytes;
    if (payload === 'label') return this.#profile.labelBytes;
    const border = payload === 'activation' ? first - 1 : end - 1;
    return defined(this.#profile.layers[border], `layer ${border}`).outputBytes;
  }

  /** Runs a device's instructions from where it stands until one takes time or has to wait. */
  #advance(runner: Runner, nowMs: number): void {
    const { instructions } = runner.program;
    for (let step = instructions[runner.position]; step !== undefined; step = instructions[runner.position]) {
      runner.endMs = nowMs;
      if (step.kind === 'receive') {
        const piece = defined(runner.pieces[runner.position], 'a piece');
        if (!piece.arrived) {
          runner.awaited = piece;
          return;
        }
      } else if (step.kind === 'send') {
        this.#release(defined(runner.pieces[runner.position], 'a piece'), nowMs);
      } else if (step.kind === 'all-reduce') {
        this.#join(runner, step.group, nowMs);
        return;
      } else {
        this.#compute(runner, step, nowMs);
        return;
      }
      runner.position++;
    }
    runner.endMs = nowMs;
  }

  #compute(
    runner: Runner,
    step: Instruction & { kind: 'forward' | 'backward' | 'backward-input' | 'backward-weight' | 'update' },
    nowMs: number,
  ): void {
    const durationMs = durationOf(runner, step.kind);
    runner.busyMs += durationMs;
    const { device, stage } = runner.program;
    const at = { startMs: nowMs, endMs: nowMs + durationMs };
    if (step.kind !== 'update') this.#record({ device, kind: step.kind, stage, microBatch: step.microBatch, ...at });
    else if (durationMs > 0) this.#record({ device, kind: step.kind, stage, ...at });
    this.#schedule({ kind: 'end', runner, timeMs: nowMs + durationMs, order: this.#order++ });
  }

  /** Rule 5: the AllReduce starts when the last member has come to it, and takes eq. 5's time plus 2(|G| − 1) latencies. */
  #join(runner: Runner, group: readonly string[], nowMs: number): void {
    const key = group.join('\n');
    const members = this.#groups.get(key) ?? [];
    this.#groups.set(key, members);
    members.push(runner);
    if (members.length < group.length) return;
    this.#groups.delete(key);
    const slowest = slowestInGroup(
      this.#table,
      members.map((member) => member.place),
    );
    const bytes = (2 * (group.length - 1) * this.#sums.weightBytes(...runner.program.layers)) / group.length;
    const durationMs = onGrid((bytes * 8) / (slowest.bandwidthMbps * 1000) + 2 * (group.length - 1) * slowest.latencyMs);
    for (const member of members) {
      const { device, stage } = member.program;
      this.#record({ device, kind: 'all-reduce', stage, startMs: nowMs, endMs: nowMs + durationMs });
      this.#schedule({ kind: 'end', runner: member, timeMs: nowMs + durationMs, order: this.#order++ });
    }
  }

  /** The instruction under way is done. */
  #end(runner: Runner, nowMs: number): void {
    const step = defined(runner.program.instructions[runner.position], 'an instruction');
    runner.position++;
    // Rule 3: the end of the backward of m − K lets the feed send micro-batch m.
    if (step.kind === 'backward' || step.kind === 'backward-weight') {
      for (const piece of runner.feed.get(step.microBatch + runner.inFlight) ?? []) this.#release(piece, nowMs);
    }
    this.#advance(runner, nowMs);
  }

  /** A piece is ready to leave. One that need not travel is there at once. */
  #release(piece: Message, nowMs: number): void {
    piece.readyMs = nowMs;
    if (piece.from === -1 || piece.from === piece.to) {
      piece.arrived = true;
      return;
    }
    const channel = this.#channel(piece.from, piece.to);
    const { queue } = channel;
    // Pieces become ready in the order of time, so that only ties can be out of place.
    let index = queue.length;
    while (index > channel.head && leavesBefore(piece, queue[index - 1] as Message)) index--;
    queue.splice(index, 0, piece);
    if (channel.scheduled) return;
    channel.scheduled = true;
    this.#schedule({ kind: 'depart', channel, timeMs: Math.max(nowMs, channel.freeMs), order: this.#order++ });
  }

  #depart(channel: Channel, nowMs: number): void {
    const piece = defined(channel.queue[channel.head++], 'a queued piece');
    const durationMs = onGrid(this.#table.occupancyMs(channel.from, channel.to, piece.bytes));
    channel.freeMs = nowMs + durationMs;
    channel.bytes += piece.bytes;
    channel.busyMs += durationMs;
    this.#recordTransfer(piece, nowMs, channel.freeMs);
    const arrivalMs = channel.freeMs + onGrid(this.#table.latencyMs(channel.from, channel.to));
    this.#schedule({ kind: 'arrive', message: piece, timeMs: arrivalMs, order: this.#order++ });
    channel.scheduled = channel.head < channel.queue.length;
    if (channel.scheduled) this.#schedule({ kind: 'depart', channel, timeMs: channel.freeMs, order: this.#order++ });
  }

  #arrive(piece: Message, nowMs: number): void {
    piece.arrived = true;
    const { receiver } = piece;
    if (receiver.awaited !== piece) return;
    receiver.awaited = undefined;
    this.#advance(receiver, nowMs);
  }

  #channel(from: number, to: number): Channel {
    const key = from * this.#cluster.devices.length + to;
    let channel = this.#channels.get(key);
    if (channel === undefined) {
      channel = { from, to, queue: [], head: 0, freeMs: 0, scheduled: false, bytes: 0, busyMs: 0 };
      this.#channels.set(key, channel);
    }
    return channel;
  }

  #schedule(happening: Happening): void {
    this.#agenda.push(happening);
  }

  #record(event: ProgramEvent): void {
    if (this.#keepsEvents) this.#events.push(event);
  }

  #recordTransfer(piece: Message, startMs: number, endMs: number): void {
    if (!this.#keepsEvents) return;
    const [from, to] = [this.#cluster.devices[piece.from], this.#cluster.devices[piece.to]];
    const { stage } = piece.receiver.program;
    const sender = piece.payload === 'activation' ? stage - 1 : piece.payload === 'gradient' ? stage + 1 : stage;
    this.#events.push({
      device: defined(from, 'a sender').name,
      kind: 'transfer',
      stage: sender,
      microBatch: piece.microBatch,
      payload: piece.payload,
      to: defined(to, 'a receiver').name,
      bytes: piece.bytes,
      startMs,
      endMs,
    });
  }
}

function happensBefore(a: Happening, b: Happening): boolean {
  if (a.timeMs !== b.timeMs) return a.timeMs < b.timeMs;
  const [aDeparts, bDeparts] = [a.kind === 'depart', b.kind === 'depart'];
  return aDeparts === bDeparts ? a.order < b.order : bDeparts;
}

function durationOf(runner: Runner, kind: 'forward' | 'backward' | 'backward-input' | 'backward-weight' | 'update'): number {
  if (kind === 'forward') return runner.forwardMs;
  if (kind === 'backward') return runner.backwardMs;
  return kind === 'update' ? runner.updateMs : onGrid(runner.backwardMs / 2);
}

/** Rule 4: by readiness; ties by micro-batch, then input, forward, backward, label. */
function leavesBefore(a: Message, b: Message): boolean {
  if (a.readyMs !== b.readyMs) return a.readyMs < b.readyMs;
  if (a.microBatch !== b.microBatch) return a.microBatch < b.microBatch;
  return payloadRank[a.payload] < payloadRank[b.payload];
}

function pieceKey(
  step: { readonly payload: Payload; readonly microBatch: number; readonly samples: readonly [number, number] },
  from: number,
  to: number,
): string {
  return `${step.payload} ${step.microBatch} ${from} ${to} ${step.samples[0]}`;
}
