// The state that a new layout's stage waits for: layers from peers, and from the coordinator what nobody holds. Each
// piece is checked against what was announced and given to the stage, which may be compiled after the first of them has
// come. Weights come first: with them a round can begin. The optimizer's state is needed only for the round's update.

import { ProtocolError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { Move } from '../../planner/replan/moves.ts';
import type { StateEntry } from '../device/stage-state.ts';
import { partOf, type StatePart, type StateRole, stateParts } from '../protocol/messages.ts';
import { type Catalog, entryKey, type LayerRange } from './catalog.ts';

/** A part of the state of the layers of a move. */
interface Expected {
  readonly move: Move;
  readonly part: StatePart;
  count: number;
  isComplete: boolean;
}

export interface ArrivalsOptions {
  readonly catalog: Catalog;
  /** All that travels to this device; moves from nobody are the coordinator's. */
  readonly moves: readonly Move[];
  /** Pieces that the coordinator sends. */
  readonly stateCount: number;
}

/** The state that is to come to a device. */
export class Arrivals {
  /** Resolves when a round can begin: when all weights have come, and all that the coordinator sends. */
  readonly weights: Promise<void>;
  /** Resolves when everything has come. */
  readonly complete: Promise<void>;
  readonly #catalog: Catalog;
  readonly #expected: readonly Expected[];
  readonly #seen = new Set<string>();
  readonly #waiting: StateEntry[] = [];
  #fromCoordinator: number;
  #load: ((entry: StateEntry) => void) | undefined;
  readonly #resolve: Record<StatePart, () => void> = { weights: () => {}, optimizer: () => {} };

  constructor({ catalog, moves, stateCount }: ArrivalsOptions) {
    this.#catalog = catalog;
    this.#expected = moves
      .filter(({ from }) => from !== null)
      .flatMap((move) => stateParts.map((part) => ({ move, part, count: 0, isComplete: false })));
    this.#fromCoordinator = stateCount;
    this.weights = new Promise((resolve) => {
      this.#resolve.weights = resolve;
    });
    this.complete = new Promise((resolve) => {
      this.#resolve.optimizer = resolve;
    });
    this.#check();
  }

  /**
   * A piece has come from a peer, or (null) from the coordinator. Throws ProtocolError if it was not announced.
   */
  add(
    from: string | null,
    { role, name }: { readonly role: StateRole; readonly name: string },
    value: Tensor | undefined,
  ): void {
    const sender = from ?? 'The coordinator';
    const layer = this.#catalog.layerOf(role, name, value, sender);
    const key = entryKey({ role, name });
    const isOf = ({ move, part }: Expected): boolean =>
      move.from === from && part === partOf(role) && isIn(layer, move.layers);
    const expected = from === null ? undefined : this.#expected.find(isOf);
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

  /** A peer reports that it has sent one part of these layers. Throws ProtocolError if that is not what has come. */
  end(
    from: string,
    { layers, part, count }: { readonly layers: LayerRange; readonly part: StatePart; readonly count: number },
  ): void {
    const isEnded = ({ move, ...expected }: Expected): boolean =>
      move.from === from && expected.part === part && move.layers[0] === layers[0] && move.layers[1] === layers[1];
    const expected = this.#expected.find(isEnded);
    const found = expected?.count ?? 0;
    if (expected === undefined || expected.isComplete || found !== count)
      throw new ProtocolError(
        `${from} sent ${found} pieces (${part}) of layers ${layers[0]} to ${layers[1]} and said ${count}.`,
      );
    expected.isComplete = true;
    this.#check();
  }

  /** Gives `load` all pieces that have come, and later ones as they come. */
  deliver(load: (entry: StateEntry) => void): void {
    this.#load = load;
    for (const entry of this.#waiting.splice(0)) load(entry);
    this.#check();
  }

  #check(): void {
    if (this.#fromCoordinator > 0 || this.#waiting.length > 0) return;
    const missing = this.#expected.filter(({ isComplete }) => !isComplete);
    if (missing.every(({ part }) => part !== 'weights')) this.#resolve.weights();
    if (missing.length === 0) this.#resolve.optimizer();
  }
}

function isIn(layer: number, [first, end]: LayerRange): boolean {
  return layer >= first && layer < end;
}
