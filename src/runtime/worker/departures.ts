// The state that a device sends to others for a new layout; arrivals.ts is the receiving end. All of it is requested
// from the engine at once, before the device compiles its own stage: others need not wait for that. Weights have the
// priority of pipeline data, the optimizer's state goes behind it.

import type { Failure } from '../../failure.ts';
import type { Delivery, Move } from '../../planner/replan/moves.ts';
import type { Frame, Priority } from '../../transport/link.ts';
import { message, type StatePart, stateParts } from '../protocol/messages.ts';
import type { Catalog } from './catalog.ts';
import type { EarlyEntries } from './layout-session.ts';
import type { Model } from './model.ts';

/** Nobody computes before the weights are there; the optimizer's state is needed later, by the first update. */
const priorities: Readonly<Record<StatePart, Priority>> = { weights: 'pipeline', optimizer: 'bulk' };

/** A part of the state of layers on its way to another device. */
interface Leaving extends Pick<Move, 'layers' | 'to'> {
  readonly entries: EarlyEntries;
}

export interface DeparturesOptions {
  /** This device. */
  readonly name: string;
  /** All state that travels in this change. */
  readonly moves: readonly Move[];
  /** Layers whose frozen weights the coordinator sends. */
  readonly frozen: readonly Delivery[];
  /** Rounds committed. */
  readonly round: number;
  readonly failure: Failure;
}

/** The state that is to leave a device. */
export class Departures {
  readonly #round: number;
  readonly #leaving: Readonly<Record<StatePart, readonly Leaving[]>>;

  constructor({ layouts, catalog }: Model, { name, moves, frozen, round, failure }: DeparturesOptions) {
    this.#round = round;
    const leaving = (part: StatePart): readonly Leaving[] =>
      moves
        .filter(({ from }) => from === name)
        .map(({ layers, to }) => {
          const names = new Set(catalog.names(layers));
          for (const name of frozenFor(to, frozen, catalog)) names.delete(name);
          return { layers, to, entries: layouts.held({ names, round, part }, failure) };
        });
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

  /** Gives up what has not been sent. */
  close(): void {
    for (const { entries } of Object.values(this.#leaving).flat()) entries.close();
  }
}

/** The frozen weights that the coordinator sends to a device. */
export function frozenFor(device: string, frozen: readonly Delivery[], catalog: Catalog): readonly string[] {
  return frozen.filter(({ to }) => to === device).flatMap(({ layers }) => [...catalog.frozen(layers)]);
}
