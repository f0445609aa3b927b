// The micro-batches whose forward pass is queued and whose backward pass is not, and what each keeps for it.

import { defined } from '../../assert.ts';
import type { Executable, Value } from '../../engine/engine.ts';
import { keyOf, type MicroBatchId, type RoundRange } from './pieces.ts';
import type { StageState } from './stage-state.ts';
import type { Weights, WeightVersions } from './weight-versions.ts';

type Values = Record<string, Value>;

interface Kept {
  readonly id: MicroBatchId;
  readonly values: Values;
  readonly weights: Weights;
}

/** Values and weights by micro-batch. The values may be the state's, too: running statistics that a backward reads. */
export class InFlight {
  readonly #state: Pick<StageState, 'release'>;
  readonly #weights: Pick<WeightVersions, 'release'>;
  readonly #kept = new Map<string, Kept>();

  constructor(state: Pick<StageState, 'release'>, weights: Pick<WeightVersions, 'release'>) {
    this.#state = state;
    this.#weights = weights;
  }

  /** A micro-batch begins, with what it keeps and the weights that it has read, held. Takes both over. */
  begin(id: MicroBatchId, values: Values, weights: Weights): void {
    this.#kept.set(keyOf(id), { id, values, weights });
  }

  /** What it keeps; more may be put there. */
  of(id: MicroBatchId): Values {
    return this.#of(id).values;
  }

  /** The weights of all its passes. */
  weightsOf(id: MicroBatchId): Weights {
    return this.#of(id).weights;
  }

  #of(id: MicroBatchId): Kept {
    return defined(this.#kept.get(keyOf(id)), `micro-batch ${id.index}`);
  }

  /** All of its passes are queued: what it keeps and held goes. */
  end(id: MicroBatchId): void {
    const kept = this.#of(id);
    this.#kept.delete(keyOf(id));
    this.#release(kept);
  }

  #release({ values, weights }: Kept): void {
    for (const value of Object.values(values)) this.#state.release(value);
    this.#weights.release(weights);
  }

  /** Lets go of what none of the graphs that come reads. */
  keepFor(id: MicroBatchId, graphs: readonly (Executable | undefined)[]): void {
    const values = this.of(id);
    const read = new Set(graphs.flatMap((graph) => graph?.inputs ?? []));
    for (const [name, value] of Object.entries(values)) {
      if (read.has(name)) continue;
      delete values[name];
      this.#state.release(value);
    }
  }

  /** Forgets all micro-batches but those of rounds [first, end). */
  clear([first, end]: RoundRange = [0, 0]): void {
    for (const [key, kept] of this.#kept) {
      if (kept.id.round >= first && kept.id.round < end) continue;
      this.#kept.delete(key);
      this.#release(kept);
    }
  }
}
