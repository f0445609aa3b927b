// What a recurrent cell hands from one step of a sequence to the next (AsyncFGD, App. G.3): its states and their
// tangents. Time steps are micro-batches; a round begins with zeros. Only the last step's are there.

import { defined } from '../../assert.ts';
import { tangentName } from '../../autodiff/forward-mode.ts';
import type { Engine, Value } from '../../engine/engine.ts';
import { allocate, elementCount, wrap } from '../../graph/tensor.ts';
import type { StageOptions } from './stage-graphs.ts';

type Values = Record<string, Value>;

interface CarriedValue {
  /** The inputs of a pass, and what the pass before it gave. */
  readonly input: string;
  readonly output: string;
  readonly shape: readonly number[];
}

export class CarriedStates {
  readonly #engine: Engine;
  readonly #carried: readonly CarriedValue[];
  #values: Values = {};

  /** `tangentCount`: tangents that go along with each state. */
  constructor(
    engine: Engine,
    { sequence, layers, sampleCount }: Pick<StageOptions, 'sequence' | 'layers' | 'sampleCount'>,
    tangentCount: number,
  ) {
    this.#engine = engine;
    const states = sequence.layers.slice(...layers).flatMap((layer) => layer.states ?? []);
    this.#carried = states.flatMap(({ input, output }) => {
      const info = defined(
        sequence.graph.inputs.find(({ name }) => name === input),
        input,
      );
      const shape = info.shape.map((size) => (typeof size === 'number' ? size : sampleCount));
      const tangents = Array.from({ length: tangentCount }, (_, index) => ({
        ...{ input: tangentName(input, index), output: tangentName(output, index), shape },
      }));
      return [{ input, output, shape }, ...tangents];
    });
  }

  /** What the pass of a step takes; it stays this object's. `isFirst`: of the first step of a sequence. */
  of(isFirst = false): Readonly<Values> {
    if (isFirst) this.release();
    for (const { input, shape } of this.#carried)
      this.#values[input] ??= this.#engine.upload(
        wrap('float32', shape, allocate('float32', elementCount(shape)) as Float32Array),
      );
    return this.#values;
  }

  /** Takes what a pass gave for the next one: these results are this object's from here on. */
  keep(results: Readonly<Values>): void {
    this.release();
    for (const { input, output } of this.#carried) {
      const value = results[output];
      // Nothing moves what has no tangent.
      if (value !== undefined) this.#values[input] = value;
    }
  }

  /** Whether a result is kept. */
  has(output: string): boolean {
    return this.#carried.some((carried) => carried.output === output);
  }

  release(): void {
    for (const value of Object.values(this.#values)) this.#engine.release(value);
    this.#values = {};
  }
}
