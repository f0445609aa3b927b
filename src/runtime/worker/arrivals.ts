// The state that a new layout's stage waits for: layers from peers, and from the coordinator what nobody holds. Each piece is checked against what was
// announced and given to the stage, which may be compiled after the first of them has come.

import { ProtocolError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { Move } from '../../planner/replan/moves.ts';
import type { StateEntry } from '../device/stage-state.ts';
import type { StateRole } from '../messages.ts';
import { type Catalog, entryKey, type LayerRange } from './catalog.ts';

interface Expected {
  readonly move: Move;
  count: number;
  isComplete: boolean;
}

export interface ArrivalsOptions {
  readonly catalog: Catalog;
  /** All that travel to this device; those from nobody are the coordinator's. */
  readonly moves: readonly Move[];
  /** Pieces that the coordinator sends. */
  readonly stateCount: number;
}

/** The state on its way to a device. */
export class Arrivals {
  /** Resolves when everything has come. */
  readonly complete: Promise<void>;
  readonly #catalog: Catalog;
  readonly #expected: readonly Expected[];
  readonly #seen = new Set<string>();
  readonly #waiting: StateEntry[] = [];
  #fromCoordinator: number;
  #load: ((entry: StateEntry) => void) | undefined;
  #resolve: () => void = () => {};

  constructor({ catalog, moves, stateCount }: ArrivalsOptions) {
    this.#catalog = catalog;
    this.#expected = moves.filter(({ from }) => from !== null).map((move) => ({ move, count: 0, isComplete: false }));
    this.#fromCoordinator = stateCount;
    this.complete = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    this.#check();
  }

  /** A piece has come from a peer, or (null) from the coordinator. Throws ProtocolError for one that was not announced. */
  add(from: string | null, { role, name }: { readonly role: StateRole; readonly name: string }, value: Tensor | undefined): void {
    const sender = from ?? 'The coordinator';
    const layer = this.#catalog.layerOf(role, name, value, sender);
    const key = entryKey({ role, name });
    const expected = from === null ? undefined : this.#expected.find(({ move }) => move.from === from && isIn(layer, move.layers));
    const isExpected = from === null ? this.#fromCoordinator > 0 : expected !== undefined && !expected.isComplete;
    if (value === undefined || !isExpected || this.#seen.has(key))
      throw new ProtocolError(`${sender} sent the ${role} ${name}, which nothing waits for.`);
    this.#seen.add(key);
    if (expected === undefined) this.#fromCoordinator--;
    else expected.count++;
    const entry = { role, name, value };
    if (this.#load === undefined) this.#waiting.push(entry);
    else this.#load(entry);
    this.#check();
  }

  /** A peer has sent all of these layers. Throws ProtocolError where that is not so. */
  end(from: string, layers: LayerRange, count: number): void {
    const expected = this.#expected.find(({ move }) => move.from === from && move.layers[0] === layers[0] && move.layers[1] === layers[1]);
    if (expected === undefined || expected.isComplete || expected.count !== count)
      throw new ProtocolError(`${from} sent ${expected?.count ?? 0} pieces of layers ${layers[0]} to ${layers[1]} and said ${count}.`);
    expected.isComplete = true;
    this.#check();
  }

  /** Where the pieces go, those that have come already and all later ones. */
  deliver(load: (entry: StateEntry) => void): void {
    this.#load = load;
    for (const entry of this.#waiting.splice(0)) load(entry);
    this.#check();
  }

  /** Devices that have not sent everything yet. */
  missingFrom(): readonly string[] {
    return this.#expected.flatMap(({ move, isComplete }) => (isComplete || move.from === null ? [] : [move.from]));
  }

  #check(): void {
    if (this.#fromCoordinator === 0 && this.#waiting.length === 0 && this.#expected.every(({ isComplete }) => isComplete)) this.#resolve();
  }
}

function isIn(layer: number, [first, end]: LayerRange): boolean {
  return layer >= first && layer < end;
}
