// A stage's weights, running statistics and optimizer state in the engine: outside under the names of the model, inside as the graphs take them,
// small tensors in packs. What is loaded waits here as it came and is packed when the graphs first need it.

import { assert } from '../../assert.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { allocate, type Tensor, wrap } from '../../graph/tensor.ts';
import type { StateRole } from '../messages.ts';
import { memberValue, type Pack, type PackMember } from './packs.ts';
import { owned } from './samples.ts';

/** One named tensor of a stage's state. */
export interface StateEntry {
  readonly role: StateRole;
  readonly name: string;
  readonly value: Tensor;
}

/** A pack in a role; optimizer state has one for each kind, such as momentum. */
export interface StatePack {
  readonly role: StateRole;
  readonly pack: Pack;
}

/** A member that was loaded, not yet packed. */
type Loose = Map<string, Tensor>;

/** The state. Names are the model's, and those of the packs. */
export class StageState {
  readonly #engine: Engine;
  readonly #values: Readonly<Record<StateRole, Map<string, Value>>> = { parameter: new Map(), buffer: new Map(), optimizer: new Map() };
  readonly #packs: readonly StatePack[];
  readonly #places = new Map<string, { readonly statePack: StatePack; readonly member: PackMember }>();
  readonly #loose = new Map<StatePack, Loose>();

  constructor(engine: Engine, packs: readonly StatePack[]) {
    this.#engine = engine;
    this.#packs = packs;
    for (const statePack of packs) {
      for (const member of statePack.pack.members) this.#places.set(placeKey(statePack.role, member.name), { statePack, member });
    }
  }

  /** Puts one tensor in place, or replaces it. The engine takes the tensor's buffer where it holds nothing else. */
  load({ role, name, value }: StateEntry): void {
    const place = this.#places.get(placeKey(role, name));
    if (place === undefined) return this.set(role, name, this.#engine.upload(owned(value)));
    const loose = this.#loose.get(place.statePack) ?? new Map<string, Tensor>();
    loose.set(name, value);
    this.#loose.set(place.statePack, loose);
    if (loose.size === place.statePack.pack.members.length) this.#pack(place.statePack, loose);
  }

  /** True for a tensor that was loaded or computed. */
  has(role: StateRole, name: string): boolean {
    const place = this.#places.get(placeKey(role, name));
    if (place === undefined) return this.#values[role].has(name);
    return this.#values[role].has(place.statePack.pack.name) || (this.#loose.get(place.statePack)?.has(name) ?? false);
  }

  /** The value as the graphs take it. */
  get(role: StateRole, name: string): Value | undefined {
    this.settle();
    return this.#values[role].get(name);
  }

  /** Puts a value of the engine in place of the old one, which is released. */
  set(role: StateRole, name: string, value: Value): void {
    const old = this.exchange(role, name, value);
    if (old !== undefined) this.#engine.release(old);
  }

  /** Puts a value of the engine in place of the old one, which the caller gets. */
  exchange(role: StateRole, name: string, value: Value): Value | undefined {
    const old = this.#values[role].get(name);
    this.#values[role].set(name, value);
    return old;
  }

  /** Parameters and buffers as the graphs take them. */
  values(): Record<string, Value> {
    this.settle();
    return { ...Object.fromEntries(this.#values.parameter), ...Object.fromEntries(this.#values.buffer) };
  }

  /** Everything under the model's names, copied out one by one. */
  async *entries(): AsyncGenerator<StateEntry> {
    this.settle();
    for (const role of ['parameter', 'buffer', 'optimizer'] as const) {
      for (const [name, value] of [...this.#values[role]]) {
        const content = await this.#engine.download(value);
        const packed = this.#packs.find((statePack) => statePack.role === role && statePack.pack.name === name);
        if (packed === undefined) yield { role, name, value: content };
        else for (const member of packed.pack.members) yield { role, name: member.name, value: memberValue(packed.pack, member, content) };
      }
    }
  }

  /** Packs what was loaded. A pack is loaded whole, but for optimizer state, of which what nobody loads is zeros. */
  settle(): void {
    for (const [statePack, loose] of this.#loose) {
      const { role, pack } = statePack;
      assert(role === 'optimizer', `only ${loose.size} of ${pack.members.length} tensors of ${pack.name}`);
      this.#pack(statePack, loose);
    }
  }

  #pack(statePack: StatePack, loose: Loose): void {
    const { role, pack } = statePack;
    const data = allocate('float32', pack.count) as Float32Array;
    for (const { name, offset } of pack.members) {
      const value = loose.get(name);
      if (value !== undefined) data.set(value.data as Float32Array, offset);
    }
    this.#loose.delete(statePack);
    this.set(role, pack.name, this.#engine.upload(wrap('float32', [pack.count], data)));
  }
}

function placeKey(role: StateRole, name: string): string {
  return `${role}/${name}`;
}
