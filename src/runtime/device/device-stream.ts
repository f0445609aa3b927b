// Executes a stream on a stage, tick by tick: rounds overlap, and each computes with the version of the weights that
// its staleness says. The twin of round.ts for schedules whose rounds follow each other. At tick t the device runs its
// Program's instructions for rounds t + offset; those of rounds that are not there are left out, which fills and drains
// the pipeline.

import { passes } from '../../schedule/passes.ts';
import { type DeviceProgram, type Instruction, isPass } from '../../schedule/program.ts';
import { offsetsOf, TickWriter } from '../../schedule/stream-tick.ts';
import type { RoundTimes } from '../protocol/messages.ts';
import { InstructionTimes } from './instruction-times.ts';
import { beginTick, execute, finishTick, isNormCounted, StreamState } from './instructions.ts';
import type { RoundPart } from './rest-stage.ts';
import { withPasses } from './rest-stage.ts';
import { isTraced, note } from './round.ts';
import type { RoundPorts } from './round-ports.ts';
import type { RoundReduction } from './round-reduction.ts';
import type { RoundTotals } from './round-sums.ts';
import type { RoundStage, StagePort } from './stage.ts';
import type { UpdateOptions } from './stage-update.ts';

/** What a stream needs from the outside world. */
export interface StreamPorts extends Pick<RoundPorts, 'clock' | 'send' | 'receive' | 'failure'> {
  /** Whether `updateOf` leaves the update to the caller. */
  readonly isUpdatedLater: boolean;
  /** Resolves when version `number` is there, if its update is not queued in its place in the Program. */
  versionIsThere(number: number): Promise<void> | undefined;
  /**
   * A round's gradients are final. Resolves with the update, when it may be applied; with undefined, the caller applies
   * it later.
   */
  updateOf(round: number): Promise<UpdateOptions | undefined>;
  /** Something that nobody waits for has failed. */
  failed(error: unknown): void;
  /**
   * When the instructions of a tick happened, relative to the stream's begin on this device. `newest`: the newest round
   * of the tick.
   */
  traced(newest: number, times: Promise<readonly RoundTimes[]>): void;
  /** The round is computed, and updated as far as `updateOf` said so. */
  closed(round: number, totals: Promise<RoundTotals>): void;
}

/** A stream on one device. */
export class DeviceStream {
  readonly #program: DeviceProgram;
  readonly #ports: StreamPorts;
  readonly #stage: RoundStage;
  readonly #usual: StagePort;
  readonly #writer: TickWriter;
  readonly #state = new StreamState();
  /** The oldest version that rounds read. */
  #first: number;
  readonly #isNormCounted: boolean;
  readonly #rests = new Map<number, RoundPart>();
  /** By round, until its update. */
  readonly #reductions = new Map<number, RoundReduction>();
  /** By round, until its update: rounds that are closed before it. */
  readonly #closing = new Map<number, Promise<void>>();
  /** The least and the most rounds by which instructions are ahead of their tick. */
  readonly offsets: readonly [least: number, most: number];
  readonly #indices: ReadonlyMap<Instruction, number>;
  /** When the first tick began. */
  #beganMs: number | undefined;
  #lastTimes: InstructionTimes | undefined;
  /** Rounds [begin, end) are computed; earlier ones are done. */
  #begin: number;
  #end: number;

  /** `first`: the version that is live, with which the stream begins. */
  constructor(program: DeviceProgram, stage: StagePort, first: number, ports: StreamPorts) {
    this.#program = program;
    this.#usual = stage;
    this.#first = first;
    this.#begin = first;
    this.#end = first;
    this.#writer = new TickWriter(program);
    this.offsets = offsetsOf(program);
    this.#indices = new Map(program.instructions.map((instruction, index) => [instruction, index]));
    const { failure } = ports;
    this.#ports = {
      ...ports,
      send: (to, frame, priority) => failure.guard(ports.send(to, frame, priority)),
      receive: (key) => failure.guard(ports.receive(key)),
    };
    this.#isNormCounted = isNormCounted(program, stage);
    this.#stage = this.#byRound(stage);
  }

  /** The stage, of which each round has its own passes and share. */
  #byRound(usual: StagePort): RoundStage {
    const of = (round: number): RoundStage => this.#rests.get(round)?.stage ?? usual;
    const passes = {
      forward: (...given) => of(given[0].round).forward(...given),
      backward: (...given) => of(given[0].round).backward(...given),
      backwardInput: (...given) => of(given[0].round).backwardInput(...given),
      backwardWeight: (...given) => of(given[0].round).backwardWeight(...given),
    } satisfies Pick<RoundStage, 'forward' | 'backward' | 'backwardInput' | 'backwardWeight'>;
    return withPasses(usual, passes, (bucket, round) => of(round ?? 0).takeGradients(bucket, round));
  }

  /** A round may be computed, behind those before it. `rest`: what this device does of a round of fewer samples. */
  add(round: number, rest: RoundPart | undefined): void {
    if (rest !== undefined) this.#rests.set(round, rest);
    this.#end = round + 1;
  }

  /** All rounds so far are done; the next ones begin with an empty pipeline. */
  drained(): void {
    this.#begin = this.#end;
    // Passes with tangents read what is live: the stream begins anew.
    if (this.#usual.tangents !== undefined) this.#first = this.#begin;
  }

  /** Queues all work of a tick; waits for pieces that have not arrived, and for what an update waits for. */
  async run(tick: number): Promise<void> {
    const { failure } = this.#ports;
    const instructions = this.#writer.at(
      tick,
      (round) => round >= this.#begin && round < this.#end,
      (round) => this.#rests.get(round)?.program,
    );
    const updates = { due: () => Promise.resolve(undefined) };
    const program = { ...this.#program, instructions };
    const current = beginTick({ program, stage: this.#stage, tick, ports: { ...this.#ports, updates } }, this.#state);
    const times = this.#timesOf(tick);
    for (const instruction of instructions) {
      const round = tick + (instruction.round ?? 0);
      if (instruction.kind === 'update') {
        await (this.#closing.get(round) ?? this.#close(round));
        this.#closing.delete(round);
        continue;
      }
      if (instruction.kind === 'all-reduce') this.#reductions.set(round, current.reduction);
      if (isPass(instruction) && passes[instruction.kind].needs.length === 0) {
        const version = Math.max(this.#first, round - (this.#program.staleness ?? 0));
        const there = this.#ports.versionIsThere(version);
        if (there !== undefined) await failure.guard(there);
      }
      const index = this.#indices.get(instruction);
      const passedMs = times?.now() ?? 0;
      await failure.guard(
        execute(current, instruction, (at) => index !== undefined && times?.done(index, at - (this.#beganMs ?? at))),
      );
      if (times !== undefined && index !== undefined) note(times, { index, instruction, passedMs }, this.#usual);
      if (instruction.kind === 'all-reduce' && this.#ports.isUpdatedLater) this.#closeWhenReduced(round);
    }
    finishTick(current)
      .then(() => times && this.#ports.traced(tick + this.offsets[1], times.all()))
      .catch((error: unknown) => this.#ports.failed(error));
  }

  /** Of ticks that are shown: those of the first rounds until the pipeline is full, and some later ones. */
  #timesOf(tick: number): InstructionTimes | undefined {
    const { clock } = this.#ports;
    this.#beganMs ??= clock.now();
    const [least, most] = this.offsets;
    if (!isTraced(tick + most) && !isTraced(tick + least)) return undefined;
    this.#lastTimes = new InstructionTimes(clock, this.#beganMs, this.#lastTimes);
    return this.#lastTimes;
  }

  /**
   * A round that is not updated in its place in the Program is closed as soon as it is reduced: what comes before the
   * update may wait, on other devices, for what they make of this device's sums.
   */
  #closeWhenReduced(round: number): void {
    const closing = this.#close(round);
    closing.catch(() => {}); // seen at the update
    this.#closing.set(round, closing);
  }

  async #close(round: number): Promise<void> {
    const { failure } = this.#ports;
    const reducing = this.#reductions.get(round)?.done();
    this.#reductions.delete(round);
    if (reducing !== undefined) await failure.guard(reducing);
    const { derivatives } = this.#state;
    if (derivatives.has(round)) this.#usual.tangents?.estimate(round, await failure.guard(derivatives.sum(round)));
    const totals = failure.guard(this.#stage.finishRound(this.#isNormCounted, round));
    totals.catch(() => {}); // seen by whoever is told of it
    const options = await failure.guard(this.#ports.updateOf(round));
    this.#rests.delete(round);
    if (options !== undefined) this.#usual.update(options, round);
    this.#ports.closed(round, totals);
  }
}
