// What waits for what in the steady state of a stream, by the rules of the simulated world: a graph whose critical cycle
// is the period of a tick (cycle-ratio.ts). Nodes are what takes time: passes and updates, by the tick; pieces on links
// and AllReduces, by the round.

import { assert, defined } from '../assert.ts';
import type { Program } from '../schedule/program.ts';
import { type Compiled, endsMicroBatch, type Flow, opcodes, type Runner } from './compiled.ts';
import { WaitGraph } from './cycle-ratio.ts';

/** A piece of a tick: flow · microBatchCount + micro-batch, of the round this many after the tick's. */
export interface TickPiece {
  readonly piece: number;
  readonly round: number;
}

/**
 * `compiled` is the tick `program`. `ordersOf` gives the pieces that leave on a channel in a tick, in order, where
 * several flows share it: their order is not the Program's alone.
 */
export function waitGraph(
  compiled: Compiled,
  program: Program,
  ordersOf: (channel: number) => readonly TickPiece[],
): WaitGraph {
  const builder = new Builder(compiled);
  for (const index of program.devices.keys()) builder.addRunner(index);
  builder.addFeeds();
  builder.addChannels(ordersOf);
  builder.addRows();
  return builder.graph;
}

/** Something that has happened: event `index` of a node, and what comes to its time. */
interface Cause {
  readonly node: number;
  readonly index: number;
  readonly ms: number;
}

class Builder {
  readonly graph: WaitGraph;
  readonly #compiled: Compiled;
  readonly #pieceBase: number;
  readonly #groupBase: number;

  constructor(compiled: Compiled) {
    const { opcode, flows, microBatchCount, groups } = compiled;
    this.#compiled = compiled;
    this.#pieceBase = opcode.length;
    this.#groupBase = this.#pieceBase + flows.length * microBatchCount;
    this.graph = new WaitGraph(this.#groupBase + groups.length);
  }

  /** Follows a device through two ticks: what the first leaves behind is what the second waits for. */
  addRunner(index: number): void {
    const { runners, firstInstruction } = this.#compiled;
    const { instructions } = (runners[index] as Runner).program;
    const walk = new Walk();
    for (const tick of [-1, 0])
      for (const [offset, step] of instructions.entries())
        this.#step(index, (firstInstruction[index] as number) + offset, step.round ?? 0, tick, walk);
  }

  #step(index: number, position: number, offset: number, tick: number, walk: Walk): void {
    const { opcode, argument, durationMs, receivingMs, flows, microBatchCount, runners, sendingMs } = this.#compiled;
    const [code, about] = [opcode[position] as number, argument[position] as number];
    const round = tick + offset;
    if (code === opcodes.receive) {
      const { channel, latencyMs } = flows[Math.floor(about / microBatchCount)] as Flow;
      if (channel !== -1) walk.waits.push({ node: this.#pieceBase + about, index: round, ms: latencyMs });
    } else if (code === opcodes.send) {
      const { channel, durationMs: occupancyMs } = flows[Math.floor(about / microBatchCount)] as Flow;
      if (channel !== -1) this.#waitFor(walk.now(), { node: this.#pieceBase + about, index: round, ms: occupancyMs }, tick);
    } else if (code === opcodes['all-reduce']) {
      const { durationMs: reduceMs, row } = defined(this.#compiled.groups[about], 'a group');
      const node = this.#groupBase + about;
      this.#waitFor(walk.now(), { node, index: round, ms: reduceMs }, tick);
      if (row === -1) walk.waits = [{ node, index: round, ms: 0 }];
      else walk.reductions.push({ node, index: round, ms: 0 });
    } else {
      const runner = runners[index] as Runner;
      const isUpdate = code === opcodes.update;
      const ownMs = durationMs[position] as number;
      const paidMs = (receivingMs[position] as number) + (isUpdate ? runner.overlappedReduceCpuMs : 0);
      const causes = [
        ...walk.waits,
        ...(isUpdate ? walk.reductions.filter((reduction) => reduction.index === round) : []),
        ...(walk.last === undefined ? [] : [{ ...walk.last, ms: walk.last.owedMs + paidMs }]),
      ];
      this.#waitFor(causes, { node: position, index: tick, ms: ownMs }, tick);
      walk.waits = [];
      walk.last = { node: position, index: tick, owedMs: sendingMs[position] as number };
    }
  }

  /** Edges of the tick 0 alone: the one before only leads to it. */
  #waitFor(causes: readonly Cause[], { node, index, ms }: Cause, tick: number): void {
    if (tick === 0) for (const cause of causes) this.graph.add(cause.node, node, cause.ms + ms, index - cause.index);
  }

  /** Rule 3: the end of the backward of m − K lets the feed send micro-batch m. Without a backward nothing holds it. */
  addFeeds(): void {
    const { runners, flows, firstInstruction, opcode, argument, microBatchCount: M } = this.#compiled;
    for (const [index, { feeds, inFlight, program }] of runners.entries()) {
      const ends = new Map<number, number>();
      for (const offset of program.instructions.keys()) {
        const position = (firstInstruction[index] as number) + offset;
        if (endsMicroBatch[opcode[position] as number] === 1) ends.set(argument[position] as number, offset);
      }
      if (ends.size === 0) continue;
      for (const flow of feeds)
        for (let m = 0; m < M && (flows[flow] as Flow).channel !== -1; m++) {
          const round = Math.floor((m - inFlight) / M);
          const offset = defined(ends.get(m - inFlight - round * M), 'the end of a micro-batch');
          const tick = round - (program.instructions[offset]?.round ?? 0);
          const piece = flow * M + m;
          const position = (firstInstruction[index] as number) + offset;
          this.graph.add(position, this.#pieceBase + piece, (flows[flow] as Flow).durationMs, -tick);
        }
    }
  }

  /** Rule 4: one piece after the other. */
  addChannels(ordersOf: (channel: number) => readonly TickPiece[]): void {
    const { channels, flows, microBatchCount: M } = this.#compiled;
    for (const channel of channels.keys()) {
      const own = [...flows.keys()].filter((flow) => (flows[flow] as Flow).channel === channel);
      const order =
        own.length === 1
          ? Array.from({ length: M }, (_, m): TickPiece => ({ piece: (own[0] as number) * M + m, round: 0 }))
          : ordersOf(channel);
      assert(order.length === own.length * M, 'a channel has each of its pieces once in a tick');
      for (const [place, { piece, round }] of order.entries()) {
        const before = place === 0 ? defined(order.at(-1), 'a piece') : defined(order[place - 1], 'a piece');
        const { durationMs } = flows[Math.floor(piece / M)] as Flow;
        const roundsBefore = place === 0 ? before.round - 1 : before.round;
        this.graph.add(this.#pieceBase + before.piece, this.#pieceBase + piece, durationMs, round - roundsBefore);
      }
    }
  }

  /** The overlapped AllReduces of a group run one after the other. */
  addRows(): void {
    const { groups } = this.#compiled;
    const rows = new Map<number, number[]>();
    for (const [number, { row }] of groups.entries()) if (row >= 0) rows.set(row, [...(rows.get(row) ?? []), number]);
    for (const row of rows.values())
      for (const [place, number] of row.entries()) {
        const before = place === 0 ? defined(row.at(-1), 'a bucket') : defined(row[place - 1], 'a bucket');
        const { durationMs } = defined(groups[number], 'a bucket');
        this.graph.add(this.#groupBase + before, this.#groupBase + number, durationMs, place === 0 ? 1 : 0);
      }
  }
}

/** Where a device stands. */
class Walk {
  /** What it has waited for since it last computed. */
  waits: Cause[] = [];
  /** Its AllReduces that overlap with what it computes. */
  readonly reductions: Cause[] = [];
  /** Its last pass or update. */
  last: { readonly node: number; readonly index: number; readonly owedMs: number } | undefined;

  /** What there must have been for it to stand here. */
  now(): Cause[] {
    const { last } = this;
    return last === undefined ? this.waits : [...this.waits, { node: last.node, index: last.index, ms: 0 }];
  }
}
