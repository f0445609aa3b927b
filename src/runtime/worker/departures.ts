// The state that a device gives away for a new layout; arrivals.ts is the other end. All of it is asked of the engine
// at once, before a stage is compiled, for which others need not wait. Weights travel before pipeline data, the
// optimizer's state behind it.

import type { Move } from '../../planner/replan/moves.ts';
import type { Frame, Priority } from '../../transport/link.ts';
import type { Failure } from '../protocol/failure.ts';
import { message, type StatePart, stateParts } from '../protocol/messages.ts';
import type { Model } from './model.ts';
import type { EarlyEntries } from './session.ts';

/** Until the weights are there nobody computes; what the first update needs makes way for the round before it. */
const priorities: Readonly<Record<StatePart, Priority>> = { weights: 'pipeline', optimizer: 'bulk' };

/** A part of the state of layers on its way to another device. */
interface Leaving extends Pick<Move, 'layers' | 'to'> {
  readonly entries: EarlyEntries;
}

export interface DeparturesOptions {
  /** This device. */
  readonly name: string;
  /** All that travel to the new layout's devices. */
  readonly moves: readonly Move[];
  /** Rounds committed. */
  readonly round: number;
  readonly failure: Failure;
}

/** The state on its way from a device. */
export class Departures {
  readonly #round: number;
  readonly #leaving: Readonly<Record<StatePart, readonly Leaving[]>>;

  constructor({ layouts, catalog }: Model, { name, moves, round, failure }: DeparturesOptions) {
    this.#round = round;
    const leaving = (part: StatePart): readonly Leaving[] =>
      moves
        .filter(({ from }) => from === name)
        .map(({ layers, to }) => ({
          layers,
          to,
          entries: layouts.held({ names: catalog.names(layers), round, part }, failure),
        }));
    this.#leaving = Object.fromEntries(stateParts.map((part) => [part, leaving(part)])) as Record<
      StatePart,
      readonly Leaving[]
    >;
  }

  /** Sends a part of all layers to their new owners, all at once. */
  async send(
    part: StatePart,
    epoch: number,
    send: (to: string, frame: Frame, priority: Priority) => Promise<void>,
  ): Promise<void> {
    const at = { epoch, round: this.#round };
    await Promise.all(
      this.#leaving[part].map(async ({ layers, to, entries }) => {
        let count = 0;
        for await (const { role, name, value } of entries) {
          await send(to, message('state', { role, name }, [value], at), priorities[part]);
          count++;
        }
        await send(to, message('state-end', { layers, part, count }, [], at), priorities[part]);
      }),
    );
  }

  /** What was not sent is not wanted any more. */
  close(): void {
    for (const { entries } of Object.values(this.#leaving).flat()) entries.close();
  }
}
