// What waits for what in the steady state of a stream, by the rules of the simulated world: a graph whose critical
// cycle is the period of a tick (cycle-ratio.ts). Nodes are what takes time: passes and updates, by the tick; pieces on
// links and AllReduces, by the round.

import { defined } from '../assert.ts';
import type { Program } from '../schedule/program.ts';
import { type Compiled, endsMicroBatch, type Flow, opcodes, type Runner } from './compiled.ts';
import { WaitGraph } from './cycle-ratio.ts';

/**
 * `compiled` is the tick `program`. Undefined where activations or gradients share a link with others: their order is
 * not the Program's alone.
 */
export function waitGraph(compiled: Compiled, program: Program): WaitGraph | undefined {
  const rows = flowsByChannel(compiled);
  if (rows.some((row) => row.length > 1 && !row.every(({ payload }) => payload === 'input' || payload === 'label')))
    return undefined;
  const builder = new Builder(compiled);
  for (const index of program.devices.keys()) builder.addRunner(index);
  builder.addFeeds();
  for (const row of rows) builder.addChannel(row);
  builder.addRows();
  return builder.graph;
}

type NumberedFlow = Flow & { readonly flow: number };

/** What travels on each channel, in the order in which it leaves if it is ready at once. */
function flowsByChannel({ channels, flows }: Compiled): NumberedFlow[][] {
  const rows: NumberedFlow[][] = channels.map(() => []);
  for (const [flow, each] of flows.entries()) rows[each.channel]?.push({ ...each, flow });
  return rows.map((row) => row.sort((a, b) => a.rank - b.rank));
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
      if (channel !== -1)
        this.#waitFor(walk.now(), { node: this.#pieceBase + about, index: round, ms: occupancyMs }, tick);
    } else if (code === opcodes['all-reduce']) {
      const { durationMs: reduceMs, row } = defined(this.#compiled.groups[about], 'a group');
      const node = this.#groupBase + about;
      this.#waitFor(walk.now(), { node, index: round, ms: reduceMs }, tick);
      if (row === -1) walk.waits = [{ node, index: round, ms: 0 }];
      else walk.reductions.push({ node, index: round, ms: 0 });
    } else if (code !== opcodes.result) {
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

  /** Rule 4: one piece after the other, by micro-batch; of each, inputs before labels. */
  addChannel(row: readonly NumberedFlow[]): void {
    const { microBatchCount: M } = this.#compiled;
    const pieces = Array.from({ length: M }, (_, m) => row.map(({ flow }) => this.#pieceBase + flow * M + m)).flat();
    for (const [place, piece] of pieces.entries()) {
      const before = pieces[(place + pieces.length - 1) % pieces.length] as number;
      this.graph.add(before, piece, (row[place % row.length] as NumberedFlow).durationMs, place === 0 ? 1 : 0);
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
