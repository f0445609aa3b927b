// A stage's weights, running statistics and optimizer state in the engine: outside under the names of the model, inside
// as the graphs take them, small tensors in packs. What is loaded waits here as it came and is packed when the graphs
// first need it.
//
// STREAMS: forward passes of later rounds replace running statistics before a round's update; so statistics are noted
// after each round, and a version has those that belong to it.
//
// VERSIONS: an update makes new values and leaves the old ones alone, so a former state is kept by keeping its handles.
// Version n is the state after n committed rounds. Values are counted: one is released when neither the live state, nor
// a version, nor a micro-batch in flight has it. Optimizer state may be loaded after a version has been kept, up to the
// first update: it is that version's, too.

import { assert, defined } from '../../assert.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { allocate, byteLength, type Tensor, wrap } from '../../graph/tensor.ts';
import { partOf, type StatePart, type StateRole } from '../protocol/messages.ts';
import { optimizedParameter } from '../protocol/run-state.ts';
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

/** Which part of a state. */
export interface EntryOptions {
  readonly round?: number;
  readonly since?: number;
  /** Names of parameters and buffers; optimizer state goes with its parameter. */
  readonly names?: ReadonlySet<string>;
  /** Default: both. */
  readonly part?: StatePart | undefined;
  /**
   * Bytes that are asked of the engine before they are wanted, at once where nothing has been taken yet. Default 0: one
   * tensor after the other.
   */
  readonly aheadBytes?: number;
}

/** A value of which entries are wanted: itself, or members of the pack that it is. */
interface WantedValue {
  readonly role: StateRole;
  readonly name: string;
  readonly value: Value;
  readonly packed: StatePack | undefined;
  readonly members: readonly PackMember[];
}

/** A member that was loaded, not yet packed. */
type Loose = Map<string, Tensor>;

type RoleValues = Readonly<Record<StateRole, Map<string, Value>>>;

const roles = ['parameter', 'buffer', 'optimizer'] as const;

/** The state. Names are the model's, and those of the packs. */
export class StageState {
  readonly #engine: Engine;
  /** The live state. */
  #values: RoleValues = { parameter: new Map(), buffer: new Map(), optimizer: new Map() };
  readonly #versions = new Map<number, RoleValues>();
  /** In a stream: the buffers after the forward passes of a round, by round, until its update. */
  #buffersAfter: Map<number, Map<string, Value>> | undefined;
  /** By handle: how many have the value. */
  readonly #holderCounts = new Map<number, number>();
  readonly #packs: readonly StatePack[];
  readonly #places = new Map<string, { readonly statePack: StatePack; readonly member: PackMember }>();
  readonly #loose = new Map<StatePack, Loose>();

  constructor(engine: Engine, packs: readonly StatePack[]) {
    this.#engine = engine;
    this.#packs = packs;
    for (const statePack of packs) {
      for (const member of statePack.pack.members)
        this.#places.set(placeKey(statePack.role, member.name), { statePack, member });
    }
  }

  /** Puts one tensor in place, or replaces it. The engine takes the tensor's buffer where it holds nothing else. */
  load({ role, name, value }: StateEntry): void {
    const place = this.#places.get(placeKey(role, name));
    if (place === undefined) return this.#loaded(role, name, this.#engine.upload(owned(value)));
    const loose = this.#loose.get(place.statePack) ?? new Map<string, Tensor>();
    loose.set(name, value);
    this.#loose.set(place.statePack, loose);
    if (loose.size === place.statePack.pack.members.length) this.#pack(place.statePack, loose);
  }

  /** A loaded value is live, and of the versions that were kept before it came. */
  #loaded(role: StateRole, name: string, value: Value): void {
    this.set(role, name, value);
    for (const { [role]: values } of this.#versions.values()) {
      if (values.has(name)) continue;
      this.retain(value);
      values.set(name, value);
    }
  }

  /** True for a tensor that was loaded or computed. */
  has(role: StateRole, name: string): boolean {
    const place = this.#places.get(placeKey(role, name));
    if (place === undefined) return this.#values[role].has(name);
    return this.#values[role].has(place.statePack.pack.name) || (this.#loose.get(place.statePack)?.has(name) ?? false);
  }

  /** The value as the graphs take it. */
  get(role: StateRole, name: string): Value | undefined {
    this.#settle(partOf(role));
    return this.#values[role].get(name);
  }

  /** Puts a value of the engine in place of the old one. */
  set(role: StateRole, name: string, value: Value): void {
    const old = this.#values[role].get(name);
    this.retain(value);
    this.#values[role].set(name, value);
    if (old !== undefined) this.release(old);
  }

  /** One more has the value. */
  retain(value: Value): void {
    this.#holderCounts.set(value.handle, (this.#holderCounts.get(value.handle) ?? 0) + 1);
  }

  /** One fewer has the value; with the last it goes. A value that never was of the state goes at once. */
  release(value: Value): void {
    const count = this.#holderCounts.get(value.handle) ?? 1;
    if (count > 1) {
      this.#holderCounts.set(value.handle, count - 1);
      return;
    }
    this.#holderCounts.delete(value.handle);
    this.#engine.release(value);
  }

  /** The rounds of the versions that are kept, ascending. */
  get versions(): readonly number[] {
    return [...this.#versions.keys()].sort((a, b) => a - b);
  }

  /** Keeps the live state as version `round`, in place of what bore that number. */
  keep(round: number): void {
    this.#settle('weights');
    const noted = this.#buffersAfter?.get(round - 1);
    const copy = copyOf(noted === undefined ? this.#values : { ...this.#values, buffer: noted });
    for (const value of valuesOf(copy)) this.retain(value);
    this.drop(round);
    this.#versions.set(round, copy);
    for (const earlier of [...(this.#buffersAfter?.keys() ?? [])]) if (earlier < round) this.#forgetBuffers(earlier);
  }

  /** A stream begins: what its rounds do to buffers is noted from here on. */
  beginStream(): void {
    this.#forgetAllBuffers();
    this.#buffersAfter = new Map();
  }

  /** In a stream: the live buffers are those after the forward passes of a round so far. */
  noteBuffers(round: number): void {
    if (this.#buffersAfter === undefined) return;
    for (const value of this.#values.buffer.values()) this.retain(value);
    this.#forgetBuffers(round);
    this.#buffersAfter.set(round, new Map(this.#values.buffer));
  }

  /** A buffer after the forward passes of a round: in a stream as it was then, else as it is. */
  bufferAfter(round: number, name: string): Value | undefined {
    return this.#buffersAfter?.get(round)?.get(name) ?? this.get('buffer', name);
  }

  /** Puts a value in place of a buffer after the forward passes of a round; what is live in a stream stays. */
  setBufferAfter(round: number, name: string, value: Value): void {
    if (this.#buffersAfter === undefined) return this.set('buffer', name, value);
    if (!this.#buffersAfter.has(round)) this.noteBuffers(round);
    const noted = defined(this.#buffersAfter.get(round), 'the buffers');
    const old = noted.get(name);
    this.retain(value);
    noted.set(name, value);
    if (old !== undefined) this.release(old);
  }

  #forgetBuffers(round: number): void {
    const noted = this.#buffersAfter?.get(round);
    this.#buffersAfter?.delete(round);
    for (const value of noted?.values() ?? []) this.release(value);
  }

  #forgetAllBuffers(): void {
    for (const round of [...(this.#buffersAfter?.keys() ?? [])]) this.#forgetBuffers(round);
  }

  /** Lets go of a version, if there is one. */
  drop(round: number): void {
    const version = this.#versions.get(round);
    this.#versions.delete(round);
    if (version !== undefined) for (const value of valuesOf(version)) this.release(value);
  }

  /** The live state is version `round` again, which stays; later versions go. */
  returnTo(round: number): void {
    const version = this.#version(round);
    this.#forgetAllBuffers();
    for (const later of this.versions) if (later > round) this.drop(later);
    const live = this.#values;
    this.#values = copyOf(version);
    for (const value of valuesOf(version)) this.retain(value);
    for (const value of valuesOf(live)) this.release(value);
  }

  #version(round: number): RoleValues {
    return defined(this.#versions.get(round), `version ${round}`);
  }

  /** Lets go of everything. */
  dispose(): void {
    this.#forgetAllBuffers();
    for (const round of this.versions) this.drop(round);
    for (const value of valuesOf(this.#values)) this.release(value);
    this.#values = { parameter: new Map(), buffer: new Map(), optimizer: new Map() };
    this.#loose.clear();
  }

  /** Parameters as the graphs take them. */
  parameters(): Record<string, Value> {
    this.#settle('weights');
    return Object.fromEntries(this.#values.parameter);
  }

  /** Buffers as the graphs take them. */
  buffers(): Record<string, Value> {
    this.#settle('weights');
    return Object.fromEntries(this.#values.buffer);
  }

  /** Parameters and buffers as the graphs take them. */
  values(): Record<string, Value> {
    this.#settle('weights');
    return { ...Object.fromEntries(this.#values.parameter), ...Object.fromEntries(this.#values.buffer) };
  }

  /**
   * Everything of version `round` (default: the live state) under the model's names, copied out one by one; of `names`
   * or a part only, if given. The version stays meanwhile. `since`: leaves out what is as it was in that version.
   */
  async *entries({ aheadBytes = 0, ...options }: EntryOptions = {}): AsyncGenerator<StateEntry> {
    this.#settle('weights');
    this.#settle('optimizer');
    const wanted = this.#wanted(options);
    for (const { value } of wanted) this.retain(value);
    try {
      const asked: Promise<Tensor>[] = [];
      let [askedCount, askedBytes] = [0, 0];
      for (const [index, { role, name, value, packed, members }] of wanted.entries()) {
        for (; askedCount < wanted.length && (askedCount === index || askedBytes < aheadBytes); askedCount++) {
          const next = defined(wanted[askedCount], 'a value').value;
          const content = this.#engine.download(next);
          content.catch(() => {}); // seen when it is its turn
          asked.push(content);
          askedBytes += byteLength(next);
        }
        const content = await defined(asked.shift(), 'a tensor');
        askedBytes -= byteLength(value);
        if (packed === undefined) yield { role, name, value: content };
        else
          for (const member of members)
            yield { role, name: member.name, value: memberValue(packed.pack, member, content) };
      }
    } finally {
      for (const { value } of wanted) this.release(value);
    }
  }

  /** The values of these entries, in their order. */
  #wanted({ round, since, names, part }: EntryOptions): readonly WantedValue[] {
    const version = round === undefined ? this.#values : this.#version(round);
    const former = since === undefined ? undefined : this.#versions.get(since);
    const isWanted = (role: StateRole, name: string): boolean =>
      names === undefined || names.has(ownerName(role, name));
    const wantedRoles = roles.filter((role) => part === undefined || partOf(role) === part);
    return wantedRoles.flatMap((role) =>
      [...version[role]].flatMap(([name, value]) => {
        if (former?.[role].get(name)?.handle === value.handle) return [];
        const packed = this.#packs.find((statePack) => statePack.role === role && statePack.pack.name === name);
        const members = packed?.pack.members.filter((member) => isWanted(role, member.name)) ?? [];
        return (packed === undefined ? isWanted(role, name) : members.length > 0)
          ? [{ role, name, value, packed, members }]
          : [];
      }),
    );
  }

  /**
   * Packs what was loaded of a part. A pack is loaded whole, but for optimizer state, of which what nobody has loaded
   * when it is needed is zeros.
   */
  #settle(part: StatePart): void {
    for (const [statePack, loose] of this.#loose) {
      const { role, pack } = statePack;
      if (partOf(role) !== part) continue;
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
    this.#loaded(role, pack.name, this.#engine.upload(wrap('float32', [pack.count], data)));
  }
}

function copyOf({ parameter, buffer, optimizer }: RoleValues): RoleValues {
  return { parameter: new Map(parameter), buffer: new Map(buffer), optimizer: new Map(optimizer) };
}

function* valuesOf(values: RoleValues): Generator<Value> {
  for (const role of roles) yield* values[role].values();
}

/** The parameter or buffer that a piece of state belongs to. */
function ownerName(role: StateRole, name: string): string {
  return role === 'optimizer' ? optimizedParameter(name) : name;
}

function placeKey(role: StateRole, name: string): string {
  return `${role}/${name}`;
}
