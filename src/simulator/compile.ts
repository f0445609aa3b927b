// A Program in flat arrays, with all that the rules say of its durations and sizes worked out once, so that the clock
// (simulate.ts) only adds and compares. Times are put on a grid of 2^-30 ms, on which sums are exact: two pieces that
// are ready at the same time by the rules tie here too, whatever order their additions took.

import { assert, defined } from '../assert.ts';
import type { PlanLayout } from '../cluster/cluster.ts';
import { codecMs, type Encoding, encodedFraction } from '../cluster/compression.ts';
import { slowestInGroup } from '../cluster/links.ts';
import { processorMs, reduceCpuMs } from '../cluster/overhead.ts';
import { recomputeFraction } from '../cluster/recomputation.ts';
import { type LayerTimes, onGrid } from '../cluster/times.ts';
import { effectiveInFlight, forwardOnlyLayersOf, isForwardOnly } from '../schedule/pace.ts';
import { type PassKind, passes, passKinds, payloads } from '../schedule/passes.ts';
import {
  type AllReduce,
  type DeviceProgram,
  type Instruction,
  isBackwardImmediate,
  isFirstPiece,
  isLastPiece,
  isPass,
  type Program,
  type Receive,
  type Send,
} from '../schedule/program.ts';
import { scheduleOf } from '../schedule/schedules.ts';
import { overlapOf } from '../schedule/staleness.ts';
import {
  type Channel,
  type Compiled,
  type Flow,
  type Group,
  instructionKinds,
  opcodes,
  type Runner,
} from './compiled.ts';
import type { Ground } from './ground.ts';
import { carriedBytes, passTraffic, payloadBytes, receivedAt, trafficByDevice } from './traffic.ts';

/**
 * `program` is a round of `plan`, or several rounds of a stream written out (schedule/unroll.ts), whose instructions
 * say their round. Of a tick, whose rounds are offsets, only what is the same in every round can be read off the
 * result.
 */
export function compile(
  program: Program & { readonly roundCount?: number },
  plan: PlanLayout,
  ground: Ground,
): Compiled {
  return new Compiler(program, plan, ground).run();
}

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

class Compiler {
  readonly #program: Program & { readonly roundCount?: number };
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
  /** Buckets of a group, by its number, their first layer and the round. */
  readonly #bucketNumbers = new Map<string, number>();

  constructor(program: Program & { readonly roundCount?: number }, plan: PlanLayout, ground: Ground) {
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
    const { microBatchCount, roundCount = 1 } = this.#program;
    return {
      microBatchCount,
      roundCount,
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
    const forwardOnlyLayers = forwardOnlyLayersOf(this.#plan);
    const [first, end] = program.layers;
    const isLast = end === this.#ground.profile.layers.length;
    const isStep = isLast && !scheduleOf(this.#plan.schedule).overlapsAllReduce && isBackwardImmediate(program);
    const times = backwardFrom(this.#ground.times(place, isStep), forwardOnlyLayers);
    const samples = program.samples[1] - program.samples[0];
    const durations = new Float64Array(instructionKinds.length);
    const trainedFrom = Math.min(end, Math.max(first, forwardOnlyLayers));
    const recomputeMs = this.#recomputeMs(program, place, trainedFrom);
    for (const kind of passKinds)
      durations[opcodes[kind]] = passDurationMs(kind, [first, end], { times, samples, recomputeMs });
    durations[opcodes.update] = onGrid(times.updateMs(first, end));
    // Without a backward to wait for, all may come at once.
    const { microBatchCount } = this.#program;
    // Of forward gradients, which keep nothing, the data come a round ahead.
    const keepsNothing = scheduleOf(this.#plan.schedule).gradients === 'tangent';
    const inFlight = isForwardOnly(this.#plan, program.stage)
      ? microBatchCount
      : keepsNothing
        ? 2 * microBatchCount
        : effectiveInFlight(this.#plan, program.stage);
    const changing = { overlappedReduceCpuMs: 0, feeds: [] };
    const overlap = overlapOf(this.#plan, program.stage);
    return { program, place, times, durations, recomputeMs, trainedFrom, inFlight, overlap, ...changing };
  }

  /** What flows and AllReduces cost the processors of those who send and receive. */
  #priceTraffic(
    firstInstruction: Int32Array,
    { receivingMs, sendingMs }: Pick<Compiled, 'receivingMs' | 'sendingMs'>,
  ): void {
    for (const { row, round, members, costsMs } of this.#groups)
      if (row >= 0 && round === 0)
        for (const [index, member] of members.entries())
          (this.#runners[member] as Runner).overlappedReduceCpuMs += costsMs[index] ?? 0;
    const { profile, cluster } = this.#ground;
    const traffic = trafficByDevice(this.#program, profile, cluster);
    for (const [index, { place, program }] of this.#runners.entries()) {
      const overhead = this.#ground.overhead(place);
      const own = defined(traffic.get(program.device), program.device);
      const costs = new Map(
        passKinds.map((kind) => {
          const { received, sent } = passTraffic(kind, own);
          const receivedMs = processorMs(overhead, received, onGrid);
          return [kind, { receivedMs, sentMs: processorMs(overhead, sent, onGrid) }];
        }),
      );
      const start = firstInstruction[index] as number;
      for (const [offset, step] of program.instructions.entries()) {
        if (!isPass(step)) continue;
        const { receivedMs, sentMs } = defined(costs.get(step.kind), 'the costs of a pass');
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
    return step.kind === 'update' ? Math.max(0, step.round ?? 0) : step.microBatch;
  }

  #piece(step: Send | Receive, from: number, receiver: number, isFeed: boolean): number {
    const { rank } = payloads[step.payload];
    const { microBatchSize, microBatchCount } = this.#program;
    const key = (((from + 1) * this.#runners.length + receiver) * 8 + rank) * (microBatchSize + 1) + step.samples[0];
    let flow = this.#flowNumbers.get(key);
    if (flow === undefined) {
      flow = this.#flows.push(this.#createFlow(step, from, receiver)) - 1;
      this.#flowNumbers.set(key, flow);
      if (isFeed) (this.#runners[receiver] as Runner).feeds.push(flow);
    }
    return flow * microBatchCount + step.microBatch;
  }

  #createFlow(step: Send | Receive, from: number, receiver: number): Flow {
    const { payload, encoding } = step;
    const { program, place: to } = this.#runners[receiver] as Runner;
    const plainBytes = carriedBytes(step, payloadBytes(this.#ground.profile, payload, receivedAt(payload, program)));
    const bytes = plainBytes * encodedFraction(encoding);
    const { from: side } = payloads[payload];
    const senderStage = side === 'last' ? this.#plan.stages.length - 1 : program.stage + (side === 'feed' ? 0 : side);
    const shared = { payload, rank: payloads[payload].rank, receiver, senderStage, bytes };
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

  #group({ group: names, encoding }: AllReduce, layers: readonly [number, number]): number {
    const key = this.#groupNumbers.has(names) ? names : JSON.stringify(names);
    const known = this.#groupNumbers.get(key);
    if (known !== undefined) {
      this.#groupNumbers.set(names, known);
      return known;
    }
    const number = this.#groups.push(this.#createGroup(names, layers, { row: -1, round: 0, encoding })) - 1;
    this.#groupNumbers.set(key, number).set(names, number);
    return number;
  }

  /**
   * The part of a round's AllReduce of a group that is for these layers. The parts of a group, of all rounds, are in
   * one row, which has the group's number.
   */
  #bucket(group: number, { group: names, encoding, round = 0 }: AllReduce, layers: readonly [number, number]): number {
    const key = `${group} ${layers[0]} ${round}`;
    const known =
      this.#bucketNumbers.get(key) ??
      this.#groups.push(this.#createGroup(names, layers, { row: group, round, encoding })) - 1;
    this.#bucketNumbers.set(key, known);
    return known;
  }

  #createGroup(
    names: readonly string[],
    layers: readonly [number, number],
    { row, round, encoding }: Pick<Group, 'row' | 'round'> & { readonly encoding: Encoding | undefined },
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
    return { size, durationMs, row, round, layers, members, costsMs };
  }
}

/** What a pass of these layers takes: what it computes again where `recomputeMs` is not 0, and its own time. */
function passDurationMs(
  kind: PassKind,
  [first, end]: readonly [number, number],
  {
    times,
    samples,
    recomputeMs,
  }: { readonly times: LayerTimes; readonly samples: number; readonly recomputeMs: number },
): number {
  const { time, recomputes } = passes[kind];
  const ownMs = onGrid(times[time](first, end, samples));
  return recomputes ? recomputeMs + ownMs : ownMs;
}

/** Rule 1, for the layers of a piece of a backward pass too. */
function durationOf(step: Instruction, { program, times, durations, recomputeMs }: Runner): number {
  if (!isPass(step) || !('layers' in step) || step.layers === undefined) return durations[opcodes[step.kind]] as number;
  const samples = program.samples[1] - program.samples[0];
  const isFirst = isFirstPiece(step, program);
  return passDurationMs(step.kind, step.layers, { times, samples, recomputeMs: isFirst ? recomputeMs : 0 });
}
