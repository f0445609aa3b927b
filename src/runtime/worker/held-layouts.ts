// The layouts in which a device has a part: the one that runs, and former ones for as long as others may need the state
// that they hold.

import type { Failure } from '../../failure.ts';
import { ownCopy } from '../device/samples.ts';
import type { StateEntry } from '../device/stage-state.ts';
import { partOf, type StatePart } from '../protocol/messages.ts';
import type { Catalog } from './catalog.ts';
import type { Layout } from './layout.ts';
import { EarlyEntries, guarded } from './layout-session.ts';
import type { Replicas } from './replicas.ts';

/** How much of the state that travels may be out of the engine before the links have taken it. */
const aheadBytes = 2 ** 26;

/** A selection of the state that a device holds. */
interface Wanted {
  /** Names of parameters and buffers; optimizer state goes with its parameter. */
  readonly names: ReadonlySet<string>;
  /** Rounds committed. */
  readonly round: number;
  /** Default: both. */
  readonly part?: StatePart;
}

/** The layouts, and the copies of other devices' stages. */
export class Layouts {
  /** The layout that runs. */
  current: Layout | undefined;
  readonly #catalog: Catalog;
  readonly #replicas: Replicas;
  #former: readonly Layout[] = [];

  constructor(catalog: Catalog, replicas: Replicas) {
    this.#catalog = catalog;
    this.#replicas = replicas;
  }

  #all(): readonly Layout[] {
    return this.current === undefined ? this.#former : [...this.#former, this.current];
  }

  /**
   * All layouts return to version `round` and none runs. Layouts without that version, and copies of other rounds, are
   * dropped.
   */
  returnTo(round: number): void {
    this.#replicas.keepOnly(round);
    this.#former = this.#all().filter((layout) => layout.returnTo(round) || dispose(layout));
    this.current = undefined;
  }

  /** Takes out a former layout whose stage has this key, if there is one: the stage becomes part of the new layout. */
  takeLike(key: string): Layout | undefined {
    const found = this.#former.find((layout) => layout.key === key && layout.isComplete);
    this.#former = this.#former.filter((layout) => layout !== found);
    return found;
  }

  /** Drops versions and copies below `before`, and former layouts that have no others. */
  release(before: number): void {
    this.current?.release(before);
    this.#former = this.#former.filter((layout) => layout.release(before) || dispose(layout));
    this.#replicas.dropBefore(before);
  }

  /**
   * What this device holds of the wanted state, each tensor once, until `failure`. The engine is asked for the first of
   * it at once.
   */
  held(wanted: Wanted, failure: Failure): EarlyEntries {
    return new EarlyEntries(this.#held(wanted, failure));
  }

  async *#held({ names, round, part }: Wanted, failure: Failure): AsyncGenerator<StateEntry> {
    const wanted = new Set(names);
    const sources = this.#all().filter((layout) => layout.isComplete && layout.stage.versions.includes(round));
    for (const { stage, program } of sources) {
      const own = new Set([...this.#catalog.names(program.layers)].filter((name) => wanted.has(name)));
      if (own.size === 0) continue;
      yield* guarded(stage.state({ round, names: own, part, aheadBytes }), failure);
      for (const name of own) wanted.delete(name);
    }
    // The engine takes the buffers that it is given; the copy must stay.
    for (const entry of this.#replicas.entries(round, wanted)) {
      if (part === undefined || partOf(entry.role) === part) yield { ...entry, value: ownCopy(entry.value) };
    }
  }

  dispose(): void {
    for (const layout of this.#all()) layout.stage.dispose();
    this.#former = [];
    this.current = undefined;
  }
}

function dispose(layout: Layout): false {
  layout.stage.dispose();
  return false;
}
