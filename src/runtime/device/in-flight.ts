// The micro-batches whose forward pass is queued and whose backward pass is not, and what each keeps for it.

import { defined } from '../../assert.ts';
import type { Executable, Value } from '../../engine/engine.ts';
import type { StageState } from './stage-state.ts';

type Values = Record<string, Value>;

/** Values by micro-batch. They may be the state's, too: running statistics that a backward pass reads. */
export class InFlight {
  readonly #state: Pick<StageState, 'release'>;
  readonly #kept = new Map<number, Values>();

  constructor(state: Pick<StageState, 'release'>) {
    this.#state = state;
  }

  /** A micro-batch begins. Takes the values over. */
  begin(microBatch: number, values: Values): void {
    this.#kept.set(microBatch, values);
  }

  /** What it keeps; more may be put there. */
  of(microBatch: number): Values {
    return defined(this.#kept.get(microBatch), `micro-batch ${microBatch}`);
  }

  /** Its backward pass, or the rest of it, takes what is kept: the caller's from here on. */
  end(microBatch: number): Values {
    const values = this.of(microBatch);
    this.#kept.delete(microBatch);
    return values;
  }

  /** Lets go of what none of the graphs that come reads. */
  keepFor(microBatch: number, graphs: readonly (Executable | undefined)[]): void {
    const values = this.of(microBatch);
    const read = new Set(graphs.flatMap((graph) => graph?.inputs ?? []));
    for (const [name, value] of Object.entries(values)) {
      if (read.has(name)) continue;
      delete values[name];
      this.#state.release(value);
    }
  }

  /** Forgets all micro-batches. */
  clear(): void {
    for (const values of this.#kept.values()) for (const value of Object.values(values)) this.#state.release(value);
    this.#kept.clear();
  }
}
