// The state of the run as devices send it for a checkpoint, piece by piece, and the one that was saved last: what
// devices begin with when nobody else has it.

import { assert } from '../../assert.ts';
import type { Plan } from '../../cluster/cluster.ts';
import { ProtocolError } from '../../errors.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { sameShape, type Tensor } from '../../graph/tensor.ts';
import type { StateRole, ToCoordinator } from '../protocol/messages.ts';
import { optimizedParameter, type RunState } from '../protocol/run-state.ts';
import type { RunSubject } from '../protocol/run-subject.ts';

/** State that is being collected. */
interface Snapshot {
  readonly epoch: number;
  readonly round: number;
  readonly state: { readonly [Role in StateRole]: Map<string, Tensor> };
}

/** A value of the state. */
export interface SavedEntry {
  readonly role: StateRole;
  readonly name: string;
  readonly value: Tensor;
}

/** Snapshots of a run, one after the other. */
export class Snapshots {
  readonly #subject: RunSubject;
  /** The state after `round` rounds: the last checkpoint, or the state before the first round. */
  #saved: { readonly round: number; readonly state: RunState };
  /** By device of the layout: the parameters and buffers that its snapshots hold. */
  #owned: ReadonlyMap<string, ReadonlySet<string>> = new Map();
  #current = emptySnapshot(0, -1);

  constructor(subject: RunSubject, firstRound: number) {
    this.#subject = subject;
    this.#saved = { round: firstRound, state: subject.state };
  }

  /** Another layout: who has what. */
  begin(plan: Plan): void {
    const { sequence, training } = this.#subject;
    this.#owned = new Map(
      plan.stages.flatMap(({ layers, devices }) => {
        const names = namesOf(sequence, layers, training.frozen);
        return devices.map((device) => [device, names] as const);
      }),
    );
  }

  /** A snapshot is asked for: what an earlier one has brought that was never finished is forgotten. */
  expect(epoch: number, round: number): void {
    if (this.#current.round !== round || this.#current.epoch !== epoch) this.#current = emptySnapshot(epoch, round);
  }

  /** Keeps a piece from a device that was asked for its part. Throws ProtocolError for what is none. */
  collect(device: string, { role, name }: ToCoordinator['state'], value: Tensor | undefined): void {
    const { state } = this.#subject;
    const owner = role === 'optimizer' ? optimizedParameter(name) : name;
    const known = state[role === 'buffer' ? 'buffer' : 'parameter'].get(owner);
    if (known === undefined || this.#owned.get(device)?.has(owner) !== true) throw notAsked(device, { role, name });
    if (value?.type !== 'float32' || !sameShape(value.shape, known.shape))
      throw new ProtocolError(`${device} sent the ${role} ${name} in another size than it has.`);
    // The frame's bytes are a view of a received buffer, kept alive as long as the checkpoint is.
    this.#current.state[role].set(name, value);
  }

  /** Parameters and buffers that have not come: of a device, or of all. */
  missing(device?: string): readonly string[] {
    const { parameter, buffer } = this.#current.state;
    const owned = device === undefined ? [...this.#owned.values()] : [this.#owned.get(device) ?? new Set<string>()];
    return owned.flatMap((names) => [...names]).filter((name) => !parameter.has(name) && !buffer.has(name));
  }

  /** The state that has been collected. */
  get state(): RunState {
    return this.#current.state;
  }

  /** A collected state has been handed to whoever keeps it: it is what devices begin with from now on. */
  saved(round: number, state: RunState): void {
    this.#saved = { round, state };
  }

  /** The frozen weights of layers [first, end): as they were at the start, after whatever round. */
  frozen([first, end]: readonly [number, number]): readonly SavedEntry[] {
    const { sequence, training, state } = this.#subject;
    const kept = new Set(training.frozen);
    const own = new Set(sequence.layers.slice(first, end).flatMap(({ parameters }) => parameters));
    return [...own].flatMap((name) => {
      const value = kept.has(name) ? state.parameter.get(name) : undefined;
      return value === undefined ? [] : [{ role: 'parameter' as const, name, value }];
    });
  }

  /** What was saved last, after `round` rounds, of layers [first, end). */
  entries([first, end]: readonly [number, number], round: number): readonly SavedEntry[] {
    const { state, round: savedRound } = this.#saved;
    const { state: initial } = this.#subject;
    assert(savedRound === round, `the state of round ${savedRound} is at hand, not that of ${round}`);
    const own = this.#subject.sequence.layers.slice(first, end);
    const parameters = new Set(own.flatMap((layer) => layer.parameters));
    const named = (role: StateRole, names: Iterable<string>): SavedEntry[] =>
      [...names].flatMap((name) => {
        const value = state[role].get(name) ?? (role === 'parameter' ? initial.parameter.get(name) : undefined);
        return value === undefined ? [] : [{ role, name, value }];
      });
    return [
      ...named('parameter', parameters),
      ...named(
        'buffer',
        own.flatMap((layer) => layer.buffers),
      ),
      ...named(
        'optimizer',
        [...state.optimizer.keys()].filter((name) => parameters.has(optimizedParameter(name))),
      ),
    ];
  }
}

/** The error for a piece of a snapshot that nobody has asked for. */
export function notAsked(device: string, { role, name }: ToCoordinator['state']): ProtocolError {
  return new ProtocolError(`${device} sent the ${role} ${name}, which it was not asked for.`);
}

/** What of layers [first, end) a snapshot holds: frozen parameters stay as they were at the start. */
function namesOf(
  { layers }: LayerSequence,
  [first, end]: readonly [number, number],
  frozen: readonly string[],
): ReadonlySet<string> {
  const names = new Set(layers.slice(first, end).flatMap(({ parameters, buffers }) => [...parameters, ...buffers]));
  for (const name of frozen) names.delete(name);
  return names;
}

function emptySnapshot(epoch: number, round: number): Snapshot {
  return { epoch, round, state: { parameter: new Map(), buffer: new Map(), optimizer: new Map() } };
}
