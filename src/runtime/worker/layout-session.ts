// What belongs to the layout in force: everything that waits for it ends when another layout comes, or the run ends.

import { Failure } from '../../failure.ts';
import type { DeviceProgram } from '../../schedule/program.ts';
import { Mailbox } from '../device/mailbox.ts';
import type { StateEntry } from '../device/stage-state.ts';
import type { Arrivals } from './arrivals.ts';
import type { Topology } from './layout.ts';

/** Ends what waited for a layout: a new one has come in its place. */
export class Superseded extends Error {}

/** The layout in force, from its announcement. */
export interface LayoutSession {
  /** Ends all that waits when another layout comes, or the run ends. */
  readonly failure: Failure;
  readonly epoch: number;
  /** This device's part; undefined if it has none. */
  readonly program: DeviceProgram | undefined;
  readonly topology: Topology | undefined;
  readonly arrivals: Arrivals | undefined;
  /** Peers whose links were lost, and reported. */
  readonly lostPeers: Set<string>;
  /** Peers that this device exchanges anything with. */
  readonly partners: ReadonlySet<string>;
  /** Pipeline data for this device's part; without one, none may wait. Replaced when the part is established. */
  mailbox: Mailbox;
}

/** The session of an epoch without a layout. */
export function sessionOf(epoch: number): LayoutSession {
  return {
    failure: new Failure(),
    epoch,
    program: undefined,
    topology: undefined,
    arrivals: undefined,
    lostPeers: new Set(),
    partners: new Set(),
    mailbox: new Mailbox(0),
  };
}

/** Entries until `failure`; the generator is closed in any case. */
export async function* guarded(entries: AsyncGenerator<StateEntry>, failure: Failure): AsyncGenerator<StateEntry> {
  try {
    for (;;) {
      const next = await failure.guard(entries.next());
      if (next.done === true) return;
      yield next.value;
    }
  } finally {
    void entries.return(undefined);
  }
}

/**
 * Entries of which the first, and what is read ahead with it, is requested now: an engine that compiles meanwhile
 * answers only afterwards.
 */
export class EarlyEntries {
  readonly #entries: AsyncGenerator<StateEntry>;
  readonly #first: Promise<IteratorResult<StateEntry, void>>;

  constructor(entries: AsyncGenerator<StateEntry>) {
    this.#entries = entries;
    this.#first = entries.next();
    this.#first.catch(() => {}); // whoever takes it sees it
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<StateEntry> {
    const first = await this.#first;
    if (first.done === true) return;
    yield first.value;
    yield* this.#entries;
  }

  /** Releases what nobody has taken. To be called in any case. */
  close(): void {
    void this.#entries.return(undefined);
  }
}
