// The state of a model by layers: which tensors belong to which layer, and in which shape. A worker checks all state
// that comes from outside against it.

import { defined } from '../../assert.ts';
import { ProtocolError } from '../../errors.ts';
import type { LayerSequence } from '../../graph/layers.ts';
import { elementCount, sameShape, type Tensor } from '../../graph/tensor.ts';
import type { StateEntry } from '../device/stage-state.ts';
import type { StateRole } from '../protocol/messages.ts';
import { optimizedParameter } from '../protocol/run-state.ts';

/** A half-open range of layers. */
export type LayerRange = readonly [first: number, end: number];

interface Place {
  readonly role: 'parameter' | 'buffer';
  readonly layer: number;
  readonly shape: readonly number[];
}

/** Kinds of optimizer state that a parameter may have: Adam has two. */
const maxOptimizerKinds = 3;

/** The layers and shapes of a model's state. */
export class Catalog {
  readonly #layers: LayerSequence['layers'];
  readonly #places = new Map<string, Place>();
  readonly #frozen: ReadonlySet<string>;

  /** `frozen`: parameters that are not trained. */
  constructor({ graph, layers }: LayerSequence, frozen: readonly string[] = []) {
    this.#layers = layers;
    this.#frozen = new Set(frozen);
    for (const [layer, { parameters, buffers }] of layers.entries()) {
      for (const [role, names] of [
        ['parameter', parameters],
        ['buffer', buffers],
      ] as const) {
        for (const name of names)
          this.#places.set(name, { role, layer, shape: defined(graph.initializers.get(name), name).shape });
      }
    }
  }

  /** The parameters and buffers of layers [first, end). */
  names([first, end]: LayerRange): ReadonlySet<string> {
    return new Set(this.#layers.slice(first, end).flatMap(({ parameters, buffers }) => [...parameters, ...buffers]));
  }

  /** Those of layers [first, end) that training changes: all but frozen parameters. */
  changing(range: LayerRange): ReadonlySet<string> {
    return new Set([...this.names(range)].filter((name) => !this.#frozen.has(name)));
  }

  /** The frozen parameters of layers [first, end): as the coordinator has them, in every version. */
  frozen(range: LayerRange): ReadonlySet<string> {
    return new Set([...this.names(range)].filter((name) => this.#frozen.has(name)));
  }

  /** The most bytes that the state of layers [first, end) takes, optimizer state included. */
  stateBytes(range: LayerRange): number {
    let bytes = 0;
    for (const name of this.names(range)) {
      const { role, shape } = defined(this.#places.get(name), name);
      bytes += 4 * elementCount(shape) * (role === 'parameter' ? 1 + maxOptimizerKinds : 1);
    }
    return bytes;
  }

  /**
   * The layer of a piece of state that came from `sender`. Throws ProtocolError if the model has none of this name and
   * shape.
   */
  layerOf(role: StateRole, name: string, value: Tensor | undefined, sender: string): number {
    const place = this.#places.get(role === 'optimizer' ? optimizedParameter(name) : name);
    if (place === undefined || place.role !== (role === 'optimizer' ? 'parameter' : role))
      throw new ProtocolError(`${sender} sent the ${role} ${name}, which the model does not have.`);
    if (value?.type !== 'float32' || !sameShape(value.shape, place.shape)) {
      const found = value === undefined ? 'without its value' : `as ${value.type}[${value.shape}]`;
      throw new ProtocolError(`${sender} sent the ${role} ${name} ${found}, not as float32[${place.shape}].`);
    }
    return place.layer;
  }
}

/** The key of a piece of state. */
export function entryKey({ role, name }: Pick<StateEntry, 'role' | 'name'>): string {
  return `${role}/${name}`;
}
