// A Program in flat arrays, with all that the rules say of its durations and sizes worked out once, so that the clock
// (simulate.ts) only adds and compares. Times are put on a grid of 2^-30 ms, on which sums are exact: two pieces that
// are ready at the same time by the rules tie here too, whatever order their additions took.

import { assert, defined } from '../assert.ts';
import type { Cluster, DeviceTimes, PlanLayout, Profile } from '../cluster/cluster.ts';
import { codecMs, type Encoding, encodedFraction } from '../cluster/compression.ts';
import { type LinkTable, links, slowestInGroup } from '../cluster/links.ts';
import { type LayerSums, layerSums } from '../cluster/memory.ts';
import { type Overhead, overheadOf, type PassTraffic, processorMs, reduceCpuMs } from '../cluster/overhead.ts';
import { type KeptSums, keptSums, recomputeFraction, recomputeTable } from '../cluster/recomputation.ts';
import { deviceTimes, type LayerTimes, layerTimes, onGrid, type RangeTimes, rangeTimes } from '../cluster/times.ts';
import { effectiveInFlight, overlapsAllReduce } from '../schedule/generate.ts';
import {
  type DeviceProgram,
  type Instruction,
  isBackwardImmediate,
  isFirstPiece,
  isLastPiece,
  isPass,
  type Payload,
  type Program,
} from '../schedule/program.ts';
import { noTraffic, payloadBytes, receivedAt, trafficByDevice } from './traffic.ts';

/** What does not depend on the plan, prepared once for many rounds. */
export interface Ground {
  readonly profile: Profile;
  readonly cluster: Cluster;
  readonly table: LinkTable;
  readonly sums: LayerSums;
  readonly kept: KeptSums;
  /** Of the device at a place in cluster.devices; `isStep` where it runs both passes of a micro-batch as one. */
  times(place: number, isStep: boolean): LayerTimes;
  /** Of computing all again that can be, on the device at a place: by layers and samples. */
  recomputeMs(place: number): RangeTimes;
  /** What the processor of the device at a place pays besides its layers. */
  overhead(place: number): Overhead;
}

export function prepareGround(profile: Profile, cluster: Cluster): Ground {
  const prepared = { step: new Map<DeviceTimes, LayerTimes>(), apart: new Map<DeviceTimes, LayerTimes>() };
  const measured = (place: number): DeviceTimes => deviceTimes(profile, defined(cluster.devices[place], 'a device'));
  const times = (place: number, isStep: boolean): LayerTimes => {
    const own = measured(place);
    const among = isStep ? prepared.step : prepared.apart;
    const known = among.get(own) ?? layerTimes(own, profile.batchSizes, isStep);
    among.set(own, known);
    return known;
  };
  const recomputeMs = (place: number): RangeTimes =>
    rangeTimes(recomputeTable(profile, measured(place)), profile.batchSizes);
  return {
    profile,
    cluster,
    table: links(cluster),
    sums: layerSums(profile),
    kept: keptSums(profile),
    times,
    recomputeMs,
    overhead: (place) => overheadOf(measured(place)),
  };
}

/** Instruction kinds as small numbers. */
export const opcodes: Readonly<Record<Instruction['kind'], number>> = {
  receive: 0,
  send: 1,
  forward: 2,
  backward: 3,
  'backward-input': 4,
  'backward-weight': 5,
  'all-reduce': 6,
  update: 7,
};

/** The kind of an opcode. */
export const instructionKinds: readonly Instruction['kind'][] = Object.keys(opcodes) as Instruction['kind'][];

/** A device with its program. */
export interface Runner {
  readonly program: DeviceProgram;
  /** In cluster.devices. */
  readonly place: number;
  readonly times: LayerTimes;
  /** Milliseconds of an instruction over all of its layers, by opcode; 0 for those that do not compute. */
  readonly durations: Float64Array;
  /** Part of a backward's duration: of its first piece, where it is cut. */
  readonly recomputeMs: number;
  /** What AllReduces that overlap with its passes cost its processor. */
  overlappedReduceCpuMs: number;
  /** The first of its layers that has a backward pass, and keeps something for it. */
  readonly trainedFrom: number;
  /** K_p of its stage. */
  readonly inFlight: number;
  /** Flows of inputs and labels to it. */
  readonly feeds: number[];
}

/**
 * Pieces of one payload between two devices, one for each micro-batch. Piece m of flow f has the number f ·
 * microBatchCount + m.
 */
export interface Flow {
  readonly payload: Payload;
  /** Rule 4's order among pieces that are ready at the same time and belong to the same micro-batch. */
  readonly rank: number;
  /** −1: the data is there already. */
  readonly channel: number;
  readonly receiver: number;
  readonly senderStage: number;
  readonly bytes: number;
  /** For which a piece occupies the link. */
  readonly durationMs: number;
  readonly latencyMs: number;
}

/** One direction of a link, between places in cluster.devices. */
export interface Channel {
  readonly from: number;
  readonly to: number;
}

/** The devices of an AllReduce. */
export interface Group {
  readonly size: number;
  /** Eq. 5's time plus 2(|G| − 1) latencies. */
  readonly durationMs: number;
  /**
   * Where it runs beside the computing: the row of AllReduces that run one after the other, below `groups.length`. −1:
   * its members wait for it.
   */
  readonly row: number;
  /** Whose gradients it reduces. */
  readonly layers: readonly [number, number];
  /** The places of its members in `runners`. */
  readonly members: readonly number[];
  /** What sending and receiving costs each of them. */
  readonly costsMs: readonly number[];
}

export interface Compiled {
  readonly microBatchCount: number;
  readonly runners: readonly Runner[];
  /** Instructions of runner r are those from firstInstruction[r] up to firstInstruction[r + 1]. */
  readonly firstInstruction: Int32Array;
  /** By instruction. */
  readonly opcode: Uint8Array;
  /** By instruction: the piece's number (receive, send), the micro-batch (computing), the group (all-reduce). */
  readonly argument: Int32Array;
  /** By instruction: milliseconds of computing. */
  readonly durationMs: Float64Array;
  /** By instruction: milliseconds that the processor pays for what it is given. */
  readonly receivingMs: Float64Array;
  /** And for what it hands on. */
  readonly sendingMs: Float64Array;
  readonly flows: readonly Flow[];
  readonly channels: readonly Channel[];
  readonly groups: readonly Group[];
}

export function compile(program: Program, plan: PlanLayout, ground: Ground): Compiled {
  return new Compiler(program, plan, ground).run();
}

const payloadRank: Readonly<Record<Payload, number>> = { input: 0, activation: 1, gradient: 2, label: 3 };

/** The times where leading layers only run forward. */
function backwardFrom(times: LayerTimes, layer: number): LayerTimes {
  if (layer === 0) return times;
  const from = (first: number, end: number): number => Math.min(end, Math.max(first, layer));
  return {
    ...times,
    backwardMs: (first, end, samples) => times.backwardMs(from(first, end), end, samples),
    backwardInputMs: (first, end, samples) => times.backwardInputMs(from(first, end), end, samples),
    backwardWeightMs: (first, end, samples) => times.backwardWeightMs(from(first, end), end, samples),
  };
}

type Reduction = Extract<Instruction, { kind: 'all-reduce' }>;

class Compiler {
  readonly #program: Program;
  readonly #plan: PlanLayout;
  readonly #ground: Ground;
  readonly #runners: readonly Runner[];
  readonly #byName: ReadonlyMap<string, number>;
  readonly #holder: number;
  readonly #flows: Flow[] = [];
  readonly #flowNumbers = new Map<number, number>();
  readonly #channels: Channel[] = [];
  readonly #channelNumbers = new Map<number, number>();
  readonly #groups: Group[] = [];
  /** By their names, and by the array that holds them: a group's members mostly share it. */
  readonly #groupNumbers = new Map<string | readonly string[], number>();
  /** Buckets of a group, by its number and their first layer. */
  readonly #bucketNumbers = new Map<string, number>();

  constructor(program: Program, plan: PlanLayout, ground: Ground) {
    this.#program = program;
    this.#plan = plan;
    this.#ground = ground;
    const { dataDevice } = ground.cluster;
    this.#holder = dataDevice === undefined ? -1 : ground.table.deviceIndex(dataDevice);
    this.#runners = program.devices.map((device) => this.#createRunner(device));
    this.#byName = new Map(program.devices.map(({ device }, index) => [device, index]));
  }

  run(): Compiled {
    const count = this.#runners.reduce((sum, { program }) => sum + program.instructions.length, 0);
    const firstInstruction = new Int32Array(this.#runners.length + 1);
    const opcode = new Uint8Array(count);
    const argument = new Int32Array(count);
    const durationMs = new Float64Array(count);
    const processor = { receivingMs: new Float64Array(count), sendingMs: new Float64Array(count) };
    let next = 0;
    for (const [index, runner] of this.#runners.entries()) {
      firstInstruction[index] = next;
      for (const step of runner.program.instructions) {
        opcode[next] = opcodes[step.kind];
        durationMs[next] = durationOf(step, runner);
        argument[next++] = this.#argument(step, runner, index);
      }
    }
    firstInstruction[this.#runners.length] = next;
    this.#priceTraffic(firstInstruction, processor);
    const { microBatchCount } = this.#program;
    return {
      microBatchCount,
      runners: this.#runners,
      firstInstruction,
      opcode,
      argument,
      durationMs,
      ...processor,
      flows: this.#flows,
      channels: this.#channels,
      groups: this.#groups,
    };
  }

  /** Rule 1's durations. */
  #createRunner(program: DeviceProgram): Runner {
    const place = this.#ground.table.deviceIndex(program.device);
    const forwardOnlyLayers = this.#plan.forwardOnlyLayers ?? 0;
    const [first, end] = program.layers;
    const isLast = end === this.#ground.profile.layers.length;
    const isStep = isLast && !overlapsAllReduce(this.#plan.schedule) && isBackwardImmediate(program);
    const times = backwardFrom(this.#ground.times(place, isStep), forwardOnlyLayers);
    const samples = program.samples[1] - program.samples[0];
    const durations = new Float64Array(instructionKinds.length);
    durations[opcodes.forward] = onGrid(times.forwardMs(first, end, samples));
    const trainedFrom = Math.min(end, Math.max(first, forwardOnlyLayers));
    const backwardMs = onGrid(times.backwardMs(first, end, samples));
    const recomputeMs = this.#recomputeMs(program, place, trainedFrom);
    durations[opcodes.backward] = recomputeMs + backwardMs;
    const inputMs = onGrid(times.backwardInputMs(first, end, samples));
    durations[opcodes['backward-input']] = recomputeMs + inputMs;
    durations[opcodes['backward-weight']] = onGrid(times.backwardWeightMs(first, end, samples));
    durations[opcodes.update] = onGrid(times.updateMs(first, end));
    const inFlight = effectiveInFlight(this.#plan, program.stage);
    const changing = { overlappedReduceCpuMs: 0, feeds: [] };
    return { program, place, times, durations, recomputeMs, trainedFrom, inFlight, ...changing };
  }

  /** What flows and AllReduces cost the processors of those who send and receive. */
  #priceTraffic(
    firstInstruction: Int32Array,
    { receivingMs, sendingMs }: Pick<Compiled, 'receivingMs' | 'sendingMs'>,
  ): void {
    for (const { row, members, costsMs } of this.#groups)
      if (row >= 0)
        for (const [index, member] of members.entries())
          (this.#runners[member] as Runner).overlappedReduceCpuMs += costsMs[index] ?? 0;
    const { profile, cluster } = this.#ground;
    const traffic = trafficByDevice(this.#program, profile, cluster);
    for (const [index, { place, program }] of this.#runners.entries()) {
      const overhead = this.#ground.overhead(place);
      const costs = ({ received, sent }: PassTraffic) => ({
        receivedMs: processorMs(overhead, received, onGrid),
        sentMs: processorMs(overhead, sent, onGrid),
      });
      const { forward, backward } = defined(traffic.get(program.device), program.device);
      const [forwardCost, backwardCost, weightCost] = [costs(forward), costs(backward), costs(noTraffic)];
      const start = firstInstruction[index] as number;
      for (const [offset, step] of program.instructions.entries()) {
        if (!isPass(step)) continue;
        const { receivedMs, sentMs } =
          step.kind === 'forward' ? forwardCost : step.kind === 'backward-weight' ? weightCost : backwardCost;
        if (isFirstPiece(step, program)) receivingMs[start + offset] = receivedMs;
        if (isLastPiece(step, program)) sendingMs[start + offset] = sentMs;
      }
    }
  }

  /** What the first part of a backward pass computes again, where the plan keeps less than everything. */
  #recomputeMs({ layers, samples, savedBytes }: DeviceProgram, place: number, trainedFrom: number): number {
    if (savedBytes === undefined) return 0;
    const fraction = recomputeFraction(this.#ground.kept, trainedFrom, layers[1], savedBytes);
    return fraction === 0
      ? 0
      : onGrid(fraction * this.#ground.recomputeMs(place)(trainedFrom, layers[1], samples[1] - samples[0]));
  }

  #argument(step: Instruction, runner: Runner, index: number): number {
    if (step.kind === 'receive') {
      const from = step.from === null ? this.#holder : this.#ground.table.deviceIndex(step.from);
      return this.#piece(step, from, index, step.from === null);
    }
    if (step.kind === 'send') {
      const receiver = this.#byName.get(step.to);
      assert(receiver !== undefined, `"${runner.program.device}" sends to "${step.to}", which has no program`);
      return this.#piece(step, runner.place, receiver, false);
    }
    if (step.kind === 'all-reduce') {
      const whole = this.#group(step, runner.program.layers);
      return step.layers === undefined ? whole : this.#bucket(whole, step, step.layers);
    }
    return step.kind === 'update' ? 0 : step.microBatch;
  }

  #piece(
    step: Extract<Instruction, { kind: 'send' | 'receive' }>,
    from: number,
    receiver: number,
    isFeed: boolean,
  ): number {
    const rank = payloadRank[step.payload];
    const { microBatchSize, microBatchCount } = this.#program;
    const key = (((from + 1) * this.#runners.length + receiver) * 4 + rank) * (microBatchSize + 1) + step.samples[0];
    let flow = this.#flowNumbers.get(key);
    if (flow === undefined) {
      flow = this.#flows.push(this.#createFlow(step, from, receiver)) - 1;
      this.#flowNumbers.set(key, flow);
      if (isFeed) (this.#runners[receiver] as Runner).feeds.push(flow);
    }
    return flow * microBatchCount + step.microBatch;
  }

  #createFlow(
    { payload, samples, encoding }: Extract<Instruction, { kind: 'send' | 'receive' }>,
    from: number,
    receiver: number,
  ): Flow {
    const { program, place: to } = this.#runners[receiver] as Runner;
    const plainBytes =
      (samples[1] - samples[0]) * payloadBytes(this.#ground.profile, payload, receivedAt(payload, program));
    const bytes = plainBytes * encodedFraction(encoding);
    const senderStage = program.stage + (payload === 'activation' ? -1 : payload === 'gradient' ? 1 : 0);
    const shared = { payload, rank: payloadRank[payload], receiver, senderStage, bytes };
    if (from === -1 || from === to) return { ...shared, channel: -1, durationMs: 0, latencyMs: 0 };
    const { table } = this.#ground;
    return {
      ...shared,
      channel: this.#channel(from, to),
      durationMs: onGrid(table.occupancyMs(from, to, bytes)),
      latencyMs: onGrid(table.latencyMs(from, to) + codecMs(encoding, plainBytes)),
    };
  }

  #channel(from: number, to: number): number {
    const key = from * this.#ground.cluster.devices.length + to;
    const known = this.#channelNumbers.get(key) ?? this.#channels.push({ from, to }) - 1;
    this.#channelNumbers.set(key, known);
    return known;
  }

  #group({ group: names, encoding }: Reduction, layers: readonly [number, number]): number {
    const key = this.#groupNumbers.has(names) ? names : JSON.stringify(names);
    const known = this.#groupNumbers.get(key);
    if (known !== undefined) {
      this.#groupNumbers.set(names, known);
      return known;
    }
    const number = this.#groups.push(this.#createGroup(names, layers, { row: -1, encoding })) - 1;
    this.#groupNumbers.set(key, number).set(names, number);
    return number;
  }

  /**
   * The part of a group's AllReduce that is for these layers. The parts of a group are in one row, which has the
   * group's number.
   */
  #bucket(group: number, { group: names, encoding }: Reduction, layers: readonly [number, number]): number {
    const key = `${group} ${layers[0]}`;
    const known =
      this.#bucketNumbers.get(key) ?? this.#groups.push(this.#createGroup(names, layers, { row: group, encoding })) - 1;
    this.#bucketNumbers.set(key, known);
    return known;
  }

  #createGroup(
    names: readonly string[],
    layers: readonly [number, number],
    { row, encoding }: { readonly row: number; readonly encoding: Encoding | undefined },
  ): Group {
    const { table, sums } = this.#ground;
    const size = names.length;
    const slowest = slowestInGroup(
      table,
      names.map((name) => table.deviceIndex(name)),
    );
    const bytes = (2 * (size - 1) * sums.weightBytes(...layers)) / size;
    const sentBytes = bytes * encodedFraction(encoding);
    const members = names.map((name) => defined(this.#byName.get(name), name));
    const costsMs = members.map((member) =>
      onGrid(reduceCpuMs(this.#ground.overhead(defined(this.#runners[member], 'a member').place), 2 * sentBytes)),
    );
    // Pieces are encoded, sent and received while others travel.
    const travelMs = Math.max((sentBytes * 8) / (slowest.bandwidthMbps * 1000), codecMs(encoding, bytes), ...costsMs);
    const durationMs = size < 2 ? 0 : onGrid(travelMs + 2 * (size - 1) * slowest.latencyMs);
    return { size, durationMs, row, layers, members, costsMs };
  }
}

/** Rule 1, for the layers of a piece of a backward pass too. */
function durationOf(step: Instruction, { program, times, durations, recomputeMs }: Runner): number {
  if (!('layers' in step) || step.layers === undefined || step.kind === 'all-reduce')
    return durations[opcodes[step.kind]] as number;
  const [first, end] = step.layers;
  const samples = program.samples[1] - program.samples[0];
  if (step.kind === 'backward-weight') return onGrid(times.backwardWeightMs(first, end, samples));
  const backwardMs = onGrid(times.backwardMs(first, end, samples));
  return isFirstPiece(step, program) ? recomputeMs + backwardMs : backwardMs;
}
