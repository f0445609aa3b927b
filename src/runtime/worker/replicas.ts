// Copies of other devices' stages (Asteroid §3.4, topology-driven replication), kept outside the engine until newer
// ones are complete everywhere. An incoming copy does not touch the one before. Frozen weights are in none.

import { ProtocolError } from '../../errors.ts';
import type { Tensor } from '../../graph/tensor.ts';
import type { StateEntry } from '../device/stage-state.ts';
import type { StateRole } from '../protocol/messages.ts';
import { optimizedParameter } from '../protocol/run-state.ts';
import { type Catalog, entryKey, type LayerRange } from './catalog.ts';

type Copy = Map<string, StateEntry>;

/** The copies on one device, by round. */
export class Replicas {
  readonly #catalog: Catalog;
  readonly #complete = new Map<number, Copy>();
  /** By sender. */
  readonly #incoming = new Map<string, { readonly round: number; readonly copy: Copy }>();

  constructor(catalog: Catalog) {
    this.#catalog = catalog;
  }

  /**
   * A piece of the copy of layers [first, end) after `round` rounds. Throws ProtocolError if it is of other layers,
   * frozen, or came before.
   */
  add(
    from: string,
    { round, layers }: { round: number; layers: LayerRange },
    entry: { role: StateRole; name: string },
    value?: Tensor,
  ): void {
    const layer = this.#catalog.layerOf(entry.role, entry.name, value, from);
    const known = this.#incoming.get(from);
    const { copy } = known?.round === round ? known : { copy: new Map<string, StateEntry>() };
    this.#incoming.set(from, { round, copy });
    const key = entryKey(entry);
    const isChanging = this.#catalog.changing([layer, layer + 1]).has(ownerName(entry));
    if (value === undefined || layer < layers[0] || layer >= layers[1] || !isChanging || copy.has(key))
      throw new ProtocolError(
        `${from} sent the ${entry.role} ${entry.name} for a copy of layers ${layers[0]} to ${layers[1]}.`,
      );
    copy.set(key, { ...entry, value });
  }

  /**
   * A copy has been sent, except what has not changed since round `base` (−1: all was sent). Throws ProtocolError if
   * something is missing.
   */
  end(
    from: string,
    { round, layers }: { round: number; layers: LayerRange },
    { count, base }: { count: number; base: number },
  ): void {
    const known = this.#incoming.get(from);
    const incoming = known?.round === round ? known.copy : new Map<string, StateEntry>();
    this.#incoming.delete(from);
    if (incoming.size !== count)
      throw new ProtocolError(`${from} sent ${incoming.size} pieces of a copy and said ${count}.`);
    const names = this.#catalog.changing(layers);
    const former = base < 0 ? new Map<string, StateEntry>() : this.#complete.get(base);
    for (const [key, entry] of former ?? [])
      if (names.has(ownerName(entry)) && !incoming.has(key)) incoming.set(key, entry);
    const found = new Set([...incoming.values()].filter(({ role }) => role !== 'optimizer').map(({ name }) => name));
    const missing = [...names].filter((name) => !found.has(name));
    if (missing.length > 0) throw new ProtocolError(`${from} sent a copy without ${missing.slice(0, 3).join(', ')}.`);
    const whole = this.#complete.get(round) ?? new Map<string, StateEntry>();
    for (const [key, entry] of incoming) whole.set(key, entry);
    this.#complete.set(round, whole);
  }

  /** The state of these parameters and buffers in the copies after `round` rounds. */
  entries(round: number, names: ReadonlySet<string>): readonly StateEntry[] {
    return [...(this.#complete.get(round)?.values() ?? [])].filter((entry) => names.has(ownerName(entry)));
  }

  /** Gives up incoming copies. */
  interrupt(): void {
    this.#incoming.clear();
  }

  /** Keeps only copies after `from` rounds and more. */
  dropBefore(from: number): void {
    for (const round of [...this.#complete.keys()]) if (round < from) this.#complete.delete(round);
  }

  /** Keeps only copies after `round` rounds. */
  keepOnly(round: number): void {
    for (const other of [...this.#complete.keys()]) if (other !== round) this.#complete.delete(other);
  }

  /** The rounds of complete copies. */
  get rounds(): readonly number[] {
    return [...this.#complete.keys()];
  }
}

function ownerName({ role, name }: Pick<StateEntry, 'role' | 'name'>): string {
  return role === 'optimizer' ? optimizedParameter(name) : name;
}
