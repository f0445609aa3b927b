// What every stage that only infers is: it has no loss, no gradients and no updates, and every version of its state is
// the one that was loaded.

import type { Engine } from '../../engine/engine.ts';
import type { Tensor } from '../../graph/tensor.ts';
import { Residuals } from './codec.ts';
import type { RoundTotals } from './round-sums.ts';
import type { OwnGradients } from './stage.ts';

/** A stage whose weights stay. A call of what trains is a mistake of ours. */
export abstract class ForwardOnly {
  /** The last stage of a pipeline that trains is another thing than the others; one that infers is not. */
  readonly isLast = false;
  readonly statisticCount = 0;
  readonly residuals: Residuals = new Residuals();
  readonly #engine: Pick<Engine, 'busyMs'>;
  readonly #versions = new Set<number>();
  #takenMs: number;

  /** `engine`: what computes. */
  constructor(engine: Pick<Engine, 'busyMs'>) {
    this.#engine = engine;
    this.#takenMs = engine.busyMs();
  }

  get versions(): readonly number[] {
    return [...this.#versions].sort((a, b) => a - b);
  }

  keepVersion(round: number): void {
    this.#versions.add(round);
  }

  dropVersion(round: number): void {
    this.#versions.delete(round);
  }

  beginRound(round: number): void {
    this.#versions.add(round);
  }

  beginStream(_first: number): void {}

  returnTo(_round: number): void {}

  takeBusyMs(): number {
    const beforeMs = this.#takenMs;
    this.#takenMs = this.#engine.busyMs();
    return this.#takenMs - beforeMs;
  }

  finishRound(): Promise<RoundTotals> {
    return neverTrains();
  }

  update(): void {
    neverTrains();
  }

  backward(): Promise<readonly Tensor[]> {
    return neverTrains();
  }

  backwardInput(): Promise<readonly Tensor[]> {
    return neverTrains();
  }

  backwardWeight(): void {
    neverTrains();
  }

  takeGradients(): Promise<OwnGradients> {
    return neverTrains();
  }

  putGradients(): void {
    neverTrains();
  }
}

function neverTrains(): never {
  throw new Error('a stage that infers is asked to train');
}
