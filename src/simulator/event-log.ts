// The events of a simulated round, as the world of simulate.ts reports them.

import { defined } from '../assert.ts';
import type { Instruction, ProgramEvent } from '../schedule/program.ts';
import { type Compiled, type Flow, instructionKinds, type Runner } from './compiled.ts';
import type { Ground } from './ground.ts';

export class EventLog {
  readonly #compiled: Compiled;
  readonly #ground: Ground;
  readonly #events: ProgramEvent[] = [];

  constructor(compiled: Compiled, ground: Ground) {
    this.#compiled = compiled;
    this.#ground = ground;
  }

  /** All events, by start. */
  sorted(): readonly ProgramEvent[] {
    return this.#events.sort((a, b) => a.startMs - b.startMs || a.endMs - b.endMs);
  }

  /** The instruction at `position`, a pass or an update, of a runner. */
  computing(index: number, position: number, startMs: number, endMs: number): void {
    const { runners, opcode, firstInstruction } = this.#compiled;
    const { device, stage, instructions } = (runners[index] as Runner).program;
    const kind = instructionKinds[opcode[position] as number] as Instruction['kind'];
    const step = instructions[position - (firstInstruction[index] as number)] as Instruction;
    if (kind === 'update') {
      if (endMs > startMs) this.#events.push({ device, kind, stage, ...this.#round(step.round), startMs, endMs });
      return;
    }
    const layers = 'layers' in step && step.layers !== undefined ? { layers: step.layers } : {};
    const which = 'microBatch' in step ? this.#microBatch(step.microBatch) : {};
    this.#events.push({ device, kind, stage, ...which, ...layers, startMs, endMs });
  }

  /** A micro-batch of all rounds as one of its round. */
  #microBatch(number: number): Pick<ProgramEvent, 'round' | 'microBatch'> {
    const { microBatchCount, roundCount } = this.#compiled;
    if (roundCount === 1) return { microBatch: number };
    const perRound = microBatchCount / roundCount;
    return { round: Math.floor(number / perRound), microBatch: number % perRound };
  }

  #round(round = 0): Pick<ProgramEvent, 'round'> {
    return this.#compiled.roundCount === 1 ? {} : { round };
  }

  /** A group's AllReduce, for one of its members. */
  reduction(index: number, number: number, startMs: number, endMs: number): void {
    const { device, stage } = (this.#compiled.runners[index] as Runner).program;
    const { row, layers, round } = defined(this.#compiled.groups[number], 'a group');
    const overlapped = row >= 0 ? { ...this.#round(round), layers } : {};
    this.#events.push({ device, kind: 'all-reduce', stage, ...overlapped, startMs, endMs });
  }

  /** A piece that leaves on a channel. */
  transfer(channel: number, piece: number, startMs: number, endMs: number): void {
    const { flows, channels, microBatchCount } = this.#compiled;
    const microBatch = piece % microBatchCount;
    const { senderStage, payload, bytes } = flows[(piece - microBatch) / microBatchCount] as Flow;
    const { from, to } = defined(channels[channel], 'a channel');
    const { devices } = this.#ground.cluster;
    this.#events.push({
      device: defined(devices[from], 'a sender').name,
      kind: 'transfer',
      stage: senderStage,
      ...this.#microBatch(microBatch),
      payload,
      to: defined(devices[to], 'a receiver').name,
      bytes,
      startMs,
      endMs,
    });
  }
}
